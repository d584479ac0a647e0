//! The API server module: one handler per function of the API.

mod effects;
mod late;
mod memory;
mod reply;
mod request;
mod state;
mod statuses;
mod tables;

use super::callback;
use super::expression::Context;
use super::expression::site_name;
use super::marshal::{guarded, returns_object, site_variables};
use super::shims;
use super::types;
use super::unpack;
use crate::lower::*;
use crate::model::*;
use crate::tools::coverage::blocker;
use proc_macro2::{Literal, TokenStream};
use quote::{format_ident, quote};
use std::ffi::CString;

/// The whole crate.
pub fn module(model: &Model, program: &Program, spec_hash: u64) -> TokenStream {
    let structs = types::struct_definitions(model, &program.callbacks);
    let utilities = types::utility_declarations(model, Side::Guest);
    let descriptor = descriptor(model, program, spec_hash);
    let callbacks = program.callbacks.iter().enumerate().map(|(k, c)| callback::trampoline(model, k, c));
    let exported = model.functions.iter().enumerate();
    let exported = exported.filter(|(_, f)| f.member_of.is_none() && f.varargs.is_none());
    let forwarders = exported.map(|(id, f)| forwarder(model, id, f));
    let tables = tables::tables(model);
    let handlers = model.functions.iter().zip(&program.functions).enumerate();
    let handlers =
        handlers.map(|(id, (function, lowered))| Handler { model, function, lowered, id: id as u32 }.print());
    quote! {
        #![allow(warnings, clippy::all, unsafe_op_in_unsafe_fn)]
        use aviary_server::{ApiDescriptor, Buffer, Call, CurrentObject, EvictableType, ExplicitState, FunctionInfo, HandleTypeInfo, ClosureLifetime, Metadata, ObjectName, Outgoing, RemadeType, SessionState, Reject, ResourceKind, Role};
        use aviary_server::bounds as support;
        #structs
        #utilities
        #descriptor
        aviary_server::utility_exports!();
        unsafe extern "C" { fn aviary_preload_utility(); fn aviary_start_utility() -> Option<unsafe extern "C" fn()>; fn aviary_devices_utility() -> Option<aviary_server::connection::listing::ListFunction>; fn aviary_holders_utility() -> Option<aviary_server::connection::listing::HoldersFunction>; fn aviary_contexts_utility() -> Option<aviary_server::connection::listing::HoldersFunction>; }
        #tables
        #(#callbacks)*
        #(#forwarders)*
        #(#handlers)*
    }
}

