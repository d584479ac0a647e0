//! C types as they cross the C ABI in generated Rust.
//!
//! Pointers are `usize`: generated code never dereferences one by accident, and
//! both have the same place in every calling convention we run on. Structs that
//! are passed by value keep their members, because the convention looks at them.

use crate::model::{Expr, HandleType, Metadata, Model, Signature, Struct, Type, TypeKind};
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
    let clean: String = s.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    format_ident!("Struct_{}", clean)
}

pub fn size(bytes: usize) -> Literal {
    Literal::usize_unsuffixed(bytes)
}

/// `unsafe extern "C" fn(...) -> ...` for calling through a pointer.
pub fn function_type(signature: &Signature) -> TokenStream {
    let parameters = signature.parameters.iter().map(|(_, t)| rust(t));
    let result = rust(&signature.result);
    quote!(unsafe extern "C" fn(#(#parameters),*) -> #result)
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

pub fn argument(i: usize) -> Ident {
    format_ident!("a{}", i)
}

/// Definitions of every struct that some function passes by value.
pub fn struct_definitions(model: &Model) -> TokenStream {
    let mut structs = BTreeMap::new();
    let mut signatures: Vec<(&[(String, Type)], &Type)> = Vec::new();
    for f in &model.functions {
        signatures.push((&f.signature.parameters, &f.signature.result));
    }
    for (parameters, result) in signatures {
        parameters.iter().map(|(_, t)| t).chain([result]).for_each(|t| collect(t, &mut structs));
    }
    for u in &model.utility_functions {
        u.parameters.iter().chain([&u.result]).for_each(|t| collect(t, &mut structs));
    }
    let definitions = structs.values().map(|s| definition(s));
    quote!(#(#definitions)*)
}

fn collect<'a>(ty: &'a Type, into: &mut BTreeMap<String, &'a Struct>) {
    match &ty.kind {
        TypeKind::Struct(s) => {
            s.fields.iter().for_each(|f| collect(&f.ty, into));
            into.insert(s.name.clone(), s);
        }
        TypeKind::Array { of, .. } => collect(of, into),
        TypeKind::FunctionPointer(signature) => {
            signature.parameters.iter().map(|(_, t)| t).chain([&signature.result]).for_each(|t| collect(t, into));
        }
        _ => {}
    }
}

fn definition(s: &Struct) -> TokenStream {
    let name = struct_name(s);
    let overlapping = s.fields.windows(2).any(|w| w[0].offset + w[0].ty.size() > w[1].offset);
    if s.union || overlapping || s.fields.is_empty() {
        let word = integer(s.align.min(8), false);
        let count = size(s.size / s.align.clamp(1, 8));
        return quote!(#[repr(C)] #[derive(Clone, Copy)] struct #name([#word; #count]););
    }
    let fields = s.fields.iter().enumerate().map(|(i, f)| {
        let (field, ty) = (format_ident!("f{}", i), member(&f.ty));
        quote!(#field: #ty)
    });
    quote!(#[repr(C)] #[derive(Clone, Copy)] struct #name { #(#fields),* })
}

fn member(ty: &Type) -> TokenStream {
    match &ty.kind {
        TypeKind::Array { of, count } => {
            let (of, count) = (member(of), size(*count));
            quote!([#of; #count])
        }
        _ => rust(ty),
    }
}

/// Declarations of the utility functions that `uses` mentions.
pub fn utility_declarations(model: &Model, skip: crate::model::Side) -> TokenStream {
    let declarations = model.utility_functions.iter().filter(|u| u.side != skip && !u.stub).map(|u| {
        let name = format_ident!("{}", u.name);
        let parameters = u.parameters.iter().enumerate().map(|(i, t)| {
            let (name, ty) = (argument(i), rust(t));
            quote!(#name: #ty)
        });
        let result = rust(&u.result);
        quote!(fn #name(#(#parameters),*) -> #result;)
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
