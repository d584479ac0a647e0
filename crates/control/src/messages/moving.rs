//! Messages about a session that moves to another API server process.
//!
//! The node sends a [`MoveOrder`] to an API server, which passes it on to the session's module over a socket of that
//! session's own; the module's [`MoveReport`] comes back the same way. An API server that holds nothing of a move it is told
//! about answers with a report, too: an order without an answer is one of a process that has ended.

use crate::channel::{Patience, receive_with, send_with};
use crate::messages::assignment::ServerUser;
use crate::messages::form::Message;
use crate::messages::swapping::{SwapOrder, SwapReport};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    io,
    ops::RangeInclusive,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
};

/// Node to the process that serves the session, or is about to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MoveOrder {
    /// Say what a new process needs to be prepared: the session's greeting, in the file that comes along, which the module
    /// seals. The session continues meanwhile.
    Announce {
        /// Number of the attempt, which the answer repeats. The node counts from 1.
        attempt: u64,
    },
    /// Stop all lanes, drain the devices and hand over the session's state, with [`CaptureDescriptors`]. The session stands
    /// until the next order.
    Capture {
        /// As in `Announce`.
        attempt: u64,
        /// Milliseconds within which the session must stand; after that it goes on, and answers `Unmovable`.
        stop_ms: u64,
        /// Bytes of host memory that there are for its state. It is to be parked: rebuilt only once this process has ended, so
        /// that the state has everything. None: it moves.
        #[serde(default)]
        park: Option<u64>,
    },
    /// Go on in this process, after `Capture` or `Wanted`.
    Resume,
    /// Make the session anew that is parked here ([`crate::Assignment::parked`]): answered by `Rebuilt`.
    Rebuild,
    /// Go on with the state that was rebuilt in this process.
    Go,
    /// The program of the session that is parked here has ended: nothing is rebuilt of it.
    End,
    /// About the session's device memory: the session stays in this process.
    Swap(SwapOrder),
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
    /// The session's greeting is in the file of [`MoveOrder::Announce`], which the node does not look into.
    Announced {
        /// That of the order. An answer with another number than that of the present attempt is late, and of no interest.
        attempt: u64,
    },
    /// Of the process itself, after a [`Preparation`]: it has a module of the session's specification, and the vendor's
    /// library is loaded.
    Prepared,
    /// The session stands; its state is in the file and in the socket of [`CaptureDescriptors`].
    Captured {
        /// As in `Announced`.
        attempt: u64,
        figures: CaptureFigures,
    },
    /// The session continues, as it cannot be moved. Of a process to which it was to come: it cannot come.
    Unmovable {
        /// As in `Announced`; 0: it is no answer to an order with a number.
        attempt: u64,
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
    /// About the session's device memory.
    Swap(SwapReport),
}

impl MoveReport {
    /// The attempt to whose order to announce or to capture the old process answers with it.
    pub fn answers(&self) -> Option<u64> {
        match self {
            Self::Announced { attempt } | Self::Captured { attempt, .. } | Self::Unmovable { attempt, .. } => {
                Some(*attempt)
            }
            _ => None,
        }
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
    /// The program was told something that may be otherwise in another process: before this one ends, another one has to
    /// make the session anew and compare.
    #[serde(default)]
    pub rehearse: bool,
}

/// The descriptors of an order to capture. The node makes them all, so that it never has one that an API server has chosen.
#[derive(Debug)]
pub struct CaptureDescriptors<F> {
    /// Two connected sockets ([`crate::order_sockets`]): the module puts into the first one what it hands over beside the state,
    /// and the second one goes on with that.
    pub handing: [F; 2],
    /// An empty file for the state, which the module seals.
    pub file: F,
    /// Where the module leaves the rest of the state: [`StateDescriptors::leave`].
    pub rest: F,
}

impl<F: AsFd> CaptureDescriptors<F> {
    /// In the order in which they travel.
    pub fn list(&self) -> Vec<BorrowedFd<'_>> {
        let [from, handed] = &self.handing;
        [from, handed, &self.file, &self.rest].into_iter().map(AsFd::as_fd).collect()
    }
}

impl CaptureDescriptors<OwnedFd> {
    const COUNT: usize = 4;

    /// Out of what came with the order; `None`: there are not as many as it needs.
    pub fn of(descriptors: Vec<OwnedFd>) -> Option<Self> {
        let [from, handed, file, rest] = <[OwnedFd; Self::COUNT]>::try_from(descriptors).ok()?;
        Some(Self { handing: [from, handed], file, rest })
    }
}

