//! No address of one process reaches the other as it is: the last look at every value that crosses.

use super::{outer, plans};
use crate::model::{BufferWay, Callee, Expr, ExprKind, Function, Kind, Lifetime, Number, Plan, Rule, TypeKind};
use crate::syntax::diagnostics::{Diagnostic, Severity};

/// The most arguments that a callback is given as they were; the guest's runtime has room for so many.
const GIVEN: usize = 4;

/// Where a hidden pointer may be looked at before the call.
#[derive(Clone, Copy)]
enum At {
    Argument(usize),
    Contextual(usize),
    Nowhere,
}

pub fn check(function: &Function, diagnostics: &mut Vec<Diagnostic>) {
    let arguments = function.arguments.iter().enumerate().map(|(n, rule)| (At::Argument(n), rule));
    let contextual = function.contextual.iter().enumerate().map(|(n, c)| (At::Contextual(n), &c.rule));
    for (at, rule) in arguments.chain(contextual).chain([(At::Nowhere, &function.result)]) {
        plans(rule, &mut |plan| hidden(function, at, plan, diagnostics));
        plans(rule, &mut |plan| callback_result(plan, diagnostics));
        plans(rule, &mut |plan| within(function, plan, diagnostics));
        plans(rule, &mut |plan| given(function, plan, diagnostics));
        if diagnostics.iter().all(|d| d.severity == Severity::Warning) {
            plans(rule, &mut |plan| described(plan, diagnostics));
        }
    }
}

/// What a callback is given belongs to one call of the function, and is an argument of it.
fn given(function: &Function, plan: &Plan, diagnostics: &mut Vec<Diagnostic>) {
    let Kind::Callback(callback) = &plan.kind else { return };
    let mut all = Vec::new();
    callback.arguments.iter().for_each(|rule| outer(rule, &mut all));
    let all: Vec<&&Plan> = all.iter().filter(|plan| matches!(plan.kind, Kind::Given { .. })).collect();
    for (n, plan) in all.iter().enumerate() {
        let Kind::Given { name, argument } = &plan.kind else { continue };
        let word = |n: usize| {
            let ty = &function.signature.parameters[n].1;
            ty.size() <= 8 && ty.is_plain() && !matches!(ty.kind, TypeKind::Float { .. })
        };
        let wrong = match argument {
            None => "the function has no such argument",
            Some(argument) if !word(*argument) => "this is neither a number nor a pointer",
            _ if !callback.once => "which call of the function is meant? the callback is not called at most `once`",
            _ if n >= GIVEN => "a callback is given four arguments at most",
            _ => continue,
        };
        diagnostics.push(Diagnostic::error(plan.span, format!("`given({name})` cannot be told")).label(wrong).help(
            "`given(p)` is an argument `p` of the function with which the application has registered the callback",
        ));
    }
}

/// `within` names memory that the server has as long as the call, and that begins where the argument says.
fn within(function: &Function, plan: &Plan, diagnostics: &mut Vec<Diagnostic>) {
    let Kind::Within { argument } = plan.kind else { return };
    let mut all = Vec::new();
    function.arguments.get(argument).into_iter().for_each(|rule| outer(rule, &mut all));
    let crosses = |plan: &&Plan| match &plan.kind {
        Kind::String | Kind::Null => true,
        Kind::Buffer(buffer) => {
            matches!(plan.lifetime, Lifetime::Call)
                && buffer.way == BufferWay::Fixed
                && !buffer.no_copy
                && !buffer.zerocopy
        }
        _ => false,
    };
    if all.is_empty() || !all.iter().all(crosses) {
        let name = &function.parameters[argument];
        diagnostics.push(
            Diagnostic::error(plan.span, format!("`within({name})`: the server has no memory of this argument"))
                .label("how far in cannot be told")
                .help(format!(
                    "describe `argument({name})` as a `string` or `buffer(n)` that is there during the call"
                )),
        );
    }
}

