//! Typed expressions.

use crate::header::macros;
use crate::model::{Binary, Callee, Expr, ExprKind, Field, Metadata, Side, Type, TypeKind, Unary, UtilityFunction};
use crate::resolve::Resolver;
use crate::resolve::terms::constants::{fold, value};
use crate::resolve::terms::scope::Scope;
use crate::resolve::terms::types::{c_int, describe, int, pointer, size_t, void};
use crate::syntax::ast::{self, AstExpr, AstExprKind, Name};
use crate::syntax::diagnostics::Diagnostic;
use crate::syntax::source::Span;
use crate::syntax::suggest::similar;

/// The functions of the language, with the fewest and most arguments.
const LIBRARY: &[(&str, Callee, usize)] = &[
    ("min", Callee::Min, 2),
    ("max", Callee::Max, 2),
    ("strlen", Callee::Strlen, 1),
    ("present", Callee::Present, 1),
    ("is_handle", Callee::IsHandle, 1),
    ("get_bufs", Callee::GetBufs, 2),
    ("get_n_bufs", Callee::GetNBufs, 2),
    ("get_buf_size", Callee::GetBufSize, 3),
    ("zerocopy_alloc", Callee::ZerocopyAlloc, 1),
    ("zerocopy_free", Callee::ZerocopyFree, 1),
];

impl<'a> Resolver<'a> {
    /// The expression with its type; a mistake is reported and gives None.
    pub(in crate::resolve) fn expr(&mut self, ast: &AstExpr, scope: &Scope) -> Option<Expr> {
        let span = ast.span;
        let (kind, ty) = match &ast.kind {
            AstExprKind::Int { value, unsigned, long } => {
                (ExprKind::Int(*value), literal_type(*value, *unsigned, *long))
            }
            AstExprKind::Float(f) => (
                ExprKind::Float(*f),
                Type { kind: TypeKind::Float { bytes: 8 }, spelling: "double".into(), handle: None },
            ),
            AstExprKind::String(s) => (ExprKind::String(s.clone()), pointer(int(1, true, "const char"))),
            AstExprKind::Name(name) => return self.name(name, span, scope),
            AstExprKind::Call(name, arguments) => return self.call(name, arguments, span, scope),
            AstExprKind::Plus(a) => return self.expr(a, scope),
            AstExprKind::Unary(operator, a) => {
                let a = self.expr(a, scope)?;
                self.need_value(&a)?;
                let ty = if *operator == Unary::Not { c_int() } else { promote(&a.ty) };
                (ExprKind::Unary(*operator, a.into()), ty)
            }
            AstExprKind::Binary(operator, a, b) => {
                let (a, b) = (self.expr(a, scope), self.expr(b, scope));
                return self.binary(*operator, a?, b?, span);
            }
            AstExprKind::Conditional(c, a, b) => {
                let (c, a, b) = (self.expr(c, scope), self.expr(a, scope), self.expr(b, scope));
                let (c, a, b) = (c?, a?, b?);
                self.need_value(&c)?;
                let ty = either(&a.ty, &b.ty);
                (ExprKind::Conditional(c.into(), a.into(), b.into()), ty)
            }
            AstExprKind::Cast(name, a) => {
                let (ty, a) = (self.resolve_type(name), self.expr(a, scope));
                (ExprKind::Cast(a?.into()), ty?)
            }
            AstExprKind::SizeofType(name) => return self.sizeof_type(name, span, scope),
            AstExprKind::SizeofExpr(a) => {
                let a = self.expr(a, scope)?;
                (ExprKind::Int(a.ty.size() as i128), size_t())
            }
            AstExprKind::Dereference(a) => {
                let a = self.expr(a, scope)?;
                return self.element(a, zero(span), span);
            }
            AstExprKind::Element(a, index) => {
                let (a, index) = (self.expr(a, scope), self.expr(index, scope));
                return self.element(a?, index?, span);
            }
            AstExprKind::Member(a, field) => {
                let a = self.expr(a, scope)?;
                return self.member(a, field, span, false);
            }
            AstExprKind::Arrow(a, field) => return self.arrow(a, field, span, scope),
            AstExprKind::Error => return None,
        };
        Some(fold(Expr { kind, ty, span }))
    }

