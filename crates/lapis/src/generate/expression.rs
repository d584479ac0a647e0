//! LAPIS expressions as Rust.
//!
//! Every expression becomes an exact integer (`i128`): sizes computed from
//! hostile arguments cannot wrap. Memory is only read through `support::load`,
//! which treats NULL and out-of-range reads as zero.

use super::shims;
use super::types;
use crate::lower::{Elements, Site};
use crate::model::*;
use proc_macro2::{Ident, Literal, TokenStream};
use quote::{format_ident, quote};

/// The variable that has the value of a site.
pub fn site_name(site: Site) -> Ident {
    format_ident!("s{}", site.number)
}

/// Where an expression is printed.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub model: &'a Model,
    pub side: Side,
    /// Number of element loops around it.
    pub depth: usize,
    /// The memory behind parameters is the vendor library's or the application's own (callbacks).
    pub unbounded: bool,
    /// Inside an element that travels both ways: the reply pass visits all that the request pass has visited.
    pub both: bool,
    /// Inside an element of the application's memory that flows back: what the library leaves alone stays as it is.
    pub own: bool,
    /// Inside a struct that the server keeps.
    pub state: bool,
    /// Values that have arrived from the guest, by the expression that it evaluated.
    pub carried: &'a [(Expr, Site)],
}

impl<'a> Context<'a> {
    pub fn new(model: &'a Model, side: Side) -> Self {
        Context { model, side, depth: 0, unbounded: false, both: false, own: false, state: false, carried: &[] }
    }

    /// Inside an element of memory that the library hands out: no request spoke of it.
    pub fn deeper(self) -> Self {
        Context { depth: self.depth + 1, both: false, own: false, state: false, ..self }
    }

    /// Inside an element of the application's memory.
    pub fn inside(self, elements: &Elements) -> Self {
        Context { both: elements.input && elements.output, own: elements.output, ..self.deeper() }
    }

    fn on_server(&self) -> bool {
        self.side == Side::Server
    }

