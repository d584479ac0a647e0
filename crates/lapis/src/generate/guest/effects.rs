//! What a successful call changes in the guest: reference counts, metadata.

use super::Stub;
use crate::generate::expression::Context;
use crate::generate::marshal::{element_loop, guarded, read, site_name};
use crate::lower::*;
use proc_macro2::TokenStream;
use quote::quote;

impl Stub<'_> {
    /// What a successful call changes in the guest.
    pub(super) fn effects(&self) -> TokenStream {
        let cx = self.cx();
        let handles = self.lowered.arguments.iter().filter(|i| i.has_effects());
        let handles = handles.map(|i| self.handle_effects(i, cx));
        let after = self.function.after.iter().map(|g| {
            let value = cx.exact(&g.value);
            guarded(cx, &g.condition, quote!(let _ = #value;))
        });
        quote!(#(#after)* #(#handles)*)
    }

    pub(super) fn handle_effects(&self, instruction: &Instruction, cx: Context) -> TokenStream {
        match &instruction.operation {
            Operation::Handle(h) => {
                let (ty, value) = (h.handle as u32, read(instruction));
                let retain = h.retain.then(|| quote!(API.retain(#ty, #value);));
                let all = h.deallocate;
                let release = (h.release || all).then(|| quote!(API.release(#ty, #value, #all);));
                quote!(#retain #release)
            }
            Operation::Bytes(b) => match &b.mode {
                Mode::Shadow { coupled: Some(e), .. } => {
                    let (pointer, value) = (read(instruction), cx.exact(e));
                    quote!(if #pointer != 0 { API.couple(#pointer as usize as *mut u8, (#value) as u64); })
                }
                _ => quote!(),
            },
            Operation::Elements(e) => {
                let (pointer, count) = (read(instruction), site_name(e.extent.site));
                let inner = e.element.iter().map(|i| self.handle_effects(i, cx.deeper()));
                element_loop(
                    instruction.at,
                    quote!(#pointer as usize),
                    quote!(#count),
                    e.extent.stride,
                    quote!(#(#inner)*),
                )
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
}
