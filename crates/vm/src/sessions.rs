//! All sessions of a VM and their sockets, without the queues: bytes come in, answers and events go
//! out.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use aviary_wire::Origin;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use vm_memory::GuestMemoryMmap;

use crate::log::Log;
use crate::memory::locate;
use crate::request::{Extent, MAX_EXTENTS, Range, Request};
use crate::session::stream::MAX_ARENA_BYTES;
use crate::session::{Answer, Session, SessionError, SessionEvent, Ticket};

/// Sessions of one VM at a time.
pub const MAX_SESSIONS: usize = 1024;
/// Version of the protocol.
const VERSION: u64 = 1;
/// Mapped ranges of all sessions together: bounds the memory that the device needs to remember
/// them.
const MAX_RANGES: usize = 1 << 19;
/// Reads of one socket before other sockets have their turn.
const READS_PER_EVENT: usize = 16;
/// Time for API servers to unmap a VM's memory when its driver is reset: they need up to 1.5 s if
/// the vendor's library does not return.
const UNMAP_TIMEOUT: Duration = Duration::from_secs(3);

/// The connection of a session to an API server.
pub trait Node: Send {
    /// Connects a socket that does not block.
    fn connect(&mut self, origin: &Origin) -> Result<OwnedFd, Errno>;
}

/// The events awaited at a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interest {
    pub read: bool,
    pub write: bool,
}

/// Watches sockets and calls `Sessions::ready` with the place of a socket that is ready.
pub trait Watch: Send {
    fn change(&self, socket: BorrowedFd<'_>, place: usize, before: Interest, after: Interest) -> std::io::Result<()>;
}

/// An answer that can be given at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub status: Result<u64, Errno>,
    /// Further content, if the driver has room for it.
    pub more: Vec<u8>,
}

impl From<Result<u64, Errno>> for Reply {
    fn from(status: Result<u64, Errno>) -> Self {
        Reply { status, more: Vec::new() }
    }
}

struct Link {
    session: Session,
    /// `None`: the API server has hung up.
    socket: Option<OwnedFd>,
    place: usize,
    interest: Interest,
    /// True while the session is in `Sessions::due`.
    due: bool,
}

pub struct Sessions {
    node: Box<dyn Node>,
    watch: Box<dyn Watch>,
    log: Log,
    links: BTreeMap<u32, Link>,
    /// The session of each place.
    places: Vec<Option<u32>>,
    /// Sessions with events, in turn.
    due: VecDeque<u32>,
    answers: Vec<Answer>,
    instance: u64,
}

impl Sessions {
    pub fn new(node: Box<dyn Node>, watch: Box<dyn Watch>, log: Log) -> Self {
        let (places, links, due, answers) = (Vec::new(), BTreeMap::new(), VecDeque::new(), Vec::new());
        Sessions { node, watch, log, links, places, due, answers, instance: new_instance() }
    }

    pub fn instance(&self) -> u64 {
        self.instance
    }

    pub fn log(&mut self) -> &mut Log {
        &mut self.log
    }