/// An empty file for a session's greeting or state.
///
/// # Errors
/// As memfd_create(2).
pub fn state_file() -> rustix::io::Result<OwnedFd> {
    memfd_create("aviary-moved", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
}

/// Two connected sockets for the rest of a state: from the first, which the module gets, to the second, in which it stays as long
/// as the node keeps it.
///
/// # Errors
/// As socketpair(2).
pub fn state_sockets() -> rustix::io::Result<[OwnedFd; 2]> {
    let (from, to) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    shutdown(&from, Shutdown::Read)?;
    Ok([from, to])
}

/// Everything that a captured session consists of, from the old process to the new one. The node holds it and sees nothing of
/// it: a file of its own making, and a socket of its own in which the rest is in flight.
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

/// How many descriptors come with a session's state, apart from those of every session: its file.
pub(crate) const STATE_DESCRIPTORS: usize = 1;
/// The message that carries the rest.
const REST: &[u8] = b"rest";

impl StateDescriptors<OwnedFd> {
    /// Leaves all but the file in a socket.
    ///
    /// # Errors
    /// As sendmsg(2): more descriptors of this user are in flight than it may have, for instance.
    pub fn leave(&self, rest: BorrowedFd<'_>) -> io::Result<()> {
        let [out, errors] = &self.output;
        let all = [&self.guest, &self.arena, out, errors, &self.handed];
        let all: Vec<_> = all.into_iter().chain(&self.heap).map(AsFd::as_fd).collect();
        send_with(rest, REST, &all, Patience::None)
    }

    /// Copies of what was left in a socket, where it stays for a process that comes later.
    ///
    /// # Errors
    /// Nothing is there, or something else.
    pub fn find(snapshot: OwnedFd, rest: BorrowedFd<'_>) -> io::Result<Self> {
        let (_, _, descriptors) = receive_with(rest, &mut [0; REST.len()], RecvFlags::PEEK)?;
        let mut all = descriptors.into_iter();
        let mut next = || all.next().ok_or(io::ErrorKind::InvalidData);
        let (guest, arena, output, handed) = (next()?, next()?, [next()?, next()?], next()?);
        Ok(Self { snapshot, guest, arena, output, handed, heap: all.next() })
    }
}

impl Message for MoveOrder {
    fn descriptors(&self) -> RangeInclusive<usize> {
        let count = match self {
            Self::Announce { .. } => 1,
            Self::Capture { .. } => CaptureDescriptors::COUNT,
            Self::Resume | Self::Rebuild | Self::Go | Self::End | Self::Swap(_) => 0,
        };
        count..=count
    }
}

impl Message for MoveReport {
    fn descriptors(&self) -> RangeInclusive<usize> {
        0..=0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn same(one: &OwnedFd, other: &OwnedFd) -> bool {
        let target = |fd: &OwnedFd| std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
        target(one) == target(other)
    }

    #[test]
    fn rest_of_a_state_is_found_as_often_as_it_is_looked_for() {
        let open = || state_file().unwrap();
        for heap in [false, true] {
            let [from, to] = state_sockets().unwrap();
            assert!(StateDescriptors::find(open(), to.as_fd()).is_err(), "nothing is there");
            let left = StateDescriptors {
                snapshot: open(),
                guest: std::io::pipe().unwrap().0.into(),
                arena: std::io::pipe().unwrap().0.into(),
                output: [std::io::pipe().unwrap().1.into(), std::io::pipe().unwrap().1.into()],
                handed: std::io::pipe().unwrap().0.into(),
                heap: heap.then(open),
            };
            left.leave(from.as_fd()).unwrap();
            drop(from);
            for _ in 0..3 {
                let found = StateDescriptors::find(open(), to.as_fd()).unwrap();
                let pairs = [(&left.guest, &found.guest), (&left.arena, &found.arena), (&left.handed, &found.handed)];
                assert!(pairs.iter().all(|(one, other)| same(one, other)));
                assert!((0..2).all(|at| same(&left.output[at], &found.output[at])));
                assert_eq!(found.heap.is_some(), heap);
            }
        }
    }

    #[test]
    fn too_few_descriptors_are_no_state() {
        let [from, to] = state_sockets().unwrap();
        let few = [from.as_fd(); 4];
        send_with(from.as_fd(), REST, &few, Patience::None).unwrap();
        assert!(StateDescriptors::find(state_file().unwrap(), to.as_fd()).is_err());
        assert!(send_with(to.as_fd(), REST, &[], Patience::None).is_err(), "nothing goes back");
    }
}
