//! Tables of functions that the guest library fills with its own stubs.

use super::{Stub, stub_name};
use crate::generate::expression::Context;
use crate::generate::marshal::role;
use crate::generate::types;
use crate::lower::HandleUse;
use crate::model::{Model, Side, Table, TableSource};
use proc_macro2::{Literal, TokenStream};
use quote::{format_ident, quote};

/// The function that answers the table's address.
pub fn table(model: &Model, table: &Table) -> TokenStream {
    let function = format_ident!("table_{}", table.name);
    let words = types::size(table.size.div_ceil(8));
    let filled: Vec<TokenStream> = table
        .members
        .iter()
        .filter_map(|m| {
            let stub = stub_name(&model.functions[m.function?]);
            let slot = types::size(m.offset / 8);
            Some(quote!(table[#slot] = #stub as *const () as usize;))
        })
        .collect();
    if let Some(source) = &table.source {
        return followed(model, table, source, &filled);
    }
    quote! {
        fn #function() -> usize {
            static TABLE: std::sync::OnceLock<[usize; #words]> = std::sync::OnceLock::new();
            TABLE.get_or_init(|| {
                let mut table = [0usize; #words];
                #(#filled)*
                table
            }).as_ptr() as usize
        }
    }
}

/// A table that follows the vendor's: its functions are there once the specification's are, its numbers come with replies.
fn followed(model: &Model, table: &Table, source: &TableSource, filled: &[TokenStream]) -> TokenStream {
    let (function, name) = (format_ident!("table_{}", table.name), format_ident!("vendor_table_{}", table.name));
    let described_words = table.size.div_ceil(8);
    let words = types::size(described_words + source.longer);
    let (later, fill_later) = later(model, table, described_words, source.longer);
    let (slots, values) = described(table, source);
    quote! {
        static #name: aviary_guest::VendorTable<#words> =
            aviary_guest::VendorTable::new(&[#slots], &[#values]);
        #later
        fn #function() -> usize {
            #name.address(|table| { #(#filled)* #fill_later })
        }
    }
}

/// The function in the slots behind the header's, and what enters it: a program of a later header finds one that says that it is not
/// virtualized.
fn later(model: &Model, table: &Table, words: usize, slots: usize) -> (TokenStream, TokenStream) {
    let status = model.statuses.iter().find(|status| !status.given);
    let Some(status) = status.filter(|_| slots > 0) else { return (quote!(), quote!()) };
    let function = format_ident!("later_in_{}", table.name);
    let (name, first) = (&table.name, types::size(words));
    let unsupported = Context::new(model, Side::Guest).exact(&status.unsupported);
    let body = quote! {
        unsafe extern "C" fn #function() -> usize {
            API.later(#name);
            (#unsupported) as usize
        }
    };
    (body, quote!(table[#first..].fill(#function as *const () as usize);))
}

/// Places of functions, and places, widths and largest values of numbers.
fn described(table: &Table, source: &TableSource) -> (TokenStream, TokenStream) {
    let slots = table.members.iter().map(|m| types::size(m.offset));
    let values = source.values.iter().map(|v| {
        let (offset, width) = (types::size(v.offset), types::size(v.width));
        let most = Literal::u64_unsuffixed(v.most.unwrap_or(u64::MAX));
        quote!((#offset, #width, #most))
    });
    (quote!(#(#slots),*), quote!(#(#values),*))
}

impl Stub<'_> {
    /// Takes a handle out of the reply, with what makes it a table.
    pub(super) fn take_handle(&self, handle: &HandleUse) -> TokenStream {
        let (ty, role) = (handle.handle as u32, role(handle));
        let table = self.model.handle_types[handle.handle].shape.map(|table| &self.model.tables[table]);
        match table.and_then(|table| Some((table, table.source.as_ref()?))) {
            None => quote!(reply.handle(#ty, #role)),
            Some((table, source)) => {
                let (slots, values) = described(table, source);
                quote!(reply.shaped(#ty, #role, &[#slots], &[#values]))
            }
        }
    }
}

/// Reads which tables of the chain the vendor has, and links them.
pub fn chain(model: &Model, table: usize) -> TokenStream {
    let Some(chain) = model.tables[table].source.as_ref().and_then(|source| source.chain.as_ref()) else {
        return quote!();
    };
    let vendor = |table: usize| format_ident!("vendor_table_{}", model.tables[table].name);
    let read = chain.links.iter().map(|(link, _)| {
        let (address, vendor) = (format_ident!("table_{}", model.tables[*link].name), vendor(*link));
        quote!(if reply.word() != 0 { reply.table(#address(), &#vendor) } else { 0usize })
    });
    let linked = chain.links.iter().enumerate().rev().map(|(n, (link, next))| {
        let (n, next, vendor) = (types::size(n), types::size(*next), vendor(*link));
        quote!(if links[#n] != 0 { #vendor.point(#next, next); next = links[#n]; })
    });
    let (head, first) = (types::size(chain.head), vendor(table));
    quote! {
        let links = [#(#read),*];
        let mut next = 0usize;
        #(#linked)*
        #first.point(#head, next);
    }
}
