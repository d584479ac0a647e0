//! Structs that the application allocates and of which the server keeps what is the library's own.

use crate::model::{Field, STATE_KEY, StateStruct, Struct, Type, TypeKind};
use crate::resolve::data::kinds::Descriptors;
use crate::resolve::data::values::Value;
use crate::resolve::terms::types::describe;
use crate::resolve::{Piece, Resolver, pieces};
use crate::syntax::ast::{Argument, AstExprKind, Descriptor, Statement};
use crate::syntax::descriptors::DescriptorScope;
use crate::syntax::diagnostics::Diagnostic;
use crate::syntax::suggest::similar;

/// What a description says of hidden members.
#[derive(Default)]
struct Parts {
    /// Offset and length in bytes.
    shown: Vec<(usize, usize)>,
    copies: bool,
}

/// The members of hidden members that are structs: the outer one, the offset in the whole, the inner one.
fn inner<'s>(hidden: &[&'s Field]) -> impl Iterator<Item = (&'s Field, usize, &'s Field)> {
    hidden.iter().copied().flat_map(|outer| {
        let fields = match &outer.ty.kind {
            TypeKind::Struct(s) => s.fields.as_slice(),
            _ => &[],
        };
        fields.iter().map(move |field| (outer, outer.offset + field.offset, field))
    })
}

/// True if a comment names such a member, and not one whose name only begins so.
fn mentions(comment: &str, text: &str) -> bool {
    let part_of_a_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    comment.match_indices(text).any(|(at, _)| {
        !comment[..at].ends_with(part_of_a_name) && !comment[at + text.len()..].starts_with(part_of_a_name)
    })
}

/// Where a key fits into a hidden member, between the parts that are shown.
fn room_for_key((offset, size): (usize, usize), shown: &[(usize, usize)]) -> Option<usize> {
    let mut at = offset;
    for (from, length) in shown.iter().filter(|(from, _)| (offset..offset + size).contains(from)) {
        if from.saturating_sub(at) >= STATE_KEY {
            return Some(at);
        }
        at = at.max(from + length);
    }
    (offset + size).checked_sub(at).filter(|left| *left >= STATE_KEY).map(|_| at)
}

impl<'a> Resolver<'a> {
    /// True if the type-wide description of a struct says `state`.
    pub(in crate::resolve) fn is_state(&self, ty: &Type) -> bool {
        let is_it =
            |piece: &Piece| matches!(piece, Piece::Statement(Statement::Descriptor(d)) if d.name.text == "state");
        self.type_rule(ty).is_some_and(|rule| self.type_rules[rule].body.iter().any(is_it))
    }

    /// `scratch(n, resource)`: the account of the memory.
    pub(in crate::resolve) fn scratch_resource(&mut self, d: &Descriptor) -> Option<usize> {
        d.arguments.as_ref()?.get(1)?;
        let index = self.resource(d, 1, crate::model::ChargeKind::Allocate)?;
        if self.model.resources[index].devices.is_some() {
            let name = &self.model.resources[index].name;
            let message = format!("`{name}` lies on devices, memory of a state does not");
            self.report(Diagnostic::error(d.span, message).label("no place").help(format!("`continuous_rc {name};`")));
            return None;
        }
        Some(index)
    }

