//! Structs of which the server has the library's part: the application's has the key to it.

use super::{Code, Stub};
use crate::generate::expression::Context;
use crate::generate::marshal::{read, write};
use crate::generate::types;
use crate::lower::*;
use crate::model::StateStruct;
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

impl Stub<'_> {
    /// The id of the state, the members that cross, and what the others lead to.
    pub(super) fn request_state(&self, instruction: &Instruction, elements: &Elements, cx: Context) -> TokenStream {
        let Some((state, members)) = elements.state() else { return quote!() };
        let (pointer, cx) = (read(instruction), cx.inside(elements));
        let [size, key] = [state.size, state.key].map(types::size);
        let makes = elements.makes;
        let refused = self.fail(self.code(Code::Failure));
        let visible = runs(state).map(|(offset, length)| quote!(call.raw((e0 + #offset) as *const u8, #length);));
        let members = members.iter().map(|member| self.request(member, cx));
        quote!({
            let (e0, i0) = (#pointer as usize, 0usize);
            if !call.state(e0, #size, #key, #makes) {
                return #refused;
            }
            #(#visible)*
            #(#members)*
        })
    }

    /// The members as the call left them; pointers are the application's own, moved as the library has moved its own.
    pub(super) fn reply_state(&self, instruction: &Instruction, elements: &Elements, cx: Context) -> TokenStream {
        let Some((state, members)) = elements.state() else { return quote!() };
        let (pointer, cx) = (read(instruction), cx.inside(elements));
        let [size, key] = [state.size, state.key].map(types::size);
        let visible = runs(state).map(|(offset, length)| quote!(reply.raw((e0 + #offset) as *mut u8, #length);));
        let (saved, restored) = self.saved(members, cx);
        let members = members.iter().map(|member| self.reply_value(member, cx));
        quote!({
            let (e0, i0) = (#pointer as usize, 0usize);
            reply.state(e0, #size, #key);
            #saved
            #(#visible)*
            #restored
            #(#members)*
        })
    }

    /// Around bytes of a struct that the reply overwrites: the application's own pointers stay where no translated value
    /// arrives. The room of cursors is counted by members that are overwritten, too.
    pub(super) fn saved(&self, members: &[Instruction], cx: Context) -> (TokenStream, TokenStream) {
        let mut saved = TokenStream::new();
        let mut restored = TokenStream::new();
        for (i, member) in members.iter().enumerate() {
            let (name, value) = (format_ident!("saved{}", i), read(member));
            saved.extend(quote!(let #name = #value;));
            restored.extend(write(member, quote!(#name)));
            if let (Operation::Bytes(bytes), Some(room)) = (&member.operation, room(member))
                && bytes.cursor
                && let crate::model::Count::Elements(count) = &bytes.extent.count
            {
                let (count, stride) = (cx.exact(count), types::size(bytes.extent.stride));
                saved.extend(quote!(let #room = support::count(#count, #stride).unwrap_or(0) * #stride;));
            }
        }
        (saved, restored)
    }
}

/// The name of the bytes that a cursor may move by.
pub(super) fn room(member: &Instruction) -> Option<proc_macro2::Ident> {
    match member.at {
        ValueLocation::Element { offset, .. } => Some(format_ident!("room{}", offset)),
        _ => None,
    }
}

fn runs(state: &StateStruct) -> impl Iterator<Item = (proc_macro2::Literal, proc_macro2::Literal)> {
    state.visible.iter().map(|(offset, length)| (types::size(*offset), types::size(*length)))
}
