//! `chained`: tables that a pointer of another one leads to.

use crate::model::{Struct, TableChain, Type, TypeKind};
use crate::resolve::Resolver;
use crate::resolve::calls::functions::find;
use crate::resolve::pieces;
use crate::syntax::ast::{Argument, AstExpr, AstExprKind, Descriptor, Item};
use crate::syntax::diagnostics::Diagnostic;

impl<'a> Resolver<'a> {
    /// The chains of all tables, when the tables are known.
    pub(in crate::resolve) fn table_chains(&mut self, items: &'a [Item]) {
        for item in items {
            let Item::Table { ty, name, source: Some(source) } = item else { continue };
            let Some(d) = find(&pieces(&source.body), "chained") else { continue };
            let Some(table) = self.model.tables.iter().position(|t| t.name == name.text) else { continue };
            let Some(TypeKind::Struct(s)) = self.resolve_type(ty).map(|ty| ty.kind) else { continue };
            let chain = self.table_chain(d, &s, items);
            if let Some(source) = &mut self.model.tables[table].source {
                source.chain = chain;
            }
        }
    }

    /// `chained(first, next, table, ...)`
    fn table_chain(&mut self, d: &Descriptor, s: &Struct, items: &'a [Item]) -> Option<TableChain> {
        let [Argument::Expr(first), Argument::Expr(next), tables @ ..] = d.arguments.as_deref()? else { return None };
        let Some(head) = pointer_at(first, s) else {
            self.report(
                Diagnostic::error(first.span, "not a pointer of the table").label("`member` or `member.member`"),
            );
            return None;
        };
        let mut links: Vec<(usize, usize)> = Vec::new();
        for table in tables {
            let Argument::Expr(AstExpr { kind: AstExprKind::Name(name), span }) = table else { continue };
            let known = self.model.tables.iter().position(|t| t.name == *name && t.source.is_some());
            let ty = items.iter().find_map(|item| match item {
                Item::Table { ty, name: known, .. } if known.text == *name => Some(ty),
                _ => None,
            });
            let (Some(index), Some(ty)) = (known, ty) else {
                self.report(
                    Diagnostic::error(*span, format!("`{name}` is no table that follows the vendor's"))
                        .label("a chain has `table(T) name from e`"),
                );
                continue;
            };
            let Some(TypeKind::Struct(s)) = self.resolve_type(ty).map(|ty| ty.kind) else { continue };
            let again = links.iter().any(|(known, _)| *known == index);
            match pointer_at(next, &s) {
                Some(next) if !again && self.model.tables[index].source.as_ref().is_some_and(|t| t.chain.is_none()) => {
                    links.push((index, next));
                }
                Some(_) => self.report(
                    Diagnostic::error(*span, format!("`{name}` cannot be a link of this chain"))
                        .label("it is in the chain already, or begins a chain itself"),
                ),
                None => self.report(
                    Diagnostic::error(*span, format!("`{name}` has no pointer to the next table"))
                        .label("the second argument names it, in each of the tables"),
                ),
            }
        }
        Some(TableChain { head, links })
    }
}

/// The place of the pointer `member` or `member.member`.
fn pointer_at(named: &AstExpr, s: &Struct) -> Option<usize> {
    let pointer = |ty: &Type| matches!(ty.kind, TypeKind::Pointer { .. });
    match &named.kind {
        AstExprKind::Name(name) => s.fields.iter().find(|f| f.name == *name && pointer(&f.ty)).map(|f| f.offset),
        AstExprKind::Member(outer, name) => {
            let AstExprKind::Name(outer) = &outer.kind else { return None };
            let outer = s.fields.iter().find(|f| f.name == *outer)?;
            let TypeKind::Struct(inner) = &outer.ty.kind else { return None };
            let inner = inner.fields.iter().find(|f| f.name == name.text && pointer(&f.ty))?;
            Some(outer.offset + inner.offset)
        }
        _ => None,
    }
}
