//! The API server module: one handler per function of the API.

use super::callback;
use super::expression::Context;
use super::guest::{element_loop, for_each_site, guarded, keep, read, recall, returns_object, role, site_name, struct_address, write};
use super::{support, types};
use crate::lower::*;
use crate::model::*;
use proc_macro2::{Literal, TokenStream};
use quote::{format_ident, quote};

/// Outputs up to this many bytes travel with the application's present content
/// and are copied back even when the call failed (docs/lapis.md, section 3).
const SMALL_OUTPUT: usize = 256;

/// The whole crate.
pub fn module(model: &Model, program: &Program, spec_hash: u64) -> TokenStream {
    let support = support::module();
    let structs = types::struct_definitions(model);
    let utilities = types::utility_declarations(model, Side::Guest);
    let descriptor = descriptor(model, program, spec_hash);
    let exports = super::glue::server_exports();
    let callbacks = program.callbacks.iter().enumerate().map(|(k, c)| callback::trampoline(model, k, c));
    let forwarders = model.functions.iter().filter(|f| f.member_of.is_none()).map(|f| forwarder(model, f));
    let handlers = model.functions.iter().zip(&program.functions).enumerate();
    let handlers = handlers.map(|(id, (function, lowered))| Handler { model, function, lowered, id: id as u32 }.print());
    quote! {
        #![allow(warnings, clippy::all, unsafe_op_in_unsafe_fn)]
        use aviary_server::{ApiDescriptor, Buffer, Call, FunctionInfo, HandleTypeInfo, Life, Outgoing, Reject, ResourceKind, Role};
        #support
        #structs
        #utilities
        #descriptor
        #exports
        #(#callbacks)*
        #(#forwarders)*
        #(#handlers)*
    }
}

