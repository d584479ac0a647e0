//! Structs of which the application has only the first bytes: the stub works on whole copies.

use super::{Code, Stub};
use crate::generate::types;
use crate::lower::*;
use crate::model::Sized;
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

impl Stub<'_> {
    /// The call `body` on copies of the sized structs, in which what the application lacks is zero. Afterwards the
    /// application has what the call wrote, as far as its struct goes; the size stays its own.
    pub(super) fn whole_structs(&self, body: TokenStream) -> TokenStream {
        let structs: Vec<_> = self.lowered.arguments.iter().filter_map(sized).collect();
        if structs.is_empty() {
            return body;
        }
        let result = types::rust(&self.function.signature.result);
        let refused = self.fail(self.code(Code::Failure));
        let copies = structs.iter().map(|(i, sized, _)| {
            let [offset, width, required, total] =
                [sized.offset, sized.width, sized.required, sized.total].map(types::size);
            let words = types::size(sized.total.div_ceil(8));
            let a = types::argument(*i);
            let [own, copy, size, before] = ["own", "copy", "size", "before"].map(|name| format_ident!("{}{}", name, i));
            quote! {
                let #own = #a;
                let mut #copy = [0u64; #words];
                let #copy = #copy.as_mut_ptr() as usize;
                let Some(#size) = support::whole(#own, #offset, #width, #required, #total, #copy) else { return #refused };
                let #before = *(#copy as *const [u64; #words]);
                let #a = if #own == 0 { 0 } else { #copy };
            }
        });
        let back = structs.iter().filter(|(_, _, output)| *output).map(|(i, sized, _)| {
            let [offset, width, total] = [sized.offset, sized.width, sized.total].map(types::size);
            let [own, copy, size, before] = ["own", "copy", "size", "before"].map(|name| format_ident!("{}{}", name, i));
            quote!(support::part(#copy, #before.as_ptr() as usize, #own, #offset, #width, std::cmp::min(#size, #total));)
        });
        quote! {
            #(#copies)*
            let call = || -> #result { #body };
            let ret = call();
            #(#back)*
            ret
        }
    }
}

/// An argument that points to a sized struct, and whether the struct comes back.
fn sized(instruction: &Instruction) -> Option<(usize, Sized, bool)> {
    let (ValueLocation::Argument(i), Operation::Elements(elements)) = (instruction.at, &instruction.operation) else {
        return None;
    };
    match elements.element.first().map(|e| &e.operation) {
        Some(Operation::Struct { sized: Some(sized), .. }) => Some((i, *sized, elements.output)),
        _ => None,
    }
}
