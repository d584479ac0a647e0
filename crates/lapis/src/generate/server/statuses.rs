//! Codes and texts of the vendor's status objects, for the guest to have them without asking.

use super::Handler;
use crate::generate::types;
use proc_macro2::{Ident, TokenStream};
use quote::quote;

impl Handler<'_> {
    /// The code of an object that the call was given; NULL says nothing.
    pub(super) fn status_code(&self, status: usize, object: Ident) -> TokenStream {
        let Some(text) = self.model.statuses[status].text else { return quote!(0i128) };
        let code = types::utility_name(&self.model.utility_functions[text.code]);
        quote!(if #object != 0 { #code(#object as _) as i128 } else { 0i128 })
    }

    /// The words that tell of an object's `code`, and its text where it tells of a failure.
    pub(super) fn status_told(&self, status: usize, object: Ident) -> TokenStream {
        let Some(text) = self.model.statuses[status].text else { return quote!() };
        let text = types::utility_name(&self.model.utility_functions[text.text]);
        quote! {
            call.reply_word(code as u64);
            if code != 0 {
                call.reply_string(#text(#object as _) as usize as *const std::ffi::c_char);
            }
        }
    }

    /// The same of an object that the call has returned, if it has one.
    pub(super) fn status_returned(&self, status: usize) -> TokenStream {
        let Some(text) = self.model.statuses[status].text else { return quote!() };
        let code = types::utility_name(&self.model.utility_functions[text.code]);
        let text = types::utility_name(&self.model.utility_functions[text.text]);
        quote! {
            call.reply_word((native != 0) as u64);
            if native != 0 {
                call.reply_word(#code(native as _) as u64);
                call.reply_string(#text(native as _) as usize as *const std::ffi::c_char);
            }
        }
    }
}
