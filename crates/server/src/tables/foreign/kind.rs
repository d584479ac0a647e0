//! The kinds of foreign memory, each with what decides when it ends.

use crate::session::config::{MAX_FREED, MAX_MAPPINGS, MAX_STATES};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `group`: the functions that free it, by number in the specification.
    Lent { group: u32 },
    /// `owner`: the id of the object that it ends with.
    Resident { owner: u64 },
    /// The library keeps it valid until it is told to unmap it.
    Mapped,
    /// `of`: the number of the struct's type in the specification.
    State { of: u32 },
}

impl Kind {
    /// The number of the kinds that are bounded together with it, and the most pieces that a session has of them.
    pub fn bound(self) -> (usize, usize) {
        match self {
            Kind::Lent { .. } => (0, MAX_FREED),
            Kind::Resident { .. } | Kind::Mapped => (1, MAX_MAPPINGS),
            Kind::State { .. } => (2, MAX_STATES),
        }
    }
}
