//! Pieces of printed code that the passes share: places, sites, loops.

use super::expression::{Context, site_name};
use super::types;
use crate::lower::*;
use crate::model::{Count, Expr};
use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};

/// True if a NULL result means failure when nothing else tells.
pub fn returns_object(result: &Instruction) -> bool {
    matches!(
        result.operation,
        Operation::Handle(_) | Operation::Mapped { .. } | Operation::FunctionPointer { .. } | Operation::Table(_)
    )
}

pub fn role(handle: &HandleUse) -> TokenStream {
    if handle.object.allocate { quote!(Role::Allocate) } else { quote!(Role::Borrow) }
}

/// In the guest: the handle `value` ends with those that the specification says.
pub fn end_with(handle: &HandleUse, value: &TokenStream, cx: Context) -> TokenStream {
    let owners = handle.object.ends_with.iter().map(|e| {
        let (ty, owner) = (e.ty.handle.unwrap_or(0) as u32, cx.exact(e));
        quote!(API.end_with(#value, #ty, (#owner) as u64);)
    });
    quote!(#(#owners)*)
}

pub fn guarded(cx: Context, condition: &Option<Expr>, body: TokenStream) -> TokenStream {
    match condition {
        None => body,
        Some(c) => {
            let c = cx.condition(c);
            quote!(if #c { #body })
        }
    }
}

/// The name to bind a site's value to, and how to remember it for the reply pass of `instruction`.
pub fn keep(site: Site, instruction: &Instruction, cx: Context) -> (Ident, TokenStream) {
    let name = site_name(site);
    if site.nested {
        // Only what the reply pass visits is in the queue, or the two would run apart.
        let visited = (cx.both || instruction.replies()) && !matches!(instruction.operation, Operation::Bytes(_));
        let push = visited.then(|| quote!(trail.push(#name);));
        return (name.clone(), quote!(#push));
    }
    let local = format_ident!("v{}", site.number);
    (local.clone(), quote!(#name = #local;))
}

/// The remembered value of a site.
pub fn recall(site: Site) -> TokenStream {
    if site.nested {
        return next_remembered();
    }
    let name = site_name(site);
    quote!(#name)
}

fn next_remembered() -> TokenStream {
    quote!({
        trail_at += 1;
        trail.get(trail_at - 1).copied().unwrap_or(0)
    })
}

/// Around the request of an array inside an element that travels both ways: where the queue and the outputs (`call`
/// counts them) stand behind it, for a reply that passes over it because the library has put another array there.
pub fn remember_end(cx: Context, request: TokenStream) -> TokenStream {
    if !cx.both {
        return request;
    }
    quote! {
        let mark = trail.len();
        trail.extend([0, 0]);
        #request
        trail[mark] = trail.len() as u64;
        trail[mark + 1] = call.outputs() as u64;
    }
}

/// The positions that `remember_end` keeps: names for the end of the queue and of the outputs.
pub fn recall_end() -> TokenStream {
    let (trail, outputs) = (next_remembered(), next_remembered());
    quote!(let (trail_end, outputs_end) = (#trail as usize, #outputs as usize);)
}

/// How far behind an element of the loop at that place the copy of what was passed lies.
fn distance(at: ValueLocation) -> Ident {
    let depth = match at {
        ValueLocation::Element { depth, .. } => depth,
        _ => 0,
    };
    format_ident!("passed{}", depth)
}

/// Binds the distance for the elements of an instruction, from `count`, as many as there are.
pub fn bind_distance(instruction: &Instruction, elements: &Elements) -> Option<TokenStream> {
    let at = match instruction.at {
        ValueLocation::Element { depth, .. } => ValueLocation::Element { depth: depth + 1, offset: 0 },
        other => other,
    };
    let (name, stride) = (distance(at), types::size(elements.extent.stride));
    elements.kept_twice().then(|| quote!(let #name = (count + 2) * #stride;))
}

/// On the server, the value of an element's pointer as it was passed, whatever the vendor's function left there.
pub fn read_passed(instruction: &Instruction) -> TokenStream {
    match instruction.at {
        ValueLocation::Element { depth, offset } => {
            let (e, offset, distance) = (format_ident!("e{}", depth), types::size(offset), distance(instruction.at));
            quote!(support::read::<u64>(#e + #distance + #offset))
        }
        _ => read(instruction),
    }
}

/// The distance from a value of an element to the copy of what was passed.
pub fn passed_distance(instruction: &Instruction) -> Ident {
    distance(instruction.at)
}

/// Bytes of the memory of an argument, as the request found it, on either side.
pub fn memory_bytes(arguments: &[Instruction], argument: usize) -> TokenStream {
    let own = arguments.iter().find(|instruction| instruction.at == ValueLocation::Argument(argument));
    own.map_or(quote!(0usize), bytes_found)
}

fn bytes_found(instruction: &Instruction) -> TokenStream {
    match &instruction.operation {
        Operation::Text { .. } => {
            let text = read(instruction);
            quote!((support::length(#text as i128, usize::MAX) as usize).saturating_add(1))
        }
        Operation::Bytes(Bytes { extent, .. }) | Operation::Elements(Elements { extent, .. }) => {
            let (count, stride) = (site_name(extent.site), types::size(extent.stride));
            quote!((#count as usize).saturating_mul(#stride))
        }
        Operation::Choice { site, then, otherwise, .. } => {
            let (then, otherwise) = (then.iter().map(bytes_found), otherwise.iter().map(bytes_found));
            chosen(*site, then, otherwise)
        }
        _ => quote!(0usize),
    }
}

/// The rows of plain data that has some.
pub fn rows(bytes: &Bytes, cx: Context) -> Option<TokenStream> {
    let stride = types::size(bytes.extent.stride);
    let numbers = bytes.rows.as_ref()?.numbers.iter().map(|e| cx.exact(e));
    Some(quote!(support::Rows::new(#(#numbers,)* #stride)))
}

/// The members of a struct that are told apart from its bytes, from `base` bytes in: offset and size of each.
pub fn apart(fields: &[Instruction], base: usize, length: usize) -> TokenStream {
    let places = fields.iter().filter_map(|field| match field.at {
        ValueLocation::Element { offset, .. } if (base..base + length).contains(&offset) => {
            let (at, size) = (types::size(offset - base), types::size(field.ty.size()));
            Some(quote!((#at, #size)))
        }
        _ => None,
    });
    quote!(&[#(#places),*])
}

/// Which way a value of an element takes in the reply: as the request decided, or as the library's memory says.
pub fn decided(site: Site, condition: &Expr, cx: Context) -> TokenStream {
    if !cx.both {
        return cx.condition(condition);
    }
    let value = recall(site);
    quote!(#value != 0)
}

/// Variables that carry the sites' values from the request pass to the reply pass.
pub fn site_variables(instructions: &[Instruction]) -> TokenStream {
    let mut tokens = TokenStream::new();
    let mut nested = false;
    for_each_site(instructions, &mut |site| {
        nested |= site.nested;
        if !site.nested {
            let name = site_name(site);
            tokens.extend(quote!(let mut #name = 0u64;));
        }
    });
    if nested {
        tokens.extend(quote!(let mut trail: Vec<u64> = Vec::new(); let mut trail_at = 0usize;));
    }
    tokens
}

/// True if the sites' values are kept in a queue, too.
pub fn has_trail(instructions: &[Instruction]) -> bool {
    let mut nested = false;
    for_each_site(instructions, &mut |site| nested |= site.nested);
    nested
}

/// Calls `visit` for every site of a list of instructions.
fn for_each_site(instructions: &[Instruction], visit: &mut dyn FnMut(Site)) {
    for instruction in instructions {
        match &instruction.operation {
            Operation::Bytes(b) => visit(b.extent.site),
            Operation::Elements(e) => {
                visit(e.extent.site);
                for_each_site(&e.element, visit);
            }
            Operation::Struct { fields, .. } => for_each_site(fields, visit),
            Operation::Choice { site, then, otherwise, .. } => {
                visit(*site);
                for_each_site(then, visit);
                for_each_site(otherwise, visit);
            }
            _ => {}
        }
    }
}

/// A loop over elements that binds `i{depth}` and `e{depth}`.
pub fn element_loop(
    at: ValueLocation,
    base: TokenStream,
    count: TokenStream,
    stride: usize,
    body: TokenStream,
) -> TokenStream {
    let depth = match at {
        ValueLocation::Element { depth, .. } => depth + 1,
        _ => 0,
    };
    let (index, element, stride) = (format_ident!("i{}", depth), format_ident!("e{}", depth), types::size(stride));
    quote! {
        for #index in 0..(#count) as usize {
            let #element = (#base) + #index * #stride;
            #body
        }
    }
}

/// After the request pass: `body` for each of the elements that it found behind the instruction's pointer.
pub fn found_elements(
    instruction: &Instruction,
    elements: &Elements,
    body: impl Iterator<Item = TokenStream>,
) -> TokenStream {
    let (pointer, count) = (read(instruction), site_name(elements.extent.site));
    element_loop(instruction.at, quote!(#pointer as usize), quote!(#count), elements.extent.stride, body.collect())
}

/// After the request pass: what it chose.
pub fn chosen(
    site: Site,
    then: impl Iterator<Item = TokenStream>,
    otherwise: impl Iterator<Item = TokenStream>,
) -> TokenStream {
    let value = site_name(site);
    quote!(if #value != 0 { #(#then)* } else { #(#otherwise)* })
}

/// Number of elements at an address that the vendor gave; `returned` says it better than the room before the call.
pub fn given_count(extent: &Extent, returned: Option<&Expr>, address: TokenStream, cx: Context) -> TokenStream {
    let stride = types::size(extent.stride);
    if let Some(e) = returned {
        let value = cx.exact(e);
        return quote!(support::count(#value, #stride).unwrap_or(0));
    }
    match &extent.count {
        Count::Elements(e) => {
            let value = cx.exact(e);
            quote!(support::count(#value, #stride).unwrap_or(0))
        }
        Count::One => quote!(1usize),
        Count::Terminated { step } => {
            let step = types::size(*step);
            quote!(support::terminated(#address as usize, #stride, #step))
        }
    }
}

/// The value at the instruction's place as a `u64` word.
pub fn read(instruction: &Instruction) -> TokenStream {
    match instruction.at {
        ValueLocation::Argument(i) => {
            let a = types::argument(i);
            types::to_word(quote!(#a), &instruction.ty)
        }
        ValueLocation::Contextual(i) => {
            let x = format_ident!("x{}", i);
            types::to_word(quote!(#x), &instruction.ty)
        }
        ValueLocation::Result => quote!(ret as u64),
        ValueLocation::Element { depth, offset } => {
            let (e, offset, bits) = (format_ident!("e{}", depth), types::size(offset), types::bits(&instruction.ty));
            quote!(support::read::<#bits>(#e + #offset) as u64)
        }
    }
}

/// Stores a `u64` word at the instruction's place in an element.
pub fn write(instruction: &Instruction, value: TokenStream) -> TokenStream {
    match instruction.at {
        ValueLocation::Element { depth, offset } => {
            let (e, offset, bits) = (format_ident!("e{}", depth), types::size(offset), types::bits(&instruction.ty));
            quote!(support::write::<#bits>(#e + #offset, (#value) as #bits);)
        }
        _ => quote!(let _ = #value;),
    }
}

/// Address of a struct in memory; one passed by value becomes element `e0`.
pub fn struct_address(instruction: &Instruction) -> (TokenStream, TokenStream) {
    match instruction.at {
        ValueLocation::Argument(i) => {
            let a = types::argument(i);
            (quote!(let e0 = &raw const #a as usize;), quote!(e0))
        }
        ValueLocation::Element { depth, offset } => {
            let (e, offset) = (format_ident!("e{}", depth), types::size(offset));
            (quote!(), quote!((#e + #offset)))
        }
        _ => (quote!(let e0 = &raw const ret as usize;), quote!(e0)),
    }
}
