//! Memory of the library's that the application frees.

use super::Handler;
use crate::generate::expression::Context;
use crate::generate::marshal::memory_bytes;
use crate::generate::types;
use crate::lower::*;
use crate::model::{Access, Expr, Lifetime};
use proc_macro2::{Literal, TokenStream};
use quote::quote;
use std::ffi::CString;

impl Handler<'_> {
    /// Behind the content of memory at `pointer`: the id under which the guest frees it. Where it has a copy of its own
    /// allocator's, the library's is freed at once.
    pub(super) fn reply_freed(&self, lifetime: &Lifetime, pointer: TokenStream) -> TokenStream {
        match lifetime {
            Lifetime::FreedBy(group) => {
                let group = *group as u32;
                quote!(call.reply_freed((#pointer) as usize, #group, ok);)
            }
            Lifetime::Allocated { free } => {
                let free = Literal::c_string(&CString::new(free.as_str()).unwrap_or_default());
                quote!(call.free((#pointer) as usize, #free);)
            }
            _ => quote!(),
        }
    }

    /// After the vendor's function has returned.
    pub(super) fn memory_effects(&self) -> TokenStream {
        let used = self.lowered.arguments.iter().any(Instruction::uses_memory);
        let used = used.then(|| quote!(call.return_used(ok);));
        let frees = self.lowered.arguments.iter().any(|i| matches!(i.operation, Operation::Frees));
        let frees = frees.then(|| quote!(call.end_freeing(ok);));
        quote!(#used #frees)
    }

    /// Behind a handle that was taken out of the request.
    pub(super) fn request_used(&self, handle: &HandleUse, cx: Context) -> TokenStream {
        let Access { read, write } = &handle.object.memory.used;
        let writes = cx.when(write);
        if read.is_possible() { quote!(call.uses(#writes)?;) } else { quote!() }
    }

    /// Tells where resident memory is.
    pub(super) fn reply_resident(&self, pointer: TokenStream, bytes: &Expr, owner: &Expr, cx: Context) -> TokenStream {
        let (ty, owner, bytes) = (owner.ty.handle.unwrap_or(0) as u32, cx.exact(owner), cx.exact(bytes));
        quote!({
            let pointer = if ok { #pointer as usize } else { 0 };
            let bytes = if pointer == 0 { 0 } else { support::count(#bytes, 1).unwrap_or(0) };
            call.reply_resident(pointer, bytes, #ty, (#owner) as u64);
        })
    }

    /// Tells how far into the memory of an argument the library points.
    pub(super) fn reply_within(&self, argument: usize, pointer: TokenStream) -> TokenStream {
        let (base, bytes) = (types::argument(argument), memory_bytes(&self.lowered.arguments, argument));
        quote!(call.reply_within(#pointer as u64, #base as u64, #bytes)?;)
    }

    pub(super) fn request_freed(&self, instruction: &Instruction) -> TokenStream {
        let groups = self.model.freed_by(&self.function.name).into_iter().map(|group| group as u32);
        let store = self.store(instruction, quote!(value as u64));
        let note = self.note(instruction.at, quote!(0), quote!(value != 0));
        quote!({ let value = call.frees(&[#(#groups),*])?; #store #note })
    }
}
