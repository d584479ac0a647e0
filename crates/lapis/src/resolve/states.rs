//! Structs that the application allocates and of which the server keeps what is the library's own.

use super::kinds::Descriptors;
use super::types::describe;
use super::values::Value;
use super::{Piece, Resolver};
use crate::ast::{Descriptor, Statement};
use crate::diagnostics::Diagnostic;
use crate::model::{Field, STATE_KEY, StateStruct, Struct, Type};

impl<'a> Resolver<'a> {
    /// True if the type-wide description of a struct says `state`.
    pub(super) fn is_state(&self, ty: &Type) -> bool {
        let is_it =
            |piece: &Piece| matches!(piece, Piece::Statement(Statement::Descriptor(d)) if d.name.text == "state");
        self.type_rule(ty).is_some_and(|rule| self.type_rules[rule].body.iter().any(is_it))
    }

    /// `scratch(n, resource)`: the account of the memory.
    pub(super) fn scratch_resource(&mut self, d: &Descriptor) -> Option<usize> {
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
    pub(super) fn state(
        &mut self,
        all: &Descriptors,
        s: &Struct,
        hidden: &[&Field],
        value: &Value,
    ) -> Option<StateStruct> {
        let d = all.get("state")?;
        let mut runs: Vec<(usize, usize)> = hidden.iter().map(|f| (f.offset, f.ty.size())).collect();
        runs.sort_unstable();
        let key = runs.first()?.0;
        if !runs.iter().any(|(_, size)| *size >= STATE_KEY) {
            self.report(
                Diagnostic::error(d.span, format!("{} has no room for the key of a state", describe(&value.ty)))
                    .label(format!("no hidden member has {STATE_KEY} bytes"))
                    .help(
                        "name a member that is the library's alone: the application's struct has the key in its place",
                    ),
            );
            return None;
        }
        let key = runs.iter().find(|(_, size)| *size >= STATE_KEY).map_or(key, |(offset, _)| *offset);
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
        Some(StateStruct { kind: number as u32 + 1, size: s.size, key, visible })
    }
}