fn descriptor(model: &Model, program: &Program, spec_hash: u64) -> TokenStream {
    let Api { name, version, soname } = &model.api;
    let functions = model.functions.iter().zip(&program.functions).enumerate().map(|(id, (f, lowered))| {
        let (name, handler, recorded) = (&f.name, format_ident!("handle_{}", id), lowered.recorded);
        quote!(FunctionInfo { name: #name, handler: #handler, replayable: #recorded })
    });
    let handle_types = model.handle_types.iter().map(|h| {
        let (name, size) = (&h.name, types::size(h.size));
        quote!(HandleTypeInfo { name: #name, size: #size })
    });
    let resources = model.resources.iter().map(|r| {
        let name = &r.name;
        let kind = match r.kind {
            crate::model::ResourceKind::Continuous => quote!(ResourceKind::Continuous),
            crate::model::ResourceKind::Instantaneous => quote!(ResourceKind::Instantaneous),
        };
        quote!((#name, #kind))
    });
    let metadata_size = types::size(model.metadata_size);
    let rejected = rejected(model);
    quote! {
        #rejected
        static DESCRIPTOR: ApiDescriptor = ApiDescriptor {
            name: #name,
            version: #version,
            spec_hash: #spec_hash,
            soname: #soname,
            functions: &[#(#functions),*],
            handle_types: &[#(#handle_types),*],
            resources: &[#(#resources),*],
            metadata_size: #metadata_size,
            rejected,
        };
        aviary_server::export_module!(DESCRIPTOR);
    }
}

/// The error value that an asynchronous call leaves behind when it is rejected.
fn rejected(model: &Model) -> TokenStream {
    let cx = Context::new(model, Side::Server);
    let error = model.error.as_ref();
    let failure = error.and_then(|e| e.failure.as_ref()).map_or(quote!(-1i128), |e| cx.exact(e));
    let unsupported = error.and_then(|e| e.unsupported.as_ref()).map_or(failure.clone(), |e| cx.exact(e));
    let invalid = model.handle_types.iter().enumerate().filter_map(|(i, h)| {
        let (i, code) = (i as u32, cx.exact(h.invalid.as_ref()?));
        Some(quote!(Reject::InvalidHandle(#i) => #code,))
    });
    quote! {
        fn rejected(_function: u32, reject: Reject) -> i64 {
            let code: i128 = match reject {
                #(#invalid)*
                Reject::Failed(value) => value as i128,
                Reject::Unsupported => #unsupported,
                _ => #failure,
            };
            code as i64
        }
    }
}

/// Lets utility code call the vendor's functions by their names.
fn forwarder(model: &Model, function: &Function) -> TokenStream {
    let name = format_ident!("{}", function.name);
    let symbol = Literal::byte_string(format!("{}\0", function.name).as_bytes());
    let parameters = types::parameter_list(&function.signature);
    let arguments = types::argument_list(&function.signature);
    let result = types::rust(&function.signature.result);
    let function_type = types::function_type(&function.signature);
    let missing = match (&function.error, model.error.as_ref().and_then(|e| e.unsupported.as_ref())) {
        (ErrorPlace::Return, Some(code)) => Context::new(model, Side::Server).typed(code, &function.signature.result),
        _ => types::zero(&function.signature.result),
    };
    quote! {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn #name(#parameters) -> #result {
            static ADDRESS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
            let mut address = ADDRESS.load(std::sync::atomic::Ordering::Relaxed);
            if address == 0 {
                address = unsafe { aviary_server::ffi::function(#symbol.as_ptr() as *const std::ffi::c_char) } as usize;
                ADDRESS.store(address, std::sync::atomic::Ordering::Relaxed);
            }
            if address == 0 {
                return #missing;
            }
            let function: #function_type = unsafe { std::mem::transmute(address) };
            unsafe { function(#arguments) }
        }
    }
}

struct Handler<'a> {
    model: &'a Model,
    function: &'a Function,
    lowered: &'a Lowered,
    id: u32,
}

impl Handler<'_> {
    fn print(&self) -> TokenStream {
        let name = format_ident!("handle_{}", self.id);
        let body = match self.function.support {
            Support::Remote => self.body(),
            _ => quote!(Err(Reject::Unsupported)),
        };
        quote!(unsafe fn #name(call: &mut Call) -> Result<(), Reject> { #body })
    }

    fn cx(&self) -> Context<'_> {
        Context::new(self.model, Side::Server)
    }

    fn body(&self) -> TokenStream {
        let cx = self.cx();
        let variables = self.variables();
        let request = self.lowered.arguments.iter().map(|i| self.request(i, cx));
        let admission = self.admission();
        let vendor = self.vendor_call();
        let error = self.error_code();
        let ok = self.succeeded();
        let error_word = match self.function.error {
            ErrorPlace::Parameter(_) => quote!(call.reply_word(code as u64);),
            _ => quote!(),
        };
        let result = self.result(&self.lowered.result, cx);
        let reply = self.lowered.arguments.iter().map(|i| self.reply(i, cx));
        let effects = self.effects();
        quote! {
            #variables
            #(#request)*
            #admission
            #vendor
            let code: i128 = #error;
            let ok: bool = #ok;
            #error_word
            #result
            #(#reply)*
            #effects
            call.finish(ok, code as i64);
            Ok(())
        }
    }

    fn variables(&self) -> TokenStream {
        let mut tokens = TokenStream::new();
        for (i, (_, ty)) in self.function.signature.parameters.iter().enumerate() {
            let (a, n, h) = (types::argument(i), format_ident!("n{}", i), format_ident!("h{}", i));
            let (rust, zero) = (types::rust(ty), types::zero(ty));
            tokens.extend(quote!(let mut #a: #rust = #zero; let mut #n = 0usize; let mut #h = false;));
        }
        for i in 0..self.function.contextual.len() {
            let x = format_ident!("x{}", i);
            tokens.extend(quote!(let mut #x = 0usize;));
        }
        for_each_site(&self.lowered.arguments, &mut |site| {
            if !site.nested {
                let name = site_name(site);
                tokens.extend(quote!(let mut #name = 0u64;));
            }
        });
        tokens.extend(quote!(let mut trail: Vec<u64> = Vec::new(); let mut trail_at = 0usize;));
        tokens
    }

    /// Checks and charges before the call.
    fn admission(&self) -> TokenStream {
        let cx = self.cx();
        let requirements = self.function.requirements.iter().map(|r| {
            let (holds, otherwise) = (cx.condition(&r.holds), cx.exact(&r.otherwise));
            guarded(cx, &r.condition, quote!(if !(#holds) { return Err(Reject::Failed((#otherwise) as i64)); }))
        });
        let charges = self.function.charges.iter().map(|c| {
            let (resource, amount) = (c.resource as u32, cx.exact(&c.amount));
            let amount = quote!((#amount).clamp(0, u64::MAX as i128) as u64);
            let charge = match c.kind {
                ChargeKind::Allocate => quote!(call.charge(#resource, #amount)?;),
                ChargeKind::Consume => quote!(call.consume(#resource, #amount)?;),
                ChargeKind::Deallocate => quote!(call.uncharge(#resource, #amount);),
            };
            guarded(cx, &c.condition, charge)
        });
        quote!(#(#requirements)* #(#charges)*)
    }

    fn vendor_call(&self) -> TokenStream {
        let id = self.id;
        let function_type = types::function_type(&self.function.signature);
        let arguments = types::argument_list(&self.function.signature);
        let address = match &self.function.address {
            None => quote!(call.vendor(#id)? as usize),
            Some(e) => {
                let value = self.cx().exact(e);
                quote!({
                    let address = (#value) as usize;
                    if address == 0 {
                        return Err(Reject::Unsupported);
                    }
                    address
                })
            }
        };
        quote! {
            let function: #function_type = std::mem::transmute(#address);
            call.begin_vendor();
            let ret = function(#arguments);
            call.end_vendor();
        }
    }

    fn error_code(&self) -> TokenStream {
        match self.function.error {
            ErrorPlace::Return => quote!(ret as i128),
            ErrorPlace::Parameter(p) => {
                let (a, n) = (types::argument(p), format_ident!("n{}", p));
                let size = types::size(self.model.error.as_ref().map_or(4, |e| e.ty.size()));
                quote!(support::load(#a, #n, 0, #size, true))
            }
            ErrorPlace::Nowhere => quote!(0i128),
        }
    }

    fn succeeded(&self) -> TokenStream {
        let own = self.function.success.as_ref();
        let success = own.or(self.model.error.as_ref().map(|e| &e.success)).map_or(quote!(0i128), |e| self.cx().exact(e));
        match self.function.error {
            ErrorPlace::Nowhere if returns_object(&self.lowered.result) => quote!(ret != 0),
            ErrorPlace::Nowhere => quote!(true),
            _ => quote!(code == #success),
        }
    }

    /// What a successful call changes on the server, after its handles are known.
    fn effects(&self) -> TokenStream {
        let cx = self.cx();
        let after = self.function.after_server.iter().map(|g| {
            let value = cx.exact(&g.value);
            guarded(cx, &g.condition, quote!(let _ = #value;))
        });
        let time = self.function.device_time.as_ref().map(|e| {
            let value = cx.exact(e);
            quote!(call.device_time((#value).clamp(0, u64::MAX as i128) as u64);)
        });
        let handles = self.lowered.arguments.iter().filter(|i| i.has_handle_effects());
        let handles = handles.map(|i| self.handle_effects(i, cx));
        quote!(if ok { #(#after)* #time #(#handles)* })
    }

    fn handle_effects(&self, instruction: &Instruction, cx: Context) -> TokenStream {
        match &instruction.operation {
            Operation::Handle(h) => {
                let (ty, value) = (h.handle as u32, read(instruction));
                let record = (h.record && !h.allocate).then(|| self.record(h, &quote!(#value), cx));
                let retain = h.retain.then(|| quote!(call.retain(#ty, #value);));
                let all = h.deallocate;
                let release = (h.release || all).then(|| quote!(call.release(#ty, #value, #all);));
                quote!(#record #retain #release)
            }
            Operation::Elements(e) => {
                let (pointer, count) = (read(instruction), site_name(e.extent.site));
                let inner = e.element.iter().map(|i| self.handle_effects(i, cx.deeper()));
                let body = element_loop(
                    instruction.at,
                    quote!(#pointer as usize),
                    quote!(#count),
                    e.extent.stride,
                    quote!(#(#inner)*),
                );
                quote!(if #pointer != 0 { #body })
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

    fn record(&self, handle: &HandleUse, native: &TokenStream, cx: Context) -> TokenStream {
        let ty = handle.handle as u32;
        let depends = handle.depends_on.iter().map(|e| {
            let (ty, value) = (e.ty.handle.unwrap_or(0) as u32, cx.exact(e));
            quote!(call.depends(#ty, (#value) as u64);)
        });
        quote!(call.record(#ty, #native); #(#depends)*)
    }

    /// Stores a word at the instruction's place: a parameter, or memory in an element.
    fn store(&self, instruction: &Instruction, value: TokenStream) -> TokenStream {
        match instruction.at {
            Place::Argument(i) => {
                let a = types::argument(i);
                let value = types::from_word(value, &self.function.signature.parameters[i].1);
                quote!(#a = #value;)
            }
            Place::Contextual(i) => {
                let x = format_ident!("x{}", i);
                quote!(#x = (#value) as usize;)
            }
            _ => write(instruction, value),
        }
    }

    /// Notes length and presence of a pointer parameter.
    fn note(&self, at: Place, length: TokenStream, present: TokenStream) -> TokenStream {
        let Place::Argument(i) = at else { return quote!() };
        let (n, h) = (format_ident!("n{}", i), format_ident!("h{}", i));
        quote!(#n = #length; #h = #present;)
    }

    /// What the server takes out of the request for one value.
    fn request(&self, instruction: &Instruction, cx: Context) -> TokenStream {
        match &instruction.operation {
            Operation::Scalar => self.request_scalar(instruction),
            Operation::Struct { fields } => {
                let copy = self.request_raw(instruction);
                let (prelude, _) = self.struct_place(instruction);
                let fields = fields.iter().map(|f| self.request(f, cx));
                quote!(#copy { #prelude #(#fields)* })
            }
            Operation::Handle(h) => {
                let ty = h.handle as u32;
                let get = if h.release || h.deallocate {
                    let all = h.deallocate;
                    quote!(call.handle_ending(#ty, #all)?)
                } else {
                    quote!(call.handle(#ty)?)
                };
                let store = self.store(instruction, quote!(value));
                let note = self.note(instruction.at, quote!(0), quote!(value != 0));
                quote!({ let value = #get; #store #note })
            }
            Operation::Text => {
                let store = self.store(instruction, quote!(text as usize as u64));
                let note = self.note(instruction.at, quote!(usize::MAX), quote!(!text.is_null()));
                quote!({ let text = call.string()?; #store #note })
            }
            Operation::Bytes(bytes) => self.request_bytes(instruction, bytes, cx),
            Operation::Elements(elements) => self.request_elements(instruction, elements, cx),
            Operation::Callback { kind, once, userdata } => {
                self.request_callback(instruction, *kind as u32, *once, *userdata)
            }
            Operation::Zerocopy { bytes } => {
                let bytes = bytes.as_ref().map_or(quote!(1i128), |e| cx.exact(e));
                let store = self.store(instruction, quote!(pointer as usize as u64));
                let note = self.note(instruction.at, quote!(bytes), quote!(!pointer.is_null()));
                quote!({
                    let bytes = support::count(#bytes, 1).ok_or(Reject::Malformed("size"))?;
                    let pointer = call.zerocopy(bytes)?;
                    #store
                    #note
                })
            }
            Operation::Unmap => {
                let store = self.store(instruction, quote!(call.unmap()? as usize as u64));
                quote!(#store)
            }
            Operation::Choice { site, condition, then, otherwise } => {
                let (name, keep) = keep(*site, instruction);
                let value = if site.carried {
                    quote!(call.word()?)
                } else {
                    let condition = cx.condition(condition);
                    quote!((#condition) as u64)
                };
                let then = then.iter().map(|i| self.request(i, cx));
                let otherwise = otherwise.iter().map(|i| self.request(i, cx));
                quote!(let #name = #value; #keep if #name != 0 { #(#then)* } else { #(#otherwise)* })
            }
            Operation::Userdata
            | Operation::Mapped { .. }
            | Operation::FunctionPointer { .. }
            | Operation::Table(_)
            | Operation::Nothing => quote!(),
        }
    }

    fn request_scalar(&self, instruction: &Instruction) -> TokenStream {
        if instruction.ty.size() > 8 || types::is_struct(&instruction.ty) {
            return self.request_raw(instruction);
        }
        self.store(instruction, quote!(call.word()?))
    }

    /// Copies a struct's bytes from the request to its place.
    fn request_raw(&self, instruction: &Instruction) -> TokenStream {
        let size = types::size(instruction.ty.size());
        let (prelude, address) = self.struct_place(instruction);
        quote!({
            #prelude
            let raw = call.raw(#size)?;
            std::ptr::copy_nonoverlapping(raw, #address as *mut u8, #size);
        })
    }

    fn struct_place(&self, instruction: &Instruction) -> (TokenStream, TokenStream) {
        match instruction.at {
            Place::Argument(i) => {
                let a = types::argument(i);
                (quote!(let e0 = &raw mut #a as usize;), quote!(e0))
            }
            _ => struct_address(instruction),
        }
    }

    fn request_callback(&self, instruction: &Instruction, kind: u32, once: bool, userdata: Option<usize>) -> TokenStream {
        let trampoline = format_ident!("callback_{}", kind);
        let life = if once { quote!(Life::Once) } else { quote!(Life::Session) };
        let function = quote!(if closure.is_null() { 0u64 } else { #trampoline as *const () as usize as u64 });
        let store = self.store(instruction, function);
        let userdata = userdata.map(|u| {
            let a = types::argument(u);
            quote!(#a = closure as usize;)
        });
        quote!({ let closure = call.callback(#kind, #life)?; #store #userdata })
    }

    fn request_count(&self, instruction: &Instruction, extent: &Extent, cx: Context) -> TokenStream {
        let stride = types::size(extent.stride);
        let exact = match &extent.count {
            _ if extent.site.carried => quote!(call.word()? as i128),
            Count::Elements(e) => cx.exact(e),
            _ => quote!(1i128),
        };
        let (name, keep) = keep(extent.site, instruction);
        quote!(let #name = support::count(#exact, #stride).ok_or(Reject::Malformed("size"))? as u64; #keep)
    }

    fn forced(&self, extent: &Extent, cx: Context) -> Option<TokenStream> {
        match &extent.forced {
            Forced::Never => None,
            Forced::Always => Some(quote!(true)),
            Forced::When(e) => Some(cx.condition(e)),
        }
    }

    fn request_bytes(&self, instruction: &Instruction, bytes: &Bytes, cx: Context) -> TokenStream {
        let count = self.request_count(instruction, &bytes.extent, cx);
        let (name, _) = keep(bytes.extent.site, instruction);
        let (stride, private) = (types::size(bytes.extent.stride), bytes.private);
        let n = quote!(#name as usize * #stride);
        let get = match &bytes.mode {
            Mode::Copy { input: true, output: true } => quote!(call.buffer_inout(Some(#n))?),
            Mode::Copy { input: false, output: true } => quote!(call.buffer_out(Some(#n))?),
            Mode::Copy { .. } => quote!(call.buffer_in(Some(#n), #private)?),
            Mode::Until { input, output, .. } => quote!(call.buffer_until(Some(#n), #input, #output)?),
            Mode::Shadow { input } => quote!(call.shadow(Some(#n), #input, true)?),
            Mode::ShadowBack { end } => quote!(call.shadow_copy_back(Some(#n), #end)?),
            Mode::Room => quote!(match call.array(Some((#n) as u64))? {
                Some(n) => Buffer { ptr: call.scratch(n), len: n },
                None => Buffer { ptr: std::ptr::null_mut(), len: 0 },
            }),
        };
        let terminated = match &bytes.extent.count {
            Count::Terminated { .. } => quote! {
                if !buffer.ptr.is_null() {
                    // The vendor's library looks for the end itself: there is always one.
                    let copy = call.scratch(buffer.len + 2 * #stride);
                    std::ptr::copy_nonoverlapping(buffer.ptr, copy, buffer.len);
                    buffer.ptr = copy;
                }
            },
            _ => quote!(),
        };
        let force = self.forced(&bytes.extent, cx).map(|condition| {
            quote!(if !present && (#condition) { buffer = call.force(buffer, #n); })
        });
        let store = self.store(instruction, quote!(buffer.ptr as usize as u64));
        let note = self.note(instruction.at, quote!(buffer.len), quote!(present));
        quote! {
            #count
            {
                let mut buffer = #get;
                let present = !buffer.ptr.is_null();
                #terminated
                #force
                #store
                #note
            }
        }
    }

    fn request_elements(&self, instruction: &Instruction, elements: &Elements, cx: Context) -> TokenStream {
        let count = self.request_count(instruction, &elements.extent, cx);
        let (name, _) = keep(elements.extent.site, instruction);
        let stride = types::size(elements.extent.stride);
        let forced = self.forced(&elements.extent, cx).unwrap_or(quote!(false));
        let unwritten = self.mark_unwritten(instruction, elements);
        let fill = if elements.input {
            let inner = elements.element.iter().map(|i| self.request(i, cx.deeper()));
            let body =
                element_loop(instruction.at, quote!(memory), quote!(count), elements.extent.stride, quote!(#(#inner)*));
            quote!(if present { #body })
        } else {
            unwritten
        };
        let store = self.store(instruction, quote!(memory as u64));
        let note = self.note(instruction.at, quote!(count * #stride), quote!(present));
        quote! {
            #count
            {
                let present = call.array(Some(#name))?.is_some();
                if present || #forced {
                    let count = #name as usize;
                    // Two more elements than asked for: terminated lists end inside our memory.
                    let memory = call.scratch((count + 2) * #stride) as usize;
                    #store
                    #note
                    #fill
                }
            }
        }
    }

    /// Marks output handles, so that the reply can tell what the vendor wrote.
    fn mark_unwritten(&self, instruction: &Instruction, elements: &Elements) -> TokenStream {
        let stride = elements.extent.stride;
        let marks: TokenStream = elements.element.iter().map(|i| mark(i)).collect();
        if marks.is_empty() {
            return quote!();
        }
        element_loop(instruction.at, quote!(memory), quote!(count), stride, marks)
    }

    /// What goes into the reply for one argument.
    fn reply(&self, instruction: &Instruction, cx: Context) -> TokenStream {
        if !instruction.replies() {
            return quote!();
        }
        match &instruction.operation {
            Operation::Bytes(b) => self.reply_bytes(instruction, b, cx),
            Operation::Elements(e) => self.reply_elements(instruction, e, cx),
            Operation::Struct { fields } => {
                let (prelude, _) = self.struct_place(instruction);
                let fields = fields.iter().map(|f| self.reply(f, cx));
                quote!({ #prelude #(#fields)* })
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

    fn reply_bytes(&self, instruction: &Instruction, bytes: &Bytes, cx: Context) -> TokenStream {
        match &bytes.mode {
            Mode::Until { token, poll, .. } => {
                let (token, poll) = (cx.exact(token), self.poll(*poll));
                let pointer = read(instruction);
                quote!({
                    let token = if ok && #pointer != 0 { (#token) as u64 } else { 0 };
                    call.reply_until(token, #poll, ok);
                })
            }
            Mode::Copy { output: true, .. } => {
                let stride = types::size(bytes.extent.stride);
                let valid = match (&bytes.returned, instruction.at) {
                    (Some(e), _) => {
                        let value = cx.exact(e);
                        quote!(Some(support::returned(#value, usize::MAX / #stride) * #stride))
                    }
                    (None, Place::Argument(i)) => {
                        let (n, small) = (format_ident!("n{}", i), types::size(SMALL_OUTPUT));
                        quote!(if ok || #n <= #small { None } else { Some(0) })
                    }
                    (None, _) => quote!(if ok { None } else { Some(0) }),
                };
                quote!(call.reply_out(#valid);)
            }
            _ => quote!(),
        }
    }

    fn poll(&self, utility: usize) -> TokenStream {
        let name = format_ident!("{}", self.model.utility_functions[utility].name);
        quote!(std::mem::transmute::<*const (), unsafe extern "C" fn(u64) -> std::ffi::c_int>(#name as *const ()))
    }

    fn reply_elements(&self, instruction: &Instruction, elements: &Elements, cx: Context) -> TokenStream {
        let (pointer, count) = (read(instruction), recall(elements.extent.site));
        let present = match instruction.at {
            // Forced storage has an address although the guest gave none.
            Place::Argument(i) => {
                let h = format_ident!("h{}", i);
                quote!(#h)
            }
            _ => quote!(#pointer != 0),
        };
        let stride = elements.extent.stride;
        let (returned, inner): (TokenStream, TokenStream) = if elements.output {
            let returned = elements.returned.as_ref().map(|e| {
                let value = cx.exact(e);
                quote!(let count = support::returned(#value, count);)
            });
            let inner = elements.element.iter().map(|i| self.reply_value(i, cx.deeper())).collect();
            (quote!(#returned call.reply_count(count);), inner)
        } else {
            (quote!(), elements.element.iter().map(|i| self.reply(i, cx.deeper())).collect())
        };
        let body = element_loop(instruction.at, quote!(#pointer as usize), quote!(count), stride, inner);
        quote!({ let count = #count as usize; if #present { #returned #body } })
    }

    /// Puts an output element's own value into the reply.
    fn reply_value(&self, instruction: &Instruction, cx: Context) -> TokenStream {
        match &instruction.operation {
            Operation::Handle(h) => {
                let (value, put) = (read(instruction), self.put_handle(h, cx));
                let unwritten = unwritten(&instruction.ty);
                quote!({
                    let native = #value;
                    if !ok || native == #unwritten { call.reply_unwritten_handle(); } else { #put }
                })
            }
            Operation::Text => {
                let value = read(instruction);
                quote!(call.reply_string(#value as usize as *const std::ffi::c_char);)
            }
            Operation::Bytes(b) => {
                let (value, stride) = (read(instruction), types::size(b.extent.stride));
                let count = self.reply_extent(&b.extent, cx);
                quote!(call.reply_owned(#value as usize as *const u8, #count * #stride);)
            }
            Operation::Scalar if instruction.ty.size() <= 8 && !types::is_struct(&instruction.ty) => {
                let value = read(instruction);
                quote!(call.reply_word(#value);)
            }
            Operation::Scalar => {
                let (_, address) = struct_address(instruction);
                let size = types::size(instruction.ty.size());
                quote!(call.reply_raw(#address as *const u8, #size);)
            }
            Operation::Struct { fields } => {
                let (prelude, address) = struct_address(instruction);
                let size = types::size(instruction.ty.size());
                // Addresses of this process never leave it.
                let blanked = fields.iter().filter_map(|f| match f.at {
                    Place::Element { offset, .. } => Some((offset, f.ty.size())),
                    _ => None,
                });
                let base = match instruction.at {
                    Place::Element { offset, .. } => offset,
                    _ => 0,
                };
                let blanked = blanked.map(|(offset, size)| {
                    let (offset, size) = (types::size(offset - base), types::size(size));
                    quote!(std::ptr::write_bytes(copy.add(#offset), 0, #size);)
                });
                let values = fields.iter().map(|f| self.reply_value(f, cx));
                quote!({
                    #prelude
                    let copy = call.scratch(#size);
                    std::ptr::copy_nonoverlapping(#address as *const u8, copy, #size);
                    #(#blanked)*
                    call.reply_raw(copy, #size);
                    #(#values)*
                })
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

    /// Number of elements behind a pointer that the vendor returned.
    fn reply_extent(&self, extent: &Extent, cx: Context) -> TokenStream {
        let stride = types::size(extent.stride);
        match &extent.count {
            Count::Elements(e) => {
                let value = cx.exact(e);
                quote!(support::count(#value, #stride).unwrap_or(0))
            }
            Count::One => quote!(1usize),
            Count::Terminated { step } => {
                let step = types::size(*step);
                quote!(support::terminated(ret as usize, #stride, #step))
            }
        }
    }

    fn put_handle(&self, handle: &HandleUse, cx: Context) -> TokenStream {
        let (ty, role) = (handle.handle as u32, role(handle));
        let record = handle.record.then(|| self.record(handle, &quote!(native), cx));
        quote!(call.reply_handle(#ty, native, #role); #record)
    }

    /// What goes into the reply for the returned value.
    fn result(&self, instruction: &Instruction, cx: Context) -> TokenStream {
        let ty = &self.function.signature.result;
        match &instruction.operation {
            Operation::Scalar if types::is_struct(ty) => {
                let size = types::size(ty.size());
                quote!(call.reply_raw(&raw const ret as *const u8, #size);)
            }
            Operation::Struct { .. } => {
                let value = self.reply_value(instruction, cx);
                quote!({ #value })
            }
            Operation::Handle(h) => {
                let put = self.put_handle(h, cx);
                quote!({ let native = ret as u64; if ok && native != 0 { #put } else { call.reply_word(0); } })
            }
            Operation::Text => quote!(call.reply_string(ret as usize as *const std::ffi::c_char);),
            Operation::Bytes(b) => {
                let (count, stride) = (self.reply_extent(&b.extent, cx), types::size(b.extent.stride));
                quote!(call.reply_owned(ret as usize as *const u8, #count * #stride);)
            }
            Operation::Mapped { bytes, until, .. } => {
                let bytes = cx.exact(bytes);
                let until = until.as_ref().map_or(quote!(None), |(token, poll)| {
                    let (token, poll) = (cx.exact(token), self.poll(*poll));
                    quote!(if ok && ret != 0 { Some(((#token) as u64, #poll)) } else { None })
                });
                quote!({
                    let until = #until;
                    call.reply_mapped(ret as usize as *mut u8, support::count(#bytes, 1).unwrap_or(0), until);
                })
            }
            Operation::FunctionPointer { .. } | Operation::Table(_) => quote!(call.reply_word((ret != 0) as u64);),
            Operation::Nothing => quote!(),
            Operation::Choice { condition, then, otherwise, .. } => {
                let condition = cx.condition(condition);
                let then = then.iter().map(|i| self.result(i, cx));
                let otherwise = otherwise.iter().map(|i| self.result(i, cx));
                quote!(if #condition { #(#then)* } else { #(#otherwise)* })
            }
            _ => {
                let word = types::to_word(quote!(ret), ty);
                quote!(call.reply_word(#word);)
            }
        }
    }
}

fn unwritten(ty: &Type) -> TokenStream {
    let bits = types::bits(ty);
    quote!((support::UNWRITTEN as #bits as u64))
}

fn mark(instruction: &Instruction) -> TokenStream {
    match &instruction.operation {
        Operation::Handle(_) => write(instruction, quote!(support::UNWRITTEN)),
        Operation::Struct { fields } => fields.iter().map(mark).collect(),
        Operation::Choice { then, otherwise, .. } => {
            // Whichever way the element goes, only handles care.
            then.iter().chain(otherwise).map(mark).collect()
        }
        _ => quote!(),
    }
}