    fn name(&mut self, name: &str, span: Span, scope: &Scope) -> Option<Expr> {
        let found = |kind, ty: &Type| Some(Expr { kind, ty: ty.clone(), span });
        if name == "index" && scope.elements > 0 {
            return found(ExprKind::Index(0), &size_t());
        }
        if let Some(n) = scope.contextual.iter().position(|(c, _)| c == name) {
            return found(ExprKind::Contextual(n), &scope.contextual[n].1);
        }
        if let Some(n) = scope.parameters.iter().position(|(p, _)| p == name) {
            return found(ExprKind::Parameter(n), &scope.parameters[n].1);
        }
        for (place, members) in scope.members.iter().rev() {
            if let Some(field) = members.fields.iter().find(|f| f.name == name) {
                return found(ExprKind::Field(place.clone().into(), field.offset), &field.ty);
            }
        }
        match name {
            "relaxed" => return found(ExprKind::Relaxed, &c_int()),
            "NULL" => return found(ExprKind::Null, &pointer(void())),
            "index" => {
                self.report(
                    Diagnostic::error(span, "`index` outside `element`")
                        .label("there is no element here")
                        .help("`index` is the number of the element that an enclosing `element { }` describes"),
                );
                return None;
            }
            "ret" => match &scope.result {
                Some(ty) if !matches!(ty.kind, TypeKind::Void) => return found(ExprKind::Ret, ty),
                _ => {
                    self.report(Diagnostic::error(span, "`ret` has no value here").label("nothing is returned"));
                    return None;
                }
            },
            "true" if !self.header.macros.contains_key(name) => return found(ExprKind::Int(1), &c_int()),
            "false" if !self.header.macros.contains_key(name) => return found(ExprKind::Int(0), &c_int()),
            _ => {}
        }
        if let Some(table) = self.model.tables.iter().position(|t| t.name == name) {
            return found(ExprKind::Table(table), &pointer(void()));
        }
        if let Some(&v) = self.header.enumerators.get(name) {
            return found(ExprKind::Int(v), &literal_type(v, false, false));
        }
        if self.header.macros.contains_key(name) {
            return self.constant(name, span);
        }
        self.unknown_name(name, span, scope);
        None
    }

    fn unknown_name(&mut self, name: &str, span: Span, scope: &Scope) {
        let utility = self.guest.variables.iter().chain(&self.server.variables).any(|v| v == name);
        if utility {
            self.report(
                Diagnostic::error(span, format!("`{name}` is a variable of utility code"))
                    .label("expressions cannot read variables")
                    .help("write a `utility` function that returns it"),
            );
            return;
        }
        let parameters = scope.parameters.iter().chain(&scope.contextual).map(|(n, _)| n.as_str());
        let near = similar(name, parameters).or_else(|| {
            let constants = self.header.enumerators.keys().chain(self.header.macros.keys());
            similar(name, constants.map(String::as_str))
        });
        let near = near.map(String::from);
        let mut diagnostic =
            Diagnostic::error(span, format!("unknown name `{name}`")).label("not found").suggest(near.as_deref());
        if !scope.place.is_empty() {
            diagnostic = diagnostic.help(format!("this is {}: parameters cannot be named here", scope.place));
        }
        self.report(diagnostic);
    }

    /// The value of a macro of the headers.
    fn constant(&mut self, name: &str, span: Span) -> Option<Expr> {
        if !self.constants.contains_key(name) {
            // A macro that leads back to itself finds this entry.
            self.constants.insert(name.to_string(), None);
            let value = self.evaluate_macro(name, span);
            self.constants.insert(name.to_string(), value);
        }
        match self.constants.get(name).cloned().flatten() {
            Some(value) => Some(Expr { span, ..value }),
            None => {
                self.report(
                    Diagnostic::error(span, format!("the macro `{name}` is not a constant"))
                        .label("its value cannot be computed")
                        .help("only macros that are numbers or strings can be used in expressions"),
                );
                None
            }
        }
    }

    fn evaluate_macro(&mut self, name: &str, span: Span) -> Option<Expr> {
        let text = macros::expand(name, &self.header.macros)?;
        let header = self.header;
        let ast = crate::syntax::parser::parse_expression(&text, span, &|n| header.named_type(n).is_some())?;
        self.quiet += 1;
        let value = self.expr(&ast, &Scope::constant());
        self.quiet -= 1;
        value.filter(|v| matches!(v.kind, ExprKind::Int(_) | ExprKind::Null | ExprKind::String(_) | ExprKind::Float(_)))
    }

    /// The integer value of a macro or enum constant, silently.
    pub(in crate::resolve) fn macro_value(&mut self, name: &str) -> Option<i128> {
        self.quiet += 1;
        let result = self.name(name, Span::default(), &Scope::constant());
        self.quiet -= 1;
        result.as_ref().and_then(value)
    }