    /// `e` as a Rust condition.
    pub fn condition(&self, e: &Expr) -> TokenStream {
        let value = self.exact(e);
        quote!((#value) != 0)
    }

    /// `e` as an `i128`.
    /// A condition that may be constant.
    pub fn when(&self, when: &When) -> TokenStream {
        match when {
            When::Never => quote!(false),
            When::Always => quote!(true),
            When::If(e) => self.condition(e),
        }
    }

    pub fn exact(&self, e: &Expr) -> TokenStream {
        if let Some((_, site)) = self.carried.iter().find(|(known, _)| known == e) {
            let name = site_name(*site);
            return quote!((#name as i128));
        }
        match &e.kind {
            ExprKind::Int(v) => {
                let v = Literal::i128_unsuffixed(*v);
                quote!((#v as i128))
            }
            ExprKind::Float(v) => quote!((#v as i128)),
            ExprKind::String(s) => {
                let text = Literal::byte_string(format!("{s}\0").as_bytes());
                quote!((#text.as_ptr() as usize as i128))
            }
            ExprKind::Null => quote!(0i128),
            ExprKind::Parameter(i) => {
                let a = types::argument(*i);
                quote!((#a as i128))
            }
            ExprKind::Contextual(i) => {
                let x = format_ident!("x{}", i);
                quote!((#x as i128))
            }
            ExprKind::Ret => quote!((ret as i128)),
            ExprKind::Relaxed => quote!((aviary_guest::relaxed() as i128)),
            ExprKind::Index(n) => {
                let i = format_ident!("i{}", self.depth.saturating_sub(1 + n));
                quote!((#i as i128))
            }
            ExprKind::Unary(operator, a) => self.unary(*operator, a),
            ExprKind::Binary(operator, a, b) => self.binary(*operator, a, b),
            ExprKind::Conditional(c, a, b) => {
                let (c, a, b) = (self.condition(c), self.exact(a), self.exact(b));
                quote!((if #c { #a } else { #b }))
            }
            ExprKind::Cast(a) => self.cast(a, &e.ty),
            ExprKind::Element(..) | ExprKind::Field(..) | ExprKind::Here(_) => self.load(e),
            ExprKind::Metadata(..) => {
                let (base, _, _) = self.location(e);
                quote!((#base as i128))
            }
            ExprKind::Table(t) => {
                let name = format_ident!("table_{}", self.model.tables[*t].name);
                quote!((#name() as i128))
            }
            ExprKind::Call(callee, arguments) => self.call(*callee, arguments),
        }
    }

    fn unary(&self, operator: Unary, a: &Expr) -> TokenStream {
        let a = self.exact(a);
        match operator {
            Unary::Negate => quote!((-(#a))),
            Unary::Not => quote!(((#a == 0) as i128)),
            Unary::Complement => quote!((!(#a))),
        }
    }

    fn binary(&self, operator: Binary, left: &Expr, right: &Expr) -> TokenStream {
        let (a, b) = (self.exact(left), self.exact(right));
        // Pointer arithmetic counts in elements.
        let scale = |t: &Type| Literal::i128_unsuffixed(t.pointee().map_or(1, Type::size) as i128);
        let b = match operator {
            Binary::Add | Binary::Subtract if left.ty.pointee().is_some() && right.ty.pointee().is_none() => {
                let scale = scale(&left.ty);
                quote!((#b * #scale))
            }
            _ => b,
        };
        match operator {
            Binary::Add => quote!((#a).saturating_add(#b)),
            Binary::Subtract => quote!((#a).saturating_sub(#b)),
            Binary::Multiply => quote!((#a).saturating_mul(#b)),
            Binary::Divide => quote!(support::divide(#a, #b)),
            Binary::Remainder => quote!(support::remainder(#a, #b)),
            Binary::ShiftLeft => quote!(support::shift_left(#a, #b)),
            Binary::ShiftRight => quote!(support::shift_right(#a, #b)),
            Binary::And => quote!((#a & #b)),
            Binary::Or => quote!((#a | #b)),
            Binary::Xor => quote!((#a ^ #b)),
            Binary::Less => quote!(((#a < #b) as i128)),
            Binary::LessEqual => quote!(((#a <= #b) as i128)),
            Binary::Greater => quote!(((#a > #b) as i128)),
            Binary::GreaterEqual => quote!(((#a >= #b) as i128)),
            Binary::Equal => quote!(((#a == #b) as i128)),
            Binary::NotEqual => quote!(((#a != #b) as i128)),
            Binary::LogicalAnd => quote!(((#a != 0 && #b != 0) as i128)),
            Binary::LogicalOr => quote!(((#a != 0 || #b != 0) as i128)),
        }
    }

    fn cast(&self, a: &Expr, to: &Type) -> TokenStream {
        let value = self.exact(a);
        match &to.kind {
            TypeKind::Int { .. } => {
                let ty = types::rust(to);
                quote!(((#value) as #ty as i128))
            }
            _ => value,
        }
    }

    fn load(&self, e: &Expr) -> TokenStream {
        let (base, limit, offset) = self.location(e);
        // An array member decays to its address.
        if matches!(e.ty.kind, TypeKind::Array { .. } | TypeKind::Struct(_)) {
            return quote!(((#base as i128).saturating_add(#offset)));
        }
        let size = types::size(e.ty.size());
        let signed = matches!(e.ty.kind, TypeKind::Int { signed: true, .. });
        quote!(support::load(#base as usize, #limit, #offset, #size, #signed))
    }

    /// Base address, readable bytes behind it and offset of the object that `e` names.
    fn location(&self, e: &Expr) -> (TokenStream, TokenStream, TokenStream) {
        match &e.kind {
            ExprKind::Element(base, index) => {
                let stride = Literal::i128_unsuffixed(e.ty.size() as i128);
                let index = self.exact(index);
                let step = quote!((#index).saturating_mul(#stride));
                if matches!(base.ty.kind, TypeKind::Array { .. }) {
                    let (base_address, limit, offset) = self.location(base);
                    return (base_address, limit, quote!((#offset).saturating_add(#step)));
                }
                (self.exact(base), self.limit(base), step)
            }
            ExprKind::Field(base, field) => {
                let (address, limit, offset) = self.location(base);
                let field = Literal::i128_unsuffixed(*field as i128);
                (address, limit, quote!((#offset).saturating_add(#field)))
            }
            ExprKind::Metadata(handle, kind) => {
                let ty = handle.ty.handle.unwrap_or(0) as u32;
                let handle = self.exact(handle);
                let size = types::size(e.ty.size());
                let base = if self.on_server() {
                    quote!(call.metadata(#ty, (#handle) as u64, #kind))
                } else {
                    quote!(API.metadata((#handle) as u64, #kind))
                };
                (quote!((#base as usize)), quote!(#size), quote!(0i128))
            }
            ExprKind::Parameter(i) if types::is_struct(&e.ty) => {
                let (a, size) = (types::argument(*i), types::size(e.ty.size()));
                (quote!((&raw const #a as usize)), quote!(#size), quote!(0i128))
            }
            ExprKind::Ret if types::is_struct(&e.ty) => {
                let size = types::size(e.ty.size());
                (quote!((&raw const ret as usize)), quote!(#size), quote!(0i128))
            }
            ExprKind::Cast(a) => self.location(a),
            // Memory of the library's own, or its copy in the guest: members lie inside the element.
            ExprKind::Here(n) => {
                let element = format_ident!("e{}", self.depth.saturating_sub(1 + n));
                (quote!((#element as usize)), quote!(usize::MAX), quote!(0i128))
            }
            _ => (self.exact(e), self.limit(e), quote!(0i128)),
        }
    }

    /// How many bytes may be read behind the pointer `e`.
    fn limit(&self, e: &Expr) -> TokenStream {
        if !self.on_server() || self.unbounded {
            return quote!(usize::MAX);
        }
        match &e.kind {
            ExprKind::Parameter(i) => {
                let n = format_ident!("n{}", i);
                quote!(#n)
            }
            ExprKind::Cast(a) => self.limit(a),
            ExprKind::Ret | ExprKind::String(_) => quote!(usize::MAX),
            ExprKind::Call(..) => quote!(usize::MAX),
            _ => quote!(0usize),
        }
    }

    fn call(&self, callee: Callee, arguments: &[Expr]) -> TokenStream {
        let exact = |i: usize| arguments.get(i).map_or(quote!(0i128), |e| self.exact(e));
        let (a, b) = (exact(0), exact(1));
        match callee {
            Callee::Utility(u) => self.utility(&self.model.utility_functions[u], arguments),
            Callee::Min => quote!(std::cmp::min(#a, #b)),
            Callee::Max => quote!(std::cmp::max(#a, #b)),
            Callee::Strlen => {
                let limit = arguments.first().map_or(quote!(0usize), |e| self.limit(e));
                quote!(support::length(#a, #limit))
            }
            Callee::Span => {
                let numbers: Vec<TokenStream> = (0..5).map(exact).collect();
                quote!(support::span(#(#numbers),*))
            }
            Callee::Present => self.present(arguments.first()),
            Callee::Among => {
                let known = arguments.iter().skip(1).map(|e| self.exact(e));
                quote!(([#(#known),*].contains(&(#a as u64 as i128)) as i128))
            }
            Callee::IsHandle => match arguments.first().and_then(|e| e.ty.handle) {
                Some(ty) => {
                    let ty = ty as u32;
                    quote!((API.is_handle_of(#ty, (#a) as u64) as i128))
                }
                None => quote!((API.is_handle((#a) as u64) as i128)),
            },
            Callee::GetBufs => quote!((API.get_bufs((#a) as u32, (#b) as u64) as usize as i128)),
            Callee::GetNBufs => quote!((API.get_n_bufs((#a) as u32, (#b) as u64) as i128)),
            Callee::GetBufSize => {
                let c = exact(2);
                quote!((API.get_buf_size((#a) as u32, (#b) as u64, (#c) as usize) as i128))
            }
            Callee::ZerocopyAlloc => quote!((API.zerocopy_alloc((#a) as usize) as usize as i128)),
            Callee::ZerocopyFree => quote!({ API.zerocopy_free((#a) as usize as *mut u8); 0i128 }),
        }
    }

    fn present(&self, argument: Option<&Expr>) -> TokenStream {
        match argument.map(|e| &e.kind) {
            Some(ExprKind::Parameter(i)) if self.on_server() && !self.unbounded => {
                let h = format_ident!("h{}", i);
                quote!((#h as i128))
            }
            _ => {
                let value = argument.map_or(quote!(0i128), |e| self.exact(e));
                quote!(((#value != 0) as i128))
            }
        }
    }

    fn utility(&self, function: &UtilityFunction, arguments: &[Expr]) -> TokenStream {
        let mut name = types::utility_name(function);
        let values: Vec<TokenStream> =
            arguments.iter().zip(&function.parameters).map(|(e, ty)| self.typed(e, ty)).collect();
        if !function.is_plain() && !function.stub {
            let name = format_ident!("aviary_utility_{}", function.name);
            let call = shims::through_c(&name, None, &values, &function.result);
            return match function.result.kind {
                TypeKind::Void => quote!({ #call; 0i128 }),
                _ => quote!((#call as i128)),
            };
        }
        if !function.is_plain() {
            name = types::guarded_name(&function.name);
        }
        match function.result.kind {
            TypeKind::Void => quote!({ #name(#(#values),*); 0i128 }),
            _ => quote!((#name(#(#values),*) as i128)),
        }
    }

    /// `e` as a value of the C type `ty`.
    pub fn typed(&self, e: &Expr, ty: &Type) -> TokenStream {
        let rust = types::rust(ty);
        match (&ty.kind, &e.kind) {
            (TypeKind::Struct(_) | TypeKind::Float { .. }, ExprKind::Parameter(i)) => {
                let a = types::argument(*i);
                if types::is_struct(ty) { quote!(#a) } else { quote!((#a as #rust)) }
            }
            (TypeKind::Float { .. }, ExprKind::Float(v)) => quote!((#v as #rust)),
            (TypeKind::Void, _) => {
                let value = self.exact(e);
                quote!({ let _ = #value; })
            }
            _ => {
                let value = self.exact(e);
                quote!(((#value) as #rust))
            }
        }
    }
}
