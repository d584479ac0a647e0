//! `varargs`: what a call is given in the place of `...`, by the value of another argument.

use crate::model::{
    Binary, Buffer, Count, Expr, ExprKind, Function, Kind, Rule, Signature, Type, TypeKind, VarargCase, Varargs,
};
use crate::resolve::calls::functions::{argument_value, find};
use crate::resolve::data::values::{Role, Value};
use crate::resolve::terms::constants;
use crate::resolve::terms::scope::Scope;
use crate::resolve::terms::types::{c_int, describe, int, pointer};
use crate::resolve::{Piece, Resolver, pieces};
use crate::syntax::ast::{Argument, AstExpr, AstExprKind, Descriptor, FunctionItem, Statement};
use crate::syntax::descriptors::DescriptorScope;
use crate::syntax::diagnostics::Diagnostic;

/// The parameter that stands for `...`, eight bytes of any type.
const VALUE: &str = "value";

/// A `case` with its values.
pub struct Case<'a> {
    values: Vec<Expr>,
    ty: Type,
    descriptor: &'a Descriptor,
}

impl<'a> Resolver<'a> {
    /// Gives a function that `varargs` describes a parameter for what its callers pass behind the others.
    pub(in crate::resolve) fn varargs(
        &mut self,
        body: &[Piece<'a>],
        item: &FunctionItem,
        function: &mut Function,
    ) -> Vec<Case<'a>> {
        let Some(d) = find(body, "varargs") else { return Vec::new() };
        let named = |n: usize| match d.arguments.as_ref().and_then(|arguments| arguments.get(n)) {
            Some(Argument::Expr(AstExpr { kind: AstExprKind::Name(name), .. })) => {
                item.parameters.iter().position(|p| p.name.text == *name)
            }
            _ => None,
        };
        let (selector, list) = (named(0), named(1));
        let given = d.arguments.as_ref().map_or(0, Vec::len);
        let number = |n: usize| matches!(function.signature.parameters[n].1.kind, TypeKind::Int { .. });
        let Signature { parameters, variadic, .. } = &function.signature;
        let last = list.is_some_and(|list| list + 1 == parameters.len() && parameters[list].1.pointee().is_some());
        let Some(selector) = selector.filter(|n| number(*n) && if given > 1 { last && !variadic } else { *variadic })
        else {
            self.report(
                Diagnostic::error(d.span, format!("`{}` does not choose what follows", item.name.text))
                    .label("which argument says what the others are?")
                    .help("`varargs(request) { ... }` names a number among the arguments before `...`; `varargs(request, list)` also the last one, a `va_list`"),
            );
            return Vec::new();
        };
        if given > 1 {
            function.signature.parameters.pop();
            function.parameters.pop();
        }
        function.signature.parameters.push((VALUE.into(), int(8, false, "uint64_t")));
        function.parameters.push(VALUE.into());
        let cases = self.cases(d);
        let each = matches!(cases.as_slice(), [case] if case.values.is_empty());
        let known = cases.iter().flat_map(|case| {
            let value = |e: &Expr| Some(VarargCase { value: constants::value(e)?, ty: case.ty.clone() });
            case.values.iter().filter_map(value)
        });
        function.varargs = Some(Box::new(Varargs { selector, list: given > 1, cases: known.collect(), each }));
        cases
    }

