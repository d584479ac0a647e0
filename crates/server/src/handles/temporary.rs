//! Objects of a rebuild as values: the ids that calls which are made again must produce, and objects that have ended.

use std::collections::{HashMap, HashSet, VecDeque};

use super::entry::HandleEntry;

/// The ids of a call that is made again came out otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub enum Difference {
    /// the library gave object {known:#x} where it had given {expected:#x}
    Other { expected: u64, known: u64 },
    /// object {expected:#x} did not come back
    Missing { expected: u64 },
}

/// the table of the snapshot is none that a session could have
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub struct ForeignImage;

pub(super) struct TemporaryObject {
    pub(super) native: u64,
    pub(super) entry: HandleEntry,
}

/// The state of a rebuild.
pub(super) struct Rebuilding {
    /// The ids that the replies of the call under way must produce, in order.
    pub(super) expected: VecDeque<u64>,
    /// The ids of the snapshot's objects.
    pub(super) live: HashSet<u64>,
    /// Objects that have ended, by id.
    pub(super) temporary: HashMap<u64, TemporaryObject>,
    pub(super) temporary_by_native: HashMap<(u32, u64), u64>,
    pub(super) difference: Option<Difference>,
}

impl Rebuilding {
    pub(super) fn temporary_id(&self, ty: u32, native: u64) -> Option<u64> {
        self.temporary_by_native.get(&(ty, native)).copied()
    }
}
