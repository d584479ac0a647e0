//! Structs: members that cannot simply be copied to another process.

use crate::model::{Expr, ExprKind, Field, Kind, Plan, Rule, Sized, Struct, Type, TypeKind};
use crate::resolve::data::kinds::Descriptors;
use crate::resolve::data::values::{Role, Value};
use crate::resolve::terms::scope::Scope;
use crate::resolve::terms::types::{describe, size_t};
use crate::resolve::{Piece, Resolver, pieces};
use crate::syntax::ast::{Argument, AstExprKind, Descriptor};
use crate::syntax::diagnostics::Diagnostic;
use crate::syntax::suggest::similar;

/// Most elements of an array inside a struct that are translated one by one.
const ARRAY: usize = 256;

impl<'a> Resolver<'a> {
    /// A struct whose members need translation, or one that crosses as it is.
    pub(in crate::resolve) fn structure(
        &mut self,
        all: &Descriptors<'a>,
        plan: &Plan,
        value: &Value,
        s: &Struct,
        scope: &Scope,
    ) -> Kind {
        self.unknown_fields(all, s, value);
        let mut inner = scope.clone();
        if let Some(place) = &value.place {
            inner.members.push((place.clone(), s.clone()));
        }
        let hidden = all.get("state").map(|d| self.named_members(d, s, value));
        let is_hidden = |field: &Field| hidden.iter().flatten().any(|h| h.offset == field.offset && h.ty == field.ty);
        let mut fields: Vec<(Field, Rule)> = Vec::new();
        for field in s.fields.iter().filter(|field| !is_hidden(field)) {
            let body = field_body(all, &field.name);
            let mine = !body.is_empty() || all.all.iter().any(|d| field_name(d) == Some(&field.name));
            let doubled = fields.iter().any(|(f, _)| f.offset == field.offset && f.ty == field.ty);
            if !mine && (doubled || covered(all, s, field) || !self.needs_rule(&field.ty)) {
                continue;
            }
            self.field(field, body, plan, value, &inner, &mut fields);
        }
        let sized = all.get("sized").and_then(|d| self.sized(d, s, value));
        let state = hidden.and_then(|hidden| self.state(all, s, &hidden, value));
        let plain = fields.is_empty() && sized.is_none() && state.is_none();
        if plain { Kind::Scalar } else { Kind::Struct { fields, sized, state } }
    }

