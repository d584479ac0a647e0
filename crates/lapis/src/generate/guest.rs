//! The guest library: one stub per function of the API.

use super::callback;
use super::expression::Context;
use super::{support, types};
use crate::lower::*;
use crate::model::*;
use proc_macro2::{Ident, Literal, TokenStream};
use quote::{format_ident, quote};

/// The whole crate.
pub fn library(model: &Model, program: &Program, spec_hash: u64) -> TokenStream {
    let support = support::module();
    let structs = types::struct_definitions(model);
    let utilities = types::utility_declarations(model, Side::Server);
    let descriptor = descriptor(model, program, spec_hash);
    let exports = super::glue::guest_exports();
    let codes = invalid_codes(model);
    let tables = model.tables.iter().map(|t| table(model, t));
    let lookup = function_lookup(model);
    let callbacks = program.callbacks.iter().enumerate().map(|(k, c)| callback::invoker(model, k, c));
    let stubs = model.functions.iter().zip(&program.functions).enumerate();
    let stubs = stubs.map(|(id, (function, lowered))| Stub { model, function, lowered, id: id as u32 }.print());
    quote! {
        #![allow(warnings, clippy::all, unsafe_op_in_unsafe_fn)]
        use aviary_guest::{Api, ApiDescriptor, HandleType, Incoming, Role, Status};
        #support
        #structs
        #utilities
        #descriptor
        #exports
        #codes
        #(#tables)*
        #lookup
        #(#callbacks)*
        #(#stubs)*
    }
}

