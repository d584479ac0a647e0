//! The card's process: one thread that serves all clients and lets the card's clock run while there is something to do.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use aviary_card::{Board, Escape};
use aviary_control::{Foreign, LateJob};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with};

use super::account::MemoryAccount;
use super::client::{Client, ClientTerms, Farewell, Threads};
use super::limits::Limits;
use super::node_link::{NodeGone, NodeLink};
use crate::mediator::Mediator;

/// Cycles for which the clock runs between two looks at the clients: some milliseconds of a simulation.
const CYCLES_PER_LOOK: u64 = 2000;
/// The same soon after a request: one that does many, each after the answer to the last, would wait for all of that time with each.
const CYCLES_PER_EARLY_LOOK: u64 = 100;
/// Cycles after a request that are soon.
const SOON: u64 = 20_000;
/// Requests of one client between two looks at the others.
const REQUESTS_PER_LOOK: usize = 16;
/// Connections that wait to be taken.
const BACKLOG: i32 = 16;

/// A card's service cannot start, or has ended.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum ServiceError {
    /// cannot listen at {path}: {source}
    Listen { path: String, source: io::Error },
    /// cannot wait for clients: {0}
    Wait(io::Error),
    /// the node has ended
    Node,
    /// the hardware monitor is broken: {0} has left the slice of its program
    Escaped(Escape),
}

/// The way on which clients come.
enum Door {
    /// All who may connect are one tenant.
    Listener(OwnedFd),
    /// The node hands them out.
    Node(NodeLink),
}