    /// The members that the arguments of a descriptor name; what is none of the struct's is reported.
    pub(in crate::resolve) fn named_members<'s>(
        &mut self,
        d: &Descriptor,
        s: &'s Struct,
        value: &Value,
    ) -> Vec<&'s Field> {
        let mut named = Vec::new();
        for argument in d.arguments.iter().flatten() {
            let name = match argument {
                Argument::Expr(crate::syntax::ast::AstExpr { kind: AstExprKind::Name(name), .. }) => name.as_str(),
                _ => "",
            };
            match s.fields.iter().find(|f| f.name == name) {
                Some(field) => named.push(field),
                None => {
                    let near = similar(name, s.fields.iter().map(|f| f.name.as_str()));
                    let message = format!("{} has no member `{name}`", describe(&value.ty));
                    self.report(Diagnostic::error(d.span, message).label("unknown member").suggest(near));
                }
            }
        }
        named
    }

    /// `sized(member)`, `sized(member, required)`
    fn sized(&mut self, d: &Descriptor, s: &Struct, value: &Value) -> Option<Sized> {
        let named = self.named_members(d, s, value);
        if named.len() != d.arguments.iter().flatten().count() {
            return None;
        }
        let size = named.first()?;
        let width = size.ty.size();
        if !matches!(size.ty.kind, TypeKind::Int { .. }) || !matches!(width, 2 | 4 | 8) || s.union {
            self.report(
                Diagnostic::error(d.span, format!("`{}` is no size", size.name))
                    .label(format!("this is {}", describe(&size.ty)))
                    .help("the member is a number that says how many bytes of the struct the caller has"),
            );
            return None;
        }
        let required = named.iter().map(|f| f.offset + f.ty.size()).max().unwrap_or(0);
        Some(Sized { offset: size.offset, width, required, total: s.size })
    }

    fn field(
        &mut self,
        field: &Field,
        body: Vec<Piece<'a>>,
        plan: &Plan,
        value: &Value,
        scope: &Scope,
        into: &mut Vec<(Field, Rule)>,
    ) {
        let place = value.place.clone().map(|p| Expr {
            kind: ExprKind::Field(p.into(), field.offset),
            ty: field.ty.clone(),
            span: value.span,
        });
        // An array of things to translate is as many members.
        if let TypeKind::Array { of, count } = &field.ty.kind
            && (self.needs_rule(of) || !body.is_empty())
        {
            let body = element_pieces(body);
            if *count > ARRAY {
                self.report(
                    Diagnostic::error(
                        value.span,
                        format!("member `{}` of {} has {count} elements to translate", field.name, value.name),
                    )
                    .label(format!("at most {ARRAY} are possible"))
                    .help("describe them as `null` if the library does not need them"),
                );
            }
            for n in 0..(*count).min(ARRAY) {
                let index = Expr { kind: ExprKind::Int(n as i128), ty: size_t(), span: value.span };
                let member = Value {
                    ty: of.as_ref().clone(),
                    place: place.clone().map(|p| Expr {
                        kind: ExprKind::Element(p.into(), index.into()),
                        ty: of.as_ref().clone(),
                        span: value.span,
                    }),
                    ..self.member_value(field, plan, value)
                };
                let rule = self.rule(body.clone(), &member, scope);
                let member = Field {
                    name: format!("{}[{n}]", field.name),
                    offset: field.offset + n * of.size(),
                    ty: of.as_ref().clone(),
                };
                into.push((member, rule));
            }
            return;
        }
        let member = Value { place, ..self.member_value(field, plan, value) };
        let rule = self.rule(body, &member, scope);
        into.push((field.clone(), rule));
    }

    fn member_value(&self, field: &Field, plan: &Plan, value: &Value) -> Value {
        Value {
            ty: field.ty.clone(),
            place: None,
            input: plan.input,
            output: plan.output,
            role: Role::Field,
            name: format!("member `{}` of {}", field.name, value.name),
            span: plan.span,
            hidden: None,
        }
    }

    /// True if values of a type cannot simply be copied to another process.
    pub(in crate::resolve) fn needs_rule(&self, ty: &Type) -> bool {
        if ty.handle.is_some() || self.type_rule(ty).is_some_and(|r| !self.type_rules[r].body.is_empty()) {
            return true;
        }
        match &ty.kind {
            TypeKind::Pointer { .. } | TypeKind::FunctionPointer(_) => true,
            TypeKind::Struct(s) => s.fields.iter().any(|f| self.needs_rule(&f.ty)),
            TypeKind::Array { of, .. } => self.needs_rule(of),
            _ => false,
        }
    }

    fn unknown_fields(&mut self, all: &Descriptors, s: &Struct, value: &Value) {
        for d in &all.all {
            let Some(name) = field_name(d) else { continue };
            if s.fields.iter().any(|f| f.name == name) {
                continue;
            }
            let near = similar(name, s.fields.iter().map(|f| f.name.as_str()));
            let diagnostic = Diagnostic::error(d.span, format!("{} has no member `{name}`", describe(&value.ty)))
                .label("unknown member")
                .suggest(near);
            self.report(diagnostic);
        }
    }
}

/// True if another member that has all bytes of this one (members of a union) is described: it stands for both.
fn covered(all: &Descriptors, s: &Struct, field: &Field) -> bool {
    s.fields.iter().any(|other| {
        let within = other.offset <= field.offset
            && field.offset + field.ty.size() <= other.offset + other.ty.size()
            && (other.offset, &other.name) != (field.offset, &field.name);
        within && all.all.iter().any(|d| field_name(d) == Some(&other.name))
    })
}

fn field_name(d: &Descriptor) -> Option<&str> {
    match d.arguments.as_deref() {
        Some([Argument::Expr(crate::syntax::ast::AstExpr { kind: AstExprKind::Name(name), .. })])
            if d.name.text == "field" =>
        {
            Some(name)
        }
        _ => None,
    }
}

fn field_body<'a>(all: &Descriptors<'a>, name: &str) -> Vec<Piece<'a>> {
    let scopes = all.all.iter().filter(|d| field_name(d) == Some(name));
    scopes.filter_map(|d| d.body.as_ref()).flat_map(pieces).collect()
}

/// `field(a) { element { x } }` describes the elements of the array `a` as `field(a) { x }` does.
fn element_pieces(body: Vec<Piece<'_>>) -> Vec<Piece<'_>> {
    let mut out = Vec::new();
    for piece in body {
        match piece {
            Piece::Statement(crate::syntax::ast::Statement::Descriptor(d)) if d.name.text == "element" => {
                out.extend(d.body.as_ref().map(pieces).unwrap_or_default());
            }
            other => out.push(other),
        }
    }
    out
}
