//! Tables of the vendor's library: where the functions are that guests call through theirs.

use crate::generate::expression::Context;
use crate::generate::types;
use crate::model::{Function, Kind, Model, Rule, Side, Table};
use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};

/// The static that stands for a table.
pub fn name(table: &Table) -> Ident {
    format_ident!("vendor_table_{}", table.name)
}

/// One static for each table of the vendor's.
pub fn tables(model: &Model) -> TokenStream {
    let cx = Context::new(model, Side::Server);
    let tables = model.tables.iter().filter_map(|table| {
        let source = table.source.as_ref()?;
        let (name, find) = (name(table), format_ident!("find_table_{}", table.name));
        let address = cx.exact(&source.address);
        let size = types::size(table.size);
        let slots = table.members.iter().map(|m| types::size(m.offset));
        let values = source.values.iter().map(|v| {
            let (offset, width) = (types::size(v.offset), types::size(v.width));
            quote!((#offset, #width))
        });
        let sized = source.sized.map_or(quote!(None), |v| {
            let (offset, width) = (types::size(v.offset), types::size(v.width));
            quote!(Some((#offset, #width)))
        });
        Some(quote! {
            unsafe fn #find() -> usize { (#address) as usize }
            static #name: aviary_server::VendorTable = aviary_server::VendorTable {
                find: #find,
                size: #size,
                sized: #sized,
                slots: &[#(#slots),*],
                values: &[#(#values),*],
            };
        })
    });
    quote!(#(#tables)*)
}

/// Says which tables of the chain the vendor has, and what is in them.
pub fn chain(model: &Model, table: usize) -> TokenStream {
    let chain = model.tables[table].source.as_ref().and_then(|source| source.chain.as_ref());
    let links = chain.iter().flat_map(|chain| &chain.links).map(|(link, _)| {
        let link = name(&model.tables[*link]);
        quote!(call.reply_table(#link.address(), &#link);)
    });
    quote!(#(#links)*)
}

/// The table that handles of an argument are copies of.
fn shaped_by(model: &Model, rule: &Rule) -> Option<usize> {
    let Rule::Plan(plan) = rule else { return None };
    let Kind::Handle { handle, .. } = plan.kind else { return None };
    model.handle_types[handle].shape
}

/// Behind a handle of such a type in a reply.
pub fn reply_shape(model: &Model, handle: usize) -> TokenStream {
    match model.handle_types[handle].shape {
        None => quote!(),
        Some(table) => {
            let name = name(&model.tables[table]);
            quote!(if told.is_any() { call.reply_shape(native as usize, &#name); })
        }
    }
}

/// The address of a function that is only in a table of the vendor's.
pub fn member(model: &Model, function: &Function) -> Option<TokenStream> {
    let (table, member) = function.member_of.as_ref()?;
    let table = &model.tables[*table];
    table.source.as_ref()?;
    let offset = types::size(table.members.iter().find(|m| m.name == *member)?.offset);
    let index = function.member_of.as_ref()?.0;
    let name = name(table);
    // A function of an object that is a table is the object's own.
    let of_object = function.arguments.first().is_some_and(|rule| shaped_by(model, rule) == Some(index));
    if of_object {
        let object = types::argument(0);
        return Some(quote!(#name.function_of(#object as usize, #offset)));
    }
    Some(quote!(#name.function(#offset)))
}