    fn cases(&mut self, d: &'a Descriptor) -> Vec<Case<'a>> {
        let mut cases: Vec<Case<'a>> = Vec::new();
        for piece in d.body.as_ref().map(pieces).unwrap_or_default() {
            let Piece::Statement(Statement::Descriptor(case)) = piece else {
                self.report(
                    Diagnostic::error(d.span, "only `case` can stand in `varargs`").label("something else here"),
                );
                continue;
            };
            self.misplaced(case, DescriptorScope::Varargs);
            let arguments = case.arguments.as_deref().unwrap_or_default();
            let Some(Argument::Type(name)) = arguments.last() else { continue };
            let Some(ty) = self.resolve_type(name) else { continue };
            if !passes(&ty) {
                self.report(
                    Diagnostic::error(case.span, format!("{} cannot follow as an argument", describe(&ty)))
                        .label("not possible here")
                        .help("a `case` is a number, a handle or a pointer, or `void` where nothing follows"),
                );
                continue;
            }
            let mut values = Vec::new();
            for n in 0..arguments.len() - 1 {
                let Some(value) = self.argument_value(case, n, &Scope::constant()) else { continue };
                let constant = constants::value(&value);
                let before = cases.iter().flat_map(|case: &Case| &case.values).chain(&values);
                let twice = constant.is_some() && before.into_iter().any(|known| constants::value(known) == constant);
                if constant.is_none() || twice {
                    let label = if twice { "described before" } else { "this is no constant" };
                    self.report(Diagnostic::error(value.span, "a `case` has constants of its own").label(label));
                    continue;
                }
                values.push(value);
            }
            // Floating point travels elsewhere than what the generated C passes.
            let is_word = ty.size() == 8 && !matches!(ty.kind, TypeKind::Void | TypeKind::Float { .. });
            let alone = case.name.text != "each" || is_word;
            if !alone
                || cases.iter().any(|other| other.descriptor.name.text != case.name.text || case.name.text == "each")
            {
                self.report(
                    Diagnostic::error(case.span, "`each` stands alone, and has eight bytes that are no floating point")
                        .label("not possible here")
                        .help("either `case`s say what follows, or `each T` says of which type all are"),
                );
                continue;
            }
            cases.push(Case { values, ty, descriptor: case });
        }
        if cases.is_empty() {
            self.report(Diagnostic::error(d.span, "`varargs` without a `case`").label("nothing could follow"));
        }
        cases
    }

    /// How the value crosses: as the `case` says that applies.
    pub(in crate::resolve) fn spread(&mut self, cases: Vec<Case<'a>>, function: &mut Function, scope: &Scope) {
        let Some(Varargs { selector, each, .. }) = function.varargs.as_deref() else { return };
        if let (true, [case]) = (*each, cases.as_slice()) {
            let count = Expr {
                kind: ExprKind::Parameter(*selector),
                ty: function.signature.parameters[*selector].1.clone(),
                span: function.span,
            };
            return self.spread_all(case, count, function, scope);
        }
        let (selector, last) = (*selector, function.parameters.len() - 1);
        let Some(selected) = function.signature.parameters.get(selector).map(|(_, ty)| ty.clone()) else { return };
        let span = function.span;
        let word = function.signature.parameters[last].1.clone();
        let mut rule = Rule::Plan(Box::new(self.plain(&argument_value(last, &word, VALUE, span))));
        for case in cases.into_iter().rev() {
            let plain = matches!(case.ty.kind, TypeKind::Void | TypeKind::Float { .. });
            let ty = if plain { word.clone() } else { case.ty };
            let value = argument_value(last, &ty, VALUE, case.descriptor.span);
            let own = case.descriptor.body.as_ref().map(pieces).unwrap_or_default();
            let then = self.rule(own, &value, scope);
            let asked = |value: Expr| {
                let of = Expr { kind: ExprKind::Parameter(selector), ty: selected.clone(), span: value.span };
                let span = value.span;
                Expr { kind: ExprKind::Binary(Binary::Equal, of.into(), value.into()), ty: c_int(), span }
            };
            let either = |a: Expr, b: Expr| Expr {
                span: a.span,
                ty: c_int(),
                kind: ExprKind::Binary(Binary::LogicalOr, a.into(), b.into()),
            };
            let Some(condition) = case.values.into_iter().map(asked).reduce(either) else { continue };
            rule = Rule::If { condition, then: then.into(), otherwise: rule.into() };
        }
        function.arguments[last] = rule;
        self.connect_userdata(function);
    }
}

impl<'a> Resolver<'a> {
    /// `each T`: an array of what follows.
    fn spread_all(&mut self, case: &Case<'a>, count: Expr, function: &mut Function, scope: &Scope) {
        let last = function.parameters.len() - 1;
        let value = argument_value(last, &pointer(case.ty.clone()), VALUE, case.descriptor.span);
        let mut plan = self.plain(&value);
        (plan.input, plan.output) = (true, false);
        let element = Value { ty: case.ty.clone(), role: Role::Element, place: None, ..value };
        let own = case.descriptor.body.as_ref().map(pieces).unwrap_or_default();
        let element = self.rule(own, &element, &scope.enter_element());
        plan.kind =
            Kind::Buffer(Box::new(Buffer { count: Count::Elements(count), ..Buffer::one(element, case.ty.clone()) }));
        function.arguments[last] = Rule::Plan(Box::new(plan));
        self.connect_userdata(function);
    }
}

/// True of what C passes in the place of `...` and has eight bytes at most.
fn passes(ty: &Type) -> bool {
    match ty.kind {
        TypeKind::Float { bytes } | TypeKind::Int { bytes, .. } => bytes <= 8,
        TypeKind::Void | TypeKind::Pointer { .. } | TypeKind::FunctionPointer(_) => true,
        _ => ty.handle.is_some(),
    }
}
