//! What the server tells of objects, for the guest to have it without asking: codes and texts of status objects, and what
//! the specification's own functions say of new ones.

use super::Handler;
use crate::generate::types;
use crate::lower::HandleUse;
use crate::model::Metadata;
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

    /// The guest's metadata of a new object, `native`, of which the guest has been `told`.
    pub(super) fn object_told(&self, handle: &HandleUse) -> TokenStream {
        let (Some(teller), Some(metadata)) = (handle.object.tells, self.metadata_of(handle)) else { return quote!() };
        let teller = types::utility_name(&self.model.utility_functions[teller]);
        let size = types::size(metadata.ty.size());
        quote! {
            if told.is_any() {
                let metadata = call.told_object(told, #size);
                if !metadata.is_null() {
                    #teller(native as _, metadata as usize as _);
                }
                call.reply_told(metadata, #size);
            }
        }
    }

    fn metadata_of(&self, handle: &HandleUse) -> Option<&Metadata> {
        self.model.handle_types[handle.handle].metadata.as_ref()
    }
}
