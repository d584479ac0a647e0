//! Rules that concern more than one descriptor: what an expression may use where it is evaluated,
//! descriptors that must come in pairs or exclude each other.

mod availability;
mod codes;
mod memory;
mod outputs;
mod pairs;
mod pointers;
mod positions;
mod sized;
mod states;
mod values;

use crate::model::{Buffer, ErrorPlace, Expr, Function, Kind, Lifetime, Model, Plan, Rule, Support, TypeKind};
use crate::syntax::diagnostics::Diagnostic;

/// Handle ids hold their type in eight bits.
const HANDLE_TYPES: usize = 255;

pub fn check(model: &Model, diagnostics: &mut Vec<Diagnostic>) {
    for function in model.functions.iter().filter(|f| f.support != Support::Unsupported) {
        availability::check(model, function, diagnostics);
        asynchrony(model, function, diagnostics);
        values::check(function, diagnostics);
        if function.support == Support::Remote {
            pointers::check(function, diagnostics);
        }
        positions::check(function, diagnostics);
        sized::check(function, diagnostics);
        states::check(function, diagnostics);
        memory::check(model, function, diagnostics);
        outputs::check(function, diagnostics);
        for rule in
            function.arguments.iter().chain([&function.result]).chain(function.contextual.iter().map(|c| &c.rule))
        {
            plans(rule, &mut |plan| shape(plan, diagnostics));
            plans(rule, &mut |plan| owned(plan, diagnostics));
        }
        if function.signature.variadic && function.varargs.is_none() && function.support == Support::Remote {
            diagnostics.push(
                Diagnostic::error(function.span, format!("`{}` takes any number of arguments", function.name))
                    .label("they cannot be forwarded")
                    .help("say what follows by the value of another argument, `varargs(request) { case K: T; ... }`, answer it in the guest with `local(...)`, or mark it `unsupported`"),
            );
        }
    }
    codes::check(model, diagnostics);
    memory::named(model, diagnostics);
    // A function that could not be understood may hold the other half of a pair.
    if diagnostics.iter().all(|d| d.severity == crate::syntax::diagnostics::Severity::Warning) {
        pairs::check(model, diagnostics);
    }
    if model.handle_types.len() > HANDLE_TYPES {
        let message = format!("{} handle types; {HANDLE_TYPES} are possible", model.handle_types.len());
        diagnostics.push(Diagnostic::global(message));
    }
}

/// Combinations that no plan can have.
fn shape(plan: &Plan, diagnostics: &mut Vec<Diagnostic>) {
    let created = matches!(plan.kind, Kind::Handle { .. } | Kind::Buffer(_) | Kind::Mapped { .. } | Kind::Number(_));
    let word = if plan.object.allocate { "allocate" } else { "deallocate" };
    if (plan.object.allocate || plan.object.deallocate) && !created {
        let pointer = matches!(plan.ty.kind, TypeKind::Pointer { .. });
        let mut diagnostic = Diagnostic::error(plan.span, format!("`{word}` on what is neither a handle nor a buffer"))
            .label(format!("this is a `{}`", plan.ty.spelling));
        if !pointer {
            diagnostic = diagnostic
                .help(format!("if it is a handle say so for all of them: `type({}) {{ handle; }}`", plan.ty.spelling));
        }
        diagnostics.push(diagnostic);
    }
    if let Kind::Buffer(buffer) = &plan.kind
        && let Some(returned) = &buffer.returned
        && !plan.output
    {
        diagnostics.push(
            Diagnostic::error(returned.span, "`returned` without `out`").label("nothing comes back").help("add `out;`"),
        );
    }
}

/// Only a handle that comes out of a call can be told what it ends with: there the guest learns of it.
fn owned(plan: &Plan, diagnostics: &mut Vec<Diagnostic>) {
    let mut report = |owner: &Expr, what: &str, help: &str| {
        let message = format!("`ends_with` on {what}");
        diagnostics.push(Diagnostic::error(owner.span, message).label("the handle is known already").help(help));
    };
    match &plan.kind {
        Kind::Handle { .. } if !plan.output => {
            let help = "say it where a call hands the handle out: in an output's `element`, or in `return_value`";
            plan.object.ends_with.iter().for_each(|owner| report(owner, "a handle that is passed in", help));
        }
        Kind::Callback(callback) => callback.arguments.iter().chain([&callback.result]).for_each(|rule| {
            plans(rule, &mut |plan| {
                // An argument is passed in; that has been reported.
                let passed_in = matches!(plan.kind, Kind::Handle { .. }) && !plan.output;
                for owner in plan.object.ends_with.iter().filter(|_| !passed_in) {
                    report(owner, "a handle of a callback", "say it where a call hands the handle out");
                }
            })
        }),
        _ => {}
    }
}

