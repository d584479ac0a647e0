//! Callbacks: the trampoline that the vendor calls on the server, and the
//! invoker that calls the application's function in the guest.

use super::expression::Context;
use super::marshal::{element_loop, given_count, returns_object, role, write};
use super::shims;
use super::types;
use crate::lower::*;
use crate::model::*;
use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};

/// Server: the function whose address the vendor gets. It runs on any thread.
pub fn trampoline(model: &Model, kind: usize, lowered: &LoweredCallback) -> TokenStream {
    // Everything a callback is given is the vendor's own memory.
    let cx = Context { unbounded: true, ..Context::new(model, Side::Server) };
    let signature = &lowered.callback.signature;
    let name = format_ident!("callback_{}", kind);
    let parameters = types::parameter_list(signature);
    let (result, zero) = (types::rust(&signature.result), types::zero(&signature.result));
    let closure = lowered.callback.userdata.map_or(quote!(0usize), |u| {
        let a = types::argument(u);
        quote!(#a)
    });
    let kind = kind as u32;
    let puts = lowered.arguments.iter().map(|i| put(i, cx));
    if lowered.callback.posted {
        return quote! {
            unsafe extern "C" fn #name(#parameters) {
                aviary_server::guarded(move || unsafe {
                    let Some(mut out) = Outgoing::begin(#closure as *mut std::ffi::c_void, #kind) else { return };
                    #(#puts)*
                    out.post();
                }, ())
            }
        };
    }
    let answer = answer(&lowered.result, &signature.result);
    let outs = lowered.arguments.iter().filter(|i| i.replies()).map(|_| quote!(answer.out();));
    let (head, entry) = if signature.is_plain() {
        (quote!(unsafe extern "C" fn #name(#parameters) -> #result), None)
    } else {
        let inner = format_ident!("inner_{}", kind);
        (quote!(unsafe fn #inner(#parameters) -> #result), Some(entry(&name, &inner, kind, signature)))
    };
    quote! {
        #entry
        #head {
            aviary_server::guarded(move || unsafe {
                let Some(mut out) = Outgoing::begin(#closure as *mut std::ffi::c_void, #kind) else { return #zero };
                #(#puts)*
                let Some(mut answer) = out.send() else { return #zero };
                let ret = #answer;
                #(#outs)*
                ret
            }, #zero)
        }
    }
}

/// The function that the vendor calls, where C receives its arguments.
fn entry(name: &Ident, inner: &Ident, kind: u32, signature: &Signature) -> TokenStream {
    let [c, trampoline] = ["callback", "trampoline"].map(|what| format_ident!("aviary_{}_{}", what, kind));
    let types: Vec<&Type> = signature.parameters.iter().map(|(_, ty)| ty).collect();
    let (arguments, list) = (shims::arguments(&types), types::argument_list(signature));
    let result = types::rust(&signature.result);
    quote! {
        unsafe extern "C" { fn #c(); }
        use #c as #name;
        #[unsafe(no_mangle)]
        unsafe extern "C" fn #trampoline(arguments: *const usize, result: *mut std::ffi::c_void) {
            #arguments
            let value = #inner(#list);
            if !result.is_null() {
                (result as *mut #result).write(value);
            }
        }
    }
}

fn put(instruction: &Instruction, cx: Context) -> TokenStream {
    let value = super::marshal::read(instruction);
    match &instruction.operation {
        Operation::Scalar if types::is_struct(&instruction.ty) => {
            let (a, size) = (argument(instruction), types::size(instruction.ty.size()));
            quote!(out.raw(&raw const #a as *const u8, #size);)
        }
        Operation::Scalar => quote!(out.word(#value);),
        Operation::Handle(h) => {
            let (ty, role) = (h.handle as u32, role(h));
            quote!(out.handle(#ty, #value, #role);)
        }
        Operation::Text { .. } => quote!(out.string(#value as usize as *const std::ffi::c_char);),
        Operation::Bytes(b) => {
            let stride = types::size(b.extent.stride);
            let count = given_count(&b.extent, None, quote!(#value), cx);
            let ((input, output), written) = (directions(b), b.written);
            quote!(out.buffer(#value as usize as *mut u8, #count * #stride, #input, #output, #written);)
        }
        Operation::Elements(elements) => {
            let count = given_count(&elements.extent, None, quote!(pointer), cx);
            let inner: TokenStream = elements.element.iter().map(|i| put(i, cx.deeper())).collect();
            let body = element_loop(instruction.at, quote!(pointer), quote!(count), elements.extent.stride, inner);
            quote!({
                let pointer = #value as usize;
                let count = if pointer == 0 { None } else { Some(#count) };
                if let Some(count) = out.array(count) { #body }
            })
        }
        _ => quote!(),
    }
}

fn directions(bytes: &Bytes) -> (bool, bool) {
    match bytes.mode {
        Mode::Copy { input, output } => (input, output),
        _ => (true, false),
    }
}

fn argument(instruction: &Instruction) -> TokenStream {
    match instruction.at {
        ValueLocation::Argument(i) => {
            let a = types::argument(i);
            quote!(#a)
        }
        _ => quote!(ret),
    }
}

fn answer(result: &Instruction, ty: &Type) -> TokenStream {
    let rust = types::rust(ty);
    match &result.operation {
        Operation::Nothing => quote!(()),
        // A guest's pointer never becomes the vendor's.
        Operation::Null { .. } => types::zero(ty),
        Operation::Handle(h) => {
            let ty = h.handle as u32;
            quote!((answer.handle(#ty) as #rust))
        }
        _ if types::is_struct(ty) => {
            let size = types::size(ty.size());
            quote!({ let mut value: #rust = std::mem::zeroed(); answer.raw(&raw mut value as *mut u8, #size); value })
        }
        _ if returns_object(result) => quote!(0),
        _ => types::from_word(quote!(answer.word()), ty),
    }
}

/// Guest: how the runtime calls the application.
pub fn descriptor(kind: usize, lowered: &LoweredCallback) -> TokenStream {
    let invoke = format_ident!("invoke_{}", kind);
    let lost = match called_when_lost(lowered) {
        true => {
            let lost = format_ident!("lost_{}", kind);
            quote!(Some(#lost))
        }
        false => quote!(None),
    };
    quote!(CallbackKind { invoke: #invoke, lost: #lost })
}

fn called_when_lost(lowered: &LoweredCallback) -> bool {
    lowered.callback.once && !lowered.callback.unless_lost
}

/// Guest: the functions of [`descriptor`].
pub fn guest(model: &Model, kind: usize, lowered: &LoweredCallback) -> TokenStream {
    let (invoker, lost) = (invoker(kind, lowered), called_when_lost(lowered).then(|| lost(model, kind, lowered)));
    quote!(#invoker #lost)
}

/// Decodes the arguments and calls the application.
fn invoker(kind: usize, lowered: &LoweredCallback) -> TokenStream {
    let name = format_ident!("invoke_{}", kind);
    let signature = &lowered.callback.signature;
    let gets = lowered.arguments.iter().map(|i| get(i, signature));
    let call = application(kind, signature);
    let reply = match &lowered.result.operation {
        Operation::Nothing | Operation::Null { .. } => quote!(),
        Operation::Handle(h) => {
            let ty = h.handle as u32;
            quote!(incoming.reply_handle(#ty, ret as u64);)
        }
        _ if types::is_struct(&signature.result) => {
            let size = types::size(signature.result.size());
            quote!(incoming.reply_raw(&raw const ret as *const u8, #size);)
        }
        _ => {
            let word = types::to_word(quote!(ret), &signature.result);
            quote!(incoming.reply_word(#word);)
        }
    };
    let outs = lowered.arguments.iter().filter(|i| i.replies()).map(|_| quote!(incoming.reply_out();));
    quote! {
        unsafe fn #name(incoming: &mut Incoming) {
            unsafe {
                #(#gets)*
                #call
                #reply
                #(#outs)*
            }
        }
    }
}

/// Calls the application without a message: the API server is gone.
fn lost(model: &Model, kind: usize, lowered: &LoweredCallback) -> TokenStream {
    let name = format_ident!("lost_{}", kind);
    let signature = &lowered.callback.signature;
    let handed_back = lowered.hands_back.and_then(|ty| {
        let mut handles = lowered.arguments.iter().filter_map(|i| Some((i.at, handle(i)?)));
        handles.find_map(|(at, handle)| (handle == ty).then_some(at))
    });
    let gets = signature.parameters.iter().enumerate().map(|(i, (_, ty))| {
        let (a, rust) = (types::argument(i), types::rust(ty));
        let own = lowered.arguments.iter().find(|argument| argument.at == ValueLocation::Argument(i));
        let value = match own {
            Some(own) if matches!(own.operation, Operation::Userdata) => quote!((incoming.userdata() as #rust)),
            Some(Instruction { operation: Operation::Given { place }, .. }) => {
                let place = types::size(*place);
                quote!((incoming.given(#place) as #rust))
            }
            Some(own) if handed_back == Some(own.at) => quote!((incoming.handed() as #rust)),
            own => match lost_code(model, &lowered.callback, i, own.and_then(handle)) {
                Some(code) => types::from_exact(Context::new(model, Side::Guest).exact(code), ty),
                None => types::zero(ty),
            },
        };
        quote!(let #a: #rust = #value;)
    });
    let call = application(kind, signature);
    quote! {
        unsafe fn #name(incoming: &mut Incoming) {
            unsafe {
                #(#gets)*
                #call
                let _ = ret;
            }
        }
    }
}

/// The value by which a callback's parameter says that the session is lost.
fn lost_code<'a>(model: &'a Model, callback: &Callback, parameter: usize, handle: Option<usize>) -> Option<&'a Expr> {
    if callback.errors.contains(&parameter) {
        return model.error.as_ref().and_then(|error| error.lost.as_ref().or(error.failure.as_ref()));
    }
    let status = model.statuses.iter().find(|status| !status.given && Some(status.handle) == handle)?;
    Some(&status.lost)
}

fn handle(instruction: &Instruction) -> Option<usize> {
    match &instruction.operation {
        Operation::Handle(h) => Some(h.handle),
        _ => None,
    }
}

/// Calls the application's function with the arguments `a0`, `a1`, ...; leaves `ret`.
fn application(kind: usize, signature: &Signature) -> TokenStream {
    let function_type = types::function_type(signature, Side::Guest);
    let arguments = types::argument_list(signature);
    if signature.is_plain() {
        quote! {
            let function: #function_type = std::mem::transmute(incoming.function());
            let ret = function(#arguments);
        }
    } else {
        let values: Vec<TokenStream> = (0..signature.parameters.len())
            .map(|i| {
                let a = types::argument(i);
                quote!(#a)
            })
            .collect();
        let address = quote!(incoming.function() as usize);
        let ret = shims::through_c(&format_ident!("aviary_invoke_{}", kind), Some(address), &values, &signature.result);
        quote!(let ret = #ret;)
    }
}

fn get(instruction: &Instruction, signature: &Signature) -> TokenStream {
    let ValueLocation::Argument(i) = instruction.at else { return quote!() };
    let (a, ty) = (types::argument(i), &signature.parameters[i].1);
    let rust = types::rust(ty);
    let value = match &instruction.operation {
        Operation::Scalar if types::is_struct(ty) => {
            let size = types::size(ty.size());
            quote!({ let mut value: #rust = std::mem::zeroed(); incoming.raw(&raw mut value as *mut u8, #size); value })
        }
        Operation::Scalar => types::from_word(quote!(incoming.word()), ty),
        Operation::Handle(_) | Operation::Text { .. } => {
            let value = translated(instruction);
            quote!((#value as #rust))
        }
        Operation::Elements(elements) => {
            let stride = elements.extent.stride;
            let filled: TokenStream = elements.element.iter().map(|i| write(i, translated(i))).collect();
            let body = element_loop(instruction.at, quote!(array), quote!(count), stride, filled);
            let stride = types::size(stride);
            quote!(match incoming.array(#stride) {
                Some((array, count)) => { #body array }
                None => 0usize,
            })
        }
        Operation::Bytes(b) => {
            let (input, output) = directions(b);
            quote!((incoming.buffer(#input, #output) as usize))
        }
        Operation::Userdata => quote!((incoming.userdata() as #rust)),
        Operation::Given { place } => {
            let place = types::size(*place);
            quote!((incoming.given(#place) as #rust))
        }
        _ => types::zero(ty),
    };
    quote!(let #a: #rust = #value;)
}

/// A handle or string that the message has next.
fn translated(instruction: &Instruction) -> TokenStream {
    match &instruction.operation {
        Operation::Handle(h) => {
            let (handle, role) = (h.handle as u32, role(h));
            quote!(incoming.handle(#handle, #role))
        }
        _ => quote!((incoming.string() as usize as u64)),
    }
}
