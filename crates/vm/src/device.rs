//! The three queues: requests with answers, events, doorbells.

use std::collections::HashMap;

use vhost_user_backend::{VringRwLock, VringT};
use virtio_queue::{DescriptorChain, QueueOwnedT, QueueT};
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryLoadGuard, GuestMemoryMmap};

use crate::chain::{ChainError, Parcel, Room};
use crate::request::MAX_REQUEST_BYTES;
use crate::session::{Answer, SessionEvent, Ticket};
use crate::sessions::{Reply, Sessions};

pub const QUEUES: usize = 3;
pub const QUEUE_SIZE: usize = 1024;
pub const CONTROL: usize = 0;
pub const EVENTS: usize = 1;
pub const DOORBELL: usize = 2;

/// Bytes of an answer without further content.
const ANSWER: usize = 16;
/// Bytes of an event without its data.
const EVENT: usize = 24;
/// Bytes that every buffer for events must hold.
const EVENT_ROOM: usize = 64;
/// Largest data of one event in bytes, however large the buffer is.
const EVENT_DATA: usize = 4096;
/// Chains taken from one queue before other queues have their turn.
const CHAINS_PER_EVENT: usize = 512;

/// Numbers of the events.
mod event {
    pub const DATA: u32 = 1;
    pub const WAKE: u32 = 2;
    pub const CLOSED: u32 = 3;
    pub const RESET: u32 = 4;
}

type Memory = GuestMemoryAtomic<GuestMemoryMmap>;
type Chain = DescriptorChain<GuestMemoryLoadGuard<GuestMemoryMmap>>;

/// The VMM's way of saying that the driver has reset the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resets {
    /// None was announced so far: a stop of the control queue may be one.
    Unannounced,
    /// Resets have a message of their own, the first of which comes before the driver can do anything. A stop alone is a
    /// pause of the VM.
    Announced,
}

/// The control queue as the VMM has left it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ControlQueue {
    /// Beginning, or at work.
    InUse,
    /// The VM stands. `next` is the place in the ring (modulo 2^16) of the next request, where the queue has to go on.
    Paused { next: u16 },
}

/// The destination of an answer that is not ready yet.
struct Waiting {
    head: u16,
    room: Room,
}

pub struct Device {
    pub sessions: Sessions,
    memory: Memory,
    waiting: HashMap<Ticket, Waiting>,
    tickets: Ticket,
    resets: Resets,
    control: ControlQueue,
    /// True until the guest has been told that this is a new instance of the device.
    reset: bool,
}

impl Device {
    pub fn new(sessions: Sessions, memory: Memory) -> Self {
        let (waiting, tickets) = (HashMap::new(), 0);
        let (resets, control) = (Resets::Unannounced, ControlQueue::InUse);
        Device { sessions, memory, waiting, tickets, resets, control, reset: true }
    }

    /// Ends all sessions: the driver has reset the device, or the VM ends.
    pub fn end(&mut self) {
        self.sessions.end_all();
        self.waiting.clear();
        self.control = ControlQueue::InUse;
        self.reset = true;
    }

    /// The VMM says that the driver has reset the device.
    pub fn driver_reset(&mut self) {
        self.resets = Resets::Announced;
        self.end();
    }

    /// The VMM has stopped the control queue. `None`: no request was ever taken from it.
    ///
    /// In a pause the sessions stay. Their answers and events are kept until the queues go on; the heads of requests
    /// in flight stay taken, so that the queue goes on behind them.
    pub fn control_stopped(&mut self, queue: Option<&VringRwLock>) {
        match (self.resets, queue) {
            (Resets::Announced, Some(queue)) => {
                // The queue may have gone on and stopped again unseen.
                self.check_place(queue);
                self.control = ControlQueue::Paused { next: queue.queue_next_avail() };
            }
            (Resets::Announced, None) => {}
            (Resets::Unannounced, _) => self.end(),
        }
    }

    /// Before anything is done with the queues: a queue that goes on elsewhere than it stopped is another driver's, also
    /// if the VMM has announced no reset.
    pub fn look_at_control(&mut self, queues: &[VringRwLock]) {
        if let Some(queue) = queues.get(CONTROL).filter(|queue| is_running(queue)) {
            self.check_place(queue);
            self.control = ControlQueue::InUse;
        }
    }

