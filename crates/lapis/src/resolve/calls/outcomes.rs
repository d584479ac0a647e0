//! How a function without an error type says that it failed: `fails`, for one function or (`outcome`) for all that return
//! a type. Objects that end, outputs and charges of a call follow it on both sides.

use crate::model::{Binary, ErrorPlace, Expr, ExprKind, Function, Plan, Support, Type, TypeKind};
use crate::resolve::calls::functions::find;
use crate::resolve::terms::constants;
use crate::resolve::terms::scope::Scope;
use crate::resolve::terms::types::{describe, key};
use crate::resolve::{Piece, Resolver, pieces};
use crate::syntax::ast::{Descriptor, FunctionItem, Item, Statement};
use crate::syntax::descriptors::DescriptorScope;
use crate::syntax::diagnostics::Diagnostic;
use crate::syntax::source::Span;

/// `outcome(ty) { ... }`
pub(in crate::resolve) struct Outcome<'a> {
    /// The spelling that functions return.
    name: String,
    ty: Type,
    body: Vec<Piece<'a>>,
    span: Span,
}

/// What an outcome gives to a function that says nothing of its own.
#[derive(Default)]
struct Codes {
    fails: Option<Expr>,
    failure: Option<Expr>,
    unsupported: Option<Expr>,
    lost: Option<Expr>,
}

impl<'a> Resolver<'a> {
    pub(in crate::resolve) fn outcomes(&mut self, items: &'a [Item]) {
        for item in items {
            let Item::Outcome { ty, body, span } = item else { continue };
            let Some(resolved) = self.resolve_type(ty) else { continue };
            let name = key(&ty.spelling());
            if let Some(first) = self.outcomes.iter().find(|outcome| outcome.name == name).map(|outcome| outcome.span) {
                let message = format!("the outcome of `{name}` is described twice");
                self.report(Diagnostic::error(*span, message).label("second").related(first, "first"));
                continue;
            }
            if self.is_error(&resolved) {
                self.report(
                    Diagnostic::error(*span, format!("`{name}` is the error type"))
                        .label("its `success` says already how a call ends")
                        .help("remove one of them"),
                );
                continue;
            }
            let outcome = Outcome { name, ty: resolved, body: pieces(body), span: *span };
            self.outcome_descriptors(&outcome);
            self.outcomes.push(outcome);
        }
    }

    /// Reports mistakes of an `outcome` once, whether or not a function returns the type.
    fn outcome_descriptors(&mut self, outcome: &Outcome<'a>) {
        for piece in &outcome.body {
            match piece {
                Piece::If { condition, .. } => self.report(
                    Diagnostic::error(condition.span, "an `outcome` has no conditions")
                        .label("it is the same for every function that returns the type"),
                ),
                Piece::Statement(Statement::Ellipsis(span)) => self.ellipsis(*span),
                Piece::Statement(Statement::Descriptor(d)) => self.misplaced(d, DescriptorScope::Outcome),
                Piece::Statement(_) => {}
            }
        }
        if find(&outcome.body, "fails").is_none() {
            self.report(
                Diagnostic::error(outcome.span, "an `outcome` without `fails`")
                    .label("when does such a call fail?")
                    .help("`fails(ret < 0, -1);`: a call that returns less than 0 failed, and one that is refused returns -1"),
            );
        }
        let codes = self.codes(&outcome.body, &outcome.ty);
        if let (Some(fails), None) = (&codes.fails, &codes.failure) {
            self.refusal_is_missing(fails.span);
        }
        self.codes_fail(&codes, &outcome.ty);
    }

