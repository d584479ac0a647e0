//! Events that the node waits for: a typed face of epoll. Cost does not grow with idle sessions.

use crate::error::NodeError;
use rustix::event::{
    PollFd, PollFlags, Timespec,
    epoll::{self, CreateFlags, EventData, EventFlags},
    poll,
};
use rustix::io::Errno;
use std::{
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

/// How long a process that was killed is waited for when the node ends.
pub(crate) const KILL_PATIENCE: Duration = Duration::from_secs(1);

/// True if there is something to read now, or of a process: it has ended, whether or not the node's loop has seen that.
pub fn is_readable(fd: impl AsFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}

/// True if the process of a pidfd ends until then.
pub(crate) fn ends_by(exit: impl AsFd, deadline: Instant) -> bool {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&exit, PollFlags::IN)], Some(&timeout)) {
            Err(Errno::INTR) => {}
            other => return other.is_ok_and(|ready| ready > 0),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    Listener,
    Wake,
    /// The control socket of an API server.
    Control(u64),
    /// An API server says something for the log.
    Log(u64),
    /// An API server process ended.
    ServerExit(u64),
    /// The guest process of an API server ended.
    GuestExit(u64),
    /// A zygote says something.
    Zygote(u64),
    ZygoteExit(u64),
    /// A listener for other machines, by its place in the list.
    Remote(u64),
    /// A gateway process ended.
    GatewayExit(u64),
    /// A session keeps a device from others.
    Overdue,
    /// Control groups are empty.
    Groups,
    Helpers,
    /// A VM connects, by its place in the list.
    Vm(u64),
    /// A VM's device ended.
    DeviceExit(u64),
    /// A connection of another machine says its first byte.
    Stranger(u64),
    /// A program connects to a card, by the card's place in the list.
    Card(u64),
    /// A card says something.
    CardControl(u64),
    /// A card's process ended.
    CardExit(u64),
    /// A VM connects for an accelerator, by its place in the list.
    FpgaDevice(u64),
    /// The process of such a device ended.
    FpgaDeviceExit(u64),
    /// A guest connects to a grant's socket, by the grant's place.
    Grant(u64),
    /// A relay of a grant's guest ended.
    RelayExit(u64),
}

const SHIFT: u32 = 56;

impl Token {
    fn encode(self) -> u64 {
        let (kind, id) = match self {
            Token::Listener => (0, 0),
            Token::Wake => (1, 0),
            Token::Control(id) => (2, id),
            Token::ServerExit(id) => (3, id),
            Token::GuestExit(id) => (4, id),
            Token::Zygote(id) => (5, id),
            Token::ZygoteExit(id) => (6, id),
            Token::Remote(id) => (7, id),
            Token::GatewayExit(id) => (8, id),
            Token::Overdue => (9, 0),
            Token::Groups => (14, 0),
            Token::Helpers => (15, 0),
            Token::Vm(id) => (10, id),
            Token::DeviceExit(id) => (11, id),
            Token::Log(id) => (12, id),
            Token::Stranger(id) => (13, id),
            Token::Card(id) => (16, id),
            Token::CardControl(id) => (17, id),
            Token::CardExit(id) => (18, id),
            Token::FpgaDevice(id) => (19, id),
            Token::FpgaDeviceExit(id) => (20, id),
            Token::Grant(id) => (21, id),
            Token::RelayExit(id) => (22, id),
        };
        kind << SHIFT | id
    }

    fn decode(word: u64) -> Self {
        let id = word & ((1 << SHIFT) - 1);
        match word >> SHIFT {
            0 => Token::Listener,
            1 => Token::Wake,
            2 => Token::Control(id),
            3 => Token::ServerExit(id),
            4 => Token::GuestExit(id),
            5 => Token::Zygote(id),
            6 => Token::ZygoteExit(id),
            7 => Token::Remote(id),
            8 => Token::GatewayExit(id),
            9 => Token::Overdue,
            14 => Token::Groups,
            15 => Token::Helpers,
            10 => Token::Vm(id),
            11 => Token::DeviceExit(id),
            12 => Token::Log(id),
            16 => Token::Card(id),
            17 => Token::CardControl(id),
            18 => Token::CardExit(id),
            19 => Token::FpgaDevice(id),
            20 => Token::FpgaDeviceExit(id),
            21 => Token::Grant(id),
            22 => Token::RelayExit(id),
            _ => Token::Stranger(id),
        }
    }
}

#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    pub fn new() -> Result<Self, NodeError> {
        epoll::create(CreateFlags::CLOEXEC).map(Self).map_err(watch_error)
    }

    pub fn add(&self, descriptor: BorrowedFd<'_>, token: Token) -> Result<(), NodeError> {
        epoll::add(&self.0, descriptor, EventData::new_u64(token.encode()), EventFlags::IN).map_err(watch_error)
    }

    pub fn remove(&self, descriptor: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.0, descriptor);
    }

    /// Empty: the time is over, or a signal came.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Vec<Token>, NodeError> {
        let mut buffer = [MaybeUninit::<epoll::Event>::uninit(); 64];
        let timeout =
            timeout.map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() });
        match epoll::wait(&self.0, &mut buffer, timeout.as_ref()) {
            Ok((events, _)) => Ok(events.iter().map(|event| Token::decode(event.data.u64())).collect()),
            Err(rustix::io::Errno::INTR) => Ok(Vec::new()),
            Err(errno) => Err(watch_error(errno)),
        }
    }
}

fn watch_error(errno: rustix::io::Errno) -> NodeError {
    NodeError::Watch(errno.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive() {
        let with_id = [
            Token::Control(7),
            Token::Log(6),
            Token::ServerExit(1 << 40),
            Token::GuestExit(0),
            Token::Vm(3),
            Token::DeviceExit(4),
            Token::Stranger(5),
            Token::Zygote(0),
            Token::ZygoteExit(2),
            Token::Grant(3),
            Token::RelayExit(4),
        ];
        for token in
            [Token::Listener, Token::Wake, Token::Overdue, Token::Groups, Token::Helpers].into_iter().chain(with_id)
        {
            assert_eq!(Token::decode(token.encode()), token);
        }
    }
}