    fn check_place(&mut self, queue: &VringRwLock) {
        let ControlQueue::Paused { next } = self.control else { return };
        let found = queue.queue_next_avail();
        if found != next {
            self.sessions.log().line(format_args!(
                "the driver was reset (the control queue stopped at request {next} and resumed at {found}): all sessions of the VM end"
            ));
            self.end();
        }
    }

    /// Takes requests. True: there are more, after other queues had their turn.
    pub fn take_requests(&mut self, queue: &VringRwLock) -> bool {
        self.each_chain(queue, |device, chain| device.request(queue, chain))
    }

    /// Takes doorbells. True: there are more, after other queues had their turn.
    pub fn take_doorbells(&mut self, queue: &VringRwLock) -> bool {
        self.each_chain(queue, |device, chain| {
            let head = chain.head_index();
            match Parcel::take(chain, &device.memory.memory(), MAX_REQUEST_BYTES) {
                Ok(parcel) => device.sessions.ring(&parcel.bytes),
                Err(error) => device.complain(error),
            }
            device.give_back(queue, head, 0);
        })
    }

    /// Delivers the answers that are ready, and events as long as there are buffers.
    pub fn settle(&mut self, queues: &[VringRwLock]) {
        let (Some(control), Some(events)) = (queues.get(CONTROL), queues.get(EVENTS)) else { return };
        loop {
            let answers = if is_running(control) { self.sessions.take_answers() } else { Vec::new() };
            if !answers.is_empty() {
                answers.into_iter().for_each(|answer| self.answer(control, answer));
                signal(control);
            }
            // Reading from the sockets may have brought answers.
            if !self.deliver(events) {
                return;
            }
        }
    }

    // Requests.

    fn request(&mut self, queue: &VringRwLock, chain: Chain) {
        let head = chain.head_index();
        let memory = self.memory.memory();
        let parcel = match Parcel::take(chain, &memory, MAX_REQUEST_BYTES).and_then(|parcel| parcel.with_room(ANSWER)) {
            Ok(parcel) => parcel,
            Err(error) => {
                self.complain(error);
                return self.give_back(queue, head, 0);
            }
        };
        if self.waiting.len() >= QUEUE_SIZE {
            self.sessions
                .log()
                .complain("the guest's driver sent more requests than the queue holds: one is returned unread");
            return self.give_back(queue, head, 0);
        }
        self.tickets += 1;
        // Before the request: its answer may be among the next ones already.
        let ticket = self.tickets;
        self.waiting.insert(ticket, Waiting { head, room: parcel.room });
        if let Some(reply) = self.sessions.request(ticket, &parcel.bytes, &memory) {
            self.reply(queue, ticket, &reply);
        }
    }

    fn answer(&mut self, queue: &VringRwLock, answer: Answer) {
        self.reply(queue, answer.ticket, &answer.result.map(|()| 0).into());
    }

    fn reply(&mut self, queue: &VringRwLock, ticket: Ticket, reply: &Reply) {
        let Some(Waiting { head, room }) = self.waiting.remove(&ticket) else { return };
        let (status, value) = match reply.status {
            Ok(value) => (0, value),
            Err(errno) => (errno.raw_os_error() as u32, 0),
        };
        let mut bytes = u64::from(status).to_le_bytes().to_vec();
        bytes.extend_from_slice(&value.to_le_bytes());
        if room.size() >= ANSWER + reply.more.len() {
            bytes.extend_from_slice(&reply.more);
        }
        let written = room.write(&self.memory.memory(), &bytes).unwrap_or_else(|error| {
            self.complain(error);
            0
        });
        self.give_back(queue, head, written);
    }

    // Events.

    /// Delivers events. True: a socket was read meanwhile, which may have brought more.
    fn deliver(&mut self, queue: &VringRwLock) -> bool {
        if !is_running(queue) {
            return false;
        }
        let mut delivered = false;
        while self.reset || self.sessions.has_events() {
            let Some(chain) = self.next_buffer(queue) else { break };
            let head = chain.head_index();
            let memory = self.memory.memory();
            let taken = Parcel::take(chain, &memory, 0).and_then(|parcel| parcel.with_room(EVENT_ROOM));
            let written = taken.and_then(|Parcel { room, .. }| match self.next_event(room.size()) {
                Some(bytes) => room.write(&memory, &bytes),
                None => Ok(0),
            });
            let written = written.unwrap_or_else(|error| {
                self.complain(error);
                0
            });
            self.give_back(queue, head, written);
            delivered = true;
        }
        if delivered {
            signal(queue);
        }
        delivered
    }

