//! This process's end of the control socket (`aviary_control`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use aviary_control::{FromServer, Message, MoveReport, OfferName, Patience, Received};
use rustix::event::{PollFd, PollFlags};
use rustix::net::Shutdown;

pub struct Node {
    socket: OwnedFd,
}

impl Node {
    pub fn new(socket: OwnedFd) -> Node {
        Node { socket }
    }

    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// The next message, without waiting: `ToServer`, or `ToZygote` in a zygote.
    pub fn receive<M: Message>(&self) -> Received<M> {
        aviary_control::receive(self.socket.as_fd())
    }

    /// The node's further messages fail, so that it looks for another process.
    pub fn refuse_more(&self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Read);
    }

    pub fn greeted(&self, session: u64) {
        self.tell(&FromServer::Greeted { session });
    }

    pub fn started(&self, session: u64, api: &str, spec_hash: u64) {
        self.tell(&FromServer::Started { session, api: api.to_owned(), spec_hash });
    }

    pub fn ended(&self, session: u64, reason: &str) {
        let reason = reason[..reason.floor_char_boundary(LONGEST_REASON)].to_owned();
        self.tell(&FromServer::Ended { session, reason });
    }

    /// Asks for what another API server of the tenant offers.
    pub fn fetch(&self, session: u64, request: u64, name: OfferName) {
        self.tell(&FromServer::Fetch { session, request, name });
    }

    /// Asks for a connection to a card.
    pub fn card(&self, session: u64, request: u64) {
        self.tell(&FromServer::Card { session, request });
    }

    /// A module's report about a session that moves.
    pub fn report_move(&self, session: u64, report: MoveReport) {
        self.tell(&FromServer::Move { session, report });
    }

    /// A copy of the zygote introduces itself.
    pub fn born(&self, pid: u32) {
        self.tell(&FromServer::Born { pid });
    }

    /// Process 1 of a PID namespace introduces itself, or the zygote does.
    pub fn has_init(&self, pid: u32) {
        self.tell(&FromServer::Init { pid });
    }

    /// A zygote has loaded everything.
    pub fn ready(&self) {
        self.tell(&FromServer::Ready);
    }

    /// A zygote cannot be copied.
    pub fn unfit(&self, reason: &str) {
        self.tell(&FromServer::Unfit { reason: reason.to_owned() });
    }

    /// True if the node is gone, also after `refuse_more`.
    pub fn is_gone(&self) -> bool {
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        rustix::event::poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::HUP)
    }

    /// A node that is gone hears nothing.
    fn tell(&self, event: &FromServer) {
        let _ = aviary_control::send(self.socket.as_fd(), event, &[], Patience::Waits);
    }
}

/// Longest reason of a session's end, in bytes: a text of a guest may be in it.
const LONGEST_REASON: usize = 4096;

impl AsFd for Node {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
