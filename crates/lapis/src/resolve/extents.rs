//! How much there is behind a pointer, and where it may begin.

use super::Resolver;
use super::scope::Scope;
use super::types::describe;
use crate::ast::Descriptor;
use crate::diagnostics::Diagnostic;
use crate::model::{Count, Expr, TypeKind};

/// Of a buffer, in bytes: a page.
const LARGEST_ALIGNMENT: usize = 4096;

impl Resolver<'_> {
    /// The number of elements that a descriptor gives.
    pub(super) fn size(&mut self, d: &Descriptor, scope: &Scope) -> Option<Expr> {
        let size = self.argument_value(d, 0, scope)?;
        if !matches!(size.ty.kind, TypeKind::Int { .. }) {
            self.report(
                Diagnostic::error(size.span, format!("`{}` needs a number", d.name.text))
                    .label(format!("this has type {}", describe(&size.ty))),
            );
            return None;
        }
        if super::constants::value(&size).is_some_and(|v| v < 0) {
            self.report(
                Diagnostic::error(size.span, format!("`{}` cannot be negative", d.name.text)).label("a negative size"),
            );
            return None;
        }
        Some(size)
    }

    /// `aligned(n)`: a constant that is a power of two.
    pub(super) fn alignment(&mut self, d: &Descriptor) -> usize {
        let value = self.argument_value(d, 0, &Scope::constant()).as_ref().and_then(super::constants::value);
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

    pub(super) fn terminated(&mut self, d: &Descriptor, scope: &Scope) -> Count {
        if d.arguments.as_ref().is_none_or(Vec::is_empty) {
            return Count::Terminated { step: 1 };
        }
        let step = self.argument_value(d, 0, scope).as_ref().and_then(super::constants::value);
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
