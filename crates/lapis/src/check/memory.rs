//! Memory that the library hands out has an end that exists, and stands where the library hands something out.

use super::plans;
use crate::model::{BufferWay, Count, Function, FunctionName, Kind, Lifetime, Model, Plan, Rule, Support};
use crate::syntax::diagnostics::Diagnostic;

pub fn check(model: &Model, function: &Function, diagnostics: &mut Vec<Diagnostic>) {
    let arguments = function.arguments.iter().map(|rule| (rule, true));
    for (rule, argument) in arguments.chain([(&function.result, false)]) {
        bound(function, rule, argument, diagnostics);
        plans(rule, &mut |plan| resident(plan, diagnostics));
        plans(rule, &mut |plan| used(function, plan, diagnostics));
        plans(rule, &mut |plan| freeing(model, function, plan, diagnostics));
        given(rule, !argument, &mut |plan, given| lifetime(function, plan, given, diagnostics));
    }
}

/// `bound` is plain data behind an argument of a call that waits.
fn bound(function: &Function, rule: &Rule, argument: bool, diagnostics: &mut Vec<Diagnostic>) {
    let fits = |plan: &Plan, argument: bool| {
        let Kind::Buffer(buffer) = &plan.kind else { return false };
        let plain = matches!(&buffer.element, Rule::Plan(p) if matches!(p.kind, Kind::Scalar | Kind::Number(_)));
        let counted = matches!(buffer.count, Count::One | Count::Elements(_)) && buffer.way == BufferWay::Fixed;
        argument && plain && counted && !buffer.no_copy && buffer.align == 1 && function.asynchronous.is_none()
    };
    let mut report = |plan: &Plan| {
        diagnostics.push(
            Diagnostic::error(plan.span, "this cannot be bound to an object")
                .label("not possible here")
                .help("`bound(object)` describes plain data, `buffer(n)`, behind an argument of a function that is not asynchronous"),
        );
    };
    let mut outermost = Vec::new();
    super::outer(rule, &mut outermost);
    let all = outermost.clone();
    for plan in outermost {
        if matches!(plan.lifetime, Lifetime::Bound(_)) && !fits(plan, argument) {
            report(plan);
        }
    }
    plans(rule, &mut |plan| {
        let inner = all.iter().all(|outer| !std::ptr::eq(*outer, plan));
        if inner && matches!(plan.lifetime, Lifetime::Bound(_)) {
            report(plan);
        }
    });
}

/// Resident memory belongs to an object.
fn resident(plan: &Plan, diagnostics: &mut Vec<Diagnostic>) {
    if matches!(plan.kind, Kind::Resident { .. }) && !matches!(plan.lifetime, Lifetime::Owned(_)) {
        diagnostics.push(
            Diagnostic::error(plan.span, "whose memory is this?")
                .label("nothing says how long it is there")
                .help("add `owned(object)`: the object that it belongs to"),
        );
    }
}

/// Memory is used by calls that wait, through handles that are passed in and live on.
fn used(function: &Function, plan: &Plan, diagnostics: &mut Vec<Diagnostic>) {
    let gives = plan.object.memory.used.read.is_possible();
    if gives && (plan.object.deallocate || !plan.input && plan.output || function.asynchronous.is_some()) {
        diagnostics.push(
            Diagnostic::error(plan.span, "a call cannot use memory through this handle")
                .label("what comes back is read after the call")
                .help("`uses` and `uses_read` describe handles that are passed in, and stay, in a function that is not asynchronous"),
        );
    }
    if !plan.object.memory.shares.is_empty() && function.asynchronous.is_some() {
        diagnostics
            .push(Diagnostic::error(plan.span, "an asynchronous call cannot share memory").label("it may still fail"));
    }
}

/// Visits the plans of a rule with whether the library hands the value out.
fn given(rule: &Rule, out: bool, visit: &mut dyn FnMut(&Plan, bool)) {
    match rule {
        Rule::If { then, otherwise, .. } => {
            given(then, out, visit);
            given(otherwise, out, visit);
        }
        Rule::Plan(plan) => {
            visit(plan, out);
            match &plan.kind {
                Kind::Buffer(buffer) => given(&buffer.element, plan.output, visit),
                Kind::Struct { fields, .. } => fields.iter().for_each(|(_, rule)| given(rule, out, visit)),
                _ => {}
            }
        }
    }
}

fn lifetime(function: &Function, plan: &Plan, given: bool, diagnostics: &mut Vec<Diagnostic>) {
    if !plan.lifetime.is_of_library() {
        return;
    }
    if !given || !plan.kind.is_given_memory() {
        diagnostics.push(
            Diagnostic::error(plan.span, "this is no memory that the library hands out")
                .label("nothing here has an end of its own")
                .help("`owned`, `owned_until` and `freed_by` describe a `string` or `buffer(n)` that a call returns or puts into an `out` element"),
        );
    }
    let freed = matches!(plan.lifetime, Lifetime::FreedBy(_));
    if freed && (function.cache || function.cache_if.is_some()) {
        diagnostics.push(
            Diagnostic::error(plan.span, "memory that is freed cannot come from a remembered answer")
                .label("it would be freed again with each of them")
                .help("leave `cache` out"),
        );
    }
}

/// `frees` says of what somebody else says `freed_by`.
fn freeing(model: &Model, function: &Function, plan: &Plan, diagnostics: &mut Vec<Diagnostic>) {
    if matches!(plan.kind, Kind::Frees) && model.freed_by(&function.name).is_empty() {
        diagnostics.push(
            Diagnostic::error(plan.span, format!("`{}` frees nothing", function.name))
                .label("no call hands out memory that it frees")
                .help(format!("say so where the memory is handed out: `freed_by({})`", function.name)),
        );
    }
}

/// The functions that end memory exist, and those on whose behalf others are called.
pub fn named(model: &Model, diagnostics: &mut Vec<Diagnostic>) {
    let find = |name: &str| model.functions.iter().find(|f| f.name == name && f.support == Support::Remote);
    for named in model.freed.iter().flat_map(|group| &group.functions) {
        let mut frees = false;
        find(&named.name).into_iter().flat_map(|f| &f.arguments).for_each(|rule| {
            plans(rule, &mut |plan| frees |= matches!(plan.kind, Kind::Frees));
        });
        if !frees {
            missing(named, "frees nothing", "describe its argument: `argument(p) { frees; }`", diagnostics);
        }
    }
    for function in &model.functions {
        let known = |name: &str| model.functions.iter().any(|f| f.name == name && f.support != Support::Unsupported);
        for named in function.on_behalf_of.iter().filter(|named| !known(&named.name) || named.name == function.name) {
            diagnostics.push(
                Diagnostic::error(named.span, format!("`{}` is no other function of the API", named.name))
                    .label("no rule would be about it")
                    .help("name the function that the application calls: `function` or `table.member`"),
            );
        }
        function.each_plan(&mut |plan| {
            let Lifetime::OwnedUntil(named) = &plan.lifetime else { return };
            if find(&named.name).is_none() {
                missing(named, "is no function of the API", "name one that the specification describes", diagnostics);
            }
        });
    }
}

fn missing(named: &FunctionName, what: &str, help: &str, diagnostics: &mut Vec<Diagnostic>) {
    diagnostics
        .push(Diagnostic::error(named.span, format!("`{}` {what}", named.name)).label("it would never end").help(help));
}
