//! Types of handles, and what replies do with handles.

use aviary_wire::Metadata;

/// One type whose values are handles.
pub struct HandleType {
    pub name: &'static str,
    /// Size in bytes of a value: 4 or 8.
    pub size: usize,
    /// Returns the first word of the block to which a value points; `None`: values are ids.
    pub boxed: Option<unsafe fn() -> usize>,
    /// Returns the address of the table of which each value points to a copy, and its words; `None`: they do not.
    pub shape: Option<(fn() -> usize, usize)>,
    /// Values that name no object and are sent unchanged.
    pub predefined: &'static [u64],
    /// The structure that each handle of the type carries, if any.
    pub metadata: Option<Metadata>,
}

/// The effect of a reply on a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The handle is known, or owned by the library: the application gets no reference.
    Borrow,
    /// The application owns one reference more.
    Allocate,
}
