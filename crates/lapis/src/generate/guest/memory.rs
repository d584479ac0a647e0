//! Copies of memory that the library hands out: how long the guest keeps them, and how the application frees them.

use super::{Code, Stub};
use crate::generate::expression::Context;
use crate::generate::marshal::{memory_bytes, read};
use crate::generate::types;
use crate::lower::*;
use crate::model::{Access, Lifetime, SharedMemory};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

impl Stub<'_> {
    /// How long a copy is kept; `None`: as long as the session.
    fn keep(&self, lifetime: &Lifetime, cx: Context) -> Option<TokenStream> {
        Some(match lifetime {
            Lifetime::Owned(owner) => {
                let owner = cx.exact(owner);
                quote!(aviary_guest::Keep::Object((#owner) as u64))
            }
            Lifetime::OwnedUntil(function) => {
                let id = self.model.functions.iter().position(|f| f.name == function.name).unwrap_or(0) as u32;
                quote!(aviary_guest::Keep::Until(#id))
            }
            Lifetime::FreedBy(group) => {
                let group = *group as u32;
                quote!(aviary_guest::Keep::Freed(#group))
            }
            Lifetime::Allocated { .. } => quote!(aviary_guest::Keep::Allocated),
            _ => return None,
        })
    }

    /// The address of the copy of a string.
    pub(super) fn given_text(&self, lifetime: &Lifetime, cx: Context) -> TokenStream {
        match self.keep(lifetime, cx) {
            None => quote!(reply.string(0) as usize as u64),
            Some(keep) => quote!(reply.given_bytes(#keep) as usize as u64),
        }
    }

    /// The address of the copy of plain data.
    pub(super) fn given_data(&self, lifetime: &Lifetime, cx: Context) -> TokenStream {
        match self.keep(lifetime, cx) {
            None => quote!(reply.owned() as usize as u64),
            Some(keep) => quote!(reply.given_bytes(#keep) as usize as u64),
        }
    }

    /// The address of the copy of an array whose elements have been translated.
    pub(super) fn given_array(&self, lifetime: &Lifetime, cx: Context) -> TokenStream {
        match self.keep(lifetime, cx) {
            None => quote!(reply.keep(&memory) as usize as u64),
            Some(keep) => quote!(reply.given_array(&memory, #keep) as usize as u64),
        }
    }

    /// The application hands back a copy of ours, or the call fails here.
    pub(super) fn request_freed(&self, instruction: &Instruction) -> TokenStream {
        let (value, refused) = (read(instruction), self.fail(self.code(Code::Failure)));
        let groups = self.model.freed_by(&self.function.name).into_iter().map(|group| group as u32);
        quote!(if !call.frees(#value as usize, &[#(#groups),*]) { return #refused; })
    }

    /// Behind the handle `value` in the request.
    pub(super) fn request_used(&self, handle: &HandleUse, value: &TokenStream, cx: Context) -> TokenStream {
        let Access { read, write } = &handle.object.memory.used;
        let writes = cx.when(write);
        if read.is_possible() { quote!(call.uses(#value as u64, #writes);) } else { quote!() }
    }

    /// The call has succeeded: `value` shares the memory of others.
    pub(super) fn shares(&self, handle: &HandleUse, value: &TokenStream, cx: Context) -> TokenStream {
        let shares = handle.object.memory.shares.iter().map(|shared| match shared {
            SharedMemory::One { object, place } => {
                let ty = object.ty.handle.unwrap_or(0) as u32;
                let (object, place) = (cx.exact(object), place.as_ref().map_or(quote!(0i128), |place| cx.exact(place)));
                quote!(API.share(#value as u64, #ty, (#object) as u64, (#place) as u64);)
            }
            SharedMemory::All { objects, count } => {
                let ty = objects.ty.pointee().and_then(|to| to.handle).unwrap_or(0) as u32;
                let (objects, count) = (cx.exact(objects), cx.exact(count));
                quote! {
                    let objects = (#objects) as usize;
                    for place in 0..support::count(if objects == 0 { 0 } else { #count }, 8).unwrap_or(0) {
                        API.share(#value as u64, #ty, support::read::<u64>(objects + place * 8), place as u64);
                    }
                }
            }
        });
        quote!(#(#shares)*)
    }

    /// The name under which the request keeps what the reply binds.
    pub(super) fn bound_variables(&self) -> TokenStream {
        let bound = self.lowered.arguments.iter().filter_map(bound_name);
        bound.map(|name| quote!(let mut #name = 0u64;)).collect()
    }

    pub(super) fn bind(&self, instruction: &Instruction, bytes: &Bytes, cx: Context) -> TokenStream {
        let (Mode::Bound { object }, Some(name)) = (&bytes.mode, bound_name(instruction)) else { return quote!() };
        let (object, pointer) = (cx.exact(object), read(instruction));
        let (count, stride) = (crate::generate::marshal::recall(bytes.extent.site), types::size(bytes.extent.stride));
        quote!(reply.bind(#name, #pointer as usize, #count as usize * #stride, (#object) as u64);)
    }

    /// The address of resident memory.
    pub(super) fn resident(&self, owner: &crate::model::Expr, cx: Context) -> TokenStream {
        let owner = cx.exact(owner);
        quote!(reply.resident((#owner) as u64) as usize as u64)
    }

    /// The address in the memory of an argument where the library points.
    pub(super) fn within(&self, argument: usize) -> TokenStream {
        let (base, bytes) = (types::argument(argument), memory_bytes(&self.lowered.arguments, argument));
        quote!(reply.within(#base as u64, #bytes))
    }

    /// Before a call that ends memory which others have handed out until then.
    pub(super) fn ends_memory(&self) -> TokenStream {
        let id = self.id;
        match self.model.ends_memory(&self.function.name) {
            true => quote!(API.ends_copies(#id);),
            false => quote!(),
        }
    }
}

/// The variable of an argument that is bound.
pub(super) fn bound_name(instruction: &Instruction) -> Option<proc_macro2::Ident> {
    match (&instruction.operation, instruction.at) {
        (Operation::Bytes(Bytes { mode: Mode::Bound { .. }, .. }), ValueLocation::Argument(i)) => {
            Some(format_ident!("bound{}", i))
        }
        (Operation::Choice { then, otherwise, .. }, _) => then.iter().chain(otherwise).find_map(bound_name),
        _ => None,
    }
}
