//! Effects of a successful call in the guest: reference counts, metadata.

use super::Stub;
use crate::generate::expression::Context;
use crate::generate::marshal::{chosen, found_elements, guarded, read};
use crate::lower::*;
use proc_macro2::TokenStream;
use quote::quote;

impl Stub<'_> {
    /// Effects of a successful call in the guest.
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
                let all = h.object.deallocate;
                let release = (h.release || all).then(|| quote!(API.release(#ty, #value, #all);));
                let shares = (!h.object.allocate).then(|| self.shares(h, &value, cx));
                quote!(#retain #shares #release)
            }
            Operation::Bytes(b) => match &b.mode {
                Mode::Shadow { coupled: Some(e), .. } => {
                    let (pointer, value) = (read(instruction), cx.exact(e));
                    quote!(if #pointer != 0 { API.couple(#pointer as usize as *mut u8, (#value) as u64); })
                }
                _ => self.bind(instruction, b, cx),
            },
            Operation::Elements(e) => {
                found_elements(instruction, e, e.element.iter().map(|i| self.handle_effects(i, cx.deeper())))
            }
            Operation::Choice { site, then, otherwise, .. } => {
                let each = |i: &Instruction| self.handle_effects(i, cx);
                chosen(*site, then.iter().map(each), otherwise.iter().map(each))
            }
            _ => quote!(),
        }
    }
}
