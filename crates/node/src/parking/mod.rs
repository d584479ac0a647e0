//! Parked sessions: their state lies in the node, nothing of them is on a device, and their programs keep their processes. A
//! program's next call brings them back, or an operator does.
//!
//! A session parks by a move whose new API server makes nothing of it: that one watches the memory in which the program's
//! call would appear, and makes the session anew at the order to do so. Until then the node keeps the captured state and all
//! descriptors, so that this API server can be replaced. The node looks into none of that.

mod idle;
mod life;
mod steps;

pub(crate) use idle::IdleWatch;
pub(crate) use life::ParkLife;

use aviary_control::StateDescriptors;
use aviary_gate::HeldAmount;
use rustix::fs::SealFlags;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::{AsFd, OwnedFd},
    time::Instant,
};

/// Seals that keep a state's file as long as it is.
const OF_FIXED_LENGTH: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE);

/// The state of a parked session, for `aviary ps`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkedReport {
    /// For people: whether it waits for something.
    pub state: String,
    /// Bytes of host memory that its state takes.
    pub bytes: u64,
    pub seconds: u64,
}

/// Host memory that the states of a node's parked sessions take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkedMemory {
    pub used: u64,
    /// They may take so much.
    pub limit: u64,
}

/// The answer to the request to bring sessions back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnparkStatus {
    /// It is not parked, or not any more.
    Running,
    /// With its state, for people.
    UnderWay(String),
}

/// Everything that the node keeps of one parked session.
#[derive(Debug)]
pub(crate) struct Kept {
    pub state: StateDescriptors<OwnedFd>,
    /// Length of the state's file, which its seals keep.
    pub bytes: u64,
}

/// The sessions of one program.
#[derive(Debug)]
pub(crate) struct Park {
    pub sessions: BTreeMap<u64, Kept>,
    /// Amounts that their API server held when they were parked, and that the next one will hold.
    pub held: Vec<HeldAmount>,
    pub life: ParkLife,
    pub since: Instant,
}

impl Park {
    fn ids(&self) -> BTreeSet<u64> {
        self.sessions.keys().copied().collect()
    }
}

/// All parked sessions of a node, by the API server that watches their lanes.
#[derive(Debug, Default)]
pub(crate) struct Parks {
    pub by_server: BTreeMap<u64, Park>,
}

impl Parks {
    pub fn of(&self, server: u64) -> Option<&Park> {
        self.by_server.get(&server)
    }

    pub fn has_session(&self, server: u64, session: u64) -> bool {
        self.of(server).is_some_and(|park| park.sessions.contains_key(&session))
    }

    /// Bytes of the states of one API server's sessions.
    pub fn bytes_of(&self, server: u64) -> Option<u64> {
        self.of(server).map(|park| park.sessions.values().map(|kept| kept.bytes).sum())
    }

    /// Bytes of all states.
    pub fn bytes(&self) -> u64 {
        self.by_server.values().flat_map(|park| park.sessions.values()).map(|kept| kept.bytes).sum()
    }

    pub fn next_look(&self) -> Option<Instant> {
        self.by_server.values().filter_map(|park| park.life.next_look()).min()
    }

    pub fn report(&self, server: u64, session: u64, now: Instant) -> Option<ParkedReport> {
        let park = self.of(server)?;
        let kept = park.sessions.get(&session)?;
        let seconds = now.saturating_duration_since(park.since).as_secs();
        Some(ParkedReport { state: park.life.told(), bytes: kept.bytes, seconds })
    }
}

/// Bytes that the states of parked sessions may take in a node that is told nothing.
pub(crate) const USUAL_PARKED_MEMORY: u64 = 1 << 30;

/// Length of a session's state, if it cannot change any more; `None`: whoever wrote it could still make it longer.
pub(crate) fn fixed_length(snapshot: &OwnedFd) -> Option<u64> {
    let seals = rustix::fs::fcntl_get_seals(snapshot.as_fd()).ok()?;
    let length = rustix::fs::fstat(snapshot).ok()?.st_size;
    seals.contains(OF_FIXED_LENGTH).then(|| u64::try_from(length).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    #[test]
    fn only_sealed_files_have_a_length() {
        let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, 4096).unwrap();
        assert_eq!(fixed_length(&file), None);
        fcntl_add_seals(&file, OF_FIXED_LENGTH).unwrap();
        assert_eq!(fixed_length(&file), Some(4096));
        assert_eq!(fixed_length(&std::fs::File::open("/dev/null").unwrap().into()), None);
    }
}
