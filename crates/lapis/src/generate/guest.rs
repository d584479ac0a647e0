//! The guest library: one stub per function of the API.

mod effects;
mod memory;
mod minted;
mod reply;
mod request;
mod sized;
mod state;
mod statuses;
mod tables;

use super::callback;
use super::expression::Context;
use super::marshal::{guarded, has_trail, returns_object, site_variables};
use super::shims;
use super::types;
use super::unpack;
use crate::lower::*;
use crate::model::*;
use proc_macro2::{Ident, Literal, TokenStream};
use quote::{format_ident, quote};

/// The whole crate.
pub fn library(model: &Model, program: &Program, spec_hash: u64) -> TokenStream {
    let structs = types::struct_definitions(model, &program.callbacks);
    let utilities = types::utility_declarations(model, Side::Server);
    let descriptor = descriptor(model, program, spec_hash);
    let codes = invalid_codes(model);
    let tables = model.tables.iter().map(|t| tables::table(model, t));
    let lookup = function_lookup(model);
    let callbacks = program.callbacks.iter().enumerate().map(|(k, c)| callback::guest(model, k, c));
    let stubs = model.functions.iter().zip(&program.functions).enumerate();
    let (exported, undeclared) = (crate::exported::definitions(&model.exported), undeclared(model));
    let stubs = stubs.map(|(id, (function, lowered))| Stub { model, function, lowered, id: id as u32 }.print());
    quote! {
        #![allow(warnings, clippy::all, unsafe_op_in_unsafe_fn)]
        use aviary_guest::{Api, ApiDescriptor, CallbackKind, HandleType, Incoming, Metadata, Role, Status};
        use aviary_guest::bounds as support;
        #structs
        #utilities
        #descriptor
        aviary_guest::utility_exports!(API, function_by_name);
        #codes
        #(#tables)*
        #lookup
        #(#callbacks)*
        #(#stubs)*
        #exported
        #undeclared
    }
}

