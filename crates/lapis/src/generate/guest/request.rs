//! The guest's request pass: from the application's arguments to the message.

use super::{Code, Stub};
use crate::generate::chains::shape;
use crate::generate::expression::Context;
use crate::generate::marshal::{self, element_loop, keep, read, remember_end, struct_address};
use crate::generate::types;
use crate::lower::*;
use crate::model::*;
use proc_macro2::TokenStream;
use quote::quote;

impl Stub<'_> {
    /// The data that goes into the request for one value.
    pub(super) fn request(&self, instruction: &Instruction, cx: Context) -> TokenStream {
        let value = || read(instruction);
        match &instruction.operation {
            Operation::Scalar => self.request_scalar(instruction),
            Operation::Null { .. } => match instruction.at {
                ValueLocation::Argument(_) => {
                    let value = value();
                    quote!(call.word((#value != 0) as u64);)
                }
                _ => quote!(),
            },
            Operation::Constant { .. } => {
                let value = value();
                quote!(call.word(#value);)
            }
            Operation::Struct { fields, .. } => {
                let (prelude, address) = struct_address(instruction);
                let size = types::size(instruction.ty.size());
                let fields = fields.iter().map(|f| self.request(f, cx));
                quote!({ #prelude call.raw(#address as *const u8, #size); #(#fields)* })
            }
            Operation::Handle(h) => {
                let (ty, value) = (h.handle as u32, value());
                let used = self.request_used(h, &value, cx);
                match h.release || h.object.deallocate {
                    true => quote!(call.handle_ending(#ty, #value);),
                    false => quote!(call.handle(#ty, #value); #used),
                }
            }
            Operation::Text { .. } => {
                let value = value();
                quote!(call.string(#value as usize as *const std::ffi::c_char);)
            }
            Operation::Bytes(bytes) => self.request_bytes(instruction, bytes, cx),
            Operation::Elements(elements) => self.request_elements(instruction, elements, cx),
            Operation::Callback { kind, once, userdata, keeps, gives } => {
                let (value, kind) = (value(), *kind as u32);
                let userdata = userdata.map_or(quote!(0usize), |u| {
                    let a = types::argument(u);
                    quote!(#a)
                });
                let register = quote!(call.callback(#value as usize, #kind, #userdata, #once));
                let keeps = keeps.map(|kept| {
                    let handle = types::argument(kept.argument);
                    quote!(call.callback_keeps(id, #handle as u64);)
                });
                let gives: Vec<_> = gives.iter().map(|argument| types::argument(*argument)).collect();
                let gives = (!gives.is_empty()).then(|| quote!(call.callback_gives(id, &[#(#gives as u64),*]);));
                match (&keeps, &gives) {
                    (None, None) => quote!(#register;),
                    _ => quote!({ let id = #register; #keeps #gives }),
                }
            }
            Operation::Zerocopy { bytes } => {
                let value = value();
                let fail = self.fail(self.code(Code::Failure));
                let bytes = bytes.as_ref().map_or(quote!(1i128), |e| cx.exact(e));
                quote!({
                    let Some(bytes) = support::count(#bytes, 1) else { return #fail };
                    call.names(#value as usize as *const u8, bytes);
                    call.zerocopy(#value as usize as *const u8);
                })
            }
            Operation::Unmap => {
                let value = value();
                quote!(call.unmap(#value as usize as *const u8);)
            }
            Operation::Frees => self.request_freed(instruction),
            Operation::Choice { site, condition, then, otherwise } => {
                let condition = cx.condition(condition);
                let (name, keep) = keep(*site, instruction, cx);
                let carry = site.carried.then(|| quote!(call.word(#name);));
                let then = then.iter().map(|i| self.request(i, cx));
                let otherwise = otherwise.iter().map(|i| self.request(i, cx));
                quote! {
                    let #name = (#condition) as u64;
                    #keep
                    #carry
                    if #name != 0 { #(#then)* } else { #(#otherwise)* }
                }
            }
            Operation::Chain(chain) => {
                let (value, shape, refused) = (value(), shape(chain), self.fail(self.code(Code::Failure)));
                quote!(if !call.chain(#value as usize, #shape) { return #refused; })
            }
            Operation::Userdata
            | Operation::Given { .. }
            | Operation::Within { .. }
            | Operation::Resident { .. }
            | Operation::Mapped { .. }
            | Operation::FunctionPointer { .. }
            | Operation::Table(_)
            | Operation::Nothing => quote!(),
        }
    }

    pub(super) fn request_scalar(&self, instruction: &Instruction) -> TokenStream {
        if instruction.ty.size() <= 8 && !types::is_struct(&instruction.ty) {
            let value = read(instruction);
            return quote!(call.word(#value););
        }
        let (prelude, address) = struct_address(instruction);
        let size = types::size(instruction.ty.size());
        quote!({ #prelude call.raw(#address as *const u8, #size); })
    }

    /// Binds the element count to the site's name and sends it if the server cannot know it.
    pub(super) fn request_count(&self, instruction: &Instruction, extent: &Extent, cx: Context) -> TokenStream {
        let stride = types::size(extent.stride);
        let value = match &extent.count {
            Count::One => quote!(1u64),
            Count::Elements(e) => {
                let (count, fail) = (cx.exact(e), self.fail(self.code(Code::Failure)));
                quote!(match support::count(#count, #stride) { Some(n) => n as u64, None => return #fail })
            }
            Count::Terminated { step } => {
                let (pointer, step) = (read(instruction), types::size(*step));
                quote!(support::terminated(#pointer as usize, #stride, #step) as u64)
            }
        };
        let (name, keep) = keep(extent.site, instruction, cx);
        let carry = extent.site.carried.then(|| quote!(call.word(#name);));
        quote!(let #name = #value; #keep #carry)
    }

    pub(super) fn request_bytes(&self, instruction: &Instruction, bytes: &Bytes, cx: Context) -> TokenStream {
        let count = self.request_count(instruction, &bytes.extent, cx);
        let (pointer, stride) = (read(instruction), types::size(bytes.extent.stride));
        let (name, _) = keep(bytes.extent.site, instruction, cx);
        let p = quote!(#pointer as usize as *mut u8);
        let n = quote!(#name as usize * #stride);
        let (rows, written) = (marshal::rows(bytes, cx), bytes.written);
        let put = match &bytes.mode {
            Mode::Copy { input, output: true } => match (rows, input, written) {
                (Some(rows), ..) => quote!(call.rows_out(#p, #n, #input, #written, #rows);),
                (None, false, true) => quote!(call.buffer_out(#p, #n);),
                (None, true, true) => quote!(call.buffer_rewritten(#p, #n);),
                (None, _, false) => quote!(call.buffer_inout(#p, #n);),
            },
            Mode::Copy { .. } => match rows {
                Some(rows) => quote!(call.rows_in(#p, #n, #rows);),
                None if bytes.history > 0 => {
                    let history = types::size(bytes.history);
                    quote!(call.buffer_behind(#p, #n, #history);)
                }
                None => quote!(call.buffer_in(#p, #n);),
            },
            Mode::Until { input, output, .. } => match rows {
                Some(rows) => quote!(call.rows_until(#p, #n, #input, #output, #written, #rows);),
                None => quote!(call.buffer_until(#p, #n, #input, #output, #written);),
            },
            Mode::Shadow { input, coupled } => {
                let copied_back = coupled.is_none();
                quote!(call.shadow(#p, #n, #input, #copied_back);)
            }
            Mode::Bound { .. } => {
                let name = super::memory::bound_name(instruction);
                quote!(#name = call.bound(#p, #n);)
            }
            Mode::ShadowBack { end } => quote!(call.shadow_copy_back(#p, #n, #end);),
            Mode::Room => quote!(call.array(#p, #n);),
            Mode::Resting => return quote!(),
            Mode::Scratch { .. } => quote!(),
        };
        // Data without a pointer: the library would follow it.
        let missing = bytes.cursor.then(|| {
            let refused = self.fail(self.code(Code::Failure));
            quote!(if #pointer == 0 && #n > 0 { return #refused; })
        });
        quote!(#count #missing #put)
    }

    pub(super) fn request_elements(&self, instruction: &Instruction, elements: &Elements, cx: Context) -> TokenStream {
        let count = self.request_count(instruction, &elements.extent, cx);
        if elements.state().is_some() {
            let request = self.request_state(instruction, elements, cx);
            return quote!(#count #request);
        }
        let pointer = read(instruction);
        let (name, _) = keep(elements.extent.site, instruction, cx);
        let put = quote!(call.array(#pointer as usize as *const u8, #name as usize));
        if !elements.input {
            let minted: TokenStream = elements.element.iter().map(|i| self.request_minted(i)).collect();
            let content = elements.shows_content().then(|| {
                let stride = types::size(elements.extent.stride);
                let elements = quote!((#pointer as usize..).step_by(#stride).take(#name as usize));
                quote!(for element in #elements { call.raw(element as *const u8, #stride); })
            });
            if minted.is_empty() && content.is_none() {
                let request = remember_end(cx, quote!(#put;));
                return quote!(#count #request);
            }
            let body =
                element_loop(instruction.at, quote!(#pointer as usize), quote!(#name), elements.extent.stride, minted);
            let request = remember_end(cx, quote!(if #put { #content #body }));
            return quote!(#count #request);
        }
        let inner = elements.element.iter().map(|i| self.request(i, cx.inside(elements)));
        let body = element_loop(
            instruction.at,
            quote!(#pointer as usize),
            quote!(#name),
            elements.extent.stride,
            quote!(#(#inner)*),
        );
        let request = remember_end(cx, quote!(if #put { #body }));
        quote!(#count #request)
    }
}