    pub fn take_answers(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.answers)
    }

    // Requests of the driver.

    /// Carries out a request. `None`: the answer follows later, under the ticket.
    pub fn request(&mut self, ticket: Ticket, bytes: &[u8], memory: &GuestMemoryMmap) -> Option<Reply> {
        let request = match Request::parse(bytes) {
            Ok(request) => request,
            Err(errno) => return Some(Err(errno).into()),
        };
        match request {
            Request::Identify { .. } => Some(self.identify()),
            Request::Ping => Some(Ok(0).into()),
            Request::Open { session, pid, started, program } => Some(self.open(session, pid, started, program).into()),
            Request::Close { session } => self.close(ticket, session),
            Request::Send { session, bytes } => Some(self.send(session, &bytes).into()),
            Request::Map { session, range, flags, extents } => {
                self.map(ticket, session, range, flags, &extents, memory)
            }
            Request::Unmap { session, range } => self.with(session, |session| session.unmap(ticket, range)),
        }
    }

    fn identify(&self) -> Reply {
        let mut more = MAX_ARENA_BYTES.to_le_bytes().to_vec();
        more.extend_from_slice(&(MAX_SESSIONS as u32).to_le_bytes());
        more.extend_from_slice(&(MAX_EXTENTS as u32).to_le_bytes());
        more.extend_from_slice(&self.instance.to_le_bytes());
        more.extend_from_slice(&[0; 8]);
        Reply { status: Ok(VERSION), more }
    }

    fn open(&mut self, number: u32, pid: u64, started: u64, program: String) -> Result<u64, Errno> {
        if self.links.contains_key(&number) {
            return Err(Errno::EXIST);
        }
        if self.links.len() >= MAX_SESSIONS {
            return Err(Errno::USERS);
        }
        let pid = u32::try_from(pid).map_err(|_| Errno::INVAL)?;
        let socket = self.node.connect(&Origin { pid, started, program }).inspect_err(|errno| {
            self.log.complain(format_args!(
                "cannot connect a program of the VM to the node ({errno}): its open of /dev/aviary fails"
            ));
        })?;
        let place = self.places.iter().position(Option::is_none).unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[place] = Some(number);
        let (session, interest) = (Session::new(pid), Interest::default());
        self.links.insert(number, Link { session, socket: Some(socket), place, interest, due: false });
        self.look_after(number);
        Ok(self.instance)
    }

    fn close(&mut self, ticket: Ticket, number: u32) -> Option<Reply> {
        let Some(link) = self.links.get_mut(&number) else { return Some(Err(Errno::NODEV).into()) };
        if link.session.close(ticket) {
            tell_end(link);
        }
        self.look_after(number);
        None
    }

    fn send(&mut self, number: u32, bytes: &[u8]) -> Result<u64, Errno> {
        let link = self.links.get_mut(&number).ok_or(Errno::NODEV)?;
        let result = match link.session.send(bytes) {
            Ok(result) => result,
            Err(error) => {
                self.fail(number, &error);
                Err(Errno::INVAL)
            }
        };
        self.look_after(number);
        result.map(|()| 0)
    }

    fn map(
        &mut self,
        ticket: Ticket,
        number: u32,
        range: Range,
        flags: u64,
        extents: &[Extent],
        memory: &GuestMemoryMmap,
    ) -> Option<Reply> {
        if self.links.values().map(|link| link.session.mapped()).sum::<usize>() >= MAX_RANGES {
            return Some(Err(Errno::NOSPC).into());
        }
        match locate(memory, extents) {
            Ok(pieces) => self.with(number, |session| session.map(ticket, range, flags, pieces)),
            Err(_) if !self.links.contains_key(&number) => Some(Err(Errno::NODEV).into()),
            Err(errno) => Some(Err(errno).into()),
        }
    }

    /// Carries out a request that the session answers itself.
    fn with(&mut self, number: u32, act: impl FnOnce(&mut Session) -> Result<(), SessionError>) -> Option<Reply> {
        let Some(link) = self.links.get_mut(&number) else { return Some(Err(Errno::NODEV).into()) };
        if let Err(error) = act(&mut link.session) {
            self.fail(number, &error);
        }
        self.look_after(number);
        None
    }

    /// Takes a doorbell: `le32 session, le32 reserved, le64 offset`.
    pub fn ring(&mut self, bytes: &[u8]) {
        let Some([a, b, c, d, _, _, _, _, offset @ ..]) = bytes.first_chunk::<16>() else { return };
        let (number, offset) = (u32::from_le_bytes([*a, *b, *c, *d]), u64::from_le_bytes(*offset));
        if self.links.contains_key(&number) {
            self.with(number, |session| session.ring(offset));
        }
    }

    // Messages of the API servers.

    /// Handles a socket that can be read or written, or was hung up.
    pub fn ready(&mut self, place: usize) {
        let Some(number) = self.places.get(place).copied().flatten() else { return };
        self.read(number);
        self.look_after(number);
    }

    fn read(&mut self, number: u32) {
        let Some(link) = self.links.get_mut(&number) else { return };
        let mut buffer = [0; 4096];
        for _ in 0..READS_PER_EVENT {
            let Some(socket) = link.socket.as_ref().filter(|_| link.session.wants_to_read()) else { return };
            match rustix::io::read(socket, &mut buffer) {
                Ok(0) => return hang_up(link, &*self.watch),
                Ok(length) => {
                    if let Err(error) = link.session.hear(&buffer[..length]) {
                        return self.fail(number, &error);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => return hang_up(link, &*self.watch),
            }
        }
    }

    // Events for the guest.

    pub fn has_events(&mut self) -> bool {
        while let Some(number) = self.due.front() {
            match self.links.get_mut(number) {
                Some(link) if link.session.has_events() => return true,
                // The guest closed the session, which dropped its events.
                Some(link) => link.due = false,
                None => {}
            }
            self.due.pop_front();
        }
        false
    }

    /// The next event and its session, for a buffer with room for `room` bytes of data.
    pub fn next_event(&mut self, room: usize) -> Option<(u32, SessionEvent)> {
        if !self.has_events() {
            return None;
        }
        let number = self.due.pop_front()?;
        let link = self.links.get_mut(&number)?;
        link.due = false;
        let event = link.session.next_event(room)?;
        // The session may have further events, and its socket more to read.
        self.look_after(number);
        Some((number, event))
    }

    // Consequences.

    fn fail(&mut self, number: u32, error: &SessionError) {
        self.log.complain(format_args!("session {number} ended: {error}"));
        if let Some(link) = self.links.get_mut(&number)
            && link.session.end()
        {
            tell_end(link);
        }
    }

    /// Updates the session's place in `due` and the loop, after every change of the session.
    fn look_after(&mut self, number: u32) {
        let Some(link) = self.links.get_mut(&number) else { return };
        let written = match &link.socket {
            Some(socket) => link.session.outbox.flush(socket),
            None => Ok(()),
        };
        match written {
            Ok(()) => {}
            // The API server's last messages are still to be read, before its end is.
            Err(Errno::PIPE | Errno::CONNRESET) => link.session.outbox.clear(),
            Err(errno) => {
                self.log.complain(format_args!("session {number} ended: the host's kernel did not send to its API server, which has not ended: {errno}"));
                if link.session.end() {
                    tell_end(link);
                }
            }
        }
        if let Err(error) = set_interest(link, &*self.watch) {
            self.log.complain(format_args!("session {number} ended: cannot watch its socket: {error}"));
            hang_up(link, &*self.watch);
        }
        self.answers.append(&mut link.session.take_answers());
        if link.session.has_events() && !link.due {
            link.due = true;
            self.due.push_back(number);
        }
        if link.session.is_over()
            && let Some(link) = self.links.remove(&number)
        {
            self.places[link.place] = None;
        }
    }

    // The end.

    /// Ends all sessions after a reset of the driver or the end of the VM: when it returns, no
    /// session is left and no API server accesses the VM's memory.
    pub fn end_all(&mut self) {
        for link in self.links.values_mut() {
            if link.session.revoke_memory()
                && let Some(socket) = &link.socket
            {
                // Without room, or after its end, the API server learns of the end alone.
                let _ = link.session.outbox.flush(socket);
            }
            tell_end(link);
        }
        let deadline = Instant::now() + UNMAP_TIMEOUT;
        while self.links.values().any(|link| link.socket.is_some()) && Instant::now() < deadline {
            self.await_hang_ups(deadline);
        }
        let late = self.links.values().filter(|link| link.socket.is_some()).count();
        if late > 0 {
            self.log.line(format_args!(
                "{late} API servers did not release the VM's memory in time: they are disconnected"
            ));
        }
        self.links.values_mut().for_each(|link| hang_up(link, &*self.watch));
        self.links.clear();
        self.places.clear();
        self.due.clear();
        self.answers.clear();
        self.instance = new_instance();
    }

    fn await_hang_ups(&mut self, deadline: Instant) {
        let open: Vec<u32> =
            self.links.iter().filter(|(_, link)| link.socket.is_some()).map(|(number, _)| *number).collect();
        let sockets = open.iter().filter_map(|number| self.links.get(number)?.socket.as_ref());
        let mut watched: Vec<PollFd<'_>> = sockets.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let _ = poll(&mut watched, Some(&timeout));
        drop(watched);
        open.into_iter().for_each(|number| self.read(number));
    }
}

/// Tells the API server that the guest's bytes end. Its own end is still awaited.
fn tell_end(link: &Link) {
    if let Some(socket) = &link.socket {
        let _ = shutdown(socket, Shutdown::Write);
    }
}

fn hang_up(link: &mut Link, watch: &dyn Watch) {
    if let Some(socket) = link.socket.take() {
        let _ = watch.change(socket.as_fd(), link.place, link.interest, Interest::default());
        link.interest = Interest::default();
    }
    link.session.hung_up();
}

fn set_interest(link: &mut Link, watch: &dyn Watch) -> std::io::Result<()> {
    let Some(socket) = &link.socket else { return Ok(()) };
    let after = Interest { read: link.session.wants_to_read(), write: link.session.outbox.wants_room() };
    if after != link.interest {
        watch.change(socket.as_fd(), link.place, link.interest, after)?;
        link.interest = after;
    }
    Ok(())
}

/// A number that distinguishes this device from every other one of the VM.
fn new_instance() -> u64 {
    let mut bytes = [0; 8];
    // Cannot fail for 8 bytes once the kernel has booted.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_le_bytes(bytes).max(1)
}