    fn codes(&mut self, body: &[Piece<'a>], ty: &Type) -> Codes {
        let mut codes = Codes::default();
        for piece in body {
            let Piece::Statement(Statement::Descriptor(d)) = piece else { continue };
            let mut value = |n, scope: &Scope| self.argument_value(d, n, scope);
            match d.name.text.as_str() {
                "fails" => {
                    codes.fails = value(0, &of(ty));
                    if d.arguments.as_ref().is_some_and(|arguments| arguments.len() > 1) {
                        codes.failure = value(1, &Scope::constant());
                    }
                }
                "failure" => codes.failure = value(0, &Scope::constant()),
                "unsupported" => codes.unsupported = value(0, &Scope::constant()),
                "lost" => codes.lost = value(0, &Scope::constant()),
                _ => {}
            }
        }
        codes
    }

    /// `fails(condition)` or `fails(condition, v)` of a function.
    pub(in crate::resolve) fn fails(&mut self, d: &Descriptor, function: &mut Function) {
        if function.error != ErrorPlace::Nowhere {
            self.report(
                Diagnostic::error(d.span, format!("`{}` reports errors already", function.name))
                    .label("its error type says how it ended")
                    .help("`success(v)` says that another value than the type's is success"),
            );
            return;
        }
        if let Some(first) = &function.fails {
            self.report(
                Diagnostic::error(d.span, "`fails` is given twice").label("second").related(first.span, "first"),
            );
            return;
        }
        function.fails = self.argument_value(d, 0, &of(&function.signature.result));
        if d.arguments.as_ref().is_some_and(|arguments| arguments.len() > 1) {
            function.failure = self.argument_value(d, 1, &Scope::constant());
        }
    }

    /// Completes what a function says of its end: by the outcome of what it returns, or by what a refused call returns.
    pub(in crate::resolve) fn outcome(&mut self, item: &FunctionItem, body: &[Piece<'a>], function: &mut Function) {
        if function.error != ErrorPlace::Nowhere || function.support != Support::Remote {
            return;
        }
        let result = function.signature.result.clone();
        let name = key(&result.spelling);
        if let Some(n) = self.outcomes.iter().position(|outcome| outcome.name == name) {
            let (outcome, ty) = (self.outcomes[n].body.clone(), self.outcomes[n].ty.clone());
            // Its mistakes are reported where it is.
            self.quiet += 1;
            let codes = self.codes(&outcome, &ty);
            self.quiet -= 1;
            function.fails = function.fails.take().or(codes.fails);
            function.failure = function.failure.take().or(codes.failure);
            function.unsupported = function.unsupported.take().or(codes.unsupported);
            function.lost = function.lost.take().or(codes.lost);
        } else if function.fails.is_none() {
            // A placeholder asks already.
            if find(body, "placeholder").is_none() {
                self.end_of_objects(item, function);
            }
            return;
        }
        match (&function.fails, &function.failure) {
            (Some(fails), None) => self.refusal_is_missing(fails.span),
            _ if find(body, "fails").is_none() && find(body, "failure").is_none() && find(body, "lost").is_none() => {}
            _ => {
                let codes = Codes {
                    fails: function.fails.clone(),
                    failure: function.failure.clone(),
                    unsupported: function.unsupported.clone(),
                    lost: function.lost.clone(),
                };
                self.codes_fail(&codes, &result);
            }
        }
    }

    /// A call that ends an object and returns a number: what a refused one returns is what a failed one returns. Only
    /// calls without outputs are taken so, because what a library writes must not be lost for a guess.
    fn end_of_objects(&mut self, item: &FunctionItem, function: &mut Function) {
        let number = matches!(function.signature.result.kind, TypeKind::Int { .. });
        if !number || !any(function, &|plan| plan.object.deallocate) {
            return;
        }
        let code = function.failure.as_ref().and_then(constants::value).filter(|code| *code != 0);
        match code {
            Some(code) if !any(function, &|plan| plan.output) => {
                let (ty, span) = (function.signature.result.clone(), item.head);
                let value = Expr { kind: ExprKind::Int(constants::wrap(code, &ty)), ty: ty.clone(), span };
                let ret = Expr { kind: ExprKind::Ret, ty, span };
                let kind = ExprKind::Binary(Binary::Equal, ret.into(), value.into());
                function.fails = Some(Expr { kind, ty: crate::resolve::terms::types::c_int(), span });
            }
            _ => self.report(
                Diagnostic::warning(item.head, format!("`{}` ends an object, whatever it returns", function.name))
                    .label(format!("returns {}, and nothing says when it failed", describe(&function.signature.result)))
                    .help("`fails(ret < 0, -1);`: an object lives on when the call that ends it fails; `fails(0, 0);`: it never does"),
            ),
        }
    }

    fn refusal_is_missing(&mut self, span: Span) {
        self.report(
            Diagnostic::error(span, "what does a call return that is refused?")
                .label("only what a failed call returns is known")
                .help("`fails(ret < 0, -1)` or `failure(-1)`: a value of which `fails` is true"),
        );
    }

    /// A call that was not made must look like one that failed.
    fn codes_fail(&mut self, codes: &Codes, ty: &Type) {
        let Some(fails) = &codes.fails else { return };
        let named = [("failure", &codes.failure), ("unsupported", &codes.unsupported), ("lost", &codes.lost)];
        for (what, code) in named {
            let Some((code, value)) = code.as_ref().and_then(|code| Some((code, constants::value(code)?))) else {
                continue;
            };
            let never = constants::value(fails) == Some(0);
            if !never && holds(fails, constants::wrap(value, ty)) == Some(false) {
                self.report(
                    Diagnostic::error(code.span, format!("`{what}` is a value of success"))
                        .label("`fails` is false of it")
                        .related(fails.span, "a call fails where this is true"),
                );
            }
        }
    }
}

/// Only what is returned can be named.
fn of(ty: &Type) -> Scope {
    Scope { result: Some(ty.clone()), place: "what a call returns", ..Scope::default() }
}

/// True if the description of an argument is so.
fn any(function: &Function, wanted: &dyn Fn(&Plan) -> bool) -> bool {
    let mut found = false;
    function.arguments.iter().for_each(|rule| rule.each_plan(&mut |plan| found |= wanted(plan)));
    found
}

/// The condition, for one value. None: that is known only at run time.
fn holds(fails: &Expr, value: i128) -> Option<bool> {
    constants::value(&given(fails, value)).map(|v| v != 0)
}

fn given(expr: &Expr, value: i128) -> Expr {
    let inner = |e: &Expr| Box::new(given(e, value));
    let kind = match &expr.kind {
        ExprKind::Ret => ExprKind::Int(value),
        ExprKind::Unary(operator, a) => ExprKind::Unary(*operator, inner(a)),
        ExprKind::Binary(operator, a, b) => ExprKind::Binary(*operator, inner(a), inner(b)),
        ExprKind::Conditional(c, a, b) => ExprKind::Conditional(inner(c), inner(a), inner(b)),
        ExprKind::Cast(a) => ExprKind::Cast(inner(a)),
        other => other.clone(),
    };
    constants::fold(Expr { kind, ty: expr.ty.clone(), span: expr.span })
}
