//! Tables of function pointers.

use super::{Piece, Resolver, pieces};
use crate::model::{
    Callee, ExprKind, Field, Function, Side, Signature, Struct, Table, TableMember, TableSource, TableValue, Type,
    TypeKind,
};
use crate::resolve::terms::scope::Scope;
use crate::syntax::ast::{self, Argument, AstExpr, AstExprKind, Descriptor, Item, Name, Statement};
use crate::syntax::descriptors::DescriptorScope;
use crate::syntax::diagnostics::Diagnostic;
use crate::syntax::suggest::similar;

impl<'a> Resolver<'a> {
    pub(super) fn table_names(&mut self, items: &'a [Item]) {
        for item in items {
            let Item::Table { ty, name, source } = item else { continue };
            let Some(resolved) = self.resolve_type(ty) else { continue };
            let TypeKind::Struct(s @ Struct { size, fields, .. }) = &resolved.kind else {
                self.report(
                    Diagnostic::error(ty.span, "a table is a complete struct of function pointers").label("not one"),
                );
                continue;
            };
            let member =
                |f: &crate::model::Field| TableMember { name: f.name.clone(), offset: f.offset, function: None };
            let source = source.as_ref().and_then(|source| self.table_source(source, s));
            let counts = |f: &&Field| match source {
                // Other pointers lead to the vendor's own: that stays there.
                Some(_) => matches!(f.ty.kind, TypeKind::FunctionPointer(_)),
                None => is_function(&f.ty),
            };
            let members = fields.iter().filter(counts).map(member).collect();
            self.model.tables.push(Table { name: name.text.clone(), size: *size, members, source });
        }
        self.table_chains(items);
    }

    fn table_source(&mut self, source: &'a ast::TableFrom, s: &Struct) -> Option<TableSource> {
        let address = self.expr(&source.address, &Scope { place: "the address of a table", ..Scope::default() })?;
        let mut misfit = !matches!(address.ty.kind, TypeKind::Pointer { .. });
        address.walk(&mut |e| {
            misfit |= match e.kind {
                ExprKind::Call(Callee::Utility(n), _) => self.model.utility_functions[n].side == Side::Guest,
                ExprKind::Call(..) | ExprKind::Table(_) | ExprKind::Relaxed => true,
                _ => false,
            }
        });
        if misfit {
            self.report(
                Diagnostic::error(
                    source.address.span,
                    "this expression does not give the address of the vendor's table",
                )
                .label("expected a pointer that the API server has")
                .help("call a function of a `utility(server)` block that returns the table's address, or NULL"),
            );
            return None;
        }
        let mut found = TableSource { address, sized: None, values: Vec::new(), longer: 0, chain: None };
        numbers(s, 0, &mut found.values);
        for piece in pieces(&source.body) {
            let Piece::Statement(Statement::Descriptor(d)) = piece else {
                self.report(
                    Diagnostic::error(source.body.span, "a condition in the description of a table")
                        .label("only `sized`, `least`, `longer` and `chained` can stand here"),
                );
                continue;
            };
            self.misplaced(d, DescriptorScope::Table);
            self.table_value(d, s, &mut found);
        }
        Some(found)
    }

    /// `longer(slots)`
    fn longer(&mut self, d: &'a Descriptor, found: &mut TableSource) {
        let Some(slots) = self.argument_value(d, 0, &Scope::constant()) else { return };
        match slots.kind {
            ExprKind::Int(count @ 1..=4096) => found.longer = count as usize,
            _ => self.report(
                Diagnostic::error(slots.span, "a number of functions is a constant from 1 to 4096").label("not one"),
            ),
        }
    }

