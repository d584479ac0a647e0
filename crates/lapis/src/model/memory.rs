//! Memory of the library's own that applications hold.

use super::{Expr, Function, Kind, Lifetime, Model, Plan};
use crate::source::Span;

/// A function of the API, `table.member` for one of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionName {
    pub name: String,
    pub span: Span,
}

/// The functions any of which frees a piece of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreeingFunctions {
    pub functions: Vec<FunctionName>,
}

/// The relation of a call to memory that both sides use and that belongs to a handle.
#[derive(Debug, Clone, Default)]
pub struct HandleMemory {
    pub used: Option<MemoryUse>,
    /// The objects whose memory belongs to this handle, too, once the call has succeeded.
    pub shares: Vec<SharedMemory>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryUse {
    Read,
    /// Reads it, and may change it.
    ReadWrite,
}

#[derive(Debug, Clone)]
pub enum SharedMemory {
    /// Of one object, in exchange for what is shared in that place; without a place in the first.
    One { object: Expr, place: Option<Expr> },
    /// Of each object of an array, by its number.
    All { objects: Expr, count: Expr },
}

impl Model {
    /// The indices in [`Model::freed`] of what a function frees.
    pub fn freed_by(&self, function: &str) -> Vec<usize> {
        let names = |group: &FreeingFunctions| group.functions.iter().any(|known| known.name == function);
        (0..self.freed.len()).filter(|index| names(&self.freed[*index])).collect()
    }

    /// True if a call of the function ends memory that another one has handed out until then.
    pub fn ends_memory(&self, function: &str) -> bool {
        let mut ends = false;
        for other in &self.functions {
            other.each_plan(&mut |plan| {
                ends |= matches!(&plan.lifetime, Lifetime::OwnedUntil(until) if until.name == function);
            });
        }
        ends
    }
}

impl Function {
    /// True if the guest has numbers for memory of the library's that a call tells of.
    pub fn hands_out_memory(&self) -> bool {
        let mut hands_out = false;
        self.each_plan(&mut |plan| hands_out |= plan.is_numbered_memory());
        hands_out
    }
}

impl Plan {
    /// True of memory of the library's for which the guest has a number.
    pub fn is_numbered_memory(&self) -> bool {
        matches!(self.kind, Kind::Resident { .. }) || matches!(self.lifetime, Lifetime::FreedBy(_))
    }
}

impl Lifetime {
    /// True of memory that the library hands out.
    pub fn is_of_library(&self) -> bool {
        matches!(self, Lifetime::Owned(_) | Lifetime::OwnedUntil(_) | Lifetime::FreedBy(_))
    }
}

impl Kind {
    /// True of what may be a piece of memory that the library hands out.
    pub fn is_given_memory(&self) -> bool {
        matches!(self, Kind::String | Kind::Buffer(_) | Kind::Resident { .. })
    }
}
