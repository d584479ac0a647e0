//! The struct around the parameters of a function: taken apart in the guest, put together again on the server.

use super::types;
use crate::model::{Function, Signature, Type};
use crate::model::{Member, Unpacked};
use proc_macro2::{Ident, TokenStream};
use quote::quote;

/// In the guest: the parameters, from the struct that the application passes at `packed`; and what stands behind the call.
pub fn take_apart(function: &Function, unpacked: &Unpacked, refused: TokenStream) -> (TokenStream, TokenStream) {
    let words = types::size(unpacked.bytes.div_ceil(8));
    let parameters = unpacked.members.iter().enumerate().map(|(i, member)| {
        let (a, ty) = (types::argument(i), types::rust(&function.signature.parameters[i].1));
        let offset = types::size(member.offset);
        match member.pointed_to {
            true => quote!(let #a: #ty = whole + #offset;),
            false => quote!(let #a: #ty = unsafe { support::read::<#ty>(whole + #offset) };),
        }
    });
    let (copy, back) = match unpacked.sized {
        Some(sized) => {
            let [offset, width, required, total] =
                [sized.offset, sized.width, sized.required, sized.total].map(types::size);
            let copy = quote! {
                let mut whole = [0u64; #words];
                let whole = whole.as_mut_ptr() as usize;
                let size = match unsafe { support::whole(packed, #offset, #width, #required, #total, whole) } {
                    Some(size) if packed != 0 => size,
                    _ => return #refused,
                };
                let before = unsafe { *(whole as *const [u64; #words]) };
            };
            (
                copy,
                quote!(unsafe { support::part(whole, before.as_ptr() as usize, packed, #offset, #width, std::cmp::min(size, #total)) };),
            )
        }
        None => (quote!(if packed == 0 { return #refused; } let whole = packed;), quote!()),
    };
    (quote!(#copy #(#parameters)*), back)
}

/// Zeros for all parameters, where the application passed no struct that could be taken apart.
pub fn no_arguments(signature: &Signature) -> TokenStream {
    let zeros = signature.parameters.iter().map(|(_, ty)| types::zero(ty));
    quote!(#(#zeros),*)
}

/// The same as parameters, for a `failure` that names some.
pub fn named_zeros(signature: &Signature) -> TokenStream {
    let zeros = signature.parameters.iter().enumerate().map(|(i, (_, ty))| {
        let (a, rust, zero) = (types::argument(i), types::rust(ty), types::zero(ty));
        quote!(#[allow(unused_variables)] let #a: #rust = #zero;)
    });
    quote!(#(#zeros)*)
}

/// On the server: the struct `packed`, from the checked parameters; and what stands behind the call.
pub fn put_together(unpacked: &Unpacked) -> (TokenStream, TokenStream) {
    let words = types::size(unpacked.bytes.div_ceil(8));
    let put = unpacked.members.iter().enumerate().map(|(i, member)| put(&types::argument(i), member));
    let take = unpacked.members.iter().enumerate().filter(|(_, member)| member.pointed_to).map(|(i, member)| {
        let (a, offset, size) = (types::argument(i), types::size(member.offset), types::size(member.ty.size()));
        quote!(if #a != 0 { std::ptr::copy_nonoverlapping((packed + #offset) as *const u8, #a as *mut u8, #size); })
    });
    let checked = unpacked.sized.map(|sized| {
        let [offset, width, required, total] =
            [sized.offset, sized.width, sized.required, sized.total].map(types::size);
        quote! {
            let size = support::load(packed, #total, #offset, #width, false);
            if size < #required || size > #total {
                return Err(Reject::Malformed("a struct has a size that no guest library sends"));
            }
        }
    });
    let before = quote! {
        let mut packed = [0u64; #words];
        let packed = packed.as_mut_ptr() as usize;
        #(#put)*
        #checked
    };
    (before, quote!(#(#take)*))
}

fn put(a: &Ident, member: &Member) -> TokenStream {
    let (offset, size) = (types::size(member.offset), types::size(member.ty.size()));
    match member.pointed_to {
        // A guest that sends NULL for it loses what the function sets there.
        true => {
            quote!(if #a != 0 { std::ptr::copy_nonoverlapping(#a as *const u8, (packed + #offset) as *mut u8, #size); })
        }
        false => {
            let ty = types::rust(&member.ty);
            quote!(support::write::<#ty>(packed + #offset, #a);)
        }
    }
}

/// The type of the vendor's function.
pub fn function_type(result: &Type) -> TokenStream {
    let result = types::rust(result);
    quote!(unsafe extern "C" fn(usize) -> #result)
}