/// A call that returns before it is done cannot bring anything back.
fn asynchrony(model: &Model, function: &Function, diagnostics: &mut Vec<Diagnostic>) {
    let Some(condition) = &function.asynchronous else { return };
    if !matches!(condition.kind, crate::model::ExprKind::Int(_)) {
        return;
    }
    let mut created = Vec::new();
    for (number, rule) in function.arguments.iter().enumerate() {
        // The code of success is known.
        if function.error == ErrorPlace::Parameter(number) {
            continue;
        }
        let mut outputs = Vec::new();
        outer(rule, &mut outputs);
        if !outputs.is_empty() && outputs.iter().all(|plan| !plan.output || creates(plan, &mut created)) {
            continue;
        }
        plans(rule, &mut |plan| {
            let kept = matches!(plan.lifetime, Lifetime::Until { .. } | Lifetime::Manual | Lifetime::Coupled(_));
            let data =
                matches!(&plan.kind, Kind::Buffer(b) if !b.no_copy && !b.zerocopy) || matches!(plan.kind, Kind::String);
            if plan.output && data && !kept {
                diagnostics.push(
                    Diagnostic::error(plan.span, format!("`{}` is asynchronous but this is an output", function.name))
                        .label("nothing is there when the call returns")
                        .related(condition.span, "asynchronous here")
                        .help("make the call synchronous where the output is wanted, or deliver it later with `lifetime_until`; handles that the call creates (`element { allocate; }`) are known at once"),
                );
            }
        });
    }
    if let Rule::Plan(plan) = &function.result
        && let Some(handle) = created_handle(plan)
    {
        created.push((handle, plan.span));
    }
    for (handle, span) in &created {
        let ty = &model.handle_types[*handle];
        if ty.size != 8 {
            diagnostics.push(
                Diagnostic::error(*span, format!("`{}` is asynchronous but creates a `{}`", function.name, ty.name))
                    .label("four bytes have no room for a handle that the guest chooses")
                    .related(condition.span, "asynchronous here")
                    .help("make the call synchronous"),
            );
        }
    }
    // Zero is a fair answer of a function that returns a number; a pointer or a struct will be used.
    let used =
        !matches!(function.signature.result.kind, TypeKind::Void | TypeKind::Int { .. } | TypeKind::Float { .. });
    let known = matches!(&function.result, Rule::Plan(plan) if created_handle(plan).is_some());
    // An object that reports: there is none.
    let reports = matches!(function.error, ErrorPlace::Status(_));
    if used && !known && !reports && function.success.is_none() {
        diagnostics.push(
            Diagnostic::error(condition.span, format!("what does `{}` return when it is asynchronous?", function.name))
                .label("the call returns before the answer is known")
                .help("say so with `success(v)`"),
        );
    }
}

/// The type of the handle that a value is, if the call creates it.
fn created_handle(plan: &Plan) -> Option<usize> {
    match plan.kind {
        Kind::Handle { handle, .. } if plan.object.allocate => Some(handle),
        _ => None,
    }
}

/// True if an output is nothing but handles that the call creates, in a number that is known before it. They are noted.
fn creates(plan: &Plan, created: &mut Vec<(usize, crate::syntax::source::Span)>) -> bool {
    let Kind::Buffer(buffer) = &plan.kind else { return false };
    let Rule::Plan(element) = &buffer.element else { return false };
    let handle = created_handle(element).filter(|_| !plan.input && buffer.returned.is_none());
    created.extend(handle.map(|handle| (handle, element.span)));
    handle.is_some()
}

/// Visits all plans of a rule, those of elements, members and callbacks included.
fn plans(rule: &Rule, visit: &mut dyn FnMut(&Plan)) {
    match rule {
        Rule::If { then, otherwise, .. } => {
            plans(then, visit);
            plans(otherwise, visit);
        }
        Rule::Plan(plan) => {
            visit(plan);
            match &plan.kind {
                Kind::Buffer(buffer) => plans(&buffer.element, visit),
                Kind::Struct { fields, .. } => fields.iter().for_each(|(_, rule)| plans(rule, visit)),
                Kind::Callback(callback) => {
                    callback.arguments.iter().chain([&callback.result]).for_each(|r| plans(r, visit))
                }
                _ => {}
            }
        }
    }
}

fn buffer(plan: &Plan) -> Option<&Buffer> {
    match &plan.kind {
        Kind::Buffer(buffer) => Some(buffer),
        _ => None,
    }
}

/// The rule's plans, those of elements and members not included.
fn outer<'a>(rule: &'a Rule, all: &mut Vec<&'a Plan>) {
    match rule {
        Rule::Plan(plan) => all.push(plan),
        Rule::If { then, otherwise, .. } => {
            outer(then, all);
            outer(otherwise, all);
        }
    }
}