/// Bytes that were a type with pointers or handles: a `require` has to look at them.
fn hidden(function: &Function, at: At, plan: &Plan, diagnostics: &mut Vec<Diagnostic>) {
    let looked_at = |e: &Expr| {
        let mut found = false;
        e.walk(&mut |e| {
            found |= match (&e.kind, at) {
                (ExprKind::Parameter(p), At::Argument(n)) => *p == n,
                (ExprKind::Contextual(p), At::Contextual(n)) => *p == n,
                _ => false,
            }
        });
        found
    };
    let crosses = plan.input || plan.output;
    let required = function.requirements.iter().any(|r| r.condition.is_none() && looked_at(&r.holds));
    let Some(hidden) = plan.hidden.as_ref().filter(|_| crosses && !required) else { return };
    let names: Vec<String> = hidden.members.iter().take(3).map(|n| format!("`{n}`")).collect();
    let more = if hidden.members.len() > names.len() { ", ..." } else { "" };
    diagnostics.push(
        Diagnostic::error(hidden.span, "`type_cast` hides pointers that the other process cannot use")
            .label(format!("{}{more} would cross as they are", names.join(", ")))
            .help("describe the members with `element { field(name) { ... } }`; of a union say with a `require` on this argument which member it is: one without a pointer or handle"),
    );
}

/// Reports results of callbacks that the vendor's library cannot use: they come from the application's process.
fn callback_result(plan: &Plan, diagnostics: &mut Vec<Diagnostic>) {
    let Kind::Callback(callback) = &plan.kind else { return };
    let mut all = Vec::new();
    outer(&callback.result, &mut all);
    let conditional = matches!(callback.result, Rule::If { .. });
    for result in all {
        let fits = match result.kind {
            Kind::Nothing | Kind::Scalar | Kind::Handle { .. } | Kind::Number(_) | Kind::Null => !conditional,
            // Reported already.
            Kind::Unknown => true,
            _ => false,
        };
        if !fits {
            diagnostics.push(
                Diagnostic::error(result.span, "this cannot be brought back from a callback")
                    .label(format!("the `{}` of the application's process would reach the library", result.ty.spelling))
                    .help("a callback may return numbers, handles and what is always `null`, a `token` or a `device_address`"),
            );
        }
    }
}

/// Nothing that leads elsewhere is carried as a plain value.
fn described(plan: &Plan, diagnostics: &mut Vec<Diagnostic>) {
    let plain = matches!(plan.kind, Kind::Scalar | Kind::Number(Number::Opaque) | Kind::Unknown);
    if plain && (plan.input || plan.output) && !plan.ty.pointers().is_empty() {
        diagnostics.push(
            Diagnostic::error(plan.span, format!("a pointer in this `{}` has no description", plan.ty.spelling))
                .label("it would reach the other process as it is")
                .help("describe it: `in`, `out`, `buffer(n)`, `string`, `null`, `token`, `device_address`, ..."),
        );
    }
}

/// The descriptor of a value that an expression names and that stays in the guest: the server has no such pointer.
pub fn stays_behind(function: &Function, e: &Expr) -> Option<&'static str> {
    let mut all = Vec::new();
    rules(function, e).into_iter().for_each(|rule| outer(rule, &mut all));
    let kept = |plan: &&&Plan| matches!(plan.kind, Kind::Null | Kind::Userdata);
    all.iter().find(kept).map(|plan| if matches!(plan.kind, Kind::Null) { "null" } else { "userdata" })
}

/// True where an expression asks for an argument's presence only, which the server is told.
pub fn asks_presence(function: &Function, callee: Callee, arguments: &[Expr]) -> bool {
    let [argument] = arguments else { return false };
    callee == Callee::Present
        && matches!(argument.kind, ExprKind::Parameter(_))
        && stays_behind(function, argument) != Some("userdata")
}

/// The rules of the value that an expression names.
fn rules<'a>(function: &'a Function, e: &Expr) -> Vec<&'a Rule> {
    match &e.kind {
        ExprKind::Parameter(n) => function.arguments.get(*n).into_iter().collect(),
        ExprKind::Cast(inner) if !matches!(inner.ty.kind, TypeKind::Int { .. }) => rules(function, inner),
        ExprKind::Element(base, _) => inside(rules(function, base), &|plan| match &plan.kind {
            Kind::Buffer(buffer) => vec![&buffer.element],
            _ => Vec::new(),
        }),
        ExprKind::Field(base, offset) => inside(rules(function, base), &|plan| match &plan.kind {
            Kind::Struct { fields, .. } => fields.iter().filter(|(f, _)| f.offset == *offset).map(|(_, r)| r).collect(),
            _ => Vec::new(),
        }),
        _ => Vec::new(),
    }
}

fn inside<'a>(of: Vec<&'a Rule>, within: &dyn Fn(&'a Plan) -> Vec<&'a Rule>) -> Vec<&'a Rule> {
    let mut all = Vec::new();
    of.into_iter().for_each(|rule| outer(rule, &mut all));
    all.into_iter().flat_map(within).collect()
}
