//! The guest's reply pass: from the message to the application's memory.

use super::Stub;
use crate::generate::expression::Context;
use crate::generate::marshal::{element_loop, end_with, read, recall, role, struct_address, write};
use crate::generate::types;
use crate::lower::*;
use crate::model::Mapped;
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

impl Stub<'_> {
    /// What the guest takes out of the reply for one argument.
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
            Operation::Struct { fields } => {
                let fields = fields.iter().map(|f| self.reply(f, cx));
                quote!(#(#fields)*)
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
        let (pointer, count) = (read(instruction), recall(elements.extent.site));
        let inner: TokenStream = if elements.output {
            elements.element.iter().map(|i| self.reply_value(i, cx.deeper())).collect()
        } else {
            elements.element.iter().map(|i| self.reply(i, cx.deeper())).collect()
        };
        let limit = quote!(let count = #count;);
        let take = elements.output.then(|| quote!(let count = reply.count(count as usize);));
        let body =
            element_loop(instruction.at, quote!(#pointer as usize), quote!(count), elements.extent.stride, inner);
        quote!({ #limit if #pointer != 0 { #take #body } })
    }

    /// Takes an output element's own value out of the reply.
    pub(super) fn reply_value(&self, instruction: &Instruction, cx: Context) -> TokenStream {
        let store = |value: TokenStream| write(instruction, value);
        match &instruction.operation {
            Operation::Handle(h) => {
                let (ty, role) = (h.handle as u32, role(h));
                let (store, owned) = (store(quote!(value)), end_with(h, &quote!(value), cx));
                quote!(if let Some(value) = reply.handle(#ty, #role) { #store #owned })
            }
            Operation::Text => store(quote!(reply.string(0) as usize as u64)),
            Operation::Bytes(_) => store(quote!(reply.owned() as usize as u64)),
            Operation::Null { cleared: true } => store(quote!(0)),
            Operation::Scalar if instruction.ty.size() <= 8 && !types::is_struct(&instruction.ty) => {
                store(quote!(reply.word()))
            }
            Operation::Scalar => {
                let (_, address) = struct_address(instruction);
                let size = types::size(instruction.ty.size());
                quote!(reply.raw(#address as *mut u8, #size);)
            }
            Operation::Struct { fields } => {
                let (prelude, address) = struct_address(instruction);
                let size = types::size(instruction.ty.size());
                // The application's own pointers stay where no translated value arrives.
                let saved = fields.iter().enumerate().map(|(i, f)| {
                    let (name, value) = (format_ident!("saved{}", i), read(f));
                    quote!(let #name = #value;)
                });
                let restored = fields.iter().enumerate().map(|(i, f)| {
                    let name = format_ident!("saved{}", i);
                    write(f, quote!(#name))
                });
                let fields = fields.iter().map(|f| self.reply_value(f, cx));
                quote!({ #prelude #(#saved)* reply.raw(#address as *mut u8, #size); #(#restored)* #(#fields)* })
            }
            Operation::Choice { condition, then, otherwise, .. } => {
                let condition = cx.condition(condition);
                let then = then.iter().map(|i| self.reply_value(i, cx));
                let otherwise = otherwise.iter().map(|i| self.reply_value(i, cx));
                quote!(if #condition { #(#then)* } else { #(#otherwise)* })
            }
            _ => quote!(),
        }
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
            Operation::Struct { fields } => {
                let size = types::size(ty.size());
                let fields = fields.iter().map(|f| self.reply_value(f, cx));
                quote!({
                    let mut value: #rust = std::mem::zeroed();
                    let e0 = &raw mut value as usize;
                    reply.raw(e0 as *mut u8, #size);
                    #(#fields)*
                    value
                })
            }
            Operation::Handle(h) => {
                let (id, role) = (h.handle as u32, role(h));
                if h.ends_with.is_empty() {
                    return quote!((reply.handle(#id, #role).unwrap_or(0) as #rust));
                }
                let owned = end_with(h, &quote!(value), cx);
                quote!({ let value = reply.handle(#id, #role).unwrap_or(0); #owned value as #rust })
            }
            Operation::Text => quote!((reply.string(0) as usize)),
            Operation::Bytes(_) => quote!((reply.owned() as usize)),
            Operation::Mapped { mapped: Mapped { at, write, read, .. }, .. } => {
                let at = at.as_ref().map_or(quote!(0i128), |e| cx.exact(e));
                let write = write.as_ref().map_or(quote!(true), |e| cx.condition(e));
                let read = read.as_ref().map_or(quote!(true), |e| cx.condition(e));
                quote!((reply.mapped((#at) as usize as *mut u8, #read, #write) as usize))
            }
            Operation::FunctionPointer { name } => {
                let name = cx.exact(name);
                quote!((if reply.word() != 0 { function_by_name((#name) as usize) } else { 0usize }))
            }
            Operation::Table(t) => {
                let table = format_ident!("table_{}", self.model.tables[*t].name);
                quote!((if reply.word() != 0 { #table() } else { 0usize }))
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
