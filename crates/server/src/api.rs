//! The description of an API in its generated module.

use crate::call::Call;

pub use aviary_gate::Kind as ResourceKind;
pub use aviary_wire::Metadata;

/// Everything constant about one API, printed by the generator.
pub struct ApiDescriptor {
    pub name: &'static str,
    pub version: &'static str,
    pub spec_hash: u64,
    /// Names of the variables that an application may set for the vendor's library, in the specification's order.
    pub environment: &'static [&'static str],
    /// The vendor library.
    pub soname: &'static str,
    pub functions: &'static [FunctionInfo],
    pub handle_types: &'static [HandleTypeInfo],
    pub resources: &'static [(&'static str, ResourceKind)],
    /// The error value that an asynchronous call of this function leaves behind when it is rejected.
    pub rejected: fn(function: u32, Reject) -> i64,
}

pub struct FunctionInfo {
    pub name: &'static str,
    pub handler: Handler,
    /// The call belongs to an object and is kept for replay.
    pub replayable: bool,
}

pub struct HandleTypeInfo {
    pub name: &'static str,
    /// Bytes of a native value: 4 or 8.
    pub size: usize,
    /// Values that are no objects and cross as they are.
    pub predefined: &'static [u64],
    /// The structure that each object of the type carries, if any.
    pub metadata: Option<Metadata>,
}

/// Decodes one request, calls the vendor's function, encodes the reply.
///
/// # Safety
/// The handler calls the vendor library with what it decoded; the caller
/// guarantees that the call was set up for this very function.
pub type Handler = unsafe fn(&mut Call) -> Result<(), Reject>;

/// Why a call never reached the vendor's function, or what it answers instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reject {
    /// The guest sent what no honest guest sends: ends the session.
    Malformed(&'static str),
    /// A handle of this type that does not exist in this session.
    InvalidHandle(u32),
    /// The vendor library has no such function.
    Unsupported,
    /// A quota or policy said no.
    Refused,
    /// The call would end an object that a call of another thread still uses.
    Busy,
    /// The call fails with this value of the API's error type.
    Failed(i64),
}

/// The treatment of a handle by the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Mentions an object that exists on its own.
    Borrow,
    /// Created it, or adds a reference that the guest will release.
    Allocate,
}
