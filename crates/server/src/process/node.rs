//! The control socket between the node and an API server process.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    Shutdown,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::config::SessionConfig;
use crate::exchange::OfferName;

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
    /// The accounts of the guest's tenant.
    pub tenant_page: Option<OwnedFd>,
}

pub enum Received {
    Connection(Box<Announced>),
    /// Another API server of the tenant fetches what this one may have offered.
    Wanted(Wanted),
    /// The answer to this request of ours: the descriptor and its number, if there is such an offer.
    Arrived(u64, Option<(OwnedFd, u64)>),
    Nothing,
    Closed,
    Unusable(String),
}

/// What the node tells a zygote.
pub enum ToZygote {
    /// Load the modules in these directories.
    Preload(Vec<PathBuf>),
    /// Become an API server in a copy, with this control socket and this end of a pipe for the log.
    Copy {
        control: OwnedFd,
        log: OwnedFd,
    },
    Nothing,
    Closed,
}

/// Who fetches which offer.
#[derive(Debug, Deserialize)]
pub struct Wanted {
    asker: u64,
    request: u64,
    pub name: OfferName,
}

#[derive(Deserialize)]
struct Arrived {
    request: u64,
    #[serde(default)]
    note: u64,
}

/// A message of the node that is no connection has one of these.
#[derive(Deserialize)]
struct ExchangeMessage {
    fetch: Option<Wanted>,
    fetched: Option<Arrived>,
}

#[derive(Deserialize)]
struct PreloadMessage {
    preload: Vec<PathBuf>,
}

/// One message as it came.
enum Message {
    Whole(Vec<u8>, std::vec::IntoIter<OwnedFd>),
    Nothing,
    Closed,
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
        let (bytes, mut fds) = match self.message() {
            Message::Whole(bytes, fds) => (bytes, fds),
            Message::Nothing => return Received::Nothing,
            Message::Closed => return Received::Closed,
        };
        match serde_json::from_slice(&bytes) {
            Ok(ExchangeMessage { fetch: Some(wanted), .. }) => return Received::Wanted(wanted),
            Ok(ExchangeMessage { fetched: Some(Arrived { request, note }), .. }) => {
                return Received::Arrived(request, fds.next().map(|descriptor| (descriptor, note)));
            }
            _ => {}
        }
        let Some(socket) = fds.next() else { return Received::Unusable("no socket came with it".into()) };
        match serde_json::from_slice(&bytes) {
            Ok(config) => {
                Received::Connection(Box::new(Announced { config, json: bytes, socket, tenant_page: fds.next() }))
            }
            Err(error) => Received::Unusable(error.to_string()),
        }
    }

    /// The same in a zygote.
    pub fn receive_as_zygote(&self) -> ToZygote {
        match self.message() {
            Message::Whole(bytes, mut fds) => match fds.next().zip(fds.next()) {
                Some((control, log)) => ToZygote::Copy { control, log },
                None => serde_json::from_slice::<PreloadMessage>(&bytes)
                    .map_or(ToZygote::Nothing, |message| ToZygote::Preload(message.preload)),
            },
            Message::Nothing => ToZygote::Nothing,
            Message::Closed => ToZygote::Closed,
        }
    }

    fn message(&self) -> Message {
        let mut bytes = vec![0; LONGEST];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let into = &mut [IoSliceMut::new(&mut bytes)];
        let length = match rustix::net::recvmsg(&self.socket, into, &mut ancillary, flags) {
            Ok(message) => message.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Message::Nothing,
            Err(_) => return Message::Closed,
        };
        if length == 0 {
            return Message::Closed;
        }
        bytes.truncate(length);
        let fds = ancillary.drain().filter_map(|m| match m {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let fds: Vec<OwnedFd> = fds.flatten().collect();
        Message::Whole(bytes, fds.into_iter())
    }

    /// The node's further messages fail, so that it looks for another process.
    pub fn refuse_more(&self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Read);
    }

    /// `seats`: page and bell of the session's devices.
    pub fn started(
        &self,
        session: u64,
        api: &str,
        stats: BorrowedFd<'_>,
        seats: Option<(BorrowedFd<'_>, BorrowedFd<'_>)>,
    ) {
        let mut fds = vec![stats];
        fds.extend(seats.into_iter().flat_map(|(page, bell)| [page, bell]));
        self.send_json(&Event { session, event: "started", api: Some(api), reason: None }, &fds);
    }

    pub fn ended(&self, session: u64, reason: &str) {
        self.send_json(&Event { session, event: "ended", api: None, reason: Some(reason) }, &[]);
    }

    /// Asks for what another API server of the tenant offers.
    pub fn fetch(&self, session: u64, request: u64, name: &OfferName) {
        self.send_json(&json!({"event": "fetch", "session": session, "request": request, "name": name}), &[]);
    }

    /// Answers who wants it, also that there is nothing.
    pub fn hand_over(&self, wanted: &Wanted, offered: Option<(OwnedFd, u64)>) {
        let note = offered.as_ref().map_or(0, |(_, note)| *note);
        let fds: Vec<_> = offered.iter().map(|(descriptor, _)| descriptor.as_fd()).collect();
        let (giver, asker, request) = (wanted.name.session, wanted.asker, wanted.request);
        let event = json!({"event": "fetched", "session": giver, "asker": asker, "request": request, "note": note});
        self.send_json(&event, &fds);
    }

    /// A copy of the zygote introduces itself.
    pub fn born(&self, pid: u32) {
        self.send_json(&json!({"event": "born", "pid": pid}), &[]);
    }

    /// A zygote has loaded everything.
    pub fn ready(&self) {
        self.send_json(&json!({"event": "ready"}), &[]);
    }

    /// A zygote cannot be copied.
    pub fn unfit(&self, reason: &str) {
        self.send_json(&json!({"event": "unfit", "reason": reason}), &[]);
    }

    /// Whether the node is gone, also after `refuse_more`.
    pub fn is_gone(&self) -> bool {
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        rustix::event::poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::HUP)
    }

    /// A node that is gone hears nothing.
    fn send_json(&self, event: &impl Serialize, fds: &[BorrowedFd<'_>]) {
        let Ok(json) = serde_json::to_vec(event) else { return };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
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
