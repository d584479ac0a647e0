//! Tables of function pointers.

use super::Resolver;
use crate::ast::{Item, Name};
use crate::diagnostics::Diagnostic;
use crate::model::{Signature, Struct, Table, TableMember, Type, TypeKind};
use crate::suggest::similar;

impl<'a> Resolver<'a> {
    pub(super) fn table_names(&mut self, items: &'a [Item]) {
        for item in items {
            let Item::Table { ty, name } = item else { continue };
            let Some(resolved) = self.resolve_type(ty) else { continue };
            let TypeKind::Struct(Struct { size, fields, .. }) = &resolved.kind else {
                self.report(
                    Diagnostic::error(ty.span, "a table is a complete struct of function pointers").label("not one"),
                );
                continue;
            };
            let member =
                |f: &crate::model::Field| TableMember { name: f.name.clone(), offset: f.offset, function: None };
            let members = fields.iter().filter(|f| is_function(&f.ty)).map(member).collect();
            self.model.tables.push(Table { name: name.text.clone(), size: *size, members });
        }
    }

    /// The table and the signature of `table.member`.
    pub(super) fn table_member(
        &mut self,
        table: &Name,
        member: &Name,
        items: &'a [Item],
    ) -> Option<(usize, Signature)> {
        let Some(index) = self.model.tables.iter().position(|t| t.name == table.text) else {
            let near = similar(&table.text, self.model.tables.iter().map(|t| t.name.as_str())).map(String::from);
            self.report(
                Diagnostic::error(table.span, format!("unknown table `{}`", table.text))
                    .label("no `table` of this name")
                    .suggest(near.as_deref()),
            );
            return None;
        };
        let ty = items.iter().find_map(|i| match i {
            Item::Table { ty, name } if name.text == table.text => Some(ty),
            _ => None,
        })?;
        let TypeKind::Struct(s) = self.resolve_type(ty)?.kind else { return None };
        match s.fields.iter().find(|f| f.name == member.text).map(|f| &f.ty.kind) {
            Some(TypeKind::FunctionPointer(signature)) => Some((index, signature.as_ref().clone())),
            Some(_) => {
                self.report(
                    Diagnostic::error(member.span, format!("the type of `{}` is not a function pointer", member.text))
                        .label("its parameters are unknown"),
                );
                None
            }
            None => {
                let near = similar(&member.text, s.fields.iter().map(|f| f.name.as_str()));
                let diagnostic =
                    Diagnostic::error(member.span, format!("`{}` has no member `{}`", table.text, member.text))
                        .label("unknown member")
                        .suggest(near);
                self.report(diagnostic);
                None
            }
        }
    }

    /// Connects the members of all tables with the functions of the same name.
    pub(super) fn fill_tables(&mut self) {
        for (t, table) in self.model.tables.iter_mut().enumerate() {
            for member in &mut table.members {
                let described = self
                    .model
                    .functions
                    .iter()
                    .position(|f| f.member_of.as_ref().is_some_and(|(n, m)| *n == t && *m == member.name));
                let exported =
                    || self.model.functions.iter().position(|f| f.member_of.is_none() && f.name == member.name);
                member.function = described.or_else(exported);
            }
        }
    }
}

/// Function pointers; members that a header declares as `void *` count by their name.
fn is_function(ty: &Type) -> bool {
    match &ty.kind {
        TypeKind::FunctionPointer(_) => true,
        TypeKind::Pointer { to, .. } => matches!(to.kind, TypeKind::Void),
        _ => false,
    }
}
