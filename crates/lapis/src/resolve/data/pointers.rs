//! Pointers that are neither copied nor translated: what they are instead has to be said.

use crate::model::{
    Binary, Callee, Expr, ExprKind, Function, Hidden, Kind, Mapped, Number, Plan, Requirement, Rule, Type, TypeKind,
    Unary,
};
use crate::resolve::Resolver;
use crate::resolve::data::kinds::Descriptors;
use crate::resolve::data::values::{Role, Value};
use crate::resolve::terms::scope::Scope;
use crate::resolve::terms::types::{c_int, describe};
use crate::syntax::ast::Descriptor;
use crate::syntax::diagnostics::Diagnostic;

/// The ways to describe a pointer that is neither copied nor translated, for messages.
const INSTEAD: &str = "if the library need not have it say `null`; if it is an address of device memory, which the library checks, `device_address`; if the library only keeps it for the application, `token`; else describe what it points to: `in`, `out`, `buffer(n)`, `string`, `callback(...) { }`, `userdata`";

impl<'a> Resolver<'a> {
    /// `mapped(n)`: memory of the library that the application uses until it is unmapped.
    pub(in crate::resolve) fn mapped(&mut self, d: &Descriptor, all: &Descriptors, scope: &Scope) -> Kind {
        let bytes = self.argument_value(d, 0, scope);
        let at = self.argument_value(d, 1, scope);
        let access = self.access(all, scope);
        bytes.map_or(Kind::Unknown, |bytes| Kind::Mapped(Box::new(Mapped { bytes, at, access })))
    }

    /// `opaque`, `device_address`, `token`, `null`.
    pub(in crate::resolve) fn number(&mut self, d: &Descriptor, value: &Value) -> Kind {
        let word = d.name.text.as_str();
        let pointer = is_pointer(&value.ty);
        let number = pointer || matches!(value.ty.kind, TypeKind::Int { .. });
        let function = matches!(value.ty.kind, TypeKind::FunctionPointer(_));
        match word {
            "opaque" if pointer || value.ty.handle.is_some() => self.opaque_pointer(d, value),
            "opaque" if number => return Kind::Number(Number::Opaque),
            "null" if pointer => return Kind::Null,
            "token" if number => return Kind::Number(Number::Token),
            "device_address" if number && !function => return Kind::Number(Number::DeviceAddress),
            _ => self.report(
                Diagnostic::error(d.span, format!("{} cannot be `{word}`", value.name))
                    .label(format!("it has type `{}`", value.ty.spelling))
                    .help(match word {
                        "null" => "only pointers can stay behind: numbers and structs cross as they are",
                        _ => "this describes pointers and integers; members of a struct are described with `field(f) { }`",
                    }),
            ),
        }
        Kind::Unknown
    }

    /// `within(argument)`
    pub(in crate::resolve) fn within(&mut self, d: &Descriptor, value: &Value, scope: &Scope) -> Kind {
        let Some(named) = self.argument_value(d, 0, scope) else { return Kind::Unknown };
        match named.kind {
            ExprKind::Parameter(argument) if is_pointer(&value.ty) && is_pointer(&named.ty) => {
                return Kind::Within { argument };
            }
            _ => self.report(
                Diagnostic::error(named.span, format!("{} is not within this", value.name))
                    .label(format!("this is {}", describe(&named.ty)))
                    .help("`within(p)` describes a pointer into the memory of an argument `p` of the function"),
            ),
        }
        Kind::Unknown
    }

