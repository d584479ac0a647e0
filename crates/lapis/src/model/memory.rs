//! Memory that both sides use, or that the library hands out.

use super::expressions::Expr;
use crate::syntax::source::Span;

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

/// Rows of a buffer that lie apart, all in elements: how long a row is, how many there are, from one to the next; how many
/// planes of rows, from one to the next.
#[derive(Debug, Clone)]
pub struct RowShape {
    pub numbers: [Expr; 5],
}
