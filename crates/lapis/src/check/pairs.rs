//! Objects, charges and mappings that begin must be able to end.

use super::plans;
use crate::model::{ChargeKind, Function, Kind, Lifetime, Model, Rule, Support};
use crate::syntax::diagnostics::Diagnostic;
use crate::syntax::source::Span;

pub fn check(model: &Model, diagnostics: &mut Vec<Diagnostic>) {
    let mut ends = Ends {
        allocated: vec![None; model.handle_types.len()],
        ended: vec![false; model.handle_types.len()],
        ..Ends::default()
    };
    for function in model.functions.iter().filter(|f| f.support != Support::Unsupported) {
        for rule in rules(function) {
            ends.note(rule);
        }
    }
    for ((handle, first), ended) in model.handle_types.iter().zip(&ends.allocated).zip(&ends.ended) {
        if let Some(span) = first.filter(|_| !ended) {
            diagnostics.push(
                Diagnostic::warning(span, format!("handles of type `{}` are never deallocated", handle.name))
                    .label("allocated here")
                    .help("the function that ends one needs `deallocate` or `release` on its argument; `ends_with(obj)` says that it ends with another"),
            );
        }
    }
    accounts(model, diagnostics);
    if let Some(span) = ends.manual.filter(|_| !ends.freed) {
        diagnostics.push(
            Diagnostic::error(span, "this buffer is never deallocated")
                .label("its shadow would stay for ever")
                .help("`deallocate` it where it is known to be done, or use `lifetime_until`, `lifetime_coupled` or `lifetime_call`"),
        );
    }
}

/// An amount that neither an object nor a function ever returns.
fn accounts(model: &Model, diagnostics: &mut Vec<Diagnostic>) {
    let charges = || model.functions.iter().flat_map(|f| f.charges.iter().map(move |c| (f, c)));
    for (function, charge) in charges().filter(|(_, c)| c.kind == ChargeKind::Allocate) {
        let mut owned = false;
        for rule in rules(function) {
            plans(rule, &mut |plan| owned |= plan.object.allocate);
        }
        let returned = charges().any(|(_, c)| c.kind == ChargeKind::Deallocate && c.resource == charge.resource);
        if !owned && !returned {
            let name = &model.resources[charge.resource].name;
            diagnostics.push(
                Diagnostic::warning(charge.amount.span, format!("`{name}` is never returned"))
                    .label("allocated here, by a call that creates no object")
                    .help(format!("add `deallocates_rc({name}, ...)` to the function that frees it, or `allocate` to the object that holds it")),
            );
        }
    }
}

fn rules(function: &Function) -> impl Iterator<Item = &Rule> {
    function.arguments.iter().chain([&function.result]).chain(function.contextual.iter().map(|c| &c.rule))
}

#[derive(Default)]
struct Ends {
    /// By handle type: where one is allocated first.
    allocated: Vec<Option<Span>>,
    ended: Vec<bool>,
    /// Where a buffer with a manual lifetime begins first.
    manual: Option<Span>,
    freed: bool,
}

impl Ends {
    fn note(&mut self, rule: &Rule) {
        plans(rule, &mut |plan| match &plan.kind {
            Kind::Handle { handle, release, .. } => {
                if plan.object.allocate {
                    self.allocated[*handle].get_or_insert(plan.span);
                }
                self.ended[*handle] |= plan.object.deallocate || *release || !plan.object.ends_with.is_empty();
            }
            Kind::Buffer(_) => {
                if matches!(plan.lifetime, Lifetime::Manual) && !plan.object.deallocate {
                    self.manual.get_or_insert(plan.span);
                }
                self.freed |= plan.object.deallocate;
            }
            _ => {}
        });
    }
}
