//! The description of an API by its generated library, and the types of calls.

use crate::connection::incoming::Incoming;
use crate::handles::handle_type::HandleType;

/// Unpacks a received callback, calls the application's function and packs its answer.
pub type CallbackFn = unsafe fn(&mut Incoming);

/// One kind of callback, as generated.
pub struct CallbackKind {
    pub invoke: CallbackFn,
    /// Calls the application's function for a callback, called at most once, whose API server is gone; `None`: it is not
    /// called then.
    pub lost: Option<CallbackFn>,
}

/// One API, as generated.
pub struct ApiDescriptor {
    pub name: &'static str,
    pub version: &'static str,
    pub spec_hash: u64,
    /// Names of the variables that an application may set for the vendor's library, in the specification's order.
    pub environment: &'static [&'static str],
    /// Names, by function number.
    pub functions: &'static [&'static str],
    pub handle_types: &'static [HandleType],
    pub callbacks: &'static [CallbackKind],
}

impl ApiDescriptor {
    pub(crate) fn function(&self, number: u32) -> &'static str {
        self.functions.get(number as usize).copied().unwrap_or("?")
    }
}

/// There is no API server, or no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost;

/// The result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Ok,
    Unsupported,
    /// The vendor's library lacks the function.
    Absent,
    /// A handle names no object; the handle's type.
    InvalidHandle(u32),
    /// Refused by quota or policy, or because the guest is out of shared memory.
    Refused,
    /// The value that the specification wants returned.
    Failed(i64),
    Lost,
}
