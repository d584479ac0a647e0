//! Structs of which the server has the library's part, from one call to the next.

use super::Handler;
use crate::generate::expression::Context;
use crate::generate::marshal::{read, write};
use crate::generate::types;
use crate::lower::*;
use proc_macro2::TokenStream;
use quote::quote;

/// Boundary behind a struct at which the pointers are noted as they were passed.
const PASSED_ALIGN: usize = 64;

impl Handler<'_> {
    /// Finds or makes the struct, and sets the members that cross.
    pub(super) fn request_state(&self, instruction: &Instruction, elements: &Elements, cx: Context) -> TokenStream {
        let Some((state, members)) = elements.state() else { return quote!() };
        let cx = cx.inside(elements);
        let (kind, makes, size) = (state.kind, elements.makes, types::size(state.size));
        let (noted, distance) = (types::size(noted(members)), types::size(distance(state.size)));
        let store = self.store(instruction, quote!(e0 as u64));
        let note = self.note(instruction.at, quote!(#size), quote!(true));
        let visible = state.visible.iter().map(|(offset, length)| {
            let (offset, length) = (types::size(*offset), types::size(*length));
            quote!({
                let raw = call.raw(#length)?;
                std::ptr::copy_nonoverlapping(raw, (e0 + #offset) as *mut u8, #length);
            })
        });
        let requests = members.iter().map(|member| self.request(member, cx));
        quote!({
            let (e0, i0) = (call.state(#kind, #size, #noted, #makes)? as usize, 0usize);
            #store
            #note
            #(#visible)*
            #(#requests)*
            std::ptr::copy_nonoverlapping(e0 as *const u8, (e0 + #distance) as *mut u8, #noted);
        })
    }

    /// The members that cross, and how the library has moved its pointers. None of them stays in the struct.
    pub(super) fn reply_state(&self, instruction: &Instruction, elements: &Elements, cx: Context) -> TokenStream {
        let Some((state, members)) = elements.state() else { return quote!() };
        let cx = Context { state: true, ..cx.inside(elements) };
        let pointer = read(instruction);
        let (ends, distance) = (elements.ends, types::size(distance(state.size)));
        let visible = state.visible.iter().map(|(begin, length)| {
            let within = |offset: usize| (*begin..begin + length).contains(&offset);
            let blanked = members.iter().filter_map(|member| match member.at {
                ValueLocation::Element { offset, .. } if within(offset) => {
                    let (at, size) = (types::size(offset - begin), types::size(member.ty.size()));
                    Some(quote!(std::ptr::write_bytes(copy.add(#at), 0, #size);))
                }
                _ => None,
            });
            let (begin, length) = (types::size(*begin), types::size(*length));
            quote!({
                let copy = call.scratch(#length);
                std::ptr::copy_nonoverlapping((e0 + #begin) as *const u8, copy, #length);
                #(#blanked)*
                call.reply_raw(copy, #length);
            })
        });
        let replies = members.iter().map(|member| self.reply_value(member, cx));
        let wiped = members.iter().filter(|member| matches!(member.operation, Operation::Bytes(_)));
        let wiped = wiped.map(|member| write(member, quote!(0u64)));
        quote!({
            let (e0, i0) = (#pointer as usize, 0usize);
            let passed0 = #distance;
            call.reply_state(e0, #ends, ok);
            #(#visible)*
            #(#replies)*
            #(#wiped)*
        })
    }
}

/// How far behind the struct its pointers are noted.
fn distance(size: usize) -> usize {
    size.next_multiple_of(PASSED_ALIGN)
}

/// Bytes of the struct up to its last pointer.
fn noted(members: &[Instruction]) -> usize {
    let ends = members.iter().filter_map(|member| match (member.at, &member.operation) {
        (ValueLocation::Element { offset, .. }, Operation::Bytes(_)) => Some(offset + member.ty.size()),
        _ => None,
    });
    ends.max().unwrap_or(0)
}
