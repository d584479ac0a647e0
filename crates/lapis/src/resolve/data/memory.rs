//! Memory of the library's own that applications hold: how long.

use crate::model::{Access, FreeingFunctions, FunctionName, Lifetime, Plan, SharedMemory, When};
use crate::resolve::Resolver;
use crate::resolve::data::kinds::Descriptors;
use crate::resolve::terms::scope::Scope;
use crate::resolve::terms::types::describe;
use crate::syntax::ast::{Argument, AstExpr, AstExprKind, Descriptor};
use crate::syntax::diagnostics::Diagnostic;

impl Resolver<'_> {
    /// `uses`, `uses_read`, `shares(...)`.
    pub(in crate::resolve) fn handle_memory(&mut self, all: &Descriptors, plan: &mut Plan, scope: &Scope) {
        // Of mapped memory the application has the access, and no handle.
        if !all.has("mapped") {
            plan.object.memory.used = self.access(all, scope);
        }
        for d in all.all.iter().filter(|d| d.name.text == "shares") {
            let Some(object) = self.argument_value(d, 0, scope) else { continue };
            let second = self.argument_value(d, 1, scope);
            let array = object.ty.handle.is_none() && object.ty.pointee().is_some_and(|to| to.handle.is_some());
            plan.object.memory.shares.push(match second {
                place if object.ty.handle.is_some() => SharedMemory::One { object, place },
                Some(count) if array => SharedMemory::All { objects: object, count },
                _ => {
                    let label = format!("this is {}", describe(&object.ty));
                    self.report(
                        Diagnostic::error(object.span, "memory is shared with a handle, or with an array of them")
                            .label(label)
                            .help("`shares(object)`, `shares(object, place)` or `shares(objects, count)`"),
                    );
                    continue;
                }
            });
        }
    }

    /// `uses` and `uses_read` of a handle; `mapped_read` and `mapped_write` of mapped memory, which without them is read and
    /// written.
    pub(in crate::resolve) fn access(&mut self, all: &Descriptors, scope: &Scope) -> Access {
        let mut when = |words: &[&str], conditional: &str| {
            let condition = all.get(conditional).and_then(|d| self.argument_value(d, 0, scope));
            let usual = if all.any(words).is_some() { When::Always } else { When::Never };
            condition.map_or(usual, When::If)
        };
        let read = when(&["uses", "uses_read", "mapped"], "mapped_read");
        Access { read, write: when(&["uses", "mapped"], "mapped_write") }
    }

    /// `owned(object)`, `owned_until(function)`, `freed_by(function, ...)`.
    pub(in crate::resolve) fn library_memory(&mut self, d: &Descriptor, scope: &Scope) -> Lifetime {
        if d.name.text == "owned" {
            let Some(owner) = self.argument_value(d, 0, scope) else { return Lifetime::Call };
            if owner.ty.handle.is_none() {
                let label = format!("this is {}", describe(&owner.ty));
                self.report(Diagnostic::error(owner.span, "memory is owned by a handle").label(label));
                return Lifetime::Call;
            }
            return Lifetime::Owned(owner);
        }
        let named: Vec<FunctionName> = d.arguments.iter().flatten().filter_map(|a| self.function_named(a)).collect();
        let Some(first) = named.first().cloned() else { return Lifetime::Call };
        if d.name.text == "owned_until" {
            return Lifetime::OwnedUntil(first);
        }
        if let Some(free) = self.allocator(&named) {
            return Lifetime::Allocated { free };
        }
        let same = |group: &FreeingFunctions| {
            let names = |functions: &[FunctionName]| functions.iter().map(|f| f.name.clone()).collect::<Vec<_>>();
            names(&group.functions) == names(&named)
        };
        Lifetime::FreedBy(self.model.freed.iter().position(same).unwrap_or_else(|| {
            self.model.freed.push(FreeingFunctions { functions: named });
            self.model.freed.len() - 1
        }))
    }

    /// The function of `freed_by` that the application calls in another library: `free`, or one that a header declares for
    /// support.
    fn allocator(&mut self, named: &[FunctionName]) -> Option<String> {
        let elsewhere = |resolver: &Self, name: &str| {
            !resolver.api.contains(name) && (name == "free" || resolver.header.function(name).is_some())
        };
        let other = named.iter().find(|function| elsewhere(self, &function.name))?;
        let takes = self.header.function(&other.name).map(|f| &f.signature.parameters);
        let fits = takes.is_none_or(|takes| matches!(takes.as_slice(), [(_, ty)] if ty.pointee().is_some()));
        if named.len() > 1 || !fits {
            let label = if fits { "of another library" } else { "it takes something else than a pointer" };
            self.report(Diagnostic::error(other.span, format!("`{}` cannot free this", other.name)).label(label).help(
                "memory is freed by functions of the API, or by one of another library that takes the pointer alone",
            ));
        }
        Some(other.name.clone())
    }

    /// `f` or `table.f`. Functions are not known yet: `check` finds those that do not exist.
    pub(in crate::resolve) fn function_named(&mut self, argument: &Argument) -> Option<FunctionName> {
        let named = match argument {
            Argument::Expr(AstExpr { kind: AstExprKind::Name(name), span }) => Some((name.clone(), *span)),
            Argument::Expr(AstExpr { kind: AstExprKind::Member(table, name), span }) => match &table.kind {
                AstExprKind::Name(table) => Some((format!("{table}.{}", name.text), *span)),
                _ => None,
            },
            _ => None,
        };
        match named {
            Some((name, span)) => Some(FunctionName { name, span }),
            None => {
                if let Argument::Expr(ast) = argument {
                    self.report(
                        Diagnostic::error(ast.span, "this is no function of the API")
                            .label("`function` or `table.member`"),
                    );
                }
                None
            }
        }
    }
}