    /// `constant(K, ...)`: the condition that a pointer is one of these values, and how it crosses then.
    pub(in crate::resolve) fn constants(
        &mut self,
        d: &Descriptor,
        plan: &Plan,
        value: &Value,
        scope: &Scope,
    ) -> Option<(Expr, Plan)> {
        let passed_in = value.role == Role::Argument || matches!(value.role, Role::Field) && plan.input;
        let place = value.place.clone().filter(|_| is_pointer(&value.ty) && passed_in);
        let Some(place) = place else {
            self.report(
                Diagnostic::error(d.span, format!("{} is never a `constant`", value.name))
                    .label(format!("it has type `{}`", value.ty.spelling))
                    .help("this describes pointers that are passed in, by an argument or a member; a handle type names its constants with `predefined(v)`"),
            );
            return None;
        };
        let mut asked = vec![place];
        for number in 0..d.arguments.as_ref().map_or(0, Vec::len) {
            let known = self.argument_value(d, number, scope)?;
            let Some(constant) = crate::resolve::terms::constants::value(&known) else {
                self.report(
                    Diagnostic::error(known.span, "this is no constant")
                        .label("its value is not known before the call")
                        .help("name a number or a macro, or cast a number: `(void *)-1`"),
                );
                return None;
            };
            // As an address has it.
            asked.push(Expr { kind: ExprKind::Int(i128::from(constant as u64)), ..known });
        }
        let values = asked.iter().skip(1).filter_map(crate::resolve::terms::constants::value).map(|v| v as u64);
        let kind = Kind::Constant { values: values.collect() };
        let condition = Expr { kind: ExprKind::Call(Callee::Among, asked), ty: c_int(), span: d.span };
        Some((condition, Plan { kind, span: d.span, hidden: None, ..self.plain(value) }))
    }

    fn opaque_pointer(&mut self, d: &Descriptor, value: &Value) {
        let what = if value.ty.handle.is_some() { "handle" } else { "pointer" };
        self.report(
            Diagnostic::error(d.span, format!("{} is a {what}: it cannot be `opaque`", value.name))
                .label(format!(
                    "this `{}` would reach the other process as it is, and crash it there",
                    value.ty.spelling
                ))
                .help(INSTEAD),
        );
    }

    /// The pointers and handles that a `type_cast` hides. A cast of a pointer to a number is reported.
    pub(in crate::resolve) fn cast(&mut self, own: &[&'a Descriptor], value: &Value, to: &Type) -> Option<Hidden> {
        let d = own.iter().find(|d| d.name.text == "type_cast")?;
        let said = own.iter().any(|d| matches!(d.name.text.as_str(), "null" | "device_address" | "token" | "opaque"));
        let followed = is_pointer(&value.ty) || value.ty.handle.is_some();
        if followed && !is_pointer(to) && to.handle.is_none() && !said {
            self.report(
                Diagnostic::error(d.span, format!("{} is a pointer: a cast does not make a number of it", value.name))
                    .label(format!("this `{}` would reach the other process as it is", value.ty.spelling))
                    .help(INSTEAD),
            );
        }
        let members = match (value.ty.pointee(), to.pointee()) {
            (Some(from), Some(to)) if !self.needs_rule(to) => from.translated(),
            _ => Vec::new(),
        };
        (!members.is_empty()).then_some(Hidden { members, span: d.span })
    }

    /// Reports elements that are arrays of what has to be translated.
    pub(in crate::resolve) fn array_element(&mut self, value: &Value, of: &Type) -> Kind {
        if !self.needs_rule(of) {
            return Kind::Scalar;
        }
        self.report(
            Diagnostic::error(value.span, format!("{} is an array of pointers or handles", value.name))
                .label(describe(&value.ty))
                .help(format!("use `type_cast({} *)`, and count its elements with `buffer(n)`", of.spelling)),
        );
        Kind::Unknown
    }

    /// An argument that a `require` of the function proves to be NULL needs no description: NULL is what arrives.
    pub(in crate::resolve) fn proved_null(&self, function: &Function, n: usize, value: &Value) -> Option<Rule> {
        let proved = is_pointer(&value.ty) && function.requirements.iter().any(|r| proves_null(r, n));
        proved.then(|| Rule::Plan(Box::new(Plan { kind: Kind::Null, ..self.plain(value) })))
    }
}

fn is_pointer(ty: &Type) -> bool {
    matches!(ty.kind, TypeKind::Pointer { .. } | TypeKind::FunctionPointer(_))
}

/// True where a parameter `n` that is not NULL never fulfils the requirement.
fn proves_null(requirement: &Requirement, n: usize) -> bool {
    requirement.condition.is_none() && implies_null(&requirement.holds, n)
}

fn implies_null(e: &Expr, n: usize) -> bool {
    match &e.kind {
        ExprKind::Binary(Binary::LogicalAnd, a, b) => implies_null(a, n) || implies_null(b, n),
        ExprKind::Unary(Unary::Not, a) => {
            let ExprKind::Call(Callee::Present, arguments) = &a.kind else { return false };
            matches!(arguments.as_slice(), [Expr { kind: ExprKind::Parameter(p), .. }] if *p == n)
        }
        _ => false,
    }
}
