//! One client of the card: its socket, its virtual accelerator, and the request that waits for the port.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aviary_card::{Board, IommuError, LINE};
use aviary_control::{Aside, ClientFigures, Foreign, MOST_OF_ONE, PartyName, receive_plain};
use aviary_gate::fits;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::account::MemoryAccount;
use super::events::Events;
use super::incoming::{Arrived, Incoming};
use super::limits::Limits;
use super::memories::Memories;
use super::message::{BadRequest, LINK_VERSION, MESSAGE_BYTES, RESUMED, Reply, Request};
use crate::faults::JobFault;
use crate::mappings::MappingError;
use crate::mediator::{Error, Mediator, guid_halves};
use crate::registers::{ReadAnswer, WriteAnswer};
use crate::slices::SLICE_BYTES;
use crate::turns::nanoseconds;
use crate::virtual_accelerator::{Owner, Phase, VirtualId};

/// Time in which a read of a register with an effect waits for the port. A virtual machine must not stand still for its place in
/// a queue: after that the read is answered with all ones, as on a bus.
const EFFECT_READ_TIMEOUT: Duration = Duration::from_secs(1);

/// Lines in the log about failed jobs of one client.
const MOST_FAILURES: u8 = 8;

/// The reason why a client's connection ends.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum Farewell {
    /// it closed the connection
    HungUp,
    /// the node ended its session
    Ended,
    /// it sent {0}
    Bad(#[from] BadRequest),
    /// it did not read its replies
    Deaf,
    /// descriptors that its tenant has sent wait for others while they are closed
    Waits,
}

/// A request that waits for the port.
#[derive(Debug)]
struct Pending {
    request: Request,
    since: Instant,
}

/// The terms on which a client was let in.
#[derive(Debug, Clone, Default)]
pub struct ClientTerms {
    /// The node's number of the session; 0: there is no node.
    pub session: u64,
    pub owner: Owner,
    /// The card's name in the node's configuration.
    pub card: String,
    /// Names of ports that it may use, behind the card's and `/`; they may end with `*`. `None`: all.
    pub only_devices: Option<Vec<String>>,
}

impl ClientTerms {
    fn allow(&self, port: &str) -> bool {
        let name = format!("{}/{port}", self.card);
        self.only_devices.as_ref().is_none_or(|names| names.iter().any(|pattern| fits(pattern, &name)))
    }
}

/// The threads that receive descriptors of clients, and the bell that they ring.
#[derive(Debug)]
pub struct Threads {
    pub aside: Aside,
    /// An eventfd.
    pub bell: Arc<OwnedFd>,
}

impl Threads {
    /// # Errors
    /// As eventfd(2).
    pub fn new() -> rustix::io::Result<Threads> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Threads { aside: Aside::default(), bell: Arc::new(bell) })
    }
}

/// Those who pay for what a client sends.
fn party(terms: &ClientTerms) -> PartyName {
    terms.owner.tenant.as_str().into()
}

/// A client. Everything that it sends is hostile; it harms its own virtual accelerator only.
#[derive(Debug)]
pub struct Client {
    /// Descriptors may be in flight in it.
    pub socket: Arc<Foreign>,
    /// A request with descriptors that is under way.
    incoming: Option<Incoming>,
    id: Option<VirtualId>,
    memories: Memories,
    pending: Option<Pending>,
    terms: ClientTerms,
    account: MemoryAccount,
    /// Requests so far.
    requests: u64,
    /// The last answer that was given.
    last: Reply,
    /// The node ends its session.
    ended: bool,
    events: Events,
    /// Interrupts that no WAIT was told, a bit per vector.
    raised: u8,
    /// Failures that the log has, and the number of the last job that has failed.
    failures: (u8, u64),
}

impl Client {
    pub fn new(socket: OwnedFd, account: MemoryAccount, terms: ClientTerms, threads: &Threads) -> Client {
        let socket = Foreign::new(socket, &threads.aside, &party(&terms), "the connection of a card's client");
        Client {
            socket: Arc::new(socket),
            incoming: None,
            id: None,
            memories: Memories::default(),
            pending: None,
            terms,
            account,
            requests: 0,
            last: Reply::default(),
            ended: false,
            events: Events::default(),
            raised: 0,
            failures: (0, 0),
        }
    }

    /// The node's number of the session; 0: there is no node.
    pub fn session(&self) -> u64 {
        self.terms.session
    }

    /// May its tenant use the port of this name?
    pub fn may_use(&self, port: &str) -> bool {
        self.terms.allow(port)
    }

