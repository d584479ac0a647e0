//! The server's reply pass: from the vendor's results to the message.

use super::Handler;
use super::request::element_address;
use crate::generate::chains::shape;
use crate::generate::expression::Context;
use crate::generate::marshal::{
    apart, bind_distance, decided, element_loop, given_count, passed_distance, read, read_passed, recall, recall_end,
    role, struct_address,
};
use crate::generate::types;
use crate::lower::*;
use crate::model::*;
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

impl Handler<'_> {
    /// The data that goes into the reply for one argument.
    pub(super) fn reply(&self, instruction: &Instruction, cx: Context) -> TokenStream {
        if !instruction.replies() {
            return quote!();
        }
        match &instruction.operation {
            Operation::Bytes(b) => self.reply_bytes(instruction, b, cx),
            Operation::Elements(e) => self.reply_elements(instruction, e, cx),
            Operation::Struct { fields, .. } => {
                let (prelude, _) = self.struct_place(instruction);
                let fields = fields.iter().map(|f| self.reply(f, cx));
                // A struct that was passed by value is as it was.
                let distance =
                    matches!(instruction.at, ValueLocation::Argument(_)).then(|| quote!(let passed0 = 0usize;));
                quote!({ #prelude #distance #(#fields)* })
            }
            Operation::Choice { site, then, otherwise, .. } => {
                let value = recall(*site);
                let then = then.iter().map(|i| self.reply(i, cx));
                let otherwise = otherwise.iter().map(|i| self.reply(i, cx));
                quote!(if #value != 0 { #(#then)* } else { #(#otherwise)* })
            }
            _ => quote!(),
        }
    }

    pub(super) fn reply_bytes(&self, instruction: &Instruction, bytes: &Bytes, cx: Context) -> TokenStream {
        match &bytes.mode {
            Mode::Until { token, poll, .. } => {
                let (token, poll) = (cx.exact(token), self.poll(*poll));
                let pointer = read(instruction);
                quote!({
                    let token = if ok && #pointer != 0 { (#token) as u64 } else { 0 };
                    call.reply_until(token, #poll, ok);
                })
            }
            Mode::Copy { output: true, .. } => {
                let valid = self.valid_bytes(bytes, cx);
                match bytes.answer {
                    true => {
                        let written = read(instruction);
                        quote!(call.reply_answer(#written as u64, #valid)?;)
                    }
                    false => quote!(call.reply_out(#valid);),
                }
            }
            _ => quote!(),
        }
    }

    pub(super) fn poll(&self, utility: usize) -> TokenStream {
        let name = types::utility_name(&self.model.utility_functions[utility]);
        quote!(std::mem::transmute::<*const (), unsafe extern "C" fn(u64) -> std::ffi::c_int>(#name as *const ()))
    }

    pub(super) fn reply_elements(&self, instruction: &Instruction, elements: &Elements, cx: Context) -> TokenStream {
        if elements.state().is_some() {
            return self.reply_state(instruction, elements, cx);
        }
        let count = recall(elements.extent.site);
        let reply = self.reply_present(instruction, elements, cx);
        quote!({ let count = #count as usize; #reply })
    }

    /// The elements of an array that was passed, `count` of them.
    fn reply_present(&self, instruction: &Instruction, elements: &Elements, cx: Context) -> TokenStream {
        let pointer = read_passed(instruction);
        let present = match instruction.at {
            // Forced storage has an address although the guest gave none.
            ValueLocation::Argument(i) => {
                let h = format_ident!("h{}", i);
                quote!(#h)
            }
            _ => quote!(#pointer != 0),
        };
        let stride = elements.extent.stride;
        let (returned, inner): (TokenStream, TokenStream) = if elements.output {
            let returned = elements.returned.as_ref().map(|e| {
                let value = cx.exact(e);
                quote!(let count = support::returned(#value, count);)
            });
            let inner = elements.element.iter().map(|i| self.reply_value(i, cx.inside(elements))).collect();
            (quote!(#returned call.reply_count(count);), inner)
        } else {
            (quote!(), elements.element.iter().map(|i| self.reply(i, cx.inside(elements))).collect())
        };
        let distance = bind_distance(instruction, elements);
        let body = element_loop(instruction.at, quote!(#pointer as usize), quote!(count), stride, inner);
        quote!(if #present { #distance #returned #body })
    }

    /// A pointer inside an element that travels both ways: as it was passed (`kept` follows in the reply), or one to
    /// the library's own memory (`given` follows) where `output` says that the library may put one there. The
    /// runtime refuses what is neither: an address of this process never leaves it.
    fn reply_pointer(
        &self,
        instruction: &Instruction,
        output: bool,
        kept: TokenStream,
        given: TokenStream,
    ) -> TokenStream {
        let (passed, value) = (read_passed(instruction), read(instruction));
        quote!(if call.reply_pointer(#passed, #value, #output)? { #given } else { #kept })
    }

    /// In the application's memory a pointer that the library has left alone stays as it is; otherwise what it is now.
    fn reply_own(&self, instruction: &Instruction, given: TokenStream, cx: Context) -> TokenStream {
        if !cx.own {
            return given;
        }
        let (passed, value) = (read_passed(instruction), read(instruction));
        quote!(if call.reply_set(#passed, #value) { #given })
    }

    /// The bytes of a value that the library has changed, except for those of its members.
    fn reply_changed(&self, instruction: &Instruction, members: &[Instruction]) -> TokenStream {
        let ((_, address), passed) = (struct_address(instruction), passed_distance(instruction));
        let size = instruction.ty.size();
        let base = match instruction.at {
            ValueLocation::Element { offset, .. } => offset,
            _ => 0,
        };
        let (apart, size) = (apart(members, base, size), types::size(size));
        quote!(call.reply_changed(#address as *const u8, (#address + #passed) as *const u8, #size, #apart);)
    }

    /// An array inside an element that travels both ways.
    fn reply_array(&self, instruction: &Instruction, elements: &Elements, cx: Context) -> TokenStream {
        let (count, end) = (recall(elements.extent.site), recall_end());
        let kept = self.reply_present(instruction, elements, cx);
        let given = self.reply_given(instruction, elements, cx);
        let reply =
            self.reply_pointer(instruction, elements.output, kept, quote!(call.skip_outputs(outputs_end); #given));
        quote!({ let count = #count as usize; #end #reply trail_at = trail_end; })
    }

    /// An array that the library owns: NULL, or how many elements it has and what they are.
    fn reply_given(&self, instruction: &Instruction, elements: &Elements, cx: Context) -> TokenStream {
        let pointer = read(instruction);
        let count = given_count(&elements.extent, elements.returned.as_ref(), quote!(pointer), cx);
        let inner = elements.element.iter().map(|i| self.reply_value(i, cx.deeper())).collect();
        let body = element_loop(instruction.at, quote!(pointer), quote!(count), elements.extent.stride, inner);
        let freed = self.reply_freed(&elements.lifetime, quote!(pointer));
        quote!({
            let pointer = #pointer as usize;
            if pointer == 0 {
                call.reply_word(0);
            } else {
                let count = #count;
                call.reply_word(count as u64 + 1);
                #body
                #freed
            }
        })
    }

    /// How many bytes of an output are meaningful, if any. What the library promises to write may hold anything when the
    /// call failed: the application keeps its own. Of other outputs the guest takes what has changed.
    fn valid_bytes(&self, bytes: &Bytes, cx: Context) -> TokenStream {
        let stride = types::size(bytes.extent.stride);
        let valid = match &bytes.returned {
            Some(e) => {
                let value = cx.exact(e);
                quote!(support::returned(#value, usize::MAX / #stride) * #stride)
            }
            None => quote!(usize::MAX),
        };
        if bytes.written { quote!(if ok { Some(#valid) } else { None }) } else { quote!(Some(#valid)) }
    }

    /// Puts an output element's own value into the reply.
    pub(super) fn reply_value(&self, instruction: &Instruction, cx: Context) -> TokenStream {
        match &instruction.operation {
            Operation::Handle(h) => {
                let (value, put) = (read(instruction), self.put_handle(h, element_address(instruction), cx));
                let unwritten = unwritten(&instruction.ty);
                quote!({
                    let native = #value;
                    if !ok || native == #unwritten { call.reply_unwritten_handle(); } else { #put }
                })
            }
            Operation::Resident { bytes, owner } => {
                let resident = self.reply_resident(read(instruction), bytes, owner, cx);
                self.reply_own(instruction, resident, cx)
            }
            Operation::Within { argument } => {
                let within = self.reply_within(*argument, read(instruction));
                self.reply_own(instruction, within, cx)
            }
            Operation::Null { cleared: true } => self.reply_own(instruction, quote!(), cx),
            Operation::Chain(chain) => {
                let (passed, shape) = (read_passed(instruction), shape(chain));
                self.reply_pointer(instruction, false, quote!(call.reply_chain(#passed as usize, #shape);), quote!())
            }
            Operation::Text { output, lifetime } => {
                let value = read(instruction);
                let freed = self.reply_freed(lifetime, value.clone());
                let given = quote!(call.reply_string(#value as usize as *const std::ffi::c_char); #freed);
                if cx.both {
                    self.reply_pointer(instruction, *output, quote!(), given)
                } else {
                    self.reply_own(instruction, given, cx)
                }
            }
            Operation::Bytes(b) if b.cursor => {
                let (passed, value) = (read_passed(instruction), read(instruction));
                let out = matches!(b.mode, Mode::Copy { output: true, .. });
                let out = out.then(|| quote!(call.reply_out(Some(moved));));
                let kept = (b.history > 0).then(|| {
                    let (history, most) = (super::state::history_name(instruction), types::size(b.history));
                    quote!(call.keep_history(#history, #most, #passed, moved);)
                });
                quote!({ let moved = call.reply_cursor(#passed, #value)?; #out #kept })
            }
            Operation::Bytes(b) => {
                let (value, stride) = (read(instruction), types::size(b.extent.stride));
                let count = given_count(&b.extent, b.returned.as_ref(), value.clone(), cx);
                let freed = self.reply_freed(&b.lifetime, value.clone());
                let given = quote!(call.reply_owned(#value as usize as *const u8, #count * #stride); #freed);
                match b.mode {
                    _ if !cx.both => self.reply_own(instruction, given, cx),
                    Mode::Copy { output: true, .. } => {
                        let valid = self.valid_bytes(b, cx);
                        let kept = quote!(call.reply_out(#valid););
                        self.reply_pointer(instruction, true, kept, quote!(call.reply_out(None); #given))
                    }
                    // Of a state the library may set pointers to memory of its own, which it is handed again later.
                    Mode::Resting | Mode::Copy { .. } if cx.state => {
                        self.reply_pointer(instruction, true, quote!(), given)
                    }
                    _ => self.reply_pointer(instruction, false, quote!(), given),
                }
            }
            Operation::Elements(e) if cx.both => self.reply_array(instruction, e, cx),
            Operation::Elements(e) => self.reply_own(instruction, self.reply_given(instruction, e, cx), cx),
            Operation::Scalar if cx.own => self.reply_changed(instruction, &[]),
            Operation::Scalar if instruction.ty.size() <= 8 && !types::is_struct(&instruction.ty) => {
                let value = read(instruction);
                quote!(call.reply_word(#value);)
            }
            Operation::Scalar => {
                let (_, address) = struct_address(instruction);
                let size = types::size(instruction.ty.size());
                quote!(call.reply_raw(#address as *const u8, #size);)
            }
            Operation::Struct { fields, .. } if cx.own => {
                let changed = self.reply_changed(instruction, fields);
                let values = fields.iter().map(|f| self.reply_value(f, cx));
                quote!({ #changed #(#values)* })
            }
            Operation::Struct { fields, .. } => {
                let (prelude, address) = struct_address(instruction);
                let size = types::size(instruction.ty.size());
                // Addresses of this process never leave it.
                let blanked = fields.iter().filter_map(|f| match f.at {
                    ValueLocation::Element { offset, .. } => Some((offset, f.ty.size())),
                    _ => None,
                });
                let base = match instruction.at {
                    ValueLocation::Element { offset, .. } => offset,
                    _ => 0,
                };
                let blanked = blanked.map(|(offset, size)| {
                    let (offset, size) = (types::size(offset - base), types::size(size));
                    quote!(std::ptr::write_bytes(copy.add(#offset), 0, #size);)
                });
                let values = fields.iter().map(|f| self.reply_value(f, cx));
                quote!({
                    #prelude
                    let copy = call.scratch(#size);
                    std::ptr::copy_nonoverlapping(#address as *const u8, copy, #size);
                    #(#blanked)*
                    call.reply_raw(copy, #size);
                    #(#values)*
                })
            }
            Operation::Choice { site, condition, then, otherwise } => {
                let condition = decided(*site, condition, cx);
                let then = then.iter().map(|i| self.reply_value(i, cx));
                let otherwise = otherwise.iter().map(|i| self.reply_value(i, cx));
                quote!(if #condition { #(#then)* } else { #(#otherwise)* })
            }
            _ => quote!(),
        }
    }

    /// `at`: where the vendor's function wrote it, 0 for what it returned.
    pub(super) fn put_handle(&self, handle: &HandleUse, at: TokenStream, cx: Context) -> TokenStream {
        let (ty, role) = (handle.handle as u32, role(handle));
        let record = handle.object.record.is_some().then(|| self.record(handle, &quote!(native), cx));
        let shape = super::tables::reply_shape(self.model, handle.handle);
        let reply = match handle.minted {
            true => quote!(let told = call.reply_minted(#ty, native, #at);),
            false => quote!(let told = call.reply_handle(#ty, native, #role); #shape),
        };
        let owners = handle.object.ends_with.iter().map(|e| {
            let (ty, value) = (e.ty.handle.unwrap_or(0) as u32, cx.exact(e));
            quote!(call.ends_with(#ty, (#value) as u64);)
        });
        let refer = match &handle.object.referring {
            Some(Referring::Copies { from }) => {
                let (ty, value) = (from.ty.handle.unwrap_or(0) as u32, cx.exact(from));
                quote!(call.refer_as(#ty, (#value) as u64);)
            }
            _ => quote!(),
        };
        let tells = self.object_told(handle);
        quote!(#(#owners)* #reply #tells #refer #record)
    }

    /// The same for an object that the function has returned.
    fn result_handle(&self, handle: &HandleUse, cx: Context) -> TokenStream {
        let (put, native) = (self.put_handle(handle, quote!(0usize), cx), self.returned_object());
        // A status object is there just because the call failed.
        let (wanted, told) = match self.function.error {
            ErrorPlace::Status(status) => (quote!(native != 0), self.status_returned(status)),
            _ => (quote!(ok && native != 0), quote!()),
        };
        quote!({ let native: u64 = #native; if #wanted { #put } else { call.reply_word(0); } #told })
    }

    /// The data that goes into the reply for the returned value.
    pub(super) fn result(&self, instruction: &Instruction, cx: Context) -> TokenStream {
        let ty = &self.function.signature.result;
        match &instruction.operation {
            Operation::Scalar if types::is_struct(ty) => {
                let size = types::size(ty.size());
                quote!(call.reply_raw(&raw const ret as *const u8, #size);)
            }
            Operation::Struct { .. } => {
                let value = self.reply_value(instruction, cx);
                quote!({ #value })
            }
            Operation::Handle(h) => self.result_handle(h, cx),
            Operation::Text { lifetime, .. } => {
                let freed = self.reply_freed(lifetime, quote!(ret));
                quote!(call.reply_string(ret as usize as *const std::ffi::c_char); #freed)
            }
            Operation::Elements(e) => self.reply_given(instruction, e, cx),
            Operation::Bytes(b) => {
                let (count, stride) =
                    (given_count(&b.extent, b.returned.as_ref(), quote!(ret), cx), types::size(b.extent.stride));
                let freed = self.reply_freed(&b.lifetime, quote!(ret));
                quote!(call.reply_owned(ret as usize as *const u8, #count * #stride); #freed)
            }
            Operation::Resident { bytes, owner } => self.reply_resident(quote!(ret), bytes, owner, cx),
            Operation::Within { argument } => self.reply_within(*argument, quote!(ret)),
            Operation::Mapped { mapped: Mapped { bytes, at, .. }, until } => {
                let (bytes, elsewhere) = (cx.exact(bytes), at.is_some());
                let until = until.as_ref().map_or(quote!(None), |(token, poll)| {
                    let (token, poll) = (cx.exact(token), self.poll(*poll));
                    quote!(if ok && ret != 0 { Some(((#token) as u64, #poll)) } else { None })
                });
                result_mapped(&bytes, elsewhere, &until)
            }
            Operation::Table(t) if self.model.tables[*t].source.is_some() => {
                let table = super::tables::name(&self.model.tables[*t]);
                let chain = super::tables::chain(self.model, *t);
                quote!(call.reply_table(ret as usize, &#table); if ret != 0 { #chain })
            }
            Operation::FunctionPointer { .. } | Operation::Table(_) => quote!(call.reply_word((ret != 0) as u64);),
            Operation::Nothing | Operation::Null { .. } => quote!(),
            Operation::Choice { condition, then, otherwise, .. } => {
                let condition = cx.condition(condition);
                let then = then.iter().map(|i| self.result(i, cx));
                let otherwise = otherwise.iter().map(|i| self.result(i, cx));
                quote!(if #condition { #(#then)* } else { #(#otherwise)* })
            }
            _ => {
                let word = types::to_word(quote!(ret), ty);
                quote!(call.reply_word(#word);)
            }
        }
    }
}

fn unwritten(ty: &Type) -> TokenStream {
    let bits = types::bits(ty);
    quote!((support::UNWRITTEN as #bits as u64))
}

fn result_mapped(bytes: &TokenStream, elsewhere: bool, until: &TokenStream) -> TokenStream {
    let reply = if elsewhere { quote!(reply_mapped_elsewhere) } else { quote!(reply_mapped) };
    quote!({
        let until = #until;
        call.#reply(ret as usize as *mut u8, support::count(#bytes, 1).unwrap_or(0), until);
    })
}
