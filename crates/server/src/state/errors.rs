//! Why a session cannot be captured, or not be rebuilt.

use aviary_state::FormatError;

use crate::handles::{Difference, ForeignImage};

/// Bytes of which an object of a `remade` type is made again.
pub(super) const MAX_REMADE_BYTES: usize = 4096;

/// References of one object that a snapshot may have: each missing one is a call.
pub(super) const MAX_REFERENCES: u64 = 1 << 20;

/// Why a session cannot be moved.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum NotMovable {
    /// its calls are not recorded: the node's configuration says that it stays
    NotRecorded,
    /// its object log is larger than it may be
    LogTooLarge,
    /// it has ended
    Ended,
    /// an object of type {of} was made by a call that is not recorded
    Unrecorded { of: &'static str },
    /// it has an object of type {of}: {why}
    Blocked { of: &'static str, why: &'static str },
    /// it has called {function}: {why}
    BlockedByCall { function: &'static str, why: &'static str },
    /// the state of an object of type {of} cannot be saved
    State { of: &'static str },
    /// an object of type {of} is not complete: not now
    Incomplete { of: &'static str },
    /// an object of type {of} has {references} references
    References { of: &'static str, references: u64 },
    /// {what}: not now
    Busy { what: &'static str },
    /// {why}: not now
    Stays { why: String },
    /// the snapshot cannot be written: {0}
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
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum RebuildError {
    /// the snapshot is of another API, or of another version of its specification
    OtherApi,
    /// {0}
    Format(#[from] FormatError),
    /// {0}
    Table(#[from] ForeignImage),
    /// {function}, repeated in the new API server, is damaged: {reason}
    Damaged { function: String, reason: String },
    /// {function}, repeated in the new API server, failed with {error}
    Failed { function: &'static str, error: i64 },
    /// {function}, repeated in the new API server: {difference}
    Different { function: &'static str, difference: Difference },
    /// {function}, repeated in the new API server, returns {found:x?} instead of {expected:x?}
    NotSame { function: &'static str, found: Vec<u64>, expected: Vec<u64> },
    /// {function}, repeated in the new API server, does not return the memory that it returned before
    Memory { function: &'static str },
    /// {0}
    Missing(#[from] Difference),
    /// an object of type {of} has {found} references instead of {expected}, and no call changes that
    References { of: &'static str, found: u64, expected: u64 },
    /// the state of an object of type {of} cannot be restored
    State { of: &'static str },
    /// the accounts have no room for what the session holds: {0}
    Accounts(String),
}

impl RebuildError {
    /// True if another attempt may succeed: the vendor's library refuses what it did before, as it does while other programs
    /// have the device's memory.
    pub fn may_end(&self) -> bool {
        matches!(self, RebuildError::Failed { .. } | RebuildError::State { .. } | RebuildError::Memory { .. })
    }
}
