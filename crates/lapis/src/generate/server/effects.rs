//! Effects of a successful call on the server: handles, object log, metadata.

use super::Handler;
use crate::generate::expression::Context;
use crate::generate::marshal::{chosen, found_elements, guarded, read};
use crate::generate::types;
use crate::lower::*;
use crate::model::{Expr, Model, RecordOwner, Referring, StateFunctions};
use crate::tools::coverage::blocker;
use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};

impl Handler<'_> {
    /// Effects of a successful call on the server, after its handles are known.
    pub(super) fn effects(&self) -> TokenStream {
        let cx = self.cx();
        let after = self.function.after_server.iter().map(|g| {
            let value = cx.exact(&g.value);
            guarded(cx, &g.condition, quote!(let _ = #value;))
        });
        let time = self.function.device_time.as_ref().map(|e| {
            let value = cx.exact(e);
            quote!(call.device_time((#value).clamp(0, u64::MAX as i128) as u64);)
        });
        let handles = self.lowered.arguments.iter().filter(|i| i.has_effects());
        let handles = handles.map(|i| self.handle_effects(i, cx));
        let records = self.records(cx);
        quote!(if ok { #(#after)* #time #records #(#handles)* })
    }

    pub(super) fn handle_effects(&self, instruction: &Instruction, cx: Context) -> TokenStream {
        match &instruction.operation {
            Operation::Handle(h) => {
                let (ty, value) = (h.handle as u32, read(instruction));
                let record =
                    (h.object.record.is_some() && !h.object.allocate).then(|| self.record(h, &quote!(#value), cx));
                let retain = h.retain.then(|| quote!(call.retain(#ty, #value);));
                let all = h.object.deallocate;
                let release = (h.release || all).then(|| quote!(call.release(#ty, #value, #all);));
                let refer = match &h.object.referring {
                    Some(Referring::Sets { place }) => {
                        let place = cx.exact(place);
                        quote!(call.refer(#ty, #value, (#place) as u64);)
                    }
                    _ => quote!(),
                };
                quote!(#record #retain #refer #release)
            }
            Operation::Elements(e) => {
                let pointer = read(instruction);
                let body =
                    found_elements(instruction, e, e.element.iter().map(|i| self.handle_effects(i, cx.deeper())));
                quote!(if #pointer != 0 { #body })
            }
            Operation::Choice { site, then, otherwise, .. } => {
                let each = |i: &Instruction| self.handle_effects(i, cx);
                chosen(*site, then.iter().map(each), otherwise.iter().map(each))
            }
            _ => quote!(),
        }
    }

    /// The call's own place in the log, beside that of objects.
    fn records(&self, cx: Context) -> TokenStream {
        let records = self.function.records.iter().map(|record| {
            let keys = keys(&record.keys, cx);
            let record_it = match record.owner {
                RecordOwner::Session => quote!(call.record_session(&[#keys]);),
                RecordOwner::Thread => quote!(call.record_thread(&[#keys]);),
                RecordOwner::Current => quote!(call.record_current(&[#keys]);),
            };
            guarded(cx, &record.condition, record_it)
        });
        let blocked = blocker(self.model, self.function).map(|_| quote!(call.blocks_moves();));
        let same = self.function.same.iter().map(|g| {
            let value = cx.exact(&g.value);
            guarded(cx, &g.condition, quote!(call.same((#value) as u64);))
        });
        quote!(#(#records)* #blocked #(#same)*)
    }

    pub(super) fn record(&self, handle: &HandleUse, native: &TokenStream, cx: Context) -> TokenStream {
        let Some(record) = &handle.object.record else { return quote!() };
        let ty = handle.handle as u32;
        let depends = handle.object.depends_on.iter().map(|e| {
            let (ty, value) = (e.ty.handle.unwrap_or(0) as u32, cx.exact(e));
            quote!(call.depends(#ty, (#value) as u64);)
        });
        let record = match handle.object.allocate {
            true => quote!(call.record_made(#ty, #native);),
            false => {
                let keys = keys(record, cx);
                quote!(call.record(#ty, #native, &[#keys]);)
            }
        };
        let state = handle.object.state.map(|functions| {
            let state = explicit_state(self.model, functions);
            quote!(call.explicit_state(#ty, #native, #state);)
        });
        quote!(#record #(#depends)* #state)
    }
}

fn keys(keys: &[Expr], cx: Context) -> TokenStream {
    let keys = keys.iter().map(|key| {
        let value = cx.exact(key);
        quote!((#value) as u64)
    });
    quote!(#(#keys),*)
}

/// The functions that save and restore the state of objects.
fn explicit_state(model: &Model, functions: StateFunctions) -> TokenStream {
    state(model, functions, &format_ident!("ExplicitState"), &quote!(u64,))
}

/// Those of the state that belongs to no object.
pub(super) fn session_state(model: &Model, functions: StateFunctions) -> TokenStream {
    state(model, functions, &format_ident!("SessionState"), &quote!())
}

/// `object`: the parameter in front of the others.
fn state(model: &Model, functions: StateFunctions, structure: &Ident, object: &TokenStream) -> TokenStream {
    let name = |utility: usize| types::utility_name(&model.utility_functions[utility]);
    let (write, read) = (name(functions.write), name(functions.read));
    quote!(#structure {
        write: unsafe {
            std::mem::transmute::<
                *const (),
                unsafe extern "C" fn(#object u64, *mut std::ffi::c_void, usize) -> i64,
            >(#write as *const ())
        },
        read: unsafe {
            std::mem::transmute::<
                *const (),
                unsafe extern "C" fn(#object u64, *const std::ffi::c_void, usize) -> std::ffi::c_int,
            >(#read as *const ())
        },
    })
}
