//! How much there is behind a pointer, and where it may begin.

use crate::model::{Callee, Count, Expr, ExprKind, Function, RowShape, TypeKind};
use crate::resolve::Resolver;
use crate::resolve::data::kinds::Descriptors;
use crate::resolve::terms::scope::Scope;
use crate::resolve::terms::types::{describe, size_t};
use crate::syntax::ast::Descriptor;
use crate::syntax::diagnostics::Diagnostic;

/// Of a buffer, in bytes: a page.
/// Elements; they are kept with each state.
const MOST_HISTORY: usize = 1 << 20;
const LARGEST_ALIGNMENT: usize = 4096;

impl Resolver<'_> {
    /// The number of elements that a descriptor gives.
    pub(in crate::resolve) fn size(&mut self, d: &Descriptor, scope: &Scope) -> Option<Expr> {
        self.number_at(d, 0, scope)
    }

    fn number_at(&mut self, d: &Descriptor, at: usize, scope: &Scope) -> Option<Expr> {
        let size = self.argument_value(d, at, scope)?;
        if !matches!(size.ty.kind, TypeKind::Int { .. }) {
            self.report(
                Diagnostic::error(size.span, format!("`{}` needs a number", d.name.text))
                    .label(format!("this has type {}", describe(&size.ty))),
            );
            return None;
        }
        if crate::resolve::terms::constants::value(&size).is_some_and(|v| v < 0) {
            self.report(
                Diagnostic::error(size.span, format!("`{}` cannot be negative", d.name.text)).label("a negative size"),
            );
            return None;
        }
        Some(size)
    }

    /// `rows(n, pitch)` and `planes(n, step)` beside `buffer(width)`: how much there is then, and its shape.
    pub(in crate::resolve) fn rows(
        &mut self,
        all: &Descriptors,
        count: Count,
        scope: &Scope,
    ) -> (Count, Option<Box<RowShape>>) {
        let (rows, planes) = (all.get("rows"), all.get("planes"));
        let Some(d) = rows.or(planes) else { return (count, None) };
        let Count::Elements(width) = count.clone() else {
            self.report(
                Diagnostic::error(d.span, format!("`{}` without `buffer(width)`", d.name.text))
                    .label("how long is a row?")
                    .help("`buffer(width); rows(n, pitch);`, all in elements"),
            );
            return (count, None);
        };
        let Some(rows) = rows else {
            self.report(Diagnostic::error(d.span, "`planes` without `rows(n, pitch)`").label("planes consist of rows"));
            return (count, None);
        };
        let number = |n: i128| Expr { kind: ExprKind::Int(n), ty: size_t(), span: d.span };
        let [one, none] = [number(1), number(0)];
        let [n, pitch] = [0, 1].map(|at| self.number_at(rows, at, scope));
        let [m, step] = match planes {
            Some(planes) => [0, 1].map(|at| self.number_at(planes, at, scope)),
            None => [Some(one), Some(none)],
        };
        let (Some(n), Some(pitch), Some(m), Some(step)) = (n, pitch, m, step) else { return (count, None) };
        let numbers = [width, n, pitch, m, step];
        let span = Expr { kind: ExprKind::Call(Callee::Span, numbers.to_vec()), ty: size_t(), span: d.span };
        (Count::Elements(span), Some(Box::new(RowShape { numbers })))
    }

    /// `aligned(n)`: a constant that is a power of two.
    pub(in crate::resolve) fn alignment(&mut self, d: &Descriptor) -> usize {
        let value =
            self.argument_value(d, 0, &Scope::constant()).as_ref().and_then(crate::resolve::terms::constants::value);
        match value.and_then(|v| usize::try_from(v).ok()).filter(|v| v.is_power_of_two() && *v <= LARGEST_ALIGNMENT) {
            Some(align) => align,
            None => {
                self.report(
                    Diagnostic::error(d.span, "an alignment is a constant that is a power of two")
                        .label(format!("expected a number up to {LARGEST_ALIGNMENT}")),
                );
                1
            }
        }
    }

    /// `apart(a, b, ...)`: parameters whose memory does not overlap.
    pub(in crate::resolve) fn apart(&mut self, d: &Descriptor, function: &mut Function, scope: &Scope) {
        let count = d.arguments.as_ref().map_or(0, Vec::len);
        let mut named = Vec::new();
        let values: Vec<Expr> = (0..count).filter_map(|at| self.argument_value(d, at, scope)).collect();
        for value in values {
            match value.kind {
                ExprKind::Parameter(i) if matches!(value.ty.kind, TypeKind::Pointer { .. }) => named.push(i),
                _ => self.report(
                    Diagnostic::error(value.span, "`apart` names parameters that are pointers")
                        .label(format!("this is {}", describe(&value.ty))),
                ),
            }
        }
        for (n, a) in named.iter().enumerate() {
            function.apart.extend(named[..n].iter().map(|b| (*a, *b)));
        }
    }

    /// `history(n)`: a constant number of elements.
    pub(in crate::resolve) fn history(&mut self, d: &Descriptor) -> usize {
        let value =
            self.argument_value(d, 0, &Scope::constant()).as_ref().and_then(crate::resolve::terms::constants::value);
        match value.and_then(|v| usize::try_from(v).ok()).filter(|v| (1..=MOST_HISTORY).contains(v)) {
            Some(elements) => elements,
            None => {
                self.report(
                    Diagnostic::error(d.span, "how far a library looks back is a constant")
                        .label(format!("expected a number of elements from 1 to {MOST_HISTORY}")),
                );
                0
            }
        }
    }

    pub(in crate::resolve) fn terminated(&mut self, d: &Descriptor, scope: &Scope) -> Count {
        if d.arguments.as_ref().is_none_or(Vec::is_empty) {
            return Count::Terminated { step: 1 };
        }
        let step = self.argument_value(d, 0, scope).as_ref().and_then(crate::resolve::terms::constants::value);
        match step.and_then(|s| usize::try_from(s).ok()).filter(|s| (1..=64).contains(s)) {
            Some(step) => Count::Terminated { step },
            None => {
                self.report(
                    Diagnostic::error(d.span, "the step of `null_terminated` is a small constant")
                        .label("expected a number from 1 to 64"),
                );
                Count::Terminated { step: 1 }
            }
        }
    }
}
