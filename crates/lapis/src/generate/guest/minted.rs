//! Handles of objects that an asynchronous call creates: the guest names them, and the application has them at once.

use super::{Code, Stub};
use crate::generate::expression::Context;
use crate::generate::marshal::{chosen, end_with, found_elements, read, write};
use crate::generate::types;
use crate::lower::*;
use crate::model::ErrorPlace;
use proc_macro2::TokenStream;
use quote::quote;

impl Stub<'_> {
    /// True if the call may have to choose ids.
    pub(super) fn mints(&self) -> bool {
        self.lowered.arguments.iter().chain([&self.lowered.result]).any(Instruction::mints)
    }

    /// A word for every new object: its id, or 0 where the call waits for the server's choice.
    pub(super) fn request_minted(&self, instruction: &Instruction) -> TokenStream {
        match &instruction.operation {
            Operation::Handle(h) if h.minted => {
                let ty = h.handle as u32;
                quote!(if asynchronous { minted.push(call.mint(#ty)); } else { call.word(0); })
            }
            _ => quote!(),
        }
    }

    /// Gives the application its new handles, in the order of the request.
    pub(super) fn write_minted(&self) -> TokenStream {
        if !self.mints() {
            return quote!();
        }
        let result = self.lowered.result.mints().then(|| {
            let ty = types::rust(&self.function.signature.result);
            let owned = match &self.lowered.result.operation {
                Operation::Handle(h) => end_with(h, &quote!((ret as u64)), self.cx()),
                _ => quote!(),
            };
            quote!(let ret = minted.next().unwrap_or(0) as #ty; #owned)
        });
        let outputs = self.lowered.arguments.iter().map(|i| self.write_minted_output(i, self.cx()));
        quote!(let mut minted = minted.into_iter(); #result #(#outputs)*)
    }

    fn write_minted_output(&self, instruction: &Instruction, cx: Context) -> TokenStream {
        if !instruction.mints() {
            return quote!();
        }
        match &instruction.operation {
            Operation::Elements(e) => {
                let pointer = read(instruction);
                let writes = e.element.iter().map(|i| self.write_minted_element(i, cx.deeper()));
                let body = found_elements(instruction, e, writes);
                quote!(if #pointer != 0 { #body })
            }
            Operation::Choice { site, then, otherwise, .. } => {
                let each = |i: &Instruction| self.write_minted_output(i, cx);
                chosen(*site, then.iter().map(each), otherwise.iter().map(each))
            }
            _ => quote!(),
        }
    }

    fn write_minted_element(&self, instruction: &Instruction, cx: Context) -> TokenStream {
        match &instruction.operation {
            Operation::Handle(h) if !h.object.ends_with.is_empty() => {
                let (store, owned) = (write(instruction, quote!(value)), end_with(h, &quote!(value), cx));
                quote!(let value = minted.next().unwrap_or(0); #store #owned)
            }
            _ => write(instruction, quote!(minted.next().unwrap_or(0))),
        }
    }

    /// The value that an asynchronous call returns.
    pub(super) fn success(&self) -> TokenStream {
        let code = self.code(Code::Success);
        let minted = self.lowered.result.mints();
        match self.function.error {
            ErrorPlace::Parameter(_) if minted => {
                let tell = self.fail(code);
                quote!({ #tell; ret })
            }
            _ if minted => quote!(ret),
            ErrorPlace::Parameter(_) => self.fail(code),
            _ => types::from_exact(code, &self.function.signature.result),
        }
    }
}
