//! Messages about a session that moves to another API server process.
//!
//! The node sends a [`MoveOrder`] to an API server, which passes it on to the session's module over a socket of that
//! session's own; the module's [`MoveReport`] comes back the same way. An API server that holds nothing of a move it is told
//! about answers with a report, too: an order without an answer is one of a process that has ended.

use crate::{Message, ServerUser};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    ops::RangeInclusive,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
};

/// Node to the process that serves the session, or is about to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MoveOrder {
    /// Say what a new process needs to be prepared. The session goes on meanwhile.
    Announce,
    /// Stop all lanes, drain the devices and hand over the session's state. The session stands until the next order. The two
    /// ends of a socket come along ([`crate::order_sockets`]): the module puts into the first one what it hands over beside
    /// the state, and the second one goes on with that.
    Capture {
        /// Milliseconds within which the session must stand; after that it goes on, and answers `Unmovable`.
        stop_ms: u64,
        /// It is to be parked: made anew only once this process has ended, so that the state has everything.
        #[serde(default)]
        park: bool,
    },
    /// Go on in this process, after `Capture` or `Wanted`.
    Resume,
    /// Make the session anew that is parked here ([`crate::Assignment::parked`]): answered by `Rebuilt`.
    Rebuild,
    /// Go on with the state that was rebuilt in this process.
    Go,
}

/// The preparations of a process before a session comes to it. Node to the process that the session may move to, while the
/// session still runs; with the file of `Announced`: without it the module is only loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preparation {
    pub session: u64,
    /// Searched in order for `<api>/server.so`.
    pub modules: Vec<PathBuf>,
    pub api: String,
    /// Of the specification that the session's guest library was made from.
    pub spec_hash: u64,
    /// The process is this user's from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<ServerUser>,
    /// The node serves one program only and has its environment.
    #[serde(default)]
    pub private: bool,
    /// As in [`Assignment`](crate::Assignment).
    #[serde(default)]
    pub vendors: BTreeMap<String, String>,
}

/// Module to the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MoveReport {
    /// The session's greeting in a sealed file, which the node does not look into: after [`MoveOrder::Announce`].
    Announced,
    /// Of the process itself, after a [`Preparation`]: it has a module of the session's specification, and the vendor's
    /// library is loaded.
    Prepared,
    /// The session stands; its state comes as [`StateDescriptors`].
    Captured(CaptureFigures),
    /// The session goes on, as it cannot be moved.
    Unmovable {
        /// For people: what is in the way, by name.
        reason: String,
        /// Trying again is of no use.
        lasting: bool,
    },
    /// The session cannot be made anew in this process: a call that was made again answers something else than what the
    /// program was told.
    Differs {
        /// For people.
        reason: String,
    },
    /// The session stands in the new process.
    Rebuilt {
        /// Time that it took, in microseconds.
        rebuild_us: u64,
    },
    /// The session is parked in this process: nothing of it is made, and the memory that its program would write to is
    /// watched.
    Parked,
    /// The session stands and asks to be moved (`Assignment::move_every`); it waits for an order. Of a session that is
    /// parked: its program has called.
    Wanted,
}

impl MoveReport {
    /// True of those with which the old process answers an order to announce or to capture.
    pub fn is_answer(&self) -> bool {
        matches!(self, Self::Announced | Self::Captured(_) | Self::Unmovable { .. })
    }
}

/// Figures of one capture. An API server may lie; they are shown to people only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureFigures {
    /// Before that, while the session ran: until there was memory for the content of its devices, in microseconds.
    #[serde(default)]
    pub reserve_us: u64,
    /// Until all lanes stood, in microseconds.
    pub stop_us: u64,
    /// Until the devices had done everything, in microseconds.
    pub drain_us: u64,
    /// Until the state was written, in microseconds.
    pub capture_us: u64,
    /// Length of the state.
    pub bytes: u64,
    /// The application's heap is a part of the arena: its file comes along.
    pub heap: bool,
    /// The program was told something that may be otherwise in another process: before this one ends, another one has to
    /// make the session anew and compare.
    #[serde(default)]
    pub rehearse: bool,
}

/// The descriptors of a captured session, from the old process by way of the node to the new one. The node looks into none
/// of them.
#[derive(Debug)]
pub struct StateDescriptors<F> {
    /// The sealed file with the state.
    pub snapshot: F,
    /// The guest's socket.
    pub guest: F,
    pub arena: F,
    /// Where what the vendor's library prints goes.
    pub output: [F; 2],
    /// A socket in which descriptors wait that the module hands over.
    pub handed: F,
    /// The file of the application's heap.
    pub heap: Option<F>,
}

/// Descriptors beside the guest's socket and the heap: snapshot, arena, standard output and standard error, what is handed over.
const STATE_DESCRIPTORS: usize = 5;

impl<F: AsFd> StateDescriptors<F> {
    /// In the order in which they travel. The guest's socket goes first.
    pub fn list(&self) -> Vec<BorrowedFd<'_>> {
        let [out, errors] = &self.output;
        let all = [&self.guest, &self.snapshot, &self.arena, out, errors, &self.handed];
        all.into_iter().chain(&self.heap).map(AsFd::as_fd).collect()
    }
}

impl StateDescriptors<OwnedFd> {
    /// Out of what came with `Captured`; `None`: there are not as many as it needs.
    pub fn of(descriptors: Vec<OwnedFd>) -> Option<Self> {
        let mut all = descriptors.into_iter();
        let guest = all.next()?;
        Self::behind(guest, all)
    }

    /// Out of what follows the guest's socket.
    pub fn behind(guest: OwnedFd, mut rest: impl Iterator<Item = OwnedFd>) -> Option<Self> {
        let (snapshot, arena) = (rest.next()?, rest.next()?);
        let output = [rest.next()?, rest.next()?];
        let handed = rest.next()?;
        Some(Self { snapshot, guest, arena, output, handed, heap: rest.next() })
    }
}

/// How many descriptors come with a session's state, apart from those of every session.
pub(crate) fn state_descriptors(heap: bool) -> usize {
    STATE_DESCRIPTORS + usize::from(heap)
}

impl Message for MoveOrder {
    fn descriptors(&self) -> RangeInclusive<usize> {
        let count = if matches!(self, Self::Capture { .. }) { 2 } else { 0 };
        count..=count
    }
}

impl Message for MoveReport {
    fn descriptors(&self) -> RangeInclusive<usize> {
        let count = match self {
            Self::Announced => 1,
            Self::Captured(figures) => 1 + state_descriptors(figures.heap),
            Self::Prepared
            | Self::Unmovable { .. }
            | Self::Differs { .. }
            | Self::Rebuilt { .. }
            | Self::Parked
            | Self::Wanted => 0,
        };
        count..=count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_descriptors_keep_their_order() {
        let open = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        for heap in [false, true] {
            let figures = CaptureFigures { heap, ..CaptureFigures::default() };
            let count = *MoveReport::Captured(figures).descriptors().start();
            let sent: Vec<OwnedFd> = (0..count).map(|_| open()).collect();
            let numbers: Vec<_> = sent.iter().map(std::os::fd::AsRawFd::as_raw_fd).collect();
            let state = StateDescriptors::of(sent).unwrap();
            assert_eq!(state.heap.is_some(), heap);
            assert_eq!(state.list().iter().map(std::os::fd::AsRawFd::as_raw_fd).collect::<Vec<_>>(), numbers);
        }
        assert!(StateDescriptors::of(vec![open(), open(), open(), open(), open()]).is_none());
    }
}
