//! C types as they cross the C ABI in generated Rust.
//!
//! Pointers are `usize`: generated code never dereferences one by accident, and
//! both have the same place in every calling convention we run on. Structs, and
//! numbers that Rust does not have, are bytes: only C passes them by value
//! ([`super::shims`]).

use crate::lower::LoweredCallback;
use crate::model::{Expr, HandleType, Metadata, Model, Side, Signature, Struct, Type, TypeKind, UtilityFunction};
use proc_macro2::{Ident, Literal, TokenStream};
use quote::{format_ident, quote};
use std::collections::BTreeMap;

/// The Rust type of a parameter or result; `()` for `void`.
pub fn rust(ty: &Type) -> TokenStream {
    match &ty.kind {
        TypeKind::Void => quote!(()),
        TypeKind::Int { bytes, signed } => integer(*bytes, *signed),
        TypeKind::Float { bytes: 4 } => quote!(f32),
        TypeKind::Float { .. } => quote!(f64),
        TypeKind::Struct(s) => {
            let name = struct_name(s);
            quote!(#name)
        }
        TypeKind::Pointer { .. } | TypeKind::FunctionPointer(_) | TypeKind::Array { .. } | TypeKind::Incomplete => {
            quote!(usize)
        }
    }
}

pub fn integer(bytes: usize, signed: bool) -> TokenStream {
    let name = format_ident!("{}{}", if signed { "i" } else { "u" }, bytes * 8);
    quote!(#name)
}

/// An unsigned integer type of the value's size, for moving its bits.
pub fn bits(ty: &Type) -> TokenStream {
    match ty.size() {
        size @ (1 | 2 | 4) => integer(size, false),
        _ => quote!(u64),
    }
}

/// A value's bits as a `u64` word.
pub fn to_word(value: TokenStream, ty: &Type) -> TokenStream {
    match &ty.kind {
        TypeKind::Float { .. } => quote!((#value).to_bits() as u64),
        _ => quote!((#value) as u64),
    }
}

/// A word's bits as a value of type `ty`.
pub fn from_word(word: TokenStream, ty: &Type) -> TokenStream {
    let rust = rust(ty);
    match &ty.kind {
        TypeKind::Float { bytes: 4 } => quote!(f32::from_bits((#word) as u32)),
        TypeKind::Float { .. } => quote!(f64::from_bits(#word)),
        TypeKind::Void => quote!({ let _ = #word; }),
        _ => quote!((#word) as #rust),
    }
}

/// A Rust name for a C one: `prefix` keeps it apart from Rust's own words and from what generated code uses.
fn prefixed(prefix: &str, name: &str) -> Ident {
    let plain = |c: char| match c {
        c if c.is_ascii_alphanumeric() || c == '_' => c.to_string(),
        odd => format!("_{:x}_", u32::from(odd)),
    };
    format_ident!("{}_{}", prefix, name.chars().map(plain).collect::<String>())
}

/// The stub of a function, or what forwards to the vendor's. Its symbol is the C name.
pub fn function_name(name: &str) -> Ident {
    prefixed("api", name)
}

/// The stub as Rust code calls it, where applications come through C.
pub fn guarded_name(name: &str) -> Ident {
    prefixed("guarded", name)
}

/// A utility function, as generated code calls it.
pub fn utility_name(function: &UtilityFunction) -> Ident {
    if function.stub { function_name(&function.name) } else { prefixed("c", &function.name) }
}

/// A zero of type `ty`.
pub fn zero(ty: &Type) -> TokenStream {
    match &ty.kind {
        TypeKind::Void => quote!(()),
        TypeKind::Float { .. } => quote!(0.0),
        // SAFETY of the generated text: all members of a C struct may be zero.
        TypeKind::Struct(_) => quote!(unsafe { std::mem::zeroed() }),
        _ => quote!(0),
    }
}

/// An exact integer (the type of all LAPIS expressions) as a value of type `ty`.
pub fn from_exact(value: TokenStream, ty: &Type) -> TokenStream {
    let rust = rust(ty);
    match &ty.kind {
        TypeKind::Void => quote!({ let _ = #value; }),
        TypeKind::Struct(_) => quote!(unsafe { std::mem::zeroed() }),
        _ => quote!((#value) as #rust),
    }
}

pub fn is_struct(ty: &Type) -> bool {
    matches!(ty.kind, TypeKind::Struct(_))
}

pub fn struct_name(s: &Struct) -> Ident {
    format_ident!("Bytes_{}_{}", s.size, s.align)
}

pub fn size(bytes: usize) -> Literal {
    Literal::usize_unsuffixed(bytes)
}

/// `unsafe extern "C" fn(...) -> ...` for calling through a pointer; an application's function may throw.
pub fn function_type(signature: &Signature, side: Side) -> TokenStream {
    function_type_with(signature, 0, side)
}

/// The same, with so many words behind the parameters: numbers and pointers, as C passes them.
pub fn function_type_with(signature: &Signature, words: usize, side: Side) -> TokenStream {
    let abi = if side == Side::Guest { "C-unwind" } else { "C" };
    let parameters = signature.parameters.iter().map(|(_, t)| rust(t)).chain(std::iter::repeat_n(quote!(u64), words));
    let result = rust(&signature.result);
    quote!(unsafe extern #abi fn(#(#parameters),*) -> #result)
}

/// `a0: T0, a1: T1, ...`
pub fn parameter_list(signature: &Signature) -> TokenStream {
    let parameters = signature.parameters.iter().enumerate().map(|(i, (_, t))| {
        let (name, ty) = (argument(i), rust(t));
        quote!(#name: #ty)
    });
    quote!(#(#parameters),*)
}

/// `a0, a1, ...`
pub fn argument_list(signature: &Signature) -> TokenStream {
    let names = (0..signature.parameters.len()).map(argument);
    quote!(#(#names),*)
}

/// `a0, a1, ...` and these values, as words.
pub fn arguments_with(signature: &Signature, values: &[TokenStream]) -> TokenStream {
    let names = (0..signature.parameters.len()).map(argument);
    quote!(#(#names,)* #((#values) as u64),*)
}

pub fn argument(i: usize) -> Ident {
    format_ident!("a{}", i)
}

/// Definitions of the structs that some function passes by value: so many bytes, so aligned.
pub fn struct_definitions(model: &Model, callbacks: &[LoweredCallback]) -> TokenStream {
    let mut structs = BTreeMap::new();
    let mut note = |ty: &Type| {
        if let TypeKind::Struct(s) = &ty.kind {
            structs.insert((s.size, s.align), s.clone());
        }
    };
    let signatures =
        model.functions.iter().map(|f| &f.signature).chain(callbacks.iter().map(|c| &c.callback.signature));
    for signature in signatures {
        signature.parameters.iter().map(|(_, t)| t).chain([&signature.result]).for_each(&mut note);
    }
    model.functions.iter().flat_map(|f| &f.contextual).for_each(|c| note(&c.ty));
    model.utility_functions.iter().flat_map(|u| u.parameters.iter().chain([&u.result])).for_each(&mut note);
    let definitions = structs.values().map(|s| {
        let (name, bytes, align) = (struct_name(s), size(s.size), size(s.align.max(1)));
        quote!(#[repr(C, align(#align))] #[derive(Clone, Copy)] struct #name([u8; #bytes]);)
    });
    quote!(#(#definitions)*)
}

/// Declarations of the utility functions that `uses` mentions.
pub fn utility_declarations(model: &Model, skip: Side) -> TokenStream {
    let plain = |u: &&UtilityFunction| u.side != skip && !u.stub && u.is_plain();
    let declarations = model.utility_functions.iter().filter(plain).map(|u| {
        let (name, symbol) = (utility_name(u), &u.name);
        let parameters = u.parameters.iter().enumerate().map(|(i, t)| {
            let (name, ty) = (argument(i), rust(t));
            quote!(#name: #ty)
        });
        let result = rust(&u.result);
        quote!(#[link_name = #symbol] fn #name(#(#parameters),*) -> #result;)
    });
    quote!(unsafe extern "C" { #(#declarations)* })
}

/// The metadata that the handles of a type carry: kind and size of a structure, if any.
pub fn metadata(handle: &HandleType) -> TokenStream {
    match &handle.metadata {
        None => quote!(None),
        Some(Metadata { kind, ty }) => {
            let size = size(ty.size());
            quote!(Some(Metadata { kind: #kind, size: #size }))
        }
    }
}

/// Constant value of an expression, where it has one.
pub fn constant(e: &Expr) -> Option<i128> {
    match &e.kind {
        crate::model::ExprKind::Int(v) => Some(*v),
        crate::model::ExprKind::Null => Some(0),
        crate::model::ExprKind::Cast(a) => constant(a),
        crate::model::ExprKind::Unary(crate::model::Unary::Negate, a) => constant(a).map(|v| -v),
        _ => None,
    }
}