/// Stubs for functions of which nothing but the name is known: they answer as what is not virtualized does, where that is a
/// number.
fn undeclared(model: &Model) -> TokenStream {
    let cx = Context::new(model, Side::Guest);
    let code = model.error.as_ref().and_then(|e| e.unsupported.as_ref().or(e.failure.as_ref()));
    let code = code.map_or(quote!(0i128), |e| cx.exact(e));
    let stubs = model.undeclared.iter().enumerate().map(|(number, symbol)| {
        let (name, number) = (format_ident!("undeclared_{}", number), number as u32);
        quote! {
            #[unsafe(export_name = #symbol)]
            pub unsafe extern "C" fn #name() -> i64 {
                API.undeclared(#number, #symbol);
                (#code) as i64
            }
        }
    });
    quote!(#(#stubs)*)
}

fn descriptor(model: &Model, program: &Program, spec_hash: u64) -> TokenStream {
    let (name, version) = (&model.api.name, &model.api.version);
    let functions = model.functions.iter().map(|f| &f.name);
    let boxes = model.handle_types.iter().enumerate().filter_map(|(i, h)| {
        let value = Context::new(model, Side::Guest).exact(h.boxed.as_ref()?);
        let name = format_ident!("boxed_{}", i);
        Some(quote!(unsafe fn #name() -> usize { unsafe { (#value) as usize } }))
    });
    let handle_types = model.handle_types.iter().enumerate().map(|(i, h)| {
        let (name, size, function) = (&h.name, types::size(h.size), format_ident!("boxed_{}", i));
        let boxed = if h.boxed.is_some() { quote!(Some(#function)) } else { quote!(None) };
        let shape = match h.shape {
            None => quote!(None),
            Some(table) => {
                let (table, words) = (&model.tables[table], types::size(model.tables[table].size.div_ceil(8)));
                let table = format_ident!("table_{}", table.name);
                quote!(Some((#table, #words)))
            }
        };
        let metadata = types::metadata(h);
        let predefined = h.predefined.iter().map(|v| Literal::u64_unsuffixed(*v));
        quote!(HandleType { name: #name, size: #size, boxed: #boxed, shape: #shape, predefined: &[#(#predefined),*], metadata: #metadata })
    });
    let callbacks = program.callbacks.iter().enumerate().map(|(k, c)| callback::descriptor(k, c));
    let environment = &model.passed_variables;
    quote! {
        #(#boxes)*
        static DESCRIPTOR: ApiDescriptor = ApiDescriptor {
            name: #name,
            version: #version,
            spec_hash: #spec_hash,
            environment: &[#(#environment),*],
            functions: &[#(#functions),*],
            handle_types: &[#(#handle_types),*],
            callbacks: &[#(#callbacks),*],
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

fn function_lookup(model: &Model) -> TokenStream {
    let known = model.functions.iter().filter(|f| f.member_of.is_none());
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
        None => types::function_name(&function.name),
        Some(_) => format_ident!("member_{}", function.name.replace('.', "_")),
    }
}

/// The stub as Rust code calls it, where applications come through C.
pub fn guarded_name(function: &Function) -> Ident {
    types::guarded_name(&function.name)
}

struct Stub<'a> {
    model: &'a Model,
    function: &'a Function,
    lowered: &'a Lowered,
    id: u32,
}

/// The ways in which a call ends without an answer of its own.
#[derive(Clone, Copy)]
enum Code {
    Success,
    Failure,
    Unsupported,
    Absent,
    Lost,
}

impl Stub<'_> {
    fn print(&self) -> TokenStream {
        let name = stub_name(self.function);
        let inner = format_ident!("stub_{}", self.id);
        let parameters = types::parameter_list(&self.function.signature);
        let arguments = types::argument_list(&self.function.signature);
        let result = types::rust(&self.function.signature.result);
        let symbol = self.function.symbol();
        let export = self.function.member_of.is_none().then(|| quote!(#[unsafe(export_name = #symbol)]));
        let fail = self.fail_function();
        let fail_name = format_ident!("fail_{}", self.id);
        let lost = self.code(Code::Lost);
        let body = self.body();
        let id = self.id;
        let traced = match self.function.signature.result.kind {
            TypeKind::Void | TypeKind::Struct(_) => quote!(None),
            _ => quote!(Some(result as i64)),
        };
        let called = quote! {
            let result = aviary_guest::guard(
                move || unsafe { #inner(#arguments) },
                move || unsafe { #fail_name(#lost, #arguments) },
            );
            if aviary_guest::trace::wanted() {
                API.trace(#id, #traced);
            }
        };
        if let Some(unpacked) = &self.function.unpacked {
            let zeros = unpack::no_arguments(&self.function.signature);
            let none = self.function.failure.is_some().then(|| unpack::named_zeros(&self.function.signature));
            let refused = self.code(Code::Failure);
            let (before, after) =
                unpack::take_apart(self.function, unpacked, quote!(unsafe { #none #fail_name(#refused, #zeros) }));
            return quote! {
                #fail
                unsafe fn #inner(#parameters) -> #result { #body }
                #export pub unsafe extern "C-unwind" fn #name(packed: usize) -> #result {
                    #before
                    #called
                    #after
                    result
                }
            };
        }
        let (head, entry) = if shims::is_shimmed(self.function) {
            let guarded = guarded_name(self.function);
            (quote!(unsafe fn #guarded(#parameters) -> #result), Some(self.entry(&export)))
        } else {
            (quote!(#export pub unsafe extern "C-unwind" fn #name(#parameters) -> #result), None)
        };
        quote! {
            #fail
            unsafe fn #inner(#parameters) -> #result { #body }
            #head {
                #called
                result
            }
            #entry
        }
    }

    /// The function that applications call, where C receives their arguments: it has the type that C gives it.
    fn entry(&self, export: &Option<TokenStream>) -> TokenStream {
        let (name, guarded) = (stub_name(self.function), guarded_name(self.function));
        let [entry, stub] = ["entry", "stub"].map(|what| format_ident!("aviary_{}_{}", what, self.id));
        let signature = &self.function.signature;
        let types: Vec<&Type> = signature.parameters.iter().map(|(_, ty)| ty).collect();
        let (arguments, list) = (shims::arguments(&types), types::argument_list(signature));
        let result = types::rust(&signature.result);
        quote! {
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn #stub(arguments: *const usize, result: *mut std::ffi::c_void) {
                #arguments
                let value = #guarded(#list);
                if !result.is_null() {
                    (result as *mut #result).write(value);
                }
            }
            unsafe extern "C" { fn #entry(); }
            #export
            #[unsafe(naked)]
            pub unsafe extern "C" fn #name() {
                aviary_guest::jump!(#entry)
            }
        }
    }

    fn cx(&self) -> Context<'_> {
        Context::new(self.model, Side::Guest)
    }

    fn code(&self, code: Code) -> TokenStream {
        let f = self.function;
        let own =
            match code {
                Code::Success => &f.success,
                Code::Failure => &f.failure,
                // A value that says that a call was refused says so of one that was not made.
                Code::Unsupported if matches!(f.error, ErrorPlace::Nowhere) && f.unsupported.is_none() => &f.failure,
                Code::Unsupported => &f.unsupported,
                Code::Absent if matches!(f.error, ErrorPlace::Nowhere) && f.absent.is_none() => {
                    if f.unsupported.is_some() { &f.unsupported } else { &f.failure }
                }
                Code::Absent => &f.absent,
                Code::Lost if matches!(f.error, ErrorPlace::Nowhere) && f.lost.is_none() => &f.failure,
                Code::Lost => &f.lost,
            };
        let shared = match f.error {
            ErrorPlace::Nowhere => None,
            ErrorPlace::Status(status) | ErrorPlace::Given { status, .. } => {
                let status = &self.model.statuses[status];
                Some(match code {
                    Code::Success => &status.success,
                    Code::Failure => &status.failure,
                    Code::Unsupported => &status.unsupported,
                    Code::Absent => &status.absent,
                    Code::Lost => &status.lost,
                })
            }
            _ => self.model.error.as_ref().and_then(|e| match code {
                Code::Success => Some(&e.success),
                Code::Failure => e.failure.as_ref(),
                Code::Unsupported => e.unsupported.as_ref().or(e.failure.as_ref()),
                Code::Absent => e.absent.as_ref().or(e.unsupported.as_ref()).or(e.failure.as_ref()),
                Code::Lost => e.lost.as_ref().or(e.failure.as_ref()),
            }),
        };
        own.as_ref().or(shared).map_or(quote!(0i128), |e| self.cx().exact(e))
    }

    /// A function that turns an error code into what this function returns.
    fn fail_function(&self) -> TokenStream {
        let name = format_ident!("fail_{}", self.id);
        let parameters = types::parameter_list(&self.function.signature);
        let ty = &self.function.signature.result;
        let result = types::rust(ty);
        let body = match self.function.error {
            ErrorPlace::Return | ErrorPlace::Status(_) | ErrorPlace::Nowhere => types::from_exact(quote!(code), ty),
            ErrorPlace::Given { status, parameter } => {
                let (told, zero) = (self.status_tells(status, parameter, quote!(std::ptr::null())), types::zero(ty));
                quote!(#told #zero)
            }
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
        let lost = self.fail(self.code(Code::Lost));
        let local = self.local_answers();
        let contextual = self.function.contextual.iter().enumerate().map(|(i, c)| {
            let (name, value) = (format_ident!("x{}", i), self.cx().typed(&c.value, &c.ty));
            quote!(let #name = #value;)
        });
        let (chosen, minted) = self.choose();
        let request = self.begun(&minted, &lost);
        let registered = self.registered();
        let asynchronous = self.asynchronous();
        let sites = site_variables(&self.lowered.arguments);
        let synchronous = match &self.function.asynchronous {
            Some(e) if types::constant(e).is_some_and(|v| v != 0) => quote!(),
            _ => self.synchronous(),
        };
        let (ends, bound) = (self.ends_memory(), self.bound_variables());
        let call = quote! {
            #sites
            #bound
            #chosen
            #ends
            #request
            #registered
            #asynchronous
            #synchronous
        };
        let call = if self.function.finally.is_empty() { call } else { self.followed(call) };
        self.whole_structs(quote! {
            #local
            #(#contextual)*
            #call
        })
    }

    /// The call, with its request: written again where it names the same memory more than once.
    fn begun(&self, minted: &TokenStream, lost: &TokenStream) -> TokenStream {
        let (id, overlapping) = (self.id, &self.lowered.overlapping);
        let request = self.lowered.arguments.iter().map(|i| {
            let request = self.request(i, self.cx());
            match i.at {
                ValueLocation::Argument(n) if overlapping.apart.contains(&n) => {
                    quote!(call.apart(true); #request call.apart(false);)
                }
                _ => request,
            }
        });
        let begin = quote!(let Ok(mut call) = API.call(#id) else { return #lost };);
        if !overlapping.watched {
            return quote!(#begin #minted #(#request)*);
        }
        let (trail, ids) = (has_trail(&self.lowered.arguments), self.mints());
        let trail = trail.then(|| quote!(trail.clear();));
        let ids = ids.then(|| quote!(minted.clear();));
        let again = quote!(#trail #ids);
        quote! {
            let mut joined = aviary_guest::Overlaps::default();
            let mut call = loop {
                #again
                #begin
                call.watch(joined);
                #minted
                #(#request)*
                match call.overlaps() {
                    Some(overlaps) => joined = overlaps,
                    None => break call,
                }
            };
        }
    }

    /// For a call that may have to choose ids: whether it is asynchronous is decided before the request is written,
    /// which begins with the id of what it returns.
    fn choose(&self) -> (TokenStream, TokenStream) {
        if !self.mints() {
            return (quote!(), quote!());
        }
        let condition = self.function.asynchronous.as_ref().map_or(quote!(false), |e| self.cx().condition(e));
        let minted = self.request_minted(&self.lowered.result);
        (quote!(let asynchronous: bool = #condition; let mut minted: Vec<u64> = Vec::new();), minted)
    }

    /// `finally`: the call is a closure, so that each of its ways out ends here.
    fn followed(&self, call: TokenStream) -> TokenStream {
        let result = types::rust(&self.function.signature.result);
        let finally = self.function.finally.iter().map(|f| {
            let value = self.cx().exact(&f.value);
            guarded(self.cx(), &f.condition, quote!(let _ = #value;))
        });
        quote! {
            let call = || -> #result { #call };
            let ret = call();
            #(#finally)*
            ret
        }
    }

    /// Before anything is prepared: what the guest can answer by itself needs none of it.
    fn local_answers(&self) -> TokenStream {
        let answers = self.function.local_if.iter().map(|answer| {
            let value = self.cx().typed(&answer.value, &self.function.signature.result);
            guarded(self.cx(), &answer.condition, quote!(return #value;))
        });
        quote!(#(#answers)*)
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
        let success = self.success();
        let (written, effects) = (self.write_minted(), self.effects());
        let own = match self.function.error {
            ErrorPlace::Nowhere | ErrorPlace::Status(_) => self.fail(self.code(Code::Failure)),
            _ => self.fail(quote!(value as i128)),
        };
        let send = quote! {
            match call.send_async() {
                Ok(None) => {}
                #[allow(unused_variables)]
                Ok(Some(value)) => return #own,
                Err(_) => return #lost,
            }
            #written
            #effects
            return #success;
        };
        if types::constant(condition).is_some_and(|v| v != 0) {
            return send;
        }
        let condition = if self.mints() { quote!(asynchronous) } else { self.cx().condition(condition) };
        quote!(if #condition { #send })
    }

    fn synchronous(&self) -> TokenStream {
        let id = self.id;
        let lost = self.fail(self.code(Code::Lost));
        let unsupported = self.fail(self.code(Code::Unsupported));
        let absent = self.fail(self.code(Code::Absent));
        let refused = self.fail(self.code(Code::Failure));
        let failed = match self.function.error {
            ErrorPlace::Status(_) => self.fail(self.code(Code::Failure)),
            _ => self.fail(quote!(value as i128)),
        };
        let invalid = match self.function.error {
            ErrorPlace::Nowhere | ErrorPlace::Status(_) | ErrorPlace::Given { .. } => {
                self.fail(self.code(Code::Failure))
            }
            _ => self.fail(quote!(invalid_handle(ty))),
        };
        let cached = match &self.function.cache_key {
            None => quote!(call.send_cached()),
            Some((number, handle)) => {
                let ty = handle.ty.handle.unwrap_or(0) as u32;
                let (number, handle) = (self.cx().exact(number), self.cx().exact(handle));
                quote!(call.send_cached_as((#number) as u64, #ty, (#handle) as u64))
            }
        };
        let send = match (self.function.cache, &self.function.cache_if) {
            (true, _) => cached,
            (false, Some(e)) => {
                let condition = self.cx().condition(e);
                quote!((if #condition { #cached } else { call.send() }))
            }
            (false, None) => quote!(call.send()),
        };
        let answer = self.answer();
        quote! {
            let Ok(mut reply) = #send else { return #lost };
            match reply.status() {
                Status::Ok => {}
                Status::Unsupported => {
                    API.unsupported(#id);
                    return #unsupported;
                }
                Status::Absent => return #absent,
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
            ErrorPlace::Given { status, parameter } => self.status_read(status, parameter),
            _ => quote!(),
        };
        let result = self.result(&self.lowered.result, cx);
        let ok = self.succeeded();
        let outputs = self.lowered.arguments.iter().map(|i| self.reply(i, cx));
        let deferred = match self.function.error {
            // An error of an earlier call is a number: it waits for a function that can return it.
            ErrorPlace::Nowhere | ErrorPlace::Status(_) | ErrorPlace::Given { .. } => quote!(),
            _ => {
                let fail = self.fail(quote!(value as i128));
                quote!(if let Some(value) = reply.deferred() { return #fail; })
            }
        };
        let effects = self.effects();
        // Only what `send_cached` has looked up is remembered: the runtime knows which call that was.
        let cached = self.function.cache || self.function.cache_if.is_some();
        let remember = cached.then(|| quote!(reply.remember();));
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
            ErrorPlace::Return | ErrorPlace::Status(_) => quote!(ret as i128 == #success),
            ErrorPlace::Given { .. } if returns_object(&self.lowered.result) => quote!(code == 0 && ret != 0),
            ErrorPlace::Parameter(_) | ErrorPlace::Given { .. } => quote!(code == #success),
            ErrorPlace::Nowhere if returns_object(&self.lowered.result) => quote!(ret != 0),
            ErrorPlace::Nowhere => match &self.function.fails {
                Some(fails) => {
                    let failed = self.cx().condition(fails);
                    quote!(!(#failed))
                }
                None => quote!(true),
            },
        }
    }
}