    /// `sized(member)` and `least(member, limit)`.
    fn table_value(&mut self, d: &'a Descriptor, s: &Struct, found: &mut TableSource) {
        if d.name.text == "longer" {
            return self.longer(d, found);
        }
        let named = match d.arguments.as_deref() {
            Some([Argument::Expr(named), ..]) if matches!(d.name.text.as_str(), "sized" | "least") => named,
            _ => return,
        };
        let place = number_at(named, s).and_then(|offset| found.values.iter().position(|v| v.offset == offset));
        let Some(place) = place else {
            self.report(
                Diagnostic::error(named.span, "not a number of the table").label("`member` or `member.member`"),
            );
            return;
        };
        let value = &mut found.values[place];
        if d.name.text == "sized" {
            value.most = Some(s.size as u64);
            found.sized = Some(*value);
            return;
        }
        let Some(limit) = self.argument_value(d, 1, &Scope::constant()) else { return };
        match limit.kind {
            ExprKind::Int(most) if most >= 0 && most <= i128::from(u64::MAX) => value.most = Some(most as u64),
            _ => self.report(
                Diagnostic::error(limit.span, "the limit of a member is a constant").label("this is computed later"),
            ),
        }
    }

    /// A function for each member of a table that nothing describes: it is not virtualized, and says so.
    pub(super) fn undescribed_members(&mut self, items: &'a [Item]) {
        for item in items {
            let Item::Table { ty, name, source: Some(_) } = item else { continue };
            let Some(index) = self.model.tables.iter().position(|t| t.name == name.text) else { continue };
            if self.model.tables[index].source.is_none() {
                continue;
            }
            let Some(TypeKind::Struct(s)) = self.resolve_type(ty).map(|ty| ty.kind) else { continue };
            for field in &s.fields {
                let TypeKind::FunctionPointer(signature) = &field.ty.kind else { continue };
                let described = self.model.functions.iter().any(|f| match &f.member_of {
                    Some((table, member)) => *table == index && *member == field.name,
                    None => f.name == field.name,
                });
                if described {
                    continue;
                }
                let function = self.undescribed_function(signature, &format!("{}.{}", name.text, field.name));
                let member_of = Some((index, field.name.clone()));
                self.model.functions.push(Function { member_of, ..function });
            }
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
            Item::Table { ty, name, .. } if name.text == table.text => Some(ty),
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

    /// `shaped(table)`: objects that are tables themselves.
    pub(super) fn shape(&mut self, d: &Descriptor) -> Option<usize> {
        let Some([Argument::Expr(AstExpr { kind: AstExprKind::Name(name), .. })]) = d.arguments.as_deref() else {
            return None;
        };
        let followed = |t: &Table| t.name == *name && t.source.is_some();
        let found = self.model.tables.iter().position(followed);
        if found.is_none() {
            self.report(
                Diagnostic::error(d.span, format!("no table `{name}` that follows the vendor's"))
                    .label("the shape of an object is such a table")
                    .help("declare it: `table(struct T) name from e;`, where `e` finds one of these objects, or NULL"),
            );
        }
        found
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

/// The numbers of a table and of the structs in it. What they say of the vendor's library is true in the guest.
fn numbers(s: &Struct, offset: usize, found: &mut Vec<TableValue>) {
    for field in s.fields.iter().filter(|_| !s.union) {
        let offset = offset + field.offset;
        match &field.ty.kind {
            TypeKind::Int { bytes: width @ (1 | 2 | 4 | 8), .. } | TypeKind::Float { bytes: width @ (4 | 8) } => {
                found.push(TableValue { offset, width: *width, most: None })
            }
            TypeKind::Struct(inner) => numbers(inner, offset, found),
            _ => {}
        }
    }
}

/// The place of `member` or `member.member`.
fn number_at(named: &AstExpr, s: &Struct) -> Option<usize> {
    match &named.kind {
        AstExprKind::Name(name) => s.fields.iter().find(|f| f.name == *name).map(|f| f.offset),
        AstExprKind::Member(outer, name) => {
            let AstExprKind::Name(outer) = &outer.kind else { return None };
            let outer = s.fields.iter().find(|f| f.name == *outer)?;
            let TypeKind::Struct(inner) = &outer.ty.kind else { return None };
            inner.fields.iter().find(|f| f.name == name.text).map(|f| outer.offset + f.offset)
        }
        _ => None,
    }
}
