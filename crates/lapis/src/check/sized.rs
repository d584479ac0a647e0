//! A struct of which the caller has only a part is one that an argument points to.

use super::plans;
use crate::model::{Count, ExprKind, Function, Kind, Lifetime, Plan, Rule};
use crate::syntax::diagnostics::Diagnostic;
use crate::syntax::source::Span;

pub fn check(function: &Function, diagnostics: &mut Vec<Diagnostic>) {
    let good: Vec<Span> = function.arguments.iter().filter_map(pointed_to).collect();
    let contextual = function.contextual.iter().map(|c| &c.rule);
    for rule in function.arguments.iter().chain([&function.result]).chain(contextual) {
        plans(rule, &mut |plan| {
            if is_sized(plan) && !good.contains(&plan.span) {
                diagnostics.push(
                    Diagnostic::error(plan.span, "`sized` describes one struct that an argument points to")
                        .label("not possible here")
                        .help("`argument(x) { in; element { sized(member); } }`, without conditions, for a struct that is used during the call only"),
                );
            }
        });
    }
}

fn is_sized(plan: &Plan) -> bool {
    matches!(plan.kind, Kind::Struct { sized: Some(_), .. })
}

/// Where the sized struct is described that an argument points to.
fn pointed_to(rule: &Rule) -> Option<Span> {
    let Rule::Plan(plan) = rule else { return None };
    let Kind::Buffer(buffer) = &plan.kind else { return None };
    let one = match &buffer.count {
        Count::One => true,
        Count::Elements(e) => e.kind == ExprKind::Int(1),
        Count::Terminated { .. } => false,
    };
    let during =
        matches!(plan.lifetime, Lifetime::Call) && !plan.object.deallocate && !plan.object.allocate && !buffer.no_copy;
    match &buffer.element {
        Rule::Plan(element) if is_sized(element) && one && during && plan.input => Some(element.span),
        _ => None,
    }
}