    /// It leaves at the next look.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// `ports`: the names of the card's ports.
    pub fn figures<B: Board>(&self, mediator: &mut Mediator<B>, ports: &[String]) -> ClientFigures {
        let status = self.id.and_then(|id| mediator.figures(id));
        let port = status.and_then(|status| ports.get(status.port).cloned());
        ClientFigures {
            session: self.terms.session,
            port: port.unwrap_or_default(),
            requests: self.requests,
            device_ns: status.map_or(0, |status| nanoseconds(status.cycles)),
            preemptions: status.map_or(0, |status| status.preemptions),
            mapped_bytes: status.map_or(0, |status| status.mapped_bytes),
            refused: status.map_or(0, |status| status.refused),
        }
    }

    pub fn id(&self) -> Option<VirtualId> {
        self.id
    }

    /// Its next request is not read before this one is answered.
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// A request of it is being received: the bell says when that is done.
    pub fn is_receiving(&self) -> bool {
        self.incoming.is_some()
    }

    /// The other end of the socket is gone, although requests of it may wait or be unread.
    pub fn has_hung_up(&self) -> bool {
        let mut polled = [PollFd::new(&*self.socket, PollFlags::empty())];
        let looked = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        looked.is_ok() && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// The moment at which the request that waits is answered in any case.
    pub fn deadline(&self) -> Option<Instant> {
        let pending = self.pending.as_ref()?;
        match pending.request {
            Request::Read { .. } => Some(pending.since + EFFECT_READ_TIMEOUT),
            Request::Wait { ms } => Some(pending.since + Duration::from_millis(ms.into())),
            _ => None,
        }
    }

    /// Takes one request, if there is one, and answers it.
    ///
    /// # Errors
    /// See [`Farewell`].
    pub fn hear<B: Board>(
        &mut self,
        mediator: &mut Mediator<B>,
        limits: &Limits,
        threads: &Threads,
        now: Instant,
    ) -> Result<bool, Farewell> {
        if self.ended {
            return Err(Farewell::Ended);
        }
        let Some(Arrived { bytes, came, memory, lost }) = self.next_message(threads)? else { return Ok(false) };
        self.requests += 1;
        if lost {
            self.answer(Reply::refused(Errno::MFILE), None)?;
            return Ok(true);
        }
        let request = match Request::parse(&bytes, came) {
            // Of a client of another release, perhaps: it is told so at its first request.
            Err(BadRequest::Descriptors { .. }) => {
                self.answer(Reply::refused(Errno::INVAL), None)?;
                return Ok(true);
            }
            parsed => parsed?,
        };
        if let Request::Resume { number } = request {
            // It does not count, and is not the last answer: a process that asks may die, too.
            self.requests -= 1;
            let last @ Reply { errno, words: [value, ..] } = self.last;
            self.answer(Reply::with(&[self.requests, errno.into(), value, number.into(), 0, 0, RESUMED]), None)?;
            self.last = last;
            return Ok(true);
        }
        if let Request::Interrupt { vector } = request {
            self.subscribe(vector)?;
            return Ok(true);
        }
        match self.execute(mediator, limits, &request, memory) {
            Some(reply) => self.answer(reply, None)?,
            None => self.pending = Some(Pending { request, since: now }),
        }
        Ok(true)
    }

    /// The next message; `None`: there is none, or it is being received.
    fn next_message(&mut self, threads: &Threads) -> Result<Option<Arrived>, Farewell> {
        if let Some(incoming) = &self.incoming {
            let arrived = incoming.take();
            if arrived.is_some() {
                self.incoming = None;
            }
            return Ok(arrived);
        }
        // A byte more than a request, so that a longer one is seen.
        let mut bytes = vec![0; MESSAGE_BYTES + 1];
        match receive_plain(self.socket.as_fd(), &mut bytes) {
            Ok((0, _)) => Err(Farewell::HungUp),
            Ok((length, _)) => {
                bytes.truncate(length);
                Ok(Some(Arrived { bytes, ..Arrived::default() }))
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
            Err(Errno::BADMSG) => {
                let party = party(&self.terms);
                if threads.aside.late_of(&party, Instant::now()) >= MOST_OF_ONE {
                    return Err(Farewell::Waits);
                }
                let (incoming, socket, bell) = (Incoming::default(), self.socket.clone(), threads.bell.clone());
                self.incoming = Some(incoming.clone());
                threads.aside.run(&party, "a request to a card", move || incoming.receive(&socket, &bell));
                Ok(None)
            }
            Err(_) => Err(Farewell::HungUp),
        }
    }

    /// What is to be logged of a job that has failed: once for each, [`MOST_FAILURES`] times in all.
    pub fn failure<B: Board>(&mut self, mediator: &Mediator<B>) -> Option<JobFault> {
        let id = self.id?;
        let fault = mediator.fault(id)?;
        let (count, told) = &mut self.failures;
        let is_new = std::mem::replace(told, mediator.jobs(id)) != mediator.jobs(id);
        let tells = is_new && *count < MOST_FAILURES;
        *count += u8::from(tells);
        tells.then_some(fault)
    }

    /// Tries again what waits for the port. True: an access was given up, which deserves a line in the log.
    ///
    /// # Errors
    /// See [`Farewell`].
    pub fn retry<B: Board>(
        &mut self,
        mediator: &mut Mediator<B>,
        limits: &Limits,
        now: Instant,
    ) -> Result<bool, Farewell> {
        if self.ended {
            return Err(Farewell::Ended);
        }
        self.note_interrupts(mediator);
        let Some(pending) = self.pending.take() else { return Ok(false) };
        if let Some(reply) = self.execute(mediator, limits, &pending.request, None) {
            self.answer(reply, None)?;
            return Ok(false);
        }
        let waited = now.duration_since(pending.since);
        match pending.request {
            Request::Read { bytes, .. } if waited >= EFFECT_READ_TIMEOUT => {
                self.answer(Reply::with(&[if bytes == 4 { u64::from(u32::MAX) } else { u64::MAX }]), None)?;
                Ok(true)
            }
            Request::Wait { ms } if waited >= Duration::from_millis(ms.into()) => {
                self.answer(Reply::with(&[0]), None)?;
                Ok(false)
            }
            _ => {
                self.pending = Some(pending);
                Ok(false)
            }
        }
    }

    /// `None`: the access waits for the port.
    fn execute<B: Board>(
        &mut self,
        mediator: &mut Mediator<B>,
        limits: &Limits,
        request: &Request,
        descriptor: Option<OwnedFd>,
    ) -> Option<Reply> {
        let id = match (request, self.id) {
            (Request::Port { version, place }, _) => return Some(self.port(mediator, *version, *place)),
            (Request::Hello { version, guid }, None) => return Some(self.greet(mediator, *version, guid)),
            (Request::Hello { .. }, Some(_)) => return Some(Reply::refused(Errno::BUSY)),
            (_, None) => return Some(Reply::refused(Errno::NOTCONN)),
            (_, Some(id)) => id,
        };
        let done = match *request {
            Request::Hello { .. } | Request::Interrupt { .. } | Request::Port { .. } | Request::Resume { .. } => {
                return Some(Reply::refused(Errno::BUSY));
            }
            Request::Read { offset, bytes } => match mediator.read(id, offset, bytes) {
                Ok(ReadAnswer::Value(value)) => return Some(Reply::with(&[value])),
                Ok(ReadAnswer::NotScheduled) => return None,
                Err(error) => Err(error),
            },
            Request::Write { offset, bytes, value } => match mediator.write(id, offset, bytes, value) {
                Ok(WriteAnswer::Done) => Ok(()),
                Ok(WriteAnswer::QueueFull) => return None,
                Err(error) => Err(error),
            },
            Request::Base { address } => mediator.set_base(id, address),
            Request::State { address } => mediator.set_state_address(id, address),
            Request::Memory { id, length, rights } => {
                let added = self.memories.add(id, descriptor, length, rights, limits.memories);
                return Some(added.map_or_else(Reply::refused, |()| Reply::default()));
            }
            Request::Forget { id } => {
                return Some(self.memories.forget(id).map_or_else(Reply::refused, |()| Reply::default()));
            }
            Request::Map { address, length, memory, offset, rights } => {
                let Some(memory) = self.memories.get(memory) else { return Some(Reply::refused(Errno::BADF)) };
                if !self.account.charge(length) {
                    return Some(Reply::refused(Errno::NOMEM));
                }
                let mapped = mediator.map(id, address, length, memory, offset, rights);
                if mapped.is_err() {
                    self.account.uncharge(length);
                }
                mapped
            }
            Request::Unmap { address, length } => {
                mediator.unmap(id, address, length).map(|bytes| self.account.uncharge(bytes))
            }
            Request::Reset => mediator.reset(id),
            Request::Wait { .. } => return self.awaited(mediator, id),
            Request::Info => return Some(info(mediator, id)),
            Request::Fault => return Some(fault(mediator.fault(id))),
        };
        Some(done.map_or_else(|error| Reply::refused(errno_of(&error)), |()| Reply::default()))
    }

    /// The interrupts that were raised, a bit per vector, if there are any or no job runs.
    fn awaited<B: Board>(&mut self, mediator: &mut Mediator<B>, id: VirtualId) -> Option<Reply> {
        self.note_interrupts(mediator);
        // Without an access to the card, which each look would pay for as long as it waits.
        let runs = mediator.figures(id).is_some_and(|own| matches!(own.phase, Phase::Queued { .. } | Phase::Running));
        (self.raised != 0 || !runs).then(|| Reply::with(&[std::mem::take(&mut self.raised).into()]))
    }

    fn note_interrupts<B: Board>(&mut self, mediator: &mut Mediator<B>) {
        let raised = self.id.and_then(|id| mediator.take_interrupts(id).ok()).unwrap_or(0);
        self.raised |= raised;
        self.events.tell(raised);
    }

    /// Answers with a descriptor that becomes readable when the vector is raised.
    fn subscribe(&mut self, vector: u32) -> Result<(), Farewell> {
        let opened = if self.id.is_some() { self.events.open(vector) } else { Err(Errno::NOTCONN) };
        match opened {
            Ok(descriptor) => self.answer(Reply::default(), Some(descriptor)),
            Err(errno) => self.answer(Reply::refused(errno), None),
        }
    }

    /// The reply: version, bytes of a saved state, bytes of the slice.
    fn greet<B: Board>(&mut self, mediator: &mut Mediator<B>, version: u32, guid: &str) -> Reply {
        if version != LINK_VERSION {
            return other_version();
        }
        let state_lines =
            mediator.board().description().ports.iter().find(|port| port.guid == guid).map(|port| port.state_lines);
        match mediator.open(guid, self.terms.owner.clone(), |port| self.terms.allow(port)) {
            Ok(id) => {
                self.id = Some(id);
                Reply::with(&[LINK_VERSION.into(), u64::from(state_lines.unwrap_or(0)) * LINE, SLICE_BYTES])
            }
            Err(error) => Reply::refused(errno_of(&error)),
        }
    }

    /// The reply: the two halves of the GUID, the port's number, virtual accelerators there. SRCH: there are not so many.
    fn port<B: Board>(&self, mediator: &Mediator<B>, version: u32, place: u64) -> Reply {
        if version != LINK_VERSION {
            return other_version();
        }
        let ports = &mediator.board().description().ports;
        let mut allowed = mediator.port_names().zip(ports).enumerate().filter(|(_, (name, _))| self.terms.allow(name));
        let found = usize::try_from(place).ok().and_then(|place| allowed.nth(place));
        let Some((number, (_, port))) = found else { return Reply::refused(Errno::SRCH) };
        let [high, low] = guid_halves(&port.guid);
        let there: usize = mediator.port_uses(number).iter().map(|(tenant, _)| tenant.members.len()).sum();
        Reply::with(&[high, low, number as u64, there as u64])
    }

    fn answer(&mut self, reply: Reply, descriptor: Option<OwnedFd>) -> Result<(), Farewell> {
        self.last = reply;
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = descriptor.iter().map(AsFd::as_fd).collect();
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        let sent = sendmsg(&*self.socket, &[IoSlice::new(&reply.to_bytes())], &mut ancillary, flags);
        match sent {
            Ok(_) => Ok(()),
            Err(Errno::WOULDBLOCK) => Err(Farewell::Deaf),
            Err(_) => Err(Farewell::HungUp),
        }
    }
}

/// A client of another release.
fn other_version() -> Reply {
    Reply { errno: Errno::PROTONOSUPPORT.raw_os_error().unsigned_abs(), ..Reply::with(&[LINK_VERSION.into()]) }
}

/// Phase (0 idle, 1 queued, 2 running, 3 done, 4 failed), port, cycles, preemptions, mapped bytes, refused requests, bad accesses.
fn info<B: Board>(mediator: &mut Mediator<B>, id: VirtualId) -> Reply {
    match mediator.status(id) {
        Ok(status) => {
            let phase = match status.phase {
                Phase::Idle => 0,
                Phase::Queued { .. } => 1,
                Phase::Running => 2,
                Phase::Done => 3,
                Phase::Failed(_) => 4,
            };
            Reply::with(&[
                phase,
                status.port as u64,
                status.cycles,
                status.preemptions,
                status.mapped_bytes,
                status.refused,
                status.bad_accesses,
            ])
        }
        Err(error) => Reply::refused(errno_of(&error)),
    }
}

/// Cause (0: the job has not failed), 1 for a write, the line's address as the program knows it, cycle of the card's clock.
fn fault(fault: Option<JobFault>) -> Reply {
    let Some(JobFault { cause, request, at }) = fault else { return Reply::default() };
    let (write, address) = request.map_or((false, 0), |request| (request.write, request.address));
    Reply::with(&[cause as u64, u64::from(write), address, at])
}

/// The errno of a refusal, which the library explains.
fn errno_of(error: &Error) -> Errno {
    match error {
        Error::NoAccelerator => Errno::NOENT,
        Error::NoPlace => Errno::NOSPC,
        Error::Unknown => Errno::NOTCONN,
        Error::Busy => Errno::BUSY,
        Error::NotReady => Errno::NXIO,
        Error::Mapping(MappingError::Iommu(IommuError::Taken(_))) => Errno::EXIST,
        Error::Mapping(MappingError::TooMany) => Errno::TOOBIG,
        Error::Base(_) | Error::StateAddress(_) | Error::WrongPort(_) | Error::Mapping(_) => Errno::INVAL,
    }
}