    /// `state(member, ...)`: the members that never cross.
    pub(in crate::resolve) fn state(
        &mut self,
        all: &Descriptors<'a>,
        s: &Struct,
        hidden: &[&Field],
        value: &Value,
    ) -> Option<StateStruct> {
        let d = all.get("state")?;
        let mut runs: Vec<(usize, usize)> = hidden.iter().map(|f| (f.offset, f.ty.size())).collect();
        runs.sort_unstable();
        runs.first()?;
        let Parts { shown, copies } = self.parts(d, hidden);
        let Some(key) = runs.iter().find_map(|run| room_for_key(*run, &shown)) else {
            self.report(
                Diagnostic::error(d.span, format!("{} has no room for the key of a state", describe(&value.ty)))
                    .label(format!("each member named in `state(...)` has less than {STATE_KEY} consecutive bytes outside the parts that `shows` names"))
                    .help(
                        "name a member that is the library's alone: the application's struct has the key in its place",
                    ),
            );
            return None;
        };
        let mut visible = Vec::new();
        let mut at = 0;
        for (offset, size) in runs {
            if offset > at {
                visible.push((at, offset - at));
            }
            at = at.max(offset + size);
        }
        if s.size > at {
            visible.push((at, s.size - at));
        }
        let known = self.model.states.iter().position(|name| *name == s.name);
        let number = known.unwrap_or_else(|| {
            self.model.states.push(s.name.clone());
            self.model.states.len() - 1
        });
        Some(StateStruct { kind: number as u32 + 1, size: s.size, key, visible, shown, copies })
    }

    /// `state(...) { shows(part, ...); copies; }`
    fn parts(&mut self, d: &'a Descriptor, hidden: &[&Field]) -> Parts {
        let mut parts = Parts::default();
        for piece in d.body.as_ref().map(pieces).unwrap_or_default() {
            let Piece::Statement(Statement::Descriptor(said)) = piece else {
                self.report(
                    Diagnostic::error(d.span, "a state depends on a condition").label("it is the same in all calls"),
                );
                continue;
            };
            self.misplaced(said, DescriptorScope::State);
            match said.name.text.as_str() {
                "copies" => parts.copies = true,
                "shows" => said
                    .arguments
                    .iter()
                    .flatten()
                    .for_each(|part| self.resolve_shown_member(said, part, hidden, &mut parts)),
                _ => {}
            }
        }
        self.warn_of_unshown_members(d, hidden, &parts);
        parts.shown.sort_unstable();
        parts.shown.dedup();
        parts
    }

    /// A member of a hidden member, which the application reads.
    fn resolve_shown_member(&mut self, d: &Descriptor, part: &Argument, hidden: &[&Field], parts: &mut Parts) {
        let name = match part {
            Argument::Expr(crate::syntax::ast::AstExpr { kind: AstExprKind::Name(name), .. }) => name.as_str(),
            _ => "",
        };
        let Some((offset, field)) = inner(hidden).find(|(_, _, field)| field.name == name).map(|(_, at, f)| (at, f))
        else {
            let near = similar(name, inner(hidden).map(|(_, _, field)| field.name.as_str()));
            let message = format!("no member named in `state(...)` is a struct with a member `{name}`");
            self.report(Diagnostic::error(d.span, message).label("unknown member").suggest(near));
            return;
        };
        if self.needs_rule(&field.ty) {
            let message = format!("`{name}` leads to memory of the server");
            self.report(
                Diagnostic::error(d.span, message).label(describe(&field.ty)).help("only plain data can be shown"),
            );
            return;
        }
        parts.shown.push((offset, field.ty.size()));
    }

    /// Members that the header tells its users of, and that they would not see change.
    fn warn_of_unshown_members(&mut self, d: &Descriptor, hidden: &[&Field], parts: &Parts) {
        let told = |text: &str| self.header.functions.iter().any(|f| mentions(&f.notes.comment, text));
        let missing: Vec<String> = inner(hidden)
            .filter(|(_, offset, _)| !parts.shown.iter().any(|(at, _)| at == offset))
            .map(|(outer, _, field)| (format!("{}.{}", outer.name, field.name), field.name.clone()))
            .filter(|(text, _)| told(text))
            .map(|(_, name)| name)
            .collect();
        if !missing.is_empty() {
            let message = format!("the header tells programs of hidden members: {}", missing.join(", "));
            self.report(
                Diagnostic::warning(d.span, message)
                    .label("they never change in the application's struct")
                    .help(format!("`{{ shows({}); }}` lets them come back after each call", missing.join(", "))),
            );
        }
    }
}
