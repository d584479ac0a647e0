//! What a generated library tells about its API, and the vocabulary of calls.

use crate::Incoming;
use aviary_wire::Metadata;

/// Unpacks a callback that arrived, calls the application's function and packs its answer.
pub type CallbackFn = unsafe fn(&mut Incoming);

/// One type whose values are handles.
pub struct HandleType {
    pub name: &'static str,
    /// Size in bytes of a value: 4 or 8.
    pub size: usize,
    /// Gives the first word of the block that a value points to; `None`: values are ids.
    pub boxed: Option<unsafe fn() -> usize>,
    /// Values that are no objects and cross as they are.
    pub predefined: &'static [u64],
    /// The structure that each handle of the type carries, if any.
    pub metadata: Option<Metadata>,
}

/// One API, as generated.
pub struct ApiDescriptor {
    pub name: &'static str,
    pub version: &'static str,
    pub spec_hash: u64,
    /// Names, by function number.
    pub functions: &'static [&'static str],
    pub handle_types: &'static [HandleType],
    /// By callback kind.
    pub callbacks: &'static [CallbackFn],
}

impl ApiDescriptor {
    pub(crate) fn function(&self, number: u32) -> &'static str {
        self.functions.get(number as usize).copied().unwrap_or("?")
    }
}

/// There is no API server, or no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost;

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Ok,
    Unsupported,
    /// The type of the handle that does not exist.
    InvalidHandle(u32),
    /// Quota or policy, or the guest itself is out of shared memory.
    Refused,
    /// The value that the specification wants returned.
    Failed(i64),
    Lost,
}

/// What a reply does with a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It is known, or owned by the library: no reference of the application's.
    Borrow,
    /// The application owns one reference more.
    Allocate,
}