    fn sizeof_type(&mut self, name: &ast::TypeName, span: Span, scope: &Scope) -> Option<Expr> {
        // `sizeof(x)` of a parameter parses like a type.
        let is_value = name.pointers.is_empty() && scope.parameters.iter().any(|(p, _)| *p == name.base);
        let ty = if is_value { self.name(&name.base, span, scope)?.ty } else { self.resolve_type(name)? };
        if matches!(ty.kind, TypeKind::Incomplete) {
            self.report(
                Diagnostic::error(span, format!("the size of {} is unknown", describe(&ty)))
                    .label("an incomplete type"),
            );
            return None;
        }
        Some(Expr { kind: ExprKind::Int(ty.size() as i128), ty: size_t(), span })
    }

    fn binary(&mut self, operator: Binary, a: Expr, b: Expr, span: Span) -> Option<Expr> {
        self.need_value(&a)?;
        self.need_value(&b)?;
        let comparison = matches!(
            operator,
            Binary::Less
                | Binary::LessEqual
                | Binary::Greater
                | Binary::GreaterEqual
                | Binary::Equal
                | Binary::NotEqual
                | Binary::LogicalAnd
                | Binary::LogicalOr
        );
        if !comparison && (is_pointer(&a.ty) || is_pointer(&b.ty)) {
            let at = if is_pointer(&a.ty) { &a } else { &b };
            self.report(
                Diagnostic::error(at.span, "arithmetic with a pointer")
                    .label(format!("this has type {}", describe(&at.ty)))
                    .help("an address means nothing on the other side; use `p[i]` to read an element"),
            );
            return None;
        }
        let ty = match operator {
            _ if comparison => c_int(),
            Binary::ShiftLeft | Binary::ShiftRight => promote(&a.ty),
            _ => common(&a.ty, &b.ty),
        };
        Some(fold(Expr { kind: ExprKind::Binary(operator, a.into(), b.into()), ty, span }))
    }

    /// Structs and nothing at all have no place in arithmetic.
    fn need_value(&mut self, expr: &Expr) -> Option<()> {
        if matches!(expr.ty.kind, TypeKind::Struct(_) | TypeKind::Void | TypeKind::Incomplete) {
            self.report(
                Diagnostic::error(expr.span, "expected a number or a pointer")
                    .label(format!("this has type {}", describe(&expr.ty))),
            );
            return None;
        }
        Some(())
    }

    fn element(&mut self, pointer: Expr, index: Expr, span: Span) -> Option<Expr> {
        let ty = match &pointer.ty.kind {
            TypeKind::Pointer { to, .. } => to.as_ref().clone(),
            TypeKind::Array { of, .. } => of.as_ref().clone(),
            _ => {
                self.report(
                    Diagnostic::error(pointer.span, "only pointers and arrays have elements")
                        .label(format!("this has type {}", describe(&pointer.ty))),
                );
                return None;
            }
        };
        if matches!(ty.kind, TypeKind::Void | TypeKind::Incomplete) {
            self.report(
                Diagnostic::error(pointer.span, format!("cannot read through {}", describe(&pointer.ty)))
                    .label("what it points to has no known type")
                    .help("cast it first: `((type *)p)[i]`"),
            );
            return None;
        }
        self.need_value(&index)?;
        Some(Expr { kind: ExprKind::Element(pointer.into(), index.into()), ty, span })
    }

    fn arrow(&mut self, a: &AstExpr, field: &Name, span: Span, scope: &Scope) -> Option<Expr> {
        let pointer = self.expr(a, scope)?;
        if let ExprKind::Metadata(..) = pointer.kind {
            return self.member(pointer, field, span, true);
        }
        let target = self.element(pointer, zero(span), a.span)?;
        self.member(target, field, span, true)
    }

    fn member(&mut self, value: Expr, name: &Name, span: Span, arrow: bool) -> Option<Expr> {
        let TypeKind::Struct(s) = &value.ty.kind else {
            let mut diagnostic = Diagnostic::error(value.span, format!("no member `{}` here", name.text))
                .label(format!("this has type {}", describe(&value.ty)));
            if !arrow && is_pointer(&value.ty) {
                diagnostic = diagnostic.help("it is a pointer: use `->`");
            }
            self.report(diagnostic);
            return None;
        };
        let Some(Field { offset, ty, .. }) = s.fields.iter().find(|f| f.name == name.text) else {
            let near = similar(&name.text, s.fields.iter().map(|f| f.name.as_str()));
            let diagnostic =
                Diagnostic::error(name.span, format!("{} has no member `{}`", describe(&value.ty), name.text))
                    .label("unknown member")
                    .suggest(near);
            self.report(diagnostic);
            return None;
        };
        let (offset, ty) = (*offset, ty.clone());
        Some(Expr { kind: ExprKind::Field(value.into(), offset), ty, span })
    }

