//! Structs of which the server has the library's part: the application's has the key to it.

use super::{Code, Stub};
use crate::generate::expression::Context;
use crate::generate::marshal::{apart, read};
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
        let (makes, copies) = (elements.makes, state.copies);
        let refused = self.fail(self.code(Code::Failure));
        let visible = runs(state).map(|(offset, length)| quote!(call.raw((e0 + #offset) as *const u8, #length);));
        let members = members.iter().map(|member| self.request(member, cx));
        quote!({
            let (e0, i0) = (#pointer as usize, 0usize);
            if !call.state(e0, #size, #key, #makes, #copies) {
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
        let visible = state.visible.iter().map(|(begin, length)| {
            let apart = apart(members, *begin, *length);
            let (begin, length) = (types::size(*begin), types::size(*length));
            quote!(reply.changed((e0 + #begin) as *mut u8, #length, #apart);)
        });
        let shown = state.shown.iter().map(|(offset, length)| {
            let (offset, length) = (types::size(*offset), types::size(*length));
            quote!(reply.raw((e0 + #offset) as *mut u8, #length);)
        });
        let rooms = self.rooms(members, cx);
        let members = members.iter().map(|member| self.reply_value(member, cx));
        quote!({
            let (e0, i0) = (#pointer as usize, 0usize);
            reply.state(e0, #size, #key);
            #rooms
            #(#visible)*
            #(#shown)*
            #(#members)*
        })
    }

    /// The room of cursors, which is counted by members that the reply overwrites.
    pub(super) fn rooms(&self, members: &[Instruction], cx: Context) -> TokenStream {
        let mut rooms = TokenStream::new();
        for member in members {
            if let (Operation::Bytes(bytes), Some(room)) = (&member.operation, room(member))
                && bytes.cursor
                && let crate::model::Count::Elements(count) = &bytes.extent.count
            {
                let (count, stride) = (cx.exact(count), types::size(bytes.extent.stride));
                rooms.extend(quote!(let #room = support::count(#count, #stride).unwrap_or(0) * #stride;));
            }
        }
        rooms
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
