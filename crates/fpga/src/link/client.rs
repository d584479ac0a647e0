//! One client of the card: its socket, its virtual accelerator, and the request that waits for the port.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aviary_card::{Board, ClientMemory, LINE};
use aviary_control::ClientFigures;
use aviary_gate::fits;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use super::account::MemoryAccount;
use super::events::Events;
use super::message::{BadRequest, LINK_VERSION, MESSAGE_BYTES, Reply, Request};
use super::service::Limits;
use crate::mediator::guid_halves;
use crate::{
    Error, MappingError, Mediator, Owner, Phase, ReadAnswer, SLICE_BYTES, VirtualId, WriteAnswer, nanoseconds,
};

/// Time in which a read of a register with an effect waits for the port. A virtual machine must not stand still for its place in
/// a queue: after that the read is answered with all ones, as on a bus.
const EFFECT_READ_TIMEOUT: Duration = Duration::from_secs(1);

/// The reason why a client is not served any more.
#[derive(Debug, thiserror::Error)]
pub enum Farewell {
    /// it hung up
    #[error("it hung up")]
    HungUp,
    /// the node ends its session
    #[error("the node ends its session")]
    Ended,
    /// it sent {0}
    #[error("it sent {0}")]
    Bad(#[from] BadRequest),
    /// it does not read its replies
    #[error("it does not read its replies")]
    Deaf,
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

/// A client. Everything that it sends is hostile; it harms its own virtual accelerator only.
#[derive(Debug)]
pub struct Client {
    pub socket: OwnedFd,
    id: Option<VirtualId>,
    mappings: usize,
    pending: Option<Pending>,
    terms: ClientTerms,
    account: MemoryAccount,
    /// Requests so far.
    requests: u64,
    /// The node ends its session.
    ended: bool,
    events: Events,
    /// Interrupts that no WAIT was told, a bit per vector.
    raised: u8,
}

impl Client {
    pub fn new(socket: OwnedFd, account: MemoryAccount, terms: ClientTerms) -> Client {
        Client {
            socket,
            id: None,
            mappings: 0,
            pending: None,
            terms,
            account,
            requests: 0,
            ended: false,
            events: Events::default(),
            raised: 0,
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

    /// The other end of the socket is gone, although requests of it may wait or be unread.
    pub fn has_hung_up(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::empty())];
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
        now: Instant,
    ) -> Result<bool, Farewell> {
        if self.ended {
            return Err(Farewell::Ended);
        }
        // A byte more than a request, so that a longer one is seen.
        let mut bytes = [0; MESSAGE_BYTES + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let message = match recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
            Ok(message) => message,
            Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(false),
            Err(_) => return Err(Farewell::HungUp),
        };
        let mut descriptors: Vec<OwnedFd> = ancillary
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            })
            .flatten()
            .collect();
        if message.bytes == 0 {
            return Err(Farewell::HungUp);
        }
        if message.flags.contains(ReturnFlags::TRUNC) {
            return Err(BadRequest::Length(message.bytes).into());
        }
        let request = Request::parse(&bytes[..message.bytes], descriptors.len())?;
        self.requests += 1;
        if let Request::Interrupt { vector } = request {
            self.subscribe(vector)?;
            return Ok(true);
        }
        match self.execute(mediator, limits, &request, descriptors.pop()) {
            Some(reply) => self.answer(reply, None)?,
            None => self.pending = Some(Pending { request, since: now }),
        }
        Ok(true)
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
            Request::Hello { .. } | Request::Interrupt { .. } | Request::Port { .. } => {
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
            Request::Map { address, length, offset, rights } => {
                let Some(descriptor) = descriptor else { return Some(Reply::refused(Errno::BADF)) };
                if self.mappings >= limits.mappings || !self.account.charge(length) {
                    return Some(Reply::refused(Errno::NOMEM));
                }
                let memory = ClientMemory::map(File::from(descriptor), offset, length, rights);
                let mapped = memory.map(|memory| mediator.map(id, address, length, &Arc::new(memory), 0, rights));
                if let Ok(Ok(())) = mapped {
                    self.mappings += 1;
                } else {
                    self.account.uncharge(length);
                }
                match mapped {
                    Ok(mapped) => mapped,
                    Err(_) => return Some(Reply::refused(Errno::BADF)),
                }
            }
            Request::Unmap { address, length } => {
                let unmapped = mediator.unmap(id, address, length);
                if unmapped.is_ok() {
                    self.mappings -= 1;
                    self.account.uncharge(length);
                }
                unmapped
            }
            Request::Reset => mediator.reset(id),
            Request::Wait { .. } => return self.awaited(mediator, id),
            Request::Info => return Some(info(mediator, id)),
        };
        Some(done.map_or_else(|error| Reply::refused(errno_of(&error)), |()| Reply::default()))
    }

    /// The interrupts that were raised, a bit per vector, if there are any or no job runs.
    fn awaited<B: Board>(&mut self, mediator: &mut Mediator<B>, id: VirtualId) -> Option<Reply> {
        self.note_interrupts(mediator);
        let runs =
            mediator.status(id).is_ok_and(|status| matches!(status.phase, Phase::Queued { .. } | Phase::Running));
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

    fn answer(&self, reply: Reply, descriptor: Option<OwnedFd>) -> Result<(), Farewell> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = descriptor.iter().map(AsFd::as_fd).collect();
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        let sent = sendmsg(&self.socket, &[IoSlice::new(&reply.to_bytes())], &mut ancillary, flags);
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

/// The errno of a refusal, which the library explains.
fn errno_of(error: &Error) -> Errno {
    match error {
        Error::NoAccelerator => Errno::NOENT,
        Error::NoPlace => Errno::NOSPC,
        Error::Unknown => Errno::NOTCONN,
        Error::Busy => Errno::BUSY,
        Error::NotReady => Errno::NXIO,
        Error::Mapping(MappingError::Iommu(_)) => Errno::EXIST,
        Error::Base(_) | Error::StateAddress(_) | Error::WrongPort(_) | Error::Mapping(_) => Errno::INVAL,
    }
}