    fn call(&mut self, name: &Name, arguments: &[AstExpr], span: Span, scope: &Scope) -> Option<Expr> {
        if name.text == "metadata" {
            return self.metadata_call(name, arguments, span, scope);
        }
        if let Some((_, callee, count)) = LIBRARY.iter().find(|(n, ..)| *n == name.text) {
            let declared = self.utility(&name.text).is_some();
            if !declared {
                return self.library(name, *callee, *count, arguments, span, scope);
            }
        }
        let resolved: Vec<Option<Expr>> = arguments.iter().map(|a| self.expr(a, scope)).collect();
        let Some(index) = self.utility(&name.text) else {
            self.unknown_function(name);
            return None;
        };
        self.internal(name);
        let function = &self.model.utility_functions[index];
        let (expected, ty) = (function.parameters.len(), function.result.clone());
        self.count(name, expected, arguments.len())?;
        let arguments: Option<Vec<Expr>> = resolved.into_iter().collect();
        Some(Expr { kind: ExprKind::Call(Callee::Utility(index), arguments?), ty, span })
    }

    fn metadata_call(&mut self, name: &Name, arguments: &[AstExpr], span: Span, scope: &Scope) -> Option<Expr> {
        if self.model.metadata.is_empty() {
            self.report(
                Diagnostic::error(name.span, "no metadata is declared")
                    .label("what would it hold?")
                    .help("add `declare_metadata(struct ...);`"),
            );
            return None;
        }
        self.count(name, 1, arguments.len())?;
        let handle = self.expr(&arguments[0], scope)?;
        if handle.ty.handle.is_none() {
            let label = format!("this is {}", crate::resolve::terms::types::describe(&handle.ty));
            self.report(Diagnostic::error(handle.span, "only handles carry metadata").label(label));
            return None;
        }
        let own = handle.ty.handle.and_then(|h| self.model.handle_types[h].metadata.clone());
        let Some(Metadata { kind, ty }) = own.or_else(|| self.metadata.clone()) else {
            let spelling = handle.ty.spelling.clone();
            self.report(
                Diagnostic::error(handle.span, format!("`{spelling}` has no metadata"))
                    .label("no structure is declared for handles of this type")
                    .help(format!(
                        "add `metadata(struct ...);` to `type({spelling})`, or `declare_metadata(struct ...);` for all types \
                         without one of their own"
                    )),
            );
            return None;
        };
        Some(Expr { kind: ExprKind::Metadata(handle.into(), kind), ty, span })
    }

    fn library(
        &mut self,
        name: &Name,
        callee: Callee,
        count: usize,
        arguments: &[AstExpr],
        span: Span,
        scope: &Scope,
    ) -> Option<Expr> {
        self.count(name, count, arguments.len())?;
        let registry = matches!(callee, Callee::GetBufs | Callee::GetNBufs | Callee::GetBufSize);
        let mut resolved = Vec::new();
        for (n, argument) in arguments.iter().enumerate() {
            resolved.push(if registry && n == 0 {
                let index = self.registry(argument)?;
                Expr { kind: ExprKind::Int(index as i128), ty: c_int(), span: argument.span }
            } else {
                self.expr(argument, scope)?
            });
        }
        let ty = match callee {
            Callee::Min | Callee::Max => common(&resolved[0].ty, &resolved[1].ty),
            Callee::GetBufs => pointer(pointer(void())),
            Callee::ZerocopyAlloc => pointer(void()),
            Callee::ZerocopyFree => void(),
            Callee::Present | Callee::IsHandle => c_int(),
            _ => size_t(),
        };
        Some(Expr { kind: ExprKind::Call(callee, resolved), ty, span })
    }

    fn count(&mut self, name: &Name, expected: usize, found: usize) -> Option<()> {
        if expected == found {
            return Some(());
        }
        let s = if expected == 1 { "" } else { "s" };
        self.report(
            Diagnostic::error(name.span, format!("`{}` takes {expected} argument{s}, found {found}", name.text))
                .label("wrong number of arguments"),
        );
        None
    }

    /// The registry that an expression names.
    pub(in crate::resolve) fn registry(&mut self, ast: &AstExpr) -> Option<usize> {
        let AstExprKind::Name(name) = &ast.kind else {
            self.report(Diagnostic::error(ast.span, "expected the name of a registry").label("not a name"));
            return None;
        };
        let found = self.model.registries.iter().position(|r| r == name);
        if found.is_none() {
            let near = similar(name, self.model.registries.iter().map(String::as_str)).map(String::from);
            self.report(
                Diagnostic::error(ast.span, format!("unknown registry `{name}`"))
                    .label("no `buf_registry` of this name")
                    .suggest(near.as_deref()),
            );
        }
        found
    }

