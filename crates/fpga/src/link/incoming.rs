//! A request that came with descriptors, taken aside: what a client has sent is received, looked at and closed by a thread of its
//! tenant alone. Only memory comes back, whose close waits for nobody.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use aviary_control::Foreign;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

use super::message::MESSAGE_BYTES;

/// The kernel carries no more in one message.
const MAX_DESCRIPTORS: usize = 253;

/// A request and what came with it.
#[derive(Debug, Default)]
pub struct Arrived {
    /// A byte more than a request has, of one that is longer.
    pub bytes: Vec<u8>,
    /// Descriptors that came.
    pub came: usize,
    /// The only one, if it is a memfd.
    pub memory: Option<OwnedFd>,
    /// This process has as many descriptors as it may: those that were sent did not come.
    pub lost: bool,
}

/// The place where it arrives. Copies are the same.
#[derive(Debug, Clone, Default)]
pub struct Incoming(Arc<Mutex<Option<Arrived>>>);

impl Incoming {
    /// `None`: it is still under way.
    pub fn take(&self) -> Option<Arrived> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Receives the next request, on a thread that may wait, and rings.
    pub fn receive(&self, socket: &Foreign, bell: &OwnedFd) {
        let arrived = receive(socket);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(arrived);
        // A full counter means that the bell is about to be heard anyway.
        let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
    }
}

fn receive(socket: &Foreign) -> Arrived {
    let mut bytes = vec![0; MESSAGE_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    // Without a message there is none, which is no request.
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags);
    let lost = received.as_ref().is_ok_and(|message| message.flags.contains(ReturnFlags::CTRUNC));
    bytes.truncate(received.map_or(0, |message| message.bytes));
    let rights = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let mut descriptors: Vec<OwnedFd> = rights.flatten().collect();
    let came = descriptors.len();
    // Only files in memory have seals, and no file system of somebody else's is asked for them.
    let is_memory = |file: &OwnedFd| rustix::fs::fcntl_get_seals(file.as_fd()).is_ok();
    let memory = descriptors.pop().filter(|file| came == 1 && is_memory(file));
    Arrived { bytes, came, memory, lost }
}
