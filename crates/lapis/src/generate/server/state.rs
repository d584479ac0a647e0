//! Structs of which the server has the library's part, from one call to the next.

use super::Handler;
use crate::generate::expression::Context;
use crate::generate::marshal::{apart, read, write};
use crate::generate::types;
use crate::lower::*;
use crate::model::StateStruct;
use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};

/// Boundary behind a struct at which what crosses is noted as it was passed.
const PASSED_ALIGN: usize = 64;
/// As aviary_server's `History`.
const HISTORY_ALIGN: usize = 8;
const HISTORY_HEADER: usize = 24;

impl Handler<'_> {
    /// Finds or makes the struct, and sets the members that cross.
    pub(super) fn request_state(&self, instruction: &Instruction, elements: &Elements, cx: Context) -> TokenStream {
        let Some((state, members)) = elements.state() else { return quote!() };
        let cx = cx.inside(elements);
        let (kind, makes, copies, size) = (state.kind, elements.makes, state.copies, types::size(state.size));
        let behind = Behind::of(state, members);
        let (noted, distance) = (types::size(noted(state)), types::size(distance(state.size)));
        let (more, histories) = (types::size(behind.bytes), behind.names());
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
            let (e0, i0) = (call.state(#kind, #size, #more, #makes, #copies)? as usize, 0usize);
            #histories
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
            let apart = apart(members, *begin, *length);
            let (begin, length) = (types::size(*begin), types::size(*length));
            quote!({
                let at = e0 + #begin;
                call.reply_changed(at as *const u8, (at + passed0) as *const u8, #length, #apart);
            })
        });
        let shown = state.shown.iter().map(|(offset, length)| {
            let (offset, length) = (types::size(*offset), types::size(*length));
            quote!(call.reply_raw((e0 + #offset) as *const u8, #length);)
        });
        let histories = Behind::of(state, members).names();
        let replies = members.iter().map(|member| self.reply_value(member, cx));
        let wiped = members.iter().filter(|member| matches!(member.operation, Operation::Bytes(_)));
        let wiped = wiped.map(|member| write(member, quote!(0u64)));
        quote!({
            let (e0, i0) = (#pointer as usize, 0usize);
            let passed0 = #distance;
            #histories
            call.reply_state(e0, #ends, ok);
            #(#visible)*
            #(#shown)*
            #(#replies)*
            #(#wiped)*
        })
    }
}

/// What is kept behind a struct: its pointers as they were passed, and what the library has consumed.
struct Behind {
    /// Bytes from the boundary behind the struct on.
    bytes: usize,
    /// Names of histories, and their offsets from the struct's begin.
    histories: Vec<(Ident, usize)>,
}

impl Behind {
    fn of(state: &StateStruct, members: &[Instruction]) -> Behind {
        let begin = distance(state.size);
        let mut at = begin + noted(state);
        let mut histories = Vec::new();
        for member in members {
            if let Operation::Bytes(bytes) = &member.operation
                && bytes.history > 0
            {
                at = at.next_multiple_of(HISTORY_ALIGN);
                histories.push((history_name(member), at));
                at += HISTORY_HEADER + 2 * bytes.history;
            }
        }
        Behind { bytes: at - begin, histories }
    }

    fn names(&self) -> TokenStream {
        let (names, offsets): (Vec<_>, Vec<_>) =
            self.histories.iter().map(|(name, offset)| (name, types::size(*offset))).unzip();
        quote!(#(let #names = e0 + #offsets; let _ = #names;)*)
    }
}

/// The address of what a member's pointer has passed.
pub(super) fn history_name(member: &Instruction) -> Ident {
    match member.at {
        ValueLocation::Element { offset, .. } => format_ident!("history{}", offset),
        _ => format_ident!("history"),
    }
}

/// How far behind the struct that is noted.
fn distance(size: usize) -> usize {
    size.next_multiple_of(PASSED_ALIGN)
}

/// Bytes of the struct up to the last that crosses.
fn noted(state: &StateStruct) -> usize {
    state.visible.iter().map(|(offset, length)| offset + length).max().unwrap_or(0)
}
