//! The state of a session as a snapshot, and a session from a snapshot.
//!
//! [`capture`] writes what a fresh API server needs to make the objects of a paused session again: the object log, the
//! ids, references and charges of all objects, and their explicit state. [`rebuild`] makes the recorded calls again by
//! the handlers that every call has; the objects keep their ids. What the guest sees of the session beside that, lanes,
//! arena, tickets, does not pass here.

mod capture;
mod rebuild;
mod replay;

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::Arc;

use aviary_state::{FormatError, Record, Store};

use crate::api::ObjectName;
use crate::handles::{Difference, ForeignImage};
use crate::session::Session;

pub use capture::{capture, may_differ};
pub use rebuild::{rebuild, rebuild_thread};
pub(crate) use replay::ReplayedCall;

/// Bytes of which an object of a `remade` type is made again.
const MAX_REMADE_BYTES: usize = 4096;

/// References of one object that a snapshot may have: each missing one is a call.
const MAX_REFERENCES: u64 = 1 << 20;

/// Why a session cannot be moved.
#[derive(Debug, thiserror::Error)]
pub enum NotMovable {
    /// its calls are not recorded: the node's configuration says that it stays
    #[error("its calls are not recorded: the node's configuration says that it stays")]
    NotRecorded,
    /// its object log is larger than it may be
    #[error("its object log is larger than it may be")]
    LogTooLarge,
    /// it has ended
    #[error("it has ended")]
    Ended,
    /// an object of type {of} was made by a call that is not recorded
    #[error("an object of type {of} was made by a call that is not recorded")]
    Unrecorded { of: &'static str },
    /// it has an object of type {of}: {why}
    #[error("it has an object of type {of}: {why}")]
    Blocked { of: &'static str, why: &'static str },
    /// it has called {function}: {why}
    #[error("it has called {function}: {why}")]
    BlockedByCall { function: &'static str, why: &'static str },
    /// the state of an object of type {of} cannot be saved
    #[error("the state of an object of type {of} cannot be saved")]
    State { of: &'static str },
    /// an object of type {of} is not complete: not now
    #[error("an object of type {of} is not complete: not now")]
    Incomplete { of: &'static str },
    /// an object of type {of} has {references} references
    #[error("an object of type {of} has {references} references")]
    References { of: &'static str, references: u64 },
    /// {what}: not now
    #[error("{what}: not now")]
    Busy { what: &'static str },
    /// {why}: not now
    #[error("{why}: not now")]
    Stays { why: String },
    /// the snapshot cannot be written: {0}
    #[error("the snapshot cannot be written: {0}")]
    Format(#[from] FormatError),
}

impl NotMovable {
    /// False: another attempt, a little later, may succeed.
    pub fn is_final(&self) -> bool {
        !matches!(
            self,
            NotMovable::Busy { .. } | NotMovable::Stays { .. } | NotMovable::Incomplete { .. } | NotMovable::Format(_)
        )
    }
}

/// Why a session cannot be made again from a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// the snapshot is of another API, or of another version of its specification
    #[error("the snapshot is of another API, or of another version of its specification")]
    OtherApi,
    /// {0}
    #[error("{0}")]
    Format(#[from] FormatError),
    /// {0}
    #[error("{0}")]
    Table(#[from] ForeignImage),
    /// {function}, made again, is damaged: {reason}
    #[error("{function}, made again, is damaged: {reason}")]
    Damaged { function: String, reason: String },
    /// {function}, made again, failed with {error}
    #[error("{function}, made again, failed with {error}")]
    Failed { function: &'static str, error: i64 },
    /// {function}, made again: {difference}
    #[error("{function}, made again: {difference}")]
    Different { function: &'static str, difference: Difference },
    /// {function}, made again, answers another value than it did
    #[error("{function}, made again, answers another value than it did")]
    NotSame { function: &'static str },
    /// {function}, made again, does not give out the memory that it did
    #[error("{function}, made again, does not give out the memory that it did")]
    Memory { function: &'static str },
    /// {0}
    #[error("{0}")]
    Missing(#[from] Difference),
    /// an object of type {of} has {found} references instead of {expected}, and no call changes that
    #[error("an object of type {of} has {found} references instead of {expected}, and no call changes that")]
    References { of: &'static str, found: u64, expected: u64 },
    /// the state of an object of type {of} cannot be restored
    #[error("the state of an object of type {of} cannot be restored")]
    State { of: &'static str },
    /// the accounts have no room for what the session holds: {0}
    #[error("the accounts have no room for what the session holds: {0}")]
    Accounts(String),
}

/// How far the vendor's library is with what it was given.
#[derive(Debug)]
pub enum Quiet {
    Done,
    /// Not yet.
    Again,
    Blocked(NotMovable),
}

/// Asks the vendor's library to finish what it was given.
pub fn quiesce(session: &Session) -> Quiet {
    // SAFETY: the specification's own function.
    let answer = session.api.quiesce.map_or(0, |quiesce| unsafe { quiesce() });
    match (answer, stays(session)) {
        (1.., _) => Quiet::Again,
        (_, Some(why)) => Quiet::Blocked(NotMovable::Stays { why }),
        (0, None) => Quiet::Done,
        _ => Quiet::Blocked(NotMovable::Busy { what: "the library has work that only the application can end" }),
    }
}

/// The reason that the specification gives for the session not to move now.
fn stays(session: &Session) -> Option<String> {
    // SAFETY: the specification's own function.
    let why = unsafe { session.api.stays?() };
    // SAFETY: not NULL, so it ends with a NUL and is still there, as `ApiDescriptor` says.
    (!why.is_null()).then(|| unsafe { CStr::from_ptr(why) }.to_string_lossy().into_owned())
}

/// Names in the process that wrote a snapshot, and what stands for them here: another device, for example. A name that
/// is not in it is the same.
#[derive(Debug, Clone, Default)]
pub struct Places {
    pub identities: BTreeMap<String, String>,
}

/// The part of a snapshot that only threads of the new session can make again.
pub struct Rebuilt {
    /// By the number of their lane, in order.
    threads: BTreeMap<u32, Vec<Record>>,
    store: Arc<Store>,
}

/// The name of an object as the specification says it.
///
/// # Safety
/// `identity` may be called with this native value.
pub(crate) unsafe fn name_of(identity: ObjectName, native: u64) -> Option<String> {
    // SAFETY: the caller's promise.
    let name = unsafe { identity(native) };
    if name.is_null() {
        return None;
    }
    // SAFETY: not NULL, so it ends with a NUL and is still there, as `ObjectName` says.
    Some(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