fn descriptor(model: &Model, program: &Program, spec_hash: u64) -> TokenStream {
    let (name, version) = (&model.api.name, &model.api.version);
    let functions = model.functions.iter().map(|f| &f.name);
    let metadata_size = types::size(model.metadata_size);
    let boxes = model.handle_types.iter().enumerate().filter_map(|(i, h)| {
        let value = Context::new(model, Side::Guest).exact(h.boxed.as_ref()?);
        let name = format_ident!("boxed_{}", i);
        Some(quote!(unsafe fn #name() -> usize { unsafe { (#value) as usize } }))
    });
    let handle_types = model.handle_types.iter().enumerate().map(|(i, h)| {
        let (name, size, function) = (&h.name, types::size(h.size), format_ident!("boxed_{}", i));
        let boxed = if h.boxed.is_some() { quote!(Some(#function)) } else { quote!(None) };
        quote!(HandleType { name: #name, size: #size, boxed: #boxed })
    });
    let callbacks = (0..program.callbacks.len()).map(|k| format_ident!("invoke_{}", k));
    quote! {
        #(#boxes)*
        static DESCRIPTOR: ApiDescriptor = ApiDescriptor {
            name: #name,
            version: #version,
            spec_hash: #spec_hash,
            functions: &[#(#functions),*],
            handle_types: &[#(#handle_types),*],
            callbacks: &[#(#callbacks),*],
            metadata_size: #metadata_size,
        };
        static API: Api = Api::new(&DESCRIPTOR);
    }
}

/// The error code for a handle of a given type that does not exist.
fn invalid_codes(model: &Model) -> TokenStream {
    let cx = Context::new(model, Side::Guest);
    let arms = model.handle_types.iter().enumerate().filter_map(|(i, h)| {
        let (i, code) = (i as u32, cx.exact(h.invalid.as_ref()?));
        Some(quote!(#i => #code,))
    });
    let default = model.error.as_ref().and_then(|e| e.failure.as_ref()).map_or(quote!(0i128), |e| cx.exact(e));
    quote!(fn invalid_handle(ty: u32) -> i128 { match ty { #(#arms)* _ => #default } })
}

fn table(model: &Model, table: &Table) -> TokenStream {
    let function = format_ident!("table_{}", table.name);
    let words = types::size(table.size.div_ceil(8));
    let members = table.members.iter().filter_map(|m| {
        let stub = stub_name(&model.functions[m.function?]);
        let slot = types::size(m.offset / 8);
        Some(quote!(table[#slot] = #stub as *const () as usize;))
    });
    quote! {
        fn #function() -> usize {
            static TABLE: std::sync::OnceLock<[usize; #words]> = std::sync::OnceLock::new();
            TABLE.get_or_init(|| {
                let mut table = [0usize; #words];
                #(#members)*
                table
            }).as_ptr() as usize
        }
    }
}

fn function_lookup(model: &Model) -> TokenStream {
    let known = model.functions.iter().filter(|f| f.member_of.is_none() && f.support != Support::Unsupported);
    let arms = known.map(|f| {
        let (name, stub) = (Literal::byte_string(f.name.as_bytes()), stub_name(f));
        quote!(#name => #stub as *const () as usize,)
    });
    quote! {
        unsafe fn function_by_name(name: usize) -> usize {
            if name == 0 {
                return 0;
            }
            match unsafe { std::ffi::CStr::from_ptr(name as *const std::ffi::c_char) }.to_bytes() {
                #(#arms)*
                _ => 0,
            }
        }
    }
}

/// The stub's symbol: the function's own name, or a private one for table members.
pub fn stub_name(function: &Function) -> Ident {
    match &function.member_of {
        None => format_ident!("{}", function.name),
        Some(_) => format_ident!("member_{}", function.name.replace('.', "_")),
    }
}

struct Stub<'a> {
    model: &'a Model,
    function: &'a Function,
    lowered: &'a Lowered,
    id: u32,
}

/// The four ways in which a call can fail before it has an answer of its own.
#[derive(Clone, Copy)]
enum Code {
    Success,
    Failure,
    Unsupported,
    Lost,
}

impl Stub<'_> {
    fn print(&self) -> TokenStream {
        let name = stub_name(self.function);
        let inner = format_ident!("stub_{}", self.id);
        let parameters = types::parameter_list(&self.function.signature);
        let arguments = types::argument_list(&self.function.signature);
        let result = types::rust(&self.function.signature.result);
        let export = self.function.member_of.is_none().then(|| quote!(#[unsafe(no_mangle)]));
        let fail = self.fail_function();
        let fail_name = format_ident!("fail_{}", self.id);
        let lost = self.code(Code::Lost);
        let body = self.body();
        quote! {
            #fail
            unsafe fn #inner(#parameters) -> #result { #body }
            #export
            pub unsafe extern "C" fn #name(#parameters) -> #result {
                aviary_guest::guard(
                    move || unsafe { #inner(#arguments) },
                    move || unsafe { #fail_name(#lost, #arguments) },
                )
            }
        }
    }

    fn cx(&self) -> Context<'_> {
        Context::new(self.model, Side::Guest)
    }

    fn code(&self, code: Code) -> TokenStream {
        let f = self.function;
        let own = match code {
            Code::Success => &f.success,
            Code::Failure => &f.failure,
            Code::Unsupported => &f.unsupported,
            Code::Lost => &f.lost,
        };
        let shared = self.model.error.as_ref().filter(|_| f.error != ErrorPlace::Nowhere);
        let shared = shared.and_then(|e| match code {
            Code::Success => Some(&e.success),
            Code::Failure => e.failure.as_ref(),
            Code::Unsupported => e.unsupported.as_ref().or(e.failure.as_ref()),
            Code::Lost => e.lost.as_ref().or(e.failure.as_ref()),
        });
        own.as_ref().or(shared).map_or(quote!(0i128), |e| self.cx().exact(e))
    }

    /// A function that turns an error code into what this function returns.
    fn fail_function(&self) -> TokenStream {
        let name = format_ident!("fail_{}", self.id);
        let parameters = types::parameter_list(&self.function.signature);
        let ty = &self.function.signature.result;
        let result = types::rust(ty);
        let body = match self.function.error {
            ErrorPlace::Return | ErrorPlace::Nowhere => types::from_exact(quote!(code), ty),
            ErrorPlace::Parameter(p) => {
                let (a, zero) = (types::argument(p), types::zero(ty));
                let bits = self.model.error.as_ref().map_or(quote!(u32), |e| types::bits(&e.ty));
                quote! {
                    if #a != 0 {
                        unsafe { support::write::<#bits>(#a, code as #bits) };
                    }
                    #zero
                }
            }
        };
        quote!(#[cold] unsafe fn #name(code: i128, #parameters) -> #result { #body })
    }

    fn fail(&self, code: TokenStream) -> TokenStream {
        let name = format_ident!("fail_{}", self.id);
        let arguments = types::argument_list(&self.function.signature);
        quote!(#name(#code, #arguments))
    }

    fn body(&self) -> TokenStream {
        let id = self.id;
        match &self.function.support {
            Support::Unsupported => {
                let fail = self.fail(self.code(Code::Unsupported));
                quote!(API.unsupported(#id); #fail)
            }
            Support::Local(e) => self.cx().typed(e, &self.function.signature.result),
            Support::Remote => self.remote(),
        }
    }

    fn remote(&self) -> TokenStream {
        let id = self.id;
        let lost = self.fail(self.code(Code::Lost));
        let contextual = self.function.contextual.iter().enumerate().map(|(i, c)| {
            let (name, value) = (format_ident!("x{}", i), self.cx().exact(&c.value));
            quote!(let #name = (#value) as usize;)
        });
        let request = self.lowered.arguments.iter().map(|i| self.request(i, self.cx()));
        let request = quote!(#(#request)*);
        let registered = self.registered();
        let asynchronous = self.asynchronous();
        let sites = self.site_variables();
        let synchronous = match &self.function.asynchronous {
            Some(e) if types::constant(e).is_some_and(|v| v != 0) => quote!(),
            _ => self.synchronous(),
        };
        quote! {
            #(#contextual)*
            #sites
            let Ok(mut call) = API.call(#id) else { return #lost };
            #request
            #registered
            #asynchronous
            #synchronous
        }
    }

    fn site_variables(&self) -> TokenStream {
        let mut tokens = TokenStream::new();
        for_each_site(&self.lowered.arguments, &mut |site| {
            if !site.nested {
                let name = site_name(site);
                tokens.extend(quote!(let mut #name = 0u64;));
            }
        });
        tokens.extend(quote!(let mut trail: Vec<u64> = Vec::new(); let mut trail_at = 0usize;));
        tokens
    }

    fn registered(&self) -> TokenStream {
        let statements = self.function.registered.iter().map(|r| {
            let cx = self.cx();
            let (key, buffer, count) = (cx.exact(&r.key), cx.exact(&r.buffer), cx.exact(&r.count));
            let stride = types::size(r.buffer.ty.pointee().map_or(1, Type::size));
            let registry = r.registry as u32;
            let statement = quote! {
                if let Some(count) = support::count(#count, #stride) {
                    API.register_buf(#registry, (#key) as u64, (#buffer) as usize as *mut u8, count * #stride);
                }
            };
            guarded(cx, &r.condition, statement)
        });
        quote!(#(#statements)*)
    }

    fn asynchronous(&self) -> TokenStream {
        let Some(condition) = &self.function.asynchronous else { return quote!() };
        let lost = self.fail(self.code(Code::Lost));
        let success = self.fail(self.code(Code::Success));
        let effects = self.effects();
        let send = quote! {
            if call.send_async().is_err() {
                return #lost;
            }
            #effects
            return #success;
        };
        if types::constant(condition).is_some_and(|v| v != 0) {
            return send;
        }
        let condition = self.cx().condition(condition);
        quote!(if #condition { #send })
    }

    fn synchronous(&self) -> TokenStream {
        let id = self.id;
        let lost = self.fail(self.code(Code::Lost));
        let unsupported = self.fail(self.code(Code::Unsupported));
        let refused = self.fail(self.code(Code::Failure));
        let failed = self.fail(quote!(value as i128));
        let invalid = match self.function.error {
            ErrorPlace::Nowhere => self.fail(self.code(Code::Failure)),
            _ => self.fail(quote!(invalid_handle(ty))),
        };
        let send = if self.function.cache { quote!(call.send_cached()) } else { quote!(call.send()) };
        let answer = self.answer();
        quote! {
            let Ok(mut reply) = #send else { return #lost };
            match reply.status() {
                Status::Ok => {}
                Status::Unsupported => {
                    API.unsupported(#id);
                    return #unsupported;
                }
                Status::InvalidHandle(ty) => return #invalid,
                Status::Refused => return #refused,
                Status::Failed(value) => return #failed,
                Status::Lost => return #lost,
            }
            #answer
        }
    }

    /// Everything after a reply whose status is `Ok`.
    fn answer(&self) -> TokenStream {
        let cx = self.cx();
        let error = match self.function.error {
            ErrorPlace::Parameter(_) => quote!(let code = reply.word() as i64 as i128;),
            _ => quote!(),
        };
        let result = self.result(&self.lowered.result, cx);
        let ok = self.succeeded();
        let outputs = self.lowered.arguments.iter().map(|i| self.reply(i, cx));
        let deferred = match self.function.error {
            ErrorPlace::Nowhere => quote!(),
            _ => {
                let fail = self.fail(quote!(value as i128));
                quote!(if let Some(value) = reply.deferred() { return #fail; })
            }
        };
        let effects = self.effects();
        let remember = self.function.cache.then(|| quote!(reply.remember();));
        quote! {
            #error
            let ret = #result;
            let ok: bool = #ok;
            #(#outputs)*
            if ok {
                #remember
                #effects
                #deferred
            }
            ret
        }
    }

    fn succeeded(&self) -> TokenStream {
        let success = self.code(Code::Success);
        match self.function.error {
            ErrorPlace::Return => quote!(ret as i128 == #success),
            ErrorPlace::Parameter(_) => quote!(code == #success),
            ErrorPlace::Nowhere if returns_object(&self.lowered.result) => quote!(ret != 0),
            ErrorPlace::Nowhere => quote!(true),
        }
    }

    /// What a successful call changes in the guest.
    fn effects(&self) -> TokenStream {
        let cx = self.cx();
        let handles = self.lowered.arguments.iter().filter(|i| i.has_handle_effects());
        let handles = handles.map(|i| self.handle_effects(i, cx));
        let after = self.function.after.iter().map(|g| {
            let value = cx.exact(&g.value);
            guarded(cx, &g.condition, quote!(let _ = #value;))
        });
        quote!(#(#after)* #(#handles)*)
    }

    fn handle_effects(&self, instruction: &Instruction, cx: Context) -> TokenStream {
        match &instruction.operation {
            Operation::Handle(h) => {
                let (ty, value) = (h.handle as u32, read(instruction));
                let retain = h.retain.then(|| quote!(API.retain(#ty, #value);));
                let all = h.deallocate;
                let release = (h.release || all).then(|| quote!(API.release(#ty, #value, #all);));
                quote!(#retain #release)
            }
            Operation::Elements(e) => {
                let (pointer, count) = (read(instruction), site_name(e.extent.site));
                let inner = e.element.iter().map(|i| self.handle_effects(i, cx.deeper()));
                element_loop(instruction.at, quote!(#pointer as usize), quote!(#count), e.extent.stride, quote!(#(#inner)*))
            }
            Operation::Choice { site, then, otherwise, .. } => {
                let value = site_name(*site);
                let then = then.iter().map(|i| self.handle_effects(i, cx));
                let otherwise = otherwise.iter().map(|i| self.handle_effects(i, cx));
                quote!(if #value != 0 { #(#then)* } else { #(#otherwise)* })
            }
            _ => quote!(),
        }
    }

    /// What goes into the request for one value.
    fn request(&self, instruction: &Instruction, cx: Context) -> TokenStream {
        let value = || read(instruction);
        match &instruction.operation {
            Operation::Scalar => self.request_scalar(instruction),
            Operation::Struct { fields } => {
                let (prelude, address) = struct_address(instruction);
                let size = types::size(instruction.ty.size());
                let fields = fields.iter().map(|f| self.request(f, cx));
                quote!({ #prelude call.raw(#address as *const u8, #size); #(#fields)* })
            }
            Operation::Handle(h) => {
                let (ty, value) = (h.handle as u32, value());
                quote!(call.handle(#ty, #value);)
            }
            Operation::Text => {
                let value = value();
                quote!(call.string(#value as usize as *const std::ffi::c_char);)
            }
            Operation::Bytes(bytes) => self.request_bytes(instruction, bytes, cx),
            Operation::Elements(elements) => self.request_elements(instruction, elements, cx),
            Operation::Callback { kind, once, userdata } => {
                let (value, kind) = (value(), *kind as u32);
                let userdata = userdata.map_or(quote!(0usize), |u| {
                    let a = types::argument(u);
                    quote!(#a)
                });
                quote!(call.callback(#value as usize, #kind, #userdata, #once);)
            }
            Operation::Zerocopy { .. } => {
                let value = value();
                quote!(call.zerocopy(#value as usize as *const u8);)
            }
            Operation::Unmap => {
                let value = value();
                quote!(call.unmap(#value as usize as *const u8);)
            }
            Operation::Choice { site, condition, then, otherwise } => {
                let condition = cx.condition(condition);
                let (name, keep) = keep(*site, instruction);
                let carry = site.carried.then(|| quote!(call.word(#name);));
                let then = then.iter().map(|i| self.request(i, cx));
                let otherwise = otherwise.iter().map(|i| self.request(i, cx));
                quote! {
                    let #name = (#condition) as u64;
                    #keep
                    #carry
                    if #name != 0 { #(#then)* } else { #(#otherwise)* }
                }
            }
            Operation::Userdata
            | Operation::Mapped { .. }
            | Operation::FunctionPointer { .. }
            | Operation::Table(_)
            | Operation::Nothing => quote!(),
        }
    }

    fn request_scalar(&self, instruction: &Instruction) -> TokenStream {
        if instruction.ty.size() <= 8 && !types::is_struct(&instruction.ty) {
            let value = read(instruction);
            return quote!(call.word(#value););
        }
        let (prelude, address) = struct_address(instruction);
        let size = types::size(instruction.ty.size());
        quote!({ #prelude call.raw(#address as *const u8, #size); })
    }

    /// Binds the element count to the site's name and sends it if the server cannot know it.
    fn request_count(&self, instruction: &Instruction, extent: &Extent, cx: Context) -> TokenStream {
        let stride = types::size(extent.stride);
        let value = match &extent.count {
            Count::One => quote!(1u64),
            Count::Elements(e) => {
                let (count, fail) = (cx.exact(e), self.fail(self.code(Code::Failure)));
                quote!(match support::count(#count, #stride) { Some(n) => n as u64, None => return #fail })
            }
            Count::Terminated { step } => {
                let (pointer, step) = (read(instruction), types::size(*step));
                quote!(support::terminated(#pointer as usize, #stride, #step) as u64)
            }
        };
        let (name, keep) = keep(extent.site, instruction);
        let carry = extent.site.carried.then(|| quote!(call.word(#name);));
        quote!(let #name = #value; #keep #carry)
    }

    fn request_bytes(&self, instruction: &Instruction, bytes: &Bytes, cx: Context) -> TokenStream {
        let count = self.request_count(instruction, &bytes.extent, cx);
        let (pointer, stride) = (read(instruction), types::size(bytes.extent.stride));
        let (name, _) = keep(bytes.extent.site, instruction);
        let p = quote!(#pointer as usize as *mut u8);
        let n = quote!(#name as usize * #stride);
        let put = match &bytes.mode {
            Mode::Copy { input: true, output: true } => quote!(call.buffer_inout(#p, #n);),
            Mode::Copy { input: false, output: true } => quote!(call.buffer_out(#p, #n);),
            Mode::Copy { .. } => quote!(call.buffer_in(#p, #n);),
            Mode::Until { input, output, .. } => quote!(call.buffer_until(#p, #n, #input, #output);),
            Mode::Shadow { input } => quote!(call.shadow(#p, #n, #input, true);),
            Mode::ShadowBack { end } => quote!(call.shadow_copy_back(#p, #n, #end);),
            Mode::Room => quote!(call.array(#p, #n);),
        };
        quote!(#count #put)
    }

    fn request_elements(&self, instruction: &Instruction, elements: &Elements, cx: Context) -> TokenStream {
        let count = self.request_count(instruction, &elements.extent, cx);
        let pointer = read(instruction);
        let (name, _) = keep(elements.extent.site, instruction);
        let put = quote!(call.array(#pointer as usize as *const u8, #name as usize));
        if !elements.input {
            return quote!(#count #put;);
        }
        let inner = elements.element.iter().map(|i| self.request(i, cx.deeper()));
        let body = element_loop(
            instruction.at,
            quote!(#pointer as usize),
            quote!(#name),
            elements.extent.stride,
            quote!(#(#inner)*),
        );
        quote!(#count if #put { #body })
    }

    /// What the guest takes out of the reply for one argument.
    fn reply(&self, instruction: &Instruction, cx: Context) -> TokenStream {
        if !instruction.replies() {
            return quote!();
        }
        match &instruction.operation {
            Operation::Bytes(b) => match b.mode {
                Mode::Until { .. } => quote!(reply.until();),
                Mode::ShadowBack { .. } => quote!(),
                _ => quote!(reply.out();),
            },
            Operation::Elements(e) => self.reply_elements(instruction, e, cx),
            Operation::Struct { fields } => {
                let fields = fields.iter().map(|f| self.reply(f, cx));
                quote!(#(#fields)*)
            }
            Operation::Choice { site, then, otherwise, .. } => {
                let value = recall(*site);
                let then = then.iter().map(|i| self.reply(i, cx));
                let otherwise = otherwise.iter().map(|i| self.reply(i, cx));
                quote!(if #value != 0 { #(#then)* } else { #(#otherwise)* })
            }
            _ => quote!(),
        }
    }

    fn reply_elements(&self, instruction: &Instruction, elements: &Elements, cx: Context) -> TokenStream {
        let (pointer, count) = (read(instruction), recall(elements.extent.site));
        let inner: TokenStream = if elements.output {
            elements.element.iter().map(|i| self.reply_value(i, cx.deeper())).collect()
        } else {
            elements.element.iter().map(|i| self.reply(i, cx.deeper())).collect()
        };
        let limit = quote!(let count = #count;);
        let take = elements.output.then(|| quote!(let count = reply.count(count as usize);));
        let body =
            element_loop(instruction.at, quote!(#pointer as usize), quote!(count), elements.extent.stride, inner);
        quote!({ #limit if #pointer != 0 { #take #body } })
    }

    /// Takes an output element's own value out of the reply.
    fn reply_value(&self, instruction: &Instruction, cx: Context) -> TokenStream {
        let store = |value: TokenStream| write(instruction, value);
        match &instruction.operation {
            Operation::Handle(h) => {
                let (ty, role) = (h.handle as u32, role(h));
                let store = store(quote!(value));
                quote!(if let Some(value) = reply.handle(#ty, #role) { #store })
            }
            Operation::Text => store(quote!(reply.string(0) as usize as u64)),
            Operation::Bytes(_) => store(quote!(reply.owned() as usize as u64)),
            Operation::Scalar if instruction.ty.size() <= 8 && !types::is_struct(&instruction.ty) => {
                store(quote!(reply.word()))
            }
            Operation::Scalar => {
                let (_, address) = struct_address(instruction);
                let size = types::size(instruction.ty.size());
                quote!(reply.raw(#address as *mut u8, #size);)
            }
            Operation::Struct { fields } => {
                let (prelude, address) = struct_address(instruction);
                let size = types::size(instruction.ty.size());
                // The application's own pointers stay where no translated value arrives.
                let saved = fields.iter().enumerate().map(|(i, f)| {
                    let (name, value) = (format_ident!("saved{}", i), read(f));
                    quote!(let #name = #value;)
                });
                let restored = fields.iter().enumerate().map(|(i, f)| {
                    let name = format_ident!("saved{}", i);
                    write(f, quote!(#name))
                });
                let fields = fields.iter().map(|f| self.reply_value(f, cx));
                quote!({ #prelude #(#saved)* reply.raw(#address as *mut u8, #size); #(#restored)* #(#fields)* })
            }
            Operation::Choice { condition, then, otherwise, .. } => {
                let condition = cx.condition(condition);
                let then = then.iter().map(|i| self.reply_value(i, cx));
                let otherwise = otherwise.iter().map(|i| self.reply_value(i, cx));
                quote!(if #condition { #(#then)* } else { #(#otherwise)* })
            }
            _ => quote!(),
        }
    }

    /// An expression for the returned value.
    fn result(&self, instruction: &Instruction, cx: Context) -> TokenStream {
        let ty = &self.function.signature.result;
        let rust = types::rust(ty);
        match &instruction.operation {
            Operation::Scalar if types::is_struct(ty) => {
                let size = types::size(ty.size());
                quote!({ let mut value: #rust = std::mem::zeroed(); reply.raw(&raw mut value as *mut u8, #size); value })
            }
            Operation::Struct { fields } => {
                let size = types::size(ty.size());
                let fields = fields.iter().map(|f| self.reply_value(f, cx));
                quote!({
                    let mut value: #rust = std::mem::zeroed();
                    let e0 = &raw mut value as usize;
                    reply.raw(e0 as *mut u8, #size);
                    #(#fields)*
                    value
                })
            }
            Operation::Handle(h) => {
                let (id, role) = (h.handle as u32, role(h));
                quote!((reply.handle(#id, #role).unwrap_or(0) as #rust))
            }
            Operation::Text => quote!((reply.string(0) as usize)),
            Operation::Bytes(_) => quote!((reply.owned() as usize)),
            Operation::Mapped { at, write, read, .. } => {
                let at = at.as_ref().map_or(quote!(0i128), |e| cx.exact(e));
                let write = write.as_ref().map_or(quote!(true), |e| cx.condition(e));
                let read = read.as_ref().map_or(quote!(true), |e| cx.condition(e));
                quote!((reply.mapped((#at) as usize as *mut u8, #read, #write) as usize))
            }
            Operation::FunctionPointer { name } => {
                let name = cx.exact(name);
                quote!((if reply.word() != 0 { function_by_name((#name) as usize) } else { 0usize }))
            }
            Operation::Table(t) => {
                let table = format_ident!("table_{}", self.model.tables[*t].name);
                quote!((if reply.word() != 0 { #table() } else { 0usize }))
            }
            Operation::Nothing => quote!(()),
            Operation::Choice { condition, then, otherwise, .. } => {
                let condition = cx.condition(condition);
                let then = then.iter().map(|i| self.result(i, cx));
                let otherwise = otherwise.iter().map(|i| self.result(i, cx));
                quote!(if #condition { #(#then)* } else { #(#otherwise)* })
            }
            _ => types::from_word(quote!(reply.word()), ty),
        }
    }
}

/// Whether a NULL result means failure when nothing else tells.
pub fn returns_object(result: &Instruction) -> bool {
    matches!(
        result.operation,
        Operation::Handle(_) | Operation::Mapped { .. } | Operation::FunctionPointer { .. } | Operation::Table(_)
    )
}

pub fn role(handle: &HandleUse) -> TokenStream {
    if handle.allocate { quote!(Role::Allocate) } else { quote!(Role::Borrow) }
}

pub fn guarded(cx: Context, condition: &Option<Expr>, body: TokenStream) -> TokenStream {
    match condition {
        None => body,
        Some(c) => {
            let c = cx.condition(c);
            quote!(if #c { #body })
        }
    }
}

pub fn site_name(site: Site) -> Ident {
    format_ident!("s{}", site.number)
}

/// The name to bind a site's value to, and how to remember it for the reply pass of `instruction`.
pub fn keep(site: Site, instruction: &Instruction) -> (Ident, TokenStream) {
    let name = site_name(site);
    if site.nested {
        // Only what the reply pass visits is in the queue, or the two would run apart.
        let visited = instruction.replies() && !matches!(instruction.operation, Operation::Bytes(_));
        let push = visited.then(|| quote!(trail.push(#name);));
        return (name.clone(), quote!(#push));
    }
    let local = format_ident!("v{}", site.number);
    (local.clone(), quote!(#name = #local;))
}

/// The remembered value of a site.
pub fn recall(site: Site) -> TokenStream {
    let name = site_name(site);
    if site.nested {
        return quote!({ trail_at += 1; trail.get(trail_at - 1).copied().unwrap_or(0) });
    }
    quote!(#name)
}

/// Calls `visit` for every site of a list of instructions.
pub fn for_each_site(instructions: &[Instruction], visit: &mut dyn FnMut(Site)) {
    for instruction in instructions {
        match &instruction.operation {
            Operation::Bytes(b) => visit(b.extent.site),
            Operation::Elements(e) => {
                visit(e.extent.site);
                for_each_site(&e.element, visit);
            }
            Operation::Struct { fields } => for_each_site(fields, visit),
            Operation::Choice { site, then, otherwise, .. } => {
                visit(*site);
                for_each_site(then, visit);
                for_each_site(otherwise, visit);
            }
            _ => {}
        }
    }
}

/// A loop over elements that binds `i{depth}` and `e{depth}`.
pub fn element_loop(at: Place, base: TokenStream, count: TokenStream, stride: usize, body: TokenStream) -> TokenStream {
    let depth = match at {
        Place::Element { depth, .. } => depth + 1,
        _ => 0,
    };
    let (index, element, stride) = (format_ident!("i{}", depth), format_ident!("e{}", depth), types::size(stride));
    quote! {
        for #index in 0..(#count) as usize {
            let #element = (#base) + #index * #stride;
            #body
        }
    }
}

/// The value at the instruction's place as a `u64` word.
pub fn read(instruction: &Instruction) -> TokenStream {
    match instruction.at {
        Place::Argument(i) => {
            let a = types::argument(i);
            types::to_word(quote!(#a), &instruction.ty)
        }
        Place::Contextual(i) => {
            let x = format_ident!("x{}", i);
            quote!(#x as u64)
        }
        Place::Result => quote!(ret as u64),
        Place::Element { depth, offset } => {
            let (e, offset, bits) = (format_ident!("e{}", depth), types::size(offset), types::bits(&instruction.ty));
            quote!(support::read::<#bits>(#e + #offset) as u64)
        }
    }
}

/// Stores a `u64` word at the instruction's place in an element.
pub fn write(instruction: &Instruction, value: TokenStream) -> TokenStream {
    match instruction.at {
        Place::Element { depth, offset } => {
            let (e, offset, bits) = (format_ident!("e{}", depth), types::size(offset), types::bits(&instruction.ty));
            quote!(support::write::<#bits>(#e + #offset, (#value) as #bits);)
        }
        _ => quote!(let _ = #value;),
    }
}

/// Address of a struct in memory; one passed by value becomes element `e0`.
pub fn struct_address(instruction: &Instruction) -> (TokenStream, TokenStream) {
    match instruction.at {
        Place::Argument(i) => {
            let a = types::argument(i);
            (quote!(let e0 = &raw const #a as usize;), quote!(e0))
        }
        Place::Element { depth, offset } => {
            let (e, offset) = (format_ident!("e{}", depth), types::size(offset));
            (quote!(), quote!((#e + #offset)))
        }
        _ => (quote!(let e0 = &raw const ret as usize;), quote!(e0)),
    }
}