    /// The next buffer for events. The driver announces new buffers only after the device found
    /// none.
    fn next_buffer(&mut self, queue: &VringRwLock) -> Option<Chain> {
        if let Some(chain) = self.next_chain(queue) {
            return Some(chain);
        }
        let chain = if queue.enable_notification().unwrap_or(false) { self.next_chain(queue) } else { None };
        if chain.is_some() {
            let _ = queue.disable_notification();
        }
        chain
    }

    fn next_event(&mut self, room: usize) -> Option<Vec<u8>> {
        if std::mem::take(&mut self.reset) {
            return Some(event_bytes(event::RESET, 0, self.sessions.instance(), &[]));
        }
        let (session, event) = self.sessions.next_event((room - EVENT).min(EVENT_DATA - EVENT))?;
        Some(match event {
            SessionEvent::Data(bytes) => event_bytes(event::DATA, session, 0, &bytes),
            SessionEvent::Wake(offset) => event_bytes(event::WAKE, session, offset, &[]),
            SessionEvent::Closed => event_bytes(event::CLOSED, session, 0, &[]),
        })
    }

    // Queues.

    fn each_chain(&mut self, queue: &VringRwLock, mut act: impl FnMut(&mut Self, Chain)) -> bool {
        if !is_running(queue) {
            return false;
        }
        let (mut left, mut idle) = (CHAINS_PER_EVENT, false);
        let _ = queue.disable_notification();
        loop {
            let before = left;
            while let Some(chain) = self.next_chain(queue) {
                act(self, chain);
                left -= 1;
                if left == 0 {
                    signal(queue);
                    return true;
                }
            }
            // A chain may have arrived before the driver knew that it has to notify. In a broken
            // queue it stays.
            let more = queue.enable_notification().unwrap_or(false);
            if !more || (idle && left == before) {
                break;
            }
            idle = left == before;
        }
        if left < CHAINS_PER_EVENT {
            signal(queue);
        }
        false
    }

    fn next_chain(&mut self, queue: &VringRwLock) -> Option<Chain> {
        let mut state = queue.get_mut();
        if !state.is_enabled() {
            return None;
        }
        let memory = self.memory.memory();
        match state.get_queue_mut().iter(memory) {
            Ok(mut chains) => chains.next(),
            Err(virtio_queue::Error::QueueNotReady) => None,
            Err(error) => {
                self.sessions
                    .log()
                    .complain(format_args!("the guest's driver broke a queue ({error}): no request is read"));
                None
            }
        }
    }

    fn give_back(&mut self, queue: &VringRwLock, head: u16, written: u32) {
        if let Err(error) = queue.add_used(head, written) {
            self.sessions.log().complain(format_args!("the guest's driver broke a queue ({error}): an answer is lost"));
        }
    }

    fn complain(&mut self, error: ChainError) {
        self.sessions.log().complain(error);
    }
}

/// True if the VMM has started the queue and not stopped it: only then may its memory be written.
fn is_running(queue: &VringRwLock) -> bool {
    let state = queue.get_ref();
    state.is_enabled() && state.get_queue().ready()
}

fn event_bytes(kind: u32, session: u32, value: u64, bytes: &[u8]) -> Vec<u8> {
    let mut event = Vec::with_capacity(EVENT + bytes.len());
    event.extend_from_slice(&kind.to_le_bytes());
    event.extend_from_slice(&session.to_le_bytes());
    event.extend_from_slice(&value.to_le_bytes());
    event.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    event.extend_from_slice(bytes);
    event
}

/// Notifies the driver of the returned chains, if it asked for notifications.
fn signal(queue: &VringRwLock) {
    if queue.needs_notification().unwrap_or(true) {
        // Fails if the VM is about to end, which needs no action.
        let _ = queue.signal_used_queue();
    }
}