/// A utility function as a function of the runtime's: it has the parameters that the runtime passes, as far as C can tell.
fn utility_as(model: &Model, utility: usize, signature: TokenStream) -> TokenStream {
    let name = types::utility_name(&model.utility_functions[utility]);
    quote!(unsafe { std::mem::transmute::<*const (), #signature>(#name as *const ()) })
}

fn optional_utility_as(model: &Model, utility: Option<usize>, signature: TokenStream) -> TokenStream {
    utility.map_or(quote!(None), |utility| {
        let function = utility_as(model, utility, signature);
        quote!(Some(#function))
    })
}

/// The functions that save objects of the type and make them again.
fn remade(model: &Model, ty: &HandleType) -> TokenStream {
    let Some(functions) = ty.remade else { return quote!(None) };
    let writes = quote!(unsafe extern "C" fn(u64, *mut std::ffi::c_void, usize) -> i64);
    let makes = quote!(unsafe extern "C" fn(u64, *const std::ffi::c_void, usize) -> u64);
    let reads = quote!(unsafe extern "C" fn(u64, *const std::ffi::c_void, usize) -> std::ffi::c_int);
    let (save, make) = (utility_as(model, functions.save, writes), utility_as(model, functions.make, makes));
    let load = utility_as(model, functions.load, reads);
    quote!(Some(RemadeType { save: #save, make: #make, load: #load, }))
}

/// The functions that take the device memory of the type's objects away and bring it back.
fn evictable(model: &Model, ty: &HandleType) -> TokenStream {
    let Some(functions) = ty.evictable else { return quote!(None) };
    let tells = quote!(unsafe extern "C" fn(u64) -> u64);
    let writes = quote!(unsafe extern "C" fn(u64, *mut std::ffi::c_void, usize) -> std::ffi::c_int);
    let reads = quote!(unsafe extern "C" fn(u64, *const std::ffi::c_void, usize) -> std::ffi::c_int);
    let (bytes, out) = (utility_as(model, functions.bytes, tells), utility_as(model, functions.out, writes));
    let back = utility_as(model, functions.back, reads);
    let names = quote!(unsafe extern "C" fn(u64) -> *const std::ffi::c_char);
    let device = optional_utility_as(model, functions.device, names);
    let drops = quote!(unsafe extern "C" fn(u64, u64) -> std::ffi::c_int);
    let drop = optional_utility_as(model, ty.dropped, drops);
    quote!(Some(EvictableType { bytes: #bytes, out: #out, back: #back, device: #device, drop: #drop, }))
}

/// The functions that tell and set the object that is current on a thread.
fn current(model: &Model) -> TokenStream {
    let with_current = |(ty, h): (usize, &HandleType)| Some((ty as u32, h.current?));
    let Some((ty, functions)) = model.handle_types.iter().enumerate().find_map(with_current) else {
        return quote!(None);
    };
    let get = utility_as(model, functions.get, quote!(unsafe extern "C" fn() -> u64));
    let set = utility_as(model, functions.set, quote!(unsafe extern "C" fn(u64) -> std::ffi::c_int));
    quote!(Some(CurrentObject { ty: #ty, get: #get, set: #set, }))
}

/// What the server knows of each type of handles.
fn handle_types(model: &Model) -> Vec<TokenStream> {
    let infos = model.handle_types.iter().map(|h| {
        let (name, size) = (&h.name, types::size(h.size));
        let metadata = types::metadata(h);
        let predefined = h.predefined.iter().map(|v| Literal::u64_unsuffixed(*v));
        let blocker = option_text(h.blocker.as_deref());
        let identity = optional_utility_as(model, h.identity, quote!(ObjectName));
        let (remade, evictable) = (remade(model, h), evictable(model, h));
        quote!(HandleTypeInfo {
            name: #name,
            size: #size,
            predefined: &[#(#predefined),*],
            metadata: #metadata,
            identity: #identity,
            blocker: #blocker,
            remade: #remade,
            evictable: #evictable,
        })
    });
    infos.collect()
}

fn descriptor(model: &Model, program: &Program, spec_hash: u64) -> TokenStream {
    let Api { name, version, soname, libraries, .. } = &model.api;
    let functions = model.functions.iter().zip(&program.functions).enumerate().map(|(id, (f, lowered))| {
        let (name, handler, recorded) = (&f.name, format_ident!("handle_{}", id), lowered.recorded);
        let (waits, late, blocker) = (f.waits, f.late.is_some(), option_text(blocker(model, f)));
        let behalf = f.on_behalf_of.iter().map(|named| &named.name);
        quote!(FunctionInfo { name: #name, on_behalf_of: &[#(#behalf),*], handler: aviary_server::handler(#handler), replayable: #recorded, waits: #waits, late: #late, blocker: #blocker })
    });
    let handle_types = handle_types(model);
    let resources = model.resources.iter().map(|r| {
        let name = &r.name;
        let kind = match r.kind {
            crate::model::ResourceKind::Continuous => quote!(ResourceKind::Continuous),
            crate::model::ResourceKind::Instantaneous => quote!(ResourceKind::Instantaneous),
        };
        quote!((#name, #kind))
    });
    let rejected = rejected(model);
    let environment = &model.passed_variables;
    let state = match model.state {
        None => quote!(None),
        Some(functions) => {
            let state = effects::session_state(model, functions);
            quote!(Some(#state))
        }
    };
    let current = current(model);
    let quiesce = optional_utility_as(model, model.quiesce, quote!(unsafe extern "C" fn() -> std::ffi::c_int));
    let contents = optional_utility_as(model, model.contents, quote!(unsafe extern "C" fn() -> u64));
    let stays = optional_utility_as(model, model.stays, quote!(unsafe extern "C" fn() -> *const std::ffi::c_char));
    quote! {
        #rejected
        static DESCRIPTOR: ApiDescriptor = ApiDescriptor {
            name: #name,
            version: #version,
            spec_hash: #spec_hash,
            environment: &[#(#environment),*],
            soname: #soname,
            libraries: &[#(#libraries),*],
            functions: &[#(#functions),*],
            handle_types: &[#(#handle_types),*],
            resources: &[#(#resources),*],
            state: #state,
            current: #current,
            quiesce: #quiesce,
            stays: #stays,
            contents: #contents,
            rejected,
        };
        aviary_server::export_module!(DESCRIPTOR, aviary_preload_utility, aviary_start_utility, aviary_devices_utility, aviary_holders_utility, aviary_contexts_utility);
    }
}

fn option_text(text: Option<&str>) -> TokenStream {
    text.map_or(quote!(None), |text| quote!(Some(#text)))
}

/// The error value that an asynchronous call leaves behind when it is rejected.
fn rejected(model: &Model) -> TokenStream {
    let cx = Context::new(model, Side::Server);
    let error = model.error.as_ref();
    let failure = error.and_then(|e| e.failure.as_ref()).map_or(quote!(-1i128), |e| cx.exact(e));
    let unsupported = error.and_then(|e| e.unsupported.as_ref()).map_or(failure.clone(), |e| cx.exact(e));
    let absent = error.and_then(|e| e.absent.as_ref()).map_or(unsupported.clone(), |e| cx.exact(e));
    let invalid = model.handle_types.iter().enumerate().filter_map(|(i, h)| {
        let (i, code) = (i as u32, cx.exact(h.invalid.as_ref()?));
        Some(quote!(Reject::InvalidHandle(#i) => #code,))
    });
    // A function's own codes come before those of the error type.
    let own = |pick: fn(&Function) -> Option<&Expr>| {
        let asynchronous = model.functions.iter().enumerate().filter(|(_, f)| f.asynchronous.is_some());
        let arms = asynchronous.filter_map(|(id, f)| {
            let (id, code) = (id as u32, cx.exact(pick(f)?));
            Some(quote!(#id => #code,))
        });
        arms.collect::<TokenStream>()
    };
    let (own_failure, own_unsupported) = (own(|f| f.failure.as_ref()), own(|f| f.unsupported.as_ref()));
    let own_absent = own(|f| f.absent.as_ref());
    quote! {
        fn rejected(function: u32, reject: Reject) -> i64 {
            let code: i128 = match reject {
                #(#invalid)*
                Reject::Failed(value) => value as i128,
                Reject::Unsupported => match function { #own_unsupported _ => #unsupported },
                Reject::Absent => match function { #own_absent _ => #absent },
                _ => match function { #own_failure _ => #failure },
            };
            code as i64
        }
    }
}

/// Lets utility code call the vendor's functions by their names.
fn forwarder(model: &Model, id: usize, function: &Function) -> TokenStream {
    let (name, symbol) = (types::function_name(&function.name), function.symbol());
    let parameters = types::parameter_list(function.declared());
    let result = types::rust(&function.signature.result);
    let missing =
        match (&function.error, model.error.as_ref().and_then(|e| e.absent.as_ref().or(e.unsupported.as_ref()))) {
            (ErrorPlace::Return, Some(code)) => {
                Context::new(model, Side::Server).typed(code, &function.signature.result)
            }
            _ => types::zero(&function.signature.result),
        };
    let missing = match function.error {
        // No object can be made here, and its absence would be success.
        ErrorPlace::Status(_) => {
            let text =
                format!("the vendor's library has no {}, which utility code calls; the session ends\0", function.name);
            let text = Literal::byte_string(text.as_bytes());
            quote!({
                unsafe { aviary_server::ffi::log(#text.as_ptr() as *const std::ffi::c_char) };
                std::process::abort()
            })
        }
        _ => missing,
    };
    if !shims::is_shimmed(function) {
        return quote!(aviary_server::vendor_function!(fn #name = #symbol, (#parameters) -> #result = #missing););
    }
    let forwarded = format_ident!("aviary_forwarded_{}", id);
    let symbol = Literal::c_string(&CString::new(symbol).unwrap_or_default());
    let types: Vec<&Type> = function.signature.parameters.iter().map(|(_, ty)| ty).collect();
    let (arguments, call) = (shims::arguments(&types), through_c(id, function, quote!(address)));
    quote! {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn #forwarded(arguments: *const usize, result: *mut std::ffi::c_void) {
            static FOUND: aviary_server::exports::VendorFunction = aviary_server::exports::VendorFunction::new();
            #arguments
            let address = FOUND.address(#symbol);
            let value: #result = if address == 0 { #missing } else { #call };
            if !result.is_null() {
                (result as *mut #result).write(value);
            }
        }
    }
}

/// The call of the vendor's function at `address` by C.
fn through_c(id: usize, function: &Function, address: TokenStream) -> TokenStream {
    let values: Vec<TokenStream> = (0..function.signature.parameters.len())
        .map(|i| {
            let a = types::argument(i);
            quote!(#a)
        })
        .collect();
    shims::through_c(&format_ident!("aviary_vendor_{}", id), Some(address), &values, &function.signature.result)
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
        Context { carried: &self.lowered.carried, ..Context::new(self.model, Side::Server) }
    }

    fn body(&self) -> TokenStream {
        let cx = self.cx();
        let variables = self.variables();
        let unions = self.lowered.overlapping.private.then(|| quote!(call.private_unions();));
        let minted = self.request_minted(&self.lowered.result, quote!(0usize));
        let request = self.lowered.arguments.iter().map(|i| self.request(i, cx));
        let admission = self.admission();
        let (occupy, vacate) = (self.occupy(), self.function.occupies.as_ref().map(|_| quote!(call.vacate();)));
        let vendor = self.vendor_call();
        let error = self.error_code();
        let ok = self.succeeded();
        let error_word = match self.function.error {
            ErrorPlace::Parameter(_) => quote!(call.reply_word(code as u64);),
            ErrorPlace::Given { status, parameter } => self.status_told(status, types::argument(parameter)),
            _ => quote!(),
        };
        let result = self.result(&self.lowered.result, cx);
        let reply = self.lowered.arguments.iter().map(|i| self.reply(i, cx));
        let effects = self.effects();
        let memory = self.memory_effects();
        let (admitted, returned) = self.told_late();
        let call = quote! {
            #unions
            #minted
            #(#request)*
            #admitted
            #admission
            #occupy
            #vendor
            #returned
            let code: i128 = #error;
            let ok: bool = #ok;
            #error_word
            #result
            #(#reply)*
            #effects
            #memory
            #vacate
            call.finish(ok, code as i64);
            Ok(())
        };
        match &self.function.late {
            None => quote!(#variables #call),
            Some(late) => self.late(late, &variables, &call),
        }
    }

    fn variables(&self) -> TokenStream {
        let mut tokens = TokenStream::new();
        for (i, (_, ty)) in self.function.signature.parameters.iter().enumerate() {
            let (a, n, h) = (types::argument(i), format_ident!("n{}", i), format_ident!("h{}", i));
            let (rust, zero) = (types::rust(ty), types::zero(ty));
            tokens.extend(quote!(let mut #a: #rust = #zero; let mut #n = 0usize; let mut #h = false;));
        }
        for (i, contextual) in self.function.contextual.iter().enumerate() {
            let (x, rust, zero) = (format_ident!("x{}", i), types::rust(&contextual.ty), types::zero(&contextual.ty));
            tokens.extend(quote!(let mut #x: #rust = #zero;));
        }
        tokens.extend(site_variables(&self.lowered.arguments));
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
            let amount = cx.exact(&c.amount);
            let amount = quote!((#amount).clamp(0, u64::MAX as i128) as u64);
            let (item, place) = self.item(c);
            let charge = match c.kind {
                ChargeKind::Allocate => quote!(call.charge(#item, #amount)?;),
                ChargeKind::Consume => quote!(call.consume(#item, #amount)?;),
                ChargeKind::Deallocate => quote!(call.uncharge(#item, #amount);),
            };
            let charge = place.map_or(charge.clone(), |place| quote!({ #place #charge }));
            guarded(cx, &c.condition, charge)
        });
        let arguments = self.lowered.arguments.iter().filter_map(|argument| created(argument, true));
        // The number of objects in a returned array is known only after the call: it counts as one until then.
        let created: Vec<TokenStream> = arguments.chain(created(&self.lowered.result, false)).collect();
        let reserve = (!created.is_empty()).then(|| quote!(call.reserve_handles(#(#created)+*)?;));
        let known = self.function.varargs.as_ref().map(|varargs| {
            let selector = types::argument(varargs.selector);
            let values = varargs.cases.iter().map(|case| Literal::i128_unsuffixed(case.value));
            let most = types::size(MOST_VARARGS);
            match varargs.each {
                true => {
                    quote!(if !(0..=#most as i128).contains(&(#selector as i128)) { return Err(Reject::Unsupported); })
                }
                false => quote!(if ![#(#values),*].contains(&(#selector as i128)) { return Err(Reject::Unsupported); }),
            }
        });
        quote!(#known #(#requirements)* #reserve #(#charges)*)
    }

    /// The charged item, and the expression that finds it: a resource, or a resource on devices.
    fn item(&self, charge: &Charge) -> (TokenStream, Option<TokenStream>) {
        let resource = charge.resource as u32;
        let names = self.model.resources[charge.resource].devices.map(|index| &self.model.utility_functions[index]);
        let (Some(names), Some(place)) = (names, &charge.place) else { return (quote!(#resource), None) };
        let (names, place) = (types::utility_name(names), self.cx().exact(place));
        let found = quote! {
            let item = call.place(
                #resource,
                (#place) as u64,
                std::mem::transmute::<*const (), aviary_server::ResidencyDevices>(#names as *const ()),
            )?;
        };
        (quote!(item), Some(found))
    }

    /// Waits until the device is this session's.
    fn occupy(&self) -> Option<TokenStream> {
        let occupies = self.function.occupies.as_ref()?;
        let device = self.cx().exact(&occupies.device);
        let utility = |index: usize| types::utility_name(&self.model.utility_functions[index]);
        let (drain, name) = (utility(occupies.drain), utility(occupies.name));
        let begin = occupies.begin.as_ref().map(|e| {
            let value = self.cx().exact(e);
            quote!(let _ = #value;)
        });
        Some(quote! {
            if call.minds_devices()
                && call.occupy(
                    (#device) as u64,
                    std::mem::transmute::<*const (), aviary_server::Drain>(#drain as *const ()),
                    std::mem::transmute::<*const (), unsafe extern "C" fn(u64) -> *const std::ffi::c_char>(#name as *const ()),
                )?
            {
                #begin
            }
        })
    }

    fn vendor_call(&self) -> TokenStream {
        let id = self.id;
        let values: Vec<_> = self.function.address_values.iter().map(|e| self.cx().exact(e)).collect();
        let function_type = types::function_type_with(&self.function.signature, values.len(), Side::Server);
        let arguments = types::arguments_with(&self.function.signature, &values);
        let address = self.vendor_address();
        let (begin, end) = self.vendor_times();
        if shims::is_shimmed(self.function) {
            let through_c = through_c(id as usize, self.function, quote!(address));
            return quote! {
                let address = #address;
                #begin
                let ret = #through_c;
                #end
            };
        }
        if let Some(unpacked) = &self.function.unpacked {
            let function_type = unpack::function_type(&self.function.signature.result);
            let (before, after) = unpack::put_together(unpacked);
            return quote! {
                #before
                let function: #function_type = std::mem::transmute(#address);
                #begin
                let ret = function(packed);
                #end
                #after
            };
        }
        quote! {
            let function: #function_type = std::mem::transmute(#address);
            #begin
            let ret = function(#arguments);
            #end
        }
    }

    /// The address of the vendor's function, or a refusal.
    fn vendor_address(&self) -> TokenStream {
        let id = self.id;
        let absent = quote!(if address == 0 {
            return Err(call.absent());
        });
        match &self.function.address {
            None if self.function.label.is_some() => {
                let symbol = Literal::c_string(&CString::new(self.function.symbol()).unwrap_or_default());
                quote!({
                    let address = unsafe { aviary_server::ffi::function(#symbol.as_ptr()) } as usize;
                    #absent
                    address
                })
            }
            None if let Some(slot) = tables::member(self.model, self.function) => quote!({
                let address = #slot;
                #absent
                address
            }),
            None => quote!(call.vendor(#id)? as usize),
            Some(e) => {
                let value = self.cx().exact(e);
                quote!({
                    let address = (#value) as usize;
                    #absent
                    address
                })
            }
        }
    }

    /// What the runtime is told right before and right behind the vendor's function.
    fn vendor_times(&self) -> (TokenStream, TokenStream) {
        if self.function.waits {
            (quote!(call.begin_wait();), quote!(call.end_wait()?;))
        } else {
            (quote!(call.begin_vendor();), quote!(call.end_vendor();))
        }
    }

    fn error_code(&self) -> TokenStream {
        match self.function.error {
            ErrorPlace::Return => quote!(ret as i128),
            // Its address is told to no one.
            ErrorPlace::Status(status) => {
                let success = self.cx().exact(&self.model.statuses[status].success);
                quote!((ret as i128 != #success) as i128)
            }
            ErrorPlace::Parameter(p) => {
                let (a, n) = (types::argument(p), format_ident!("n{}", p));
                let size = types::size(self.model.error.as_ref().map_or(4, |e| e.ty.size()));
                quote!(support::load(#a, #n, 0, #size, true))
            }
            ErrorPlace::Given { status, parameter } => self.status_code(status, types::argument(parameter)),
            ErrorPlace::Nowhere => quote!(0i128),
        }
    }

    fn succeeded(&self) -> TokenStream {
        let own = self.function.success.as_ref();
        let success =
            own.or(self.model.error.as_ref().map(|e| &e.success)).map_or(quote!(0i128), |e| self.cx().exact(e));
        match self.function.error {
            ErrorPlace::Nowhere if returns_object(&self.lowered.result) => quote!(ret != 0),
            ErrorPlace::Nowhere => match &self.function.fails {
                Some(fails) => {
                    let failed = self.cx().condition(fails);
                    quote!(!(#failed))
                }
                None => quote!(true),
            },
            ErrorPlace::Given { .. } if returns_object(&self.lowered.result) => quote!(code == 0 && ret != 0),
            ErrorPlace::Status(_) | ErrorPlace::Given { .. } => quote!(code == 0),
            _ => quote!(code == #success),
        }
    }
}

/// How many objects the call creates there at most, if any.
fn created(instruction: &Instruction, counted: bool) -> Option<TokenStream> {
    let sum = |parts: &[Instruction]| {
        let parts: Vec<TokenStream> = parts.iter().filter_map(|part| created(part, counted)).collect();
        (!parts.is_empty()).then(|| quote!((#(#parts)+*)))
    };
    match &instruction.operation {
        Operation::Handle(handle) => handle.object.allocate.then(|| quote!(1u64)),
        Operation::Struct { fields, .. } => sum(fields),
        Operation::Choice { then, otherwise, .. } => {
            let parts: Vec<TokenStream> = [sum(then), sum(otherwise)].into_iter().flatten().collect();
            parts.into_iter().reduce(|a, b| quote!(#a.max(#b)))
        }
        Operation::Elements(elements) => {
            let each = sum(&elements.element)?;
            let count = (counted && !elements.extent.site.nested).then(|| site_name(elements.extent.site));
            Some(count.map_or(each.clone(), |count| quote!((#count as u64).saturating_mul(#each))))
        }
        _ => None,
    }
}
