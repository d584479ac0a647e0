//! Outputs say which part of them the library writes.

use super::{buffer, plans};
use crate::model::{Binary, Buffer, Count, Expr, ExprKind, Function, Kind, Plan, Rule};
use crate::syntax::diagnostics::Diagnostic;

pub fn check(function: &Function, diagnostics: &mut Vec<Diagnostic>) {
    for rule in function.arguments.iter().chain([&function.result]) {
        plans(rule, &mut |plan| {
            if let Some(buffer) = buffer(plan) {
                promise(plan, buffer, diagnostics);
                shape(plan, buffer, diagnostics);
            }
        });
    }
    for rule in &function.arguments {
        let mut outermost = Vec::new();
        super::outer(rule, &mut outermost);
        for plan in outermost {
            gaps(plan, diagnostics);
        }
    }
}

/// `written` is said of an output, and says it all.
fn promise(plan: &Plan, buffer: &Buffer, diagnostics: &mut Vec<Diagnostic>) {
    if buffer.written && !plan.output {
        diagnostics.push(
            Diagnostic::error(plan.span, "`written` without `out`").label("nothing comes back").help("add `out;`"),
        );
    }
    if let Some(returned) = buffer.returned.as_ref().filter(|_| buffer.written) {
        diagnostics.push(
            Diagnostic::error(returned.span, "`returned` contradicts `written`")
                .label("the library writes all of it, or these elements"),
        );
    }
}

/// Rows are of plain data that is copied.
fn shape(plan: &Plan, buffer: &Buffer, diagnostics: &mut Vec<Diagnostic>) {
    if buffer.rows.is_none() {
        return;
    }
    let plain = matches!(&buffer.element, Rule::Plan(p) if matches!(p.kind, Kind::Scalar | Kind::Number(_)));
    let kept = plan.lifetime.is_of_library() || matches!(plan.lifetime, crate::model::Lifetime::Bound(_));
    if !plain || kept || buffer.returned.is_some() || buffer.no_copy {
        diagnostics.push(
            Diagnostic::error(plan.span, "`rows` cannot describe this")
                .label("only plain data that is copied has rows")
                .help("leave `returned`, `no_copy`, `bound` and descriptions of elements out, or `rows`"),
        );
    }
}

/// A size that is a product may have gaps that the library does not write.
fn gaps(plan: &Plan, diagnostics: &mut Vec<Diagnostic>) {
    let Some(buffer) = buffer(plan) else { return };
    let Count::Elements(size) = &buffer.count else { return };
    let said = buffer.written || buffer.returned.is_some() || buffer.rows.is_some() || buffer.no_copy;
    if plan.output && !said && is_product(size) {
        diagnostics.push(
            Diagnostic::warning(size.span, "does the library write all of this output?")
                .label("a product: rows may lie apart")
                .help("`written;` if it does, `returned(n)` if it writes the first `n` elements, `rows(n, pitch)` beside `buffer(width)` if rows lie apart; without a word of it the content travels both ways, and what has changed is written back"),
        );
    }
}

fn is_product(size: &Expr) -> bool {
    let mut found = false;
    size.walk(&mut |e| {
        if let ExprKind::Binary(Binary::Multiply, a, b) = &e.kind {
            let varies = |e: &Expr| crate::resolve::terms::constants::value(e).is_none();
            found |= varies(a) && varies(b);
        }
    });
    found
}
