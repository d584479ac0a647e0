//! Status objects in the guest: what they say is told when the call that has filled them is over. And what replies tell
//! of new objects.

use super::Stub;
use crate::generate::types;
use crate::lower::HandleUse;
use proc_macro2::TokenStream;
use quote::quote;

impl Stub<'_> {
    /// Tells of `code`, a variable, what the object says that the call was given.
    pub(super) fn status_tells(&self, status: usize, parameter: usize, text: TokenStream) -> TokenStream {
        let Some(told) = self.model.statuses[status].text else { return quote!() };
        let (object, told) =
            (types::argument(parameter), types::utility_name(&self.model.utility_functions[told.told]));
        quote! {
            if #object != 0 {
                let text: *const std::ffi::c_char = #text;
                unsafe { #told(#object as _, code as i64, text as usize as _) };
            }
        }
    }

    /// The words of a reply for the object that the call was given; leaves `code`.
    pub(super) fn status_read(&self, status: usize, parameter: usize) -> TokenStream {
        let text = quote!(if code != 0 { reply.string(0) } else { std::ptr::null() });
        let tells = self.status_tells(status, parameter, quote!(text));
        quote! {
            let code = reply.word() as i64 as i128;
            let text = #text;
            #tells
        }
    }

    /// The words of a reply for the object that a call has returned: `value`.
    pub(super) fn status_returned(&self, status: usize) -> TokenStream {
        let Some(told) = self.model.statuses[status].text else { return quote!() };
        let told = types::utility_name(&self.model.utility_functions[told.told]);
        quote! {
            if reply.word() != 0 {
                let code = reply.word() as i64;
                let text = reply.string(0);
                if value != 0 {
                    unsafe { #told(value as _, code, text as usize as _) };
                }
            }
        }
    }

    /// Takes over what the reply tells of a new object, `value`.
    pub(super) fn object_told(&self, handle: &HandleUse) -> TokenStream {
        let metadata = self.model.handle_types[handle.handle].metadata.as_ref();
        let Some(metadata) = metadata.filter(|_| handle.object.tells.is_some()) else { return quote!() };
        let (kind, size) = (metadata.kind, types::size(metadata.ty.size()));
        quote!(reply.told(value, #kind, #size);)
    }
}
