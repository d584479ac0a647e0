//! The control socket between the node and an API server process.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    Shutdown,
};
use serde::Serialize;

use crate::config::SessionConfig;

/// Longest message.
const LONGEST: usize = 64 << 10;

pub struct Node {
    socket: OwnedFd,
}

/// A connection that the node hands over.
pub struct Announced {
    pub config: SessionConfig,
    /// The JSON as it came, for the module.
    pub json: Vec<u8>,
    pub socket: OwnedFd,
}

pub enum Received {
    Connection(Announced),
    Nothing,
    Closed,
    Unusable(String),
}

#[derive(Serialize)]
struct Event<'a> {
    session: u64,
    event: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    api: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

impl Node {
    pub fn new(socket: OwnedFd) -> Node {
        Node { socket }
    }

    /// The next message, without waiting.
    pub fn receive(&self) -> Received {
        let mut bytes = vec![0; LONGEST];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let into = &mut [IoSliceMut::new(&mut bytes)];
        let length = match rustix::net::recvmsg(&self.socket, into, &mut ancillary, flags) {
            Ok(message) => message.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Received::Nothing,
            Err(_) => return Received::Closed,
        };
        if length == 0 {
            return Received::Closed;
        }
        bytes.truncate(length);
        let fds = ancillary.drain().filter_map(|m| match m {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let Some(socket) = fds.flatten().next() else { return Received::Unusable("no socket came with it".into()) };
        match serde_json::from_slice(&bytes) {
            Ok(config) => Received::Connection(Announced { config, json: bytes, socket }),
            Err(error) => Received::Unusable(error.to_string()),
        }
    }

    /// The node's further messages fail, so that it looks for another process.
    pub fn refuse_more(&self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Read);
    }

    pub fn started(&self, session: u64, api: &str, stats: BorrowedFd<'_>) {
        self.send(&Event { session, event: "started", api: Some(api), reason: None }, Some(stats));
    }

    pub fn ended(&self, session: u64, reason: &str) {
        self.send(&Event { session, event: "ended", api: None, reason: Some(reason) }, None);
    }

    /// A node that is gone hears nothing; connections go on without it.
    fn send(&self, event: &Event, fd: Option<BorrowedFd<'_>>) {
        let Ok(json) = serde_json::to_vec(event) else { return };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = fd.as_slice();
        if !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(fds));
        }
        while let Err(Errno::INTR) =
            rustix::net::sendmsg(&self.socket, &[IoSlice::new(&json)], &mut ancillary, SendFlags::NOSIGNAL)
        {}
    }
}

impl AsFd for Node {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
