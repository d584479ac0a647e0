//! The guest's reply pass: from the message to the application's memory.

use super::Stub;
use crate::generate::chains::shape;
use crate::generate::expression::Context;
use crate::generate::marshal::{
    apart, decided, element_loop, end_with, read, recall, recall_end, struct_address, write,
};
use crate::generate::types;
use crate::lower::*;
use crate::model::{Access, ErrorPlace, Mapped};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

impl Stub<'_> {
    /// The data that the guest takes out of the reply for one argument.
    pub(super) fn reply(&self, instruction: &Instruction, cx: Context) -> TokenStream {
        if !instruction.replies() {
            return quote!();
        }
        match &instruction.operation {
            Operation::Bytes(b) => match b.mode {
                Mode::Until { .. } => quote!(reply.until();),
                Mode::ShadowBack { .. } => quote!(),
                _ => quote!(reply.out();),
            },
            Operation::Elements(e) => self.reply_elements(instruction, e, cx),
            Operation::Struct { fields, .. } => {
                let (prelude, _) = struct_address(instruction);
                let fields = fields.iter().map(|f| self.reply(f, cx));
                quote!({ #prelude #(#fields)* })
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

    pub(super) fn reply_elements(&self, instruction: &Instruction, elements: &Elements, cx: Context) -> TokenStream {
        if elements.state().is_some() {
            return self.reply_state(instruction, elements, cx);
        }
        let count = recall(elements.extent.site);
        let reply = self.reply_present(instruction, elements, cx);
        quote!({ let count = #count; #reply })
    }

    /// The elements of the application's array, `count` of them.
    fn reply_present(&self, instruction: &Instruction, elements: &Elements, cx: Context) -> TokenStream {
        let pointer = read(instruction);
        let inner: TokenStream = if elements.output {
            elements.element.iter().map(|i| self.reply_value(i, cx.inside(elements))).collect()
        } else {
            elements.element.iter().map(|i| self.reply(i, cx.inside(elements))).collect()
        };
        let take = elements.output.then(|| quote!(let count = reply.count(count as usize);));
        let body =
            element_loop(instruction.at, quote!(#pointer as usize), quote!(count), elements.extent.stride, inner);
        quote!(if #pointer != 0 { #take #body })
    }

    /// An array inside an element that travels both ways: the application's, or one of the library's.
    fn reply_array(&self, instruction: &Instruction, elements: &Elements, cx: Context) -> TokenStream {
        let (count, end) = (recall(elements.extent.site), recall_end());
        let kept = self.reply_present(instruction, elements, cx);
        let given = write(instruction, self.given(instruction, elements, cx));
        quote!({
            let count = #count;
            #end
            if reply.word() != 0 {
                reply.skip_outputs(outputs_end);
                #given
            } else {
                #kept
            }
            trail_at = trail_end;
        })
    }

    /// The address of an array that the library owns, as the guest keeps it.
    fn given(&self, instruction: &Instruction, elements: &Elements, cx: Context) -> TokenStream {
        let stride = types::size(elements.extent.stride);
        let inner = elements.element.iter().map(|i| self.reply_value(i, cx.deeper())).collect();
        let body = element_loop(instruction.at, quote!(array), quote!(count), elements.extent.stride, inner);
        let kept = self.given_array(&elements.lifetime, cx);
        quote!(match reply.given() {
            Some(count) => {
                let mut memory = vec![0u8; count * #stride];
                let array = memory.as_mut_ptr() as usize;
                #body
                #kept
            }
            None => 0u64,
        })
    }

    fn reply_bytes(&self, instruction: &Instruction, b: &Bytes, cx: Context) -> TokenStream {
        if b.cursor {
            let (value, room) = (read(instruction), super::state::room(instruction));
            let moved = write(instruction, quote!(reply.cursor(#value as u64, #room)));
            let out = matches!(b.mode, Mode::Copy { output: true, .. }).then(|| quote!(reply.out();));
            return quote!({ #moved #out });
        }
        let given = write(instruction, self.given_data(&b.lifetime, cx));
        match b.mode {
            _ if !cx.both => unless_left(given, cx),
            Mode::Copy { output: true, .. } => {
                quote!({ let given = reply.word() != 0; reply.out(); if given { #given } })
            }
            _ => quote!(if reply.word() != 0 { #given }),
        }
    }

    /// Takes an output element's own value out of the reply.
    pub(super) fn reply_value(&self, instruction: &Instruction, cx: Context) -> TokenStream {
        let store = |value: TokenStream| write(instruction, value);
        match &instruction.operation {
            Operation::Handle(h) => {
                let taken = self.take_handle(h);
                let (store, owned) = (store(quote!(value)), end_with(h, &quote!(value), cx));
                let shares = self.shares(h, &quote!(value), cx);
                let told = self.object_told(h);
                quote!(if let Some(value) = #taken { #told #store #owned #shares })
            }
            Operation::Within { argument } => unless_left(store(self.within(*argument)), cx),
            Operation::Null { cleared: true } => unless_left(store(quote!(0)), cx),
            Operation::Resident { owner, .. } => unless_left(store(self.resident(owner, cx)), cx),
            // The pointer is the application's; the structs behind it have what the library wrote.
            Operation::Chain(chain) => {
                let (value, shape) = (read(instruction), shape(chain));
                quote!(if reply.word() == 0 { reply.chain(#value as usize, #shape); })
            }
            Operation::Text { lifetime, .. } => unless_left(store(self.given_text(lifetime, cx)), cx),
            Operation::Bytes(b) => self.reply_bytes(instruction, b, cx),
            Operation::Elements(e) if cx.both => self.reply_array(instruction, e, cx),
            Operation::Elements(e) => unless_left(store(self.given(instruction, e, cx)), cx),
            Operation::Scalar if cx.own => self.reply_changed(instruction, &[]),
            Operation::Scalar if instruction.ty.size() <= 8 && !types::is_struct(&instruction.ty) => {
                store(quote!(reply.word()))
            }
            Operation::Scalar => {
                let (_, address) = struct_address(instruction);
                let size = types::size(instruction.ty.size());
                quote!(reply.raw(#address as *mut u8, #size);)
            }
            Operation::Struct { fields, .. } => {
                let (prelude, address) = struct_address(instruction);
                let size = types::size(instruction.ty.size());
                let (rooms, changed) = (self.rooms(fields, cx), self.reply_changed(instruction, fields));
                let fields = fields.iter().map(|f| self.reply_value(f, cx));
                let bytes = if cx.own { changed } else { quote!(reply.raw(#address as *mut u8, #size);) };
                quote!({ #prelude #rooms #bytes #(#fields)* })
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

    /// The bytes of a value that the library has changed, except for those of its members.
    fn reply_changed(&self, instruction: &Instruction, members: &[Instruction]) -> TokenStream {
        let ((_, address), size) = (struct_address(instruction), instruction.ty.size());
        let base = match instruction.at {
            ValueLocation::Element { offset, .. } => offset,
            _ => 0,
        };
        let (apart, size) = (apart(members, base, size), types::size(size));
        quote!(reply.changed(#address as *mut u8, #size, #apart);)
    }

    /// An expression for the returned value.
    pub(super) fn result(&self, instruction: &Instruction, cx: Context) -> TokenStream {
        let ty = &self.function.signature.result;
        let rust = types::rust(ty);
        match &instruction.operation {
            Operation::Scalar if types::is_struct(ty) => {
                let size = types::size(ty.size());
                quote!({ let mut value: #rust = std::mem::zeroed(); reply.raw(&raw mut value as *mut u8, #size); value })
            }
            Operation::Struct { fields, .. } => {
                let size = types::size(ty.size());
                let fields = fields.iter().map(|f| self.reply_value(f, cx));
                quote!({
                    // Conditions speak of it as `ret`.
                    let mut ret: #rust = std::mem::zeroed();
                    let e0 = &raw mut ret as usize;
                    reply.raw(e0 as *mut u8, #size);
                    #(#fields)*
                    ret
                })
            }
            Operation::Handle(h) => {
                let taken = self.take_handle(h);
                if let ErrorPlace::Status(status) = self.function.error {
                    let (object, told) = (self.object_told(h), self.status_returned(status));
                    return quote!({ let value = #taken.unwrap_or(0); #object #told value as #rust });
                }
                let told = self.object_told(h);
                if h.object.ends_with.is_empty() && h.object.memory.shares.is_empty() && told.is_empty() {
                    return quote!((#taken.unwrap_or(0) as #rust));
                }
                let (owned, shares) = (end_with(h, &quote!(value), cx), self.shares(h, &quote!(value), cx));
                quote!({ let value = #taken.unwrap_or(0); #told #owned #shares value as #rust })
            }
            Operation::Text { lifetime, .. } => {
                let given = self.given_text(lifetime, cx);
                quote!((#given as #rust))
            }
            Operation::Elements(e) => {
                let given = self.given(instruction, e, cx);
                quote!((#given as #rust))
            }
            Operation::Bytes(b) => {
                let given = self.given_data(&b.lifetime, cx);
                quote!((#given as #rust))
            }
            Operation::Resident { owner, .. } => {
                let resident = self.resident(owner, cx);
                quote!((#resident as #rust))
            }
            Operation::Within { argument } => {
                let within = self.within(*argument);
                quote!((#within as #rust))
            }
            Operation::Mapped { mapped: Mapped { at, access: Access { read, write }, .. }, .. } => {
                let at = at.as_ref().map_or(quote!(0i128), |e| cx.exact(e));
                let (read, write) = (cx.when(read), cx.when(write));
                quote!((reply.mapped((#at) as usize as *mut u8, #read, #write) as usize as #rust))
            }
            Operation::FunctionPointer { name } => {
                let name = cx.exact(name);
                quote!(((if reply.word() != 0 { function_by_name((#name) as usize) } else { 0usize }) as #rust))
            }
            Operation::Table(t) => {
                let (table, followed) = (&self.model.tables[*t].name, &self.model.tables[*t].source);
                if followed.is_some() {
                    let (table, vendor) = (format_ident!("table_{}", table), format_ident!("vendor_table_{}", table));
                    let chain = super::tables::chain(self.model, *t);
                    return quote!(((if reply.word() != 0 { let address = reply.table(#table(), &#vendor); #chain address } else { 0usize }) as #rust));
                }
                let table = format_ident!("table_{}", table);
                quote!(((if reply.word() != 0 { #table() } else { 0usize }) as #rust))
            }
            Operation::Nothing => quote!(()),
            Operation::Null { .. } => types::zero(ty),
            Operation::Choice { condition, then, otherwise, .. } => {
                let condition = cx.condition(condition);
                let then = then.iter().map(|i| self.result(i, cx));
                let otherwise = otherwise.iter().map(|i| self.result(i, cx));
                quote!(if #condition { #(#then)* } else { #(#otherwise)* })
            }
            _ => types::from_word(quote!(reply.word()), ty),
        }
    }
}

/// Takes a pointer out of the reply, unless the library has left the application's alone.
fn unless_left(given: TokenStream, cx: Context) -> TokenStream {
    if cx.own { quote!(if reply.word() != 0 { #given }) } else { given }
}