    /// Reports a utility function that expressions cannot reach.
    fn internal(&mut self, name: &Name) {
        let own = |header: &'a crate::header::Header| header.function(&name.text).is_some_and(|f| f.internal);
        if own(self.guest) || own(self.server) {
            self.report(
                Diagnostic::error(name.span, format!("`{}` is static", name.text))
                    .label("only the utility code itself can call it")
                    .help("remove `static` from its definition"),
            );
        }
    }

    /// The index of a function of the utility code, entered into the model at its first use.
    pub(in crate::resolve) fn utility(&mut self, name: &str) -> Option<usize> {
        if let Some(known) = self.model.utility_functions.iter().position(|f| f.name == name) {
            return Some(known);
        }
        let own = |header: &'a crate::header::Header| {
            header.function(name).filter(|f| f.defined || name.starts_with("aviary_"))
        };
        let (guest, server) = (own(self.guest), own(self.server));
        let stub = if self.api.contains(name) { self.header.function(name) } else { None };
        let function = guest.or(server).or(stub)?;
        let side = match (guest, server) {
            _ if name == "aviary_is_handle" => Side::Guest,
            (Some(_), Some(_)) => Side::Both,
            (Some(_), None) | (None, None) => Side::Guest,
            _ => Side::Server,
        };
        let stub = guest.is_none() && server.is_none();
        let signature = self.decorate_signature(&function.signature);
        self.model.utility_functions.push(UtilityFunction {
            name: name.to_string(),
            side,
            stub,
            parameters: signature.parameters.into_iter().map(|(_, t)| t).collect(),
            result: signature.result,
        });
        Some(self.model.utility_functions.len() - 1)
    }

    fn unknown_function(&mut self, name: &Name) {
        let utilities = self.guest.functions.iter().chain(&self.server.functions).filter(|f| f.defined);
        let names = LIBRARY.iter().map(|(n, ..)| *n).chain(utilities.map(|f| f.name.as_str()));
        let near = similar(&name.text, names).map(String::from);
        let mut diagnostic = Diagnostic::error(name.span, format!("unknown function `{}`", name.text))
            .label("not found")
            .suggest(near.as_deref());
        if near.is_none() {
            diagnostic = diagnostic
                .help("expressions call functions of `utility` code, of the language and, in the guest, of the API");
        }
        self.report(diagnostic);
    }
}

fn zero(span: Span) -> Expr {
    Expr { kind: ExprKind::Int(0), ty: size_t(), span }
}

fn is_pointer(ty: &Type) -> bool {
    matches!(ty.kind, TypeKind::Pointer { .. } | TypeKind::FunctionPointer(_))
}

fn literal_type(value: i128, unsigned: bool, long: bool) -> Type {
    let wide = long || !(-(1i128 << 31)..1i128 << 32).contains(&value) || (!unsigned && value >= 1i128 << 31);
    let unsigned = unsigned || value > i128::from(i64::MAX);
    match (wide, unsigned) {
        (false, false) => c_int(),
        (false, true) => int(4, false, "unsigned int"),
        (true, false) => int(8, true, "long"),
        (true, true) => int(8, false, "unsigned long"),
    }
}

/// C's integer promotion.
fn promote(ty: &Type) -> Type {
    match ty.kind {
        TypeKind::Int { bytes, .. } if bytes < 4 => c_int(),
        _ => ty.clone(),
    }
}

/// The type of `c ? a : b`: a pointer's, if one of them is a pointer.
fn either(a: &Type, b: &Type) -> Type {
    match (is_pointer(a), is_pointer(b)) {
        (true, _) => a.clone(),
        (false, true) => b.clone(),
        (false, false) => common(a, b),
    }
}

/// C's usual arithmetic conversions.
fn common(a: &Type, b: &Type) -> Type {
    let (a, b) = (promote(a), promote(b));
    match (&a.kind, &b.kind) {
        (TypeKind::Float { bytes: x }, TypeKind::Float { bytes: y }) => {
            if x >= y {
                a
            } else {
                b
            }
        }
        (TypeKind::Float { .. }, _) => a,
        (_, TypeKind::Float { .. }) => b,
        (TypeKind::Int { bytes: x, signed: s }, TypeKind::Int { bytes: y, .. }) => {
            if x > y || x == y && !s {
                a
            } else {
                b
            }
        }
        _ => a,
    }
}
