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
    pub used: Access,
    /// The objects whose memory belongs to this handle, too, once the call has succeeded.
    pub shares: Vec<SharedMemory>,
}

/// What is done with memory that both sides use: what is read must be there before, what is written is there afterwards. `uses`
/// and `uses_read` say so of the library in a call, `mapped_read` and `mapped_write` of the application.
#[derive(Debug, Clone, Default)]
pub struct Access {
    pub read: When,
    pub write: When,
}

#[derive(Debug, Clone, Default)]
pub enum When {
    #[default]
    Never,
    Always,
    If(Expr),
}

impl When {
    pub fn is_possible(&self) -> bool {
        !matches!(self, When::Never)
    }
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
