//! How long the guest keeps its copy of memory that the library hands out.

use super::{Instruction, Operation};
use crate::model::{Expr, Lifetime, MemoryUse};

#[derive(Debug, Clone)]
pub enum Keeping {
    /// As long as the session; equal content once.
    Session,
    /// As long as that handle.
    Owned(Expr),
    /// Until the function of that name is called.
    Until(String),
    /// Until it is freed: index into [`crate::model::Model::freed`].
    Freed(usize),
}

impl Keeping {
    pub fn of(lifetime: &Lifetime) -> Keeping {
        match lifetime {
            Lifetime::Owned(owner) => Keeping::Owned(owner.clone()),
            Lifetime::OwnedUntil(function) => Keeping::Until(function.name.clone()),
            Lifetime::FreedBy(group) => Keeping::Freed(*group),
            _ => Keeping::Session,
        }
    }
}

impl Instruction {
    /// True if the call may change memory that is bound to a handle here.
    pub fn uses_memory(&self) -> bool {
        match &self.operation {
            Operation::Handle(h) => h.memory.used == Some(MemoryUse::ReadWrite),
            Operation::Elements(e) => e.element.iter().any(Instruction::uses_memory),
            Operation::Struct { fields, .. } => fields.iter().any(Instruction::uses_memory),
            Operation::Choice { then, otherwise, .. } => then.iter().chain(otherwise).any(Instruction::uses_memory),
            _ => false,
        }
    }
}
