//! Source text and places in it.

/// A range of bytes in one source file of a specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// Which file: an index that the front end hands out (imports make several).
    pub file: u32,
    pub start: u32,
    pub end: u32,
}
