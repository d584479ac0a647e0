//! Effects of a successful call on the server: handles, object log, metadata.

use super::Handler;
use crate::generate::expression::Context;
use crate::generate::marshal::{chosen, found_elements, guarded, read};
use crate::lower::*;
use crate::model::Referring;
use proc_macro2::TokenStream;
use quote::quote;

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
        quote!(if ok { #(#after)* #time #(#handles)* })
    }

    pub(super) fn handle_effects(&self, instruction: &Instruction, cx: Context) -> TokenStream {
        match &instruction.operation {
            Operation::Handle(h) => {
                let (ty, value) = (h.handle as u32, read(instruction));
                let record = (h.record && !h.allocate).then(|| self.record(h, &quote!(#value), cx));
                let retain = h.retain.then(|| quote!(call.retain(#ty, #value);));
                let all = h.deallocate;
                let release = (h.release || all).then(|| quote!(call.release(#ty, #value, #all);));
                let refer = match &h.referring {
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

    pub(super) fn record(&self, handle: &HandleUse, native: &TokenStream, cx: Context) -> TokenStream {
        let ty = handle.handle as u32;
        let depends = handle.depends_on.iter().map(|e| {
            let (ty, value) = (e.ty.handle.unwrap_or(0) as u32, cx.exact(e));
            quote!(call.depends(#ty, (#value) as u64);)
        });
        quote!(call.record(#ty, #native); #(#depends)*)
    }
}
