//! `late`: failures of calls that nobody waits for.

use super::Handler;
use crate::generate::types;
use crate::model::{Expr, TypeKind};
use proc_macro2::TokenStream;
use quote::quote;

impl Handler<'_> {
    /// What a call with `late` does when its arguments are known, and when the vendor's function has returned.
    pub(super) fn told_late(&self) -> (TokenStream, TokenStream) {
        match (&self.function.late, &self.function.signature.result.kind) {
            (None, _) => (quote!(), quote!()),
            (Some(_), TypeKind::Void) => (quote!(call.permitted()?;), quote!()),
            _ => (quote!(call.permitted()?;), quote!(returned = ret;)),
        }
    }

    /// `late`: a call that nobody waits for tells of its failure by this expression, whatever has refused it.
    pub(super) fn late(&self, late: &Expr, variables: &TokenStream, call: &TokenStream) -> TokenStream {
        let ty = &self.function.signature.result;
        let (rust, zero, told) = (types::rust(ty), types::zero(ty), self.cx().exact(late));
        let returned = match ty.kind {
            TypeKind::Void => quote!(),
            _ => quote!(let mut returned: #rust = #zero;),
        };
        let ret = match ty.kind {
            TypeKind::Void => quote!(),
            _ => quote!(let ret = returned;),
        };
        quote! {
            #variables
            #returned
            let handled = aviary_server::caught(|| { #call });
            if call.failed_late(&handled) {
                #ret
                let _ = #told;
            }
            handled
        }
    }

    /// The object that the call has returned, for the reply. Nobody waits for that of a call that tells of it late.
    pub(super) fn returned_object(&self) -> TokenStream {
        match self.function.late {
            Some(_) => quote!(if call.is_asynchronous() { 0 } else { ret as u64 }),
            None => quote!(ret as u64),
        }
    }
}