/// A card with its clients.
pub struct Service<B: Board> {
    mediator: Mediator<B>,
    door: Door,
    limits: Limits,
    clients: Vec<Client>,
    threads: Threads,
    /// Cycles for which the clock ran since the last request of any client, or more.
    quiet: u64,
    log: Box<dyn Fn(fmt::Arguments<'_>) + Send>,
}

impl<B: Board> Service<B> {
    /// `log` gets a line for each client that is turned away or did something wrong.
    ///
    /// # Errors
    /// [`ServiceError::Listen`].
    pub fn listen(
        mediator: Mediator<B>,
        path: &str,
        limits: Limits,
        log: impl Fn(fmt::Arguments<'_>) + Send + 'static,
    ) -> Result<Service<B>, ServiceError> {
        let failed = |errno: Errno| ServiceError::Listen { path: path.to_owned(), source: errno.into() };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(failed)?;
        bind(&listener, &SocketAddrUnix::new(path).map_err(failed)?).map_err(failed)?;
        listen(&listener, BACKLOG).map_err(failed)?;
        let door = Door::Listener(listener);
        let threads = Threads::new().map_err(failed)?;
        Ok(Service { mediator, door, limits, clients: Vec::new(), threads, quiet: SOON, log: Box::new(log) })
    }

    /// A card of a node, to whose control socket `control` leads. `name`: the card's in the node's configuration.
    ///
    /// # Errors
    /// [`ServiceError::Node`].
    pub fn of_node(
        mediator: Mediator<B>,
        control: OwnedFd,
        name: &str,
        limits: Limits,
        log: impl Fn(fmt::Arguments<'_>) + Send + 'static,
    ) -> Result<Service<B>, ServiceError> {
        let link = NodeLink::new(control, name.to_owned());
        link.tell_ready(&mediator).map_err(|NodeGone| ServiceError::Node)?;
        let threads = Threads::new().map_err(|errno| ServiceError::Wait(errno.into()))?;
        Ok(Service {
            mediator,
            door: Door::Node(link),
            limits,
            clients: Vec::new(),
            threads,
            quiet: SOON,
            log: Box::new(log),
        })
    }

    /// Serves until `stop` is readable. Clients that hung up before that have left when it returns.
    ///
    /// # Errors
    /// [`ServiceError::Wait`]; [`ServiceError::Node`] when the node has gone; [`ServiceError::Escaped`]: programs are not kept apart.
    pub fn serve(&mut self, stop: BorrowedFd<'_>) -> Result<(), ServiceError> {
        loop {
            let busy = self.mediator.is_busy();
            if self.wait(stop, busy)? {
                self.part_from_the_gone();
                return Ok(());
            }
            self.take_new_clients()?;
            // All that it can have rung for is looked at now.
            let _ = rustix::io::read(&self.threads.bell, &mut [0; 8]);
            self.hear_clients();
            if self.mediator.is_busy() {
                let cycles = if self.quiet < SOON { CYCLES_PER_EARLY_LOOK } else { CYCLES_PER_LOOK };
                self.mediator.run(cycles);
                self.quiet = self.quiet.saturating_add(cycles);
            }
            if let Some(escape) = self.mediator.board().first_escape() {
                return Err(ServiceError::Escaped(escape));
            }
            self.retry_requests();
            self.tell_late();
            self.report();
        }
    }

    /// Waits for a client, or only looks while the card is busy. True: the end.
    fn wait(&self, stop: BorrowedFd<'_>, busy: bool) -> Result<bool, ServiceError> {
        let waits = |client: &Client| client.is_pending() || client.is_receiving();
        let readable = |client: &Client| if waits(client) { PollFlags::empty() } else { PollFlags::IN };
        let door = match &self.door {
            Door::Listener(listener) => PollFd::new(listener, PollFlags::IN),
            Door::Node(link) if link.wants_room() => {
                PollFd::from_borrowed_fd(link.control(), PollFlags::IN | PollFlags::OUT)
            }
            Door::Node(link) => PollFd::from_borrowed_fd(link.control(), PollFlags::IN),
        };
        let bell = PollFd::new(&*self.threads.bell, PollFlags::IN);
        let mut polled = vec![PollFd::from_borrowed_fd(stop, PollFlags::IN), door, bell];
        polled.extend(self.clients.iter().map(|client| PollFd::new(&*client.socket, readable(client))));
        let now = Instant::now();
        let report = if let Door::Node(link) = &self.door { link.deadline() } else { None };
        let late = self.threads.aside.next_look(now);
        let deadline = self.clients.iter().filter_map(Client::deadline).chain(report).chain(late).min();
        let left = if busy { Some(Duration::ZERO) } else { deadline.map(|at| at.saturating_duration_since(now)) };
        let timeout = left.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(!polled[0].revents().is_empty()),
            Err(errno) => Err(ServiceError::Wait(errno.into())),
        }
    }

    fn take_new_clients(&mut self) -> Result<(), ServiceError> {
        let Service { mediator, door, limits, clients, threads, log, .. } = self;
        let listener = match door {
            Door::Listener(listener) => listener,
            Door::Node(link) => return link.hear(mediator, clients, threads).map_err(|NodeGone| ServiceError::Node),
        };
        while let Ok(socket) = accept_with(&*listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            if clients.len() < limits.clients {
                let account = MemoryAccount::own(limits.mapped_bytes);
                clients.push(Client::new(socket, account, ClientTerms::default(), threads));
            } else {
                drop(Foreign::new(socket, &threads.aside, &"".into(), "the connection of a card's client"));
                log(format_args!("a client was refused: there are {} already, which is the limit", limits.clients));
            }
        }
        Ok(())
    }

    /// Descriptors of clients that wait while they are closed.
    fn tell_late(&mut self) {
        for LateJob { party, what } in self.threads.aside.look(Instant::now()) {
            (self.log)(format_args!(
                "tenant {}: {what} waits for more than 5 s: a descriptor that came with it waits for its peer or its file system",
                party.escape_debug()
            ));
        }
    }

    fn report(&mut self) {
        if let Door::Node(link) = &mut self.door {
            link.report(&mut self.mediator, &self.clients, Instant::now());
        }
    }

    fn hear_clients(&mut self) {
        let now = Instant::now();
        let heard = Cell::new(false);
        self.keep(|client, mediator, limits, threads, _| {
            for _ in 0..REQUESTS_PER_LOOK {
                if client.is_pending() || !client.hear(mediator, limits, threads, now)? {
                    break;
                }
                heard.set(true);
            }
            Ok(())
        });
        if heard.get() {
            self.quiet = 0;
        }
    }

    fn retry_requests(&mut self) {
        let now = Instant::now();
        self.keep(|client, mediator, limits, _, log| {
            if let Some(fault) = client.failure(mediator) {
                match client.session() {
                    0 => log(format_args!("a job has failed: {fault}")),
                    session => log(format_args!("session {session}: a job has failed: {fault}")),
                }
            }
            if client.retry(mediator, limits, now)? {
                log(format_args!(
                    "a client's register read waited too long for its port: it was answered with all ones"
                ));
            }
            if (client.is_pending() || client.is_receiving()) && client.has_hung_up() {
                Err(Farewell::HungUp)
            } else {
                Ok(())
            }
        });
    }

    /// A client's end is seen here even if the round that would have read it did not come.
    fn part_from_the_gone(&mut self) {
        self.keep(|client, _, _, _, _| if client.has_hung_up() { Err(Farewell::HungUp) } else { Ok(()) });
    }

    /// Serves each client; those that are not served any more leave with all that they had.
    fn keep(
        &mut self,
        serve: impl Fn(
            &mut Client,
            &mut Mediator<B>,
            &Limits,
            &Threads,
            &dyn Fn(fmt::Arguments<'_>),
        ) -> Result<(), Farewell>,
    ) {
        let Service { mediator, door, clients, limits, threads, log, .. } = self;
        clients.retain_mut(|client| {
            let Err(farewell) = serve(client, mediator, limits, threads, log) else { return true };
            if !matches!(farewell, Farewell::HungUp) {
                log(format_args!("a client was disconnected: {farewell}"));
            }
            if let Some(id) = client.id() {
                mediator.close(id);
            }
            if let Door::Node(link) = &mut *door {
                link.note_end(client.session());
            }
            false
        });
    }

    pub fn board_mut(&mut self) -> &mut B {
        self.mediator.board_mut()
    }

    /// The number of clients, and of virtual accelerators that have an IO slice.
    pub fn served(&self) -> (usize, usize) {
        (self.clients.len(), self.mediator.slices_used())
    }
}
