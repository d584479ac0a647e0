//! One end of a lane, over shared memory or a stream.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use aviary_ring::{
    Consumer, ConsumerPosition, Doorbell, EMPTY, Interruption, Liveness, Producer, ProducerPosition, RingMemory,
    WakeHandle,
};
use aviary_wire::{Control, MAX_MESSAGE};

use crate::LaneError;
use crate::Region;
use crate::descriptors::KeptFile;
use crate::memory::arena::Arena;
use crate::stream::StreamLane;

/// The end that this process holds: the first ring goes from guest to server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Guest,
    Server,
}

/// A pair of rings in shared memory.
pub struct SharedLane {
    tx: Producer,
    rx: Consumer,
    waker: WakeHandle,
    sending: Sending,
    scratch: Vec<u8>,
}

/// What is done with a message beside writing it into the ring.
enum Sending {
    Plain,
    /// The peer is a carrier: each message is followed by the list of its regions.
    Carried,
    /// The doorbell is told of messages whose answer the sender waits for.
    Told(Arc<dyn Doorbell>),
}

/// The position of one end of a shared lane between two messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LanePosition {
    pub sent: ProducerPosition,
    pub received: ConsumerPosition,
}

/// Longest region list in bytes in a ring of a carried arena: two words per region, then their
/// number.
const MAX_TRAILER: usize = (MAX_REGIONS * 2 + 1) * 8;
const MAX_REGIONS: usize = 1 << 16;
/// Bytes of memory kept for the next message with its list.
const SCRATCH: usize = 64 << 10;

/// One end of a lane. One thread uses it at a time.
pub enum LaneEnd {
    Shared(Box<SharedLane>),
    Stream(StreamLane),
}

impl LaneEnd {
    /// A lane in `length` bytes at `offset` of the arena, half for each direction.
    pub fn shared(
        arena: &Arc<Arena>,
        offset: u64,
        length: usize,
        side: Side,
        liveness: &Arc<Liveness>,
    ) -> Result<Self, LaneError> {
        let sending = if arena.carried() { Sending::Carried } else { Sending::Plain };
        Self::pair(arena, (offset, length), side, liveness, (arena.doorbell(), sending))
    }

    /// The same with a doorbell of the lane's own, in an arena that is shared with the peer itself.
    pub fn shared_with(
        arena: &Arc<Arena>,
        (offset, length): (u64, usize),
        side: Side,
        liveness: &Arc<Liveness>,
        doorbell: Arc<dyn Doorbell>,
    ) -> Result<Self, LaneError> {
        let sending = Sending::Told(doorbell.clone());
        Self::pair(arena, (offset, length), side, liveness, (Some(doorbell), sending))
    }

    fn pair(
        arena: &Arc<Arena>,
        (offset, length): (u64, usize),
        side: Side,
        liveness: &Arc<Liveness>,
        (doorbell, sending): (Option<Arc<dyn Doorbell>>, Sending),
    ) -> Result<Self, LaneError> {
        let half = (length / 2) & !63;
        let base = arena.pointer(offset, length)?;
        // SAFETY: `pointer` checked that both halves lie in the arena, which the Arc keeps mapped.
        // The guest allocates the block for this lane only; a guest that lies and uses the memory
        // otherwise acts like a peer that writes garbage, which rings tolerate.
        let (to_server, to_guest) = unsafe {
            (RingMemory::new(base, half, arena.clone())?, RingMemory::new(base.add(half), half, arena.clone())?)
        };
        let (to_server, to_guest) = (to_server.with_doorbell(doorbell.clone()), to_guest.with_doorbell(doorbell));
        let (outgoing, receiving) = match side {
            Side::Guest => (to_server, to_guest),
            Side::Server => (to_guest, to_server),
        };
        let waker = WakeHandle::new(&receiving, &outgoing);
        // A carrier reads trailers, which the final peers write: the longest one is part of every
        // lane's limit.
        let limit = MAX_MESSAGE + MAX_TRAILER;
        Ok(LaneEnd::Shared(Box::new(SharedLane {
            tx: Producer::new(outgoing, liveness.clone(), limit),
            rx: Consumer::new(receiving, liveness.clone(), limit),
            waker,
            sending,
            scratch: Vec::new(),
        })))
    }

    /// Makes a block an empty lane. Called by the guest before it opens the lane.
    pub fn clear(arena: &Arena, offset: u64, length: usize) -> Result<(), LaneError> {
        let half = (length / 2) & !63;
        let base = arena.pointer(offset, length)?;
        if half < EMPTY {
            return Err(LaneError::Open("room for two rings"));
        }
        // SAFETY: both beginnings lie in the arena; the block has just been allocated, so no lane
        // uses it.
        unsafe {
            base.write_bytes(0, EMPTY);
            base.add(half).write_bytes(0, EMPTY);
        }
        Ok(())
    }

    /// Sends a message. `regions` are carried along if the arena is mirrored and ignored otherwise. A message of no bytes is for
    /// a carrier: its regions belong to a message that follows.
    #[inline]
    pub fn send(&mut self, message: &[u8], regions: &[Region]) -> Result<(), LaneError> {
        match self {
            LaneEnd::Shared(lane) => match lane.sending {
                Sending::Plain | Sending::Told(_) => Ok(lane.tx.send(message)?),
                Sending::Carried => lane.send_carried(message, regions),
            },
            LaneEnd::Stream(lane) => lane.send(message, regions),
        }
    }

    /// Sends a message whose answer this thread waits for next.
    #[inline]
    pub fn ask(&mut self, message: &[u8], regions: &[Region]) -> Result<(), LaneError> {
        match self {
            LaneEnd::Shared(lane) => match lane.sending {
                Sending::Plain => Ok(lane.tx.send(message)?),
                Sending::Carried => lane.send_carried(message, regions),
                Sending::Told(_) => lane.send_asking(message),
            },
            LaneEnd::Stream(lane) => lane.send(message, regions),
        }
    }

    /// Waits for a message and replaces the content of `into` with it.
    #[inline]
    pub fn receive(&mut self, into: &mut Vec<u8>) -> Result<(), LaneError> {
        match self {
            LaneEnd::Shared(lane) => Ok(lane.rx.receive(into)?),
            LaneEnd::Stream(lane) => lane.receive(into),
        }
    }

    /// Receives as [`LaneEnd::receive`] does, unless `interrupted` returns true before the message begins. It is called
    /// only if the message is not there yet, at each point of the wait.
    #[inline]
    pub fn receive_unless(&mut self, interrupted: &mut Interruption, into: &mut Vec<u8>) -> Result<(), LaneError> {
        match self {
            LaneEnd::Shared(lane) => Ok(lane.rx.receive_unless(interrupted, into)?),
            LaneEnd::Stream(lane) => lane.receive_unless(interrupted, into),
        }
    }

    /// Receives a message if one has begun to arrive, as [`LaneEnd::receive`] does; otherwise
    /// returns false at once.
    pub fn try_receive(&mut self, into: &mut Vec<u8>) -> Result<bool, LaneError> {
        match self {
            LaneEnd::Shared(lane) => Ok(lane.rx.try_receive(into)?),
            LaneEnd::Stream(lane) => lane.try_receive(into),
        }
    }

    /// Sets if waits for a message end when this side is interrupted; never those of a stream.
    pub fn set_interruptible(&mut self, interruptible: bool) {
        if let LaneEnd::Shared(lane) = self {
            lane.rx.set_interruptible(interruptible);
        }
    }

    /// Declares that every message is a reply to a request that this side sent before it waited.
    pub fn expect_answers(&mut self) {
        if let LaneEnd::Shared(lane) = self {
            lane.rx.expect_answers();
        }
    }

    /// True if this thread runs on the CPU where the peer last slept in its present wait, or else
    /// sent its last message.
    pub fn shares_cpu(&self) -> bool {
        match self {
            LaneEnd::Shared(lane) => lane.tx.peer_slept_here().unwrap_or_else(|| lane.rx.shares_cpu()),
            LaneEnd::Stream(_) => false,
        }
    }

    /// True if the peer sleeps until a message comes, or was woken and does not run yet, as far as
    /// known.
    pub fn peer_sleeps(&self) -> bool {
        matches!(self, LaneEnd::Shared(lane) if lane.tx.peer_sleeps())
    }

    /// Sets the spin window before every sleep of a receiver; zero lets recent waits decide.
    pub fn set_spin_window(&mut self, time: Duration) {
        if let LaneEnd::Shared(lane) = self {
            lane.rx.set_spin_window(time);
        }
    }

    /// The peer is a carrier: a message without bytes sends its regions ahead of the next one.
    pub fn is_carried(&self) -> bool {
        matches!(self, LaneEnd::Shared(lane) if matches!(lane.sending, Sending::Carried))
    }

    /// Wakes the peer if it sleeps, ahead of a message that will follow soon.
    pub fn wake_peer(&self) {
        if let LaneEnd::Shared(lane) = self {
            lane.tx.wake_peer();
        }
    }

    /// Waits at most `at_most` for a message; false if none has begun to arrive.
    pub fn await_message(&mut self, at_most: Duration) -> Result<bool, LaneError> {
        match self {
            LaneEnd::Shared(lane) => Ok(lane.rx.await_message(at_most)?),
            LaneEnd::Stream(lane) => Ok(lane.await_message(at_most)),
        }
    }

    /// Position of a shared lane, for another process that goes on with it. `None`: a stream.
    pub fn position(&self) -> Option<LanePosition> {
        match self {
            LaneEnd::Shared(lane) => Some(LanePosition { sent: lane.tx.position(), received: lane.rx.position() }),
            LaneEnd::Stream(_) => None,
        }
    }

    /// Goes on where another process has stopped. Refuses a stream, and positions that are none.
    pub fn resume(self, at: LanePosition) -> Result<Self, LaneError> {
        match self {
            LaneEnd::Shared(lane) => {
                let lane = *lane;
                let (tx, rx) = (lane.tx.resume(at.sent)?, lane.rx.resume(at.received)?);
                Ok(LaneEnd::Shared(Box::new(SharedLane { tx, rx, ..lane })))
            }
            LaneEnd::Stream(_) => Err(LaneError::Open("memory, to go on with a lane")),
        }
    }

    /// The two rings, for a carrier, which sends and receives in different threads. `None`: a
    /// stream.
    pub fn split(self) -> Option<(Producer, Consumer)> {
        match self {
            LaneEnd::Shared(lane) => Some((lane.tx, lane.rx)),
            LaneEnd::Stream(_) => None,
        }
    }

    /// A handle for the thread that supervises the connection.
    pub fn waker(&self) -> LaneWaker {
        match self {
            LaneEnd::Shared(lane) => LaneWaker(Waker::Shared(lane.waker.clone())),
            LaneEnd::Stream(lane) => LaneWaker(Waker::Stream(lane.socket())),
        }
    }
}

impl SharedLane {
    #[cold]
    fn send_asking(&mut self, message: &[u8]) -> Result<(), LaneError> {
        let Sending::Told(doorbell) = &self.sending else { return Ok(self.tx.send(message)?) };
        doorbell.asks(true);
        let sent = self.tx.send(message);
        doorbell.asks(false);
        Ok(sent?)
    }

    fn send_carried(&mut self, message: &[u8], regions: &[Region]) -> Result<(), LaneError> {
        if message.len() > MAX_MESSAGE || regions.len() > MAX_REGIONS {
            return Err(LaneError::Frame { length: message.len() as u64, regions: regions.len() as u64 });
        }
        self.scratch.clear();
        self.scratch.extend_from_slice(message);
        for region in regions {
            self.scratch.extend_from_slice(&region.offset.to_le_bytes());
            self.scratch.extend_from_slice(&(region.length as u64).to_le_bytes());
        }
        self.scratch.extend_from_slice(&(regions.len() as u64).to_le_bytes());
        let sent = self.tx.send(&self.scratch);
        // Large messages are rare; their memory is not kept.
        if self.scratch.capacity() > SCRATCH {
            self.scratch = Vec::new();
        }
        Ok(sent?)
    }
}

/// Cuts the region list off a message that a carrier received; the message for the final peer
/// remains.
pub fn take_regions(message: &mut Vec<u8>) -> Result<Vec<Region>, LaneError> {
    let broken = LaneError::Open("a region list");
    let Some((rest, count)) = message.split_last_chunk::<8>() else { return Err(broken) };
    let count = u64::from_le_bytes(*count);
    if count > MAX_REGIONS as u64 || count as usize * 16 > rest.len() {
        return Err(broken);
    }
    let at = rest.len() - count as usize * 16;
    let (pairs, _) = rest[at..].as_chunks::<16>();
    let regions = pairs.iter().map(|pair| {
        let pair = u128::from_le_bytes(*pair);
        Region { offset: pair as u64, length: usize::try_from((pair >> 64) as u64).unwrap_or(usize::MAX) }
    });
    let regions = regions.collect();
    message.truncate(at);
    Ok(regions)
}

/// Ends the local side's wait after [`Liveness::kill`] was called.
#[derive(Clone)]
pub struct LaneWaker(Waker);

#[derive(Clone)]
enum Waker {
    Shared(WakeHandle),
    Stream(Arc<KeptFile>),
}

impl LaneWaker {
    /// Wakes the sleepers of a shared lane; shuts a stream lane down, which can no longer be used.
    pub fn wake(&self) {
        match &self.0 {
            Waker::Shared(handle) => handle.wake(),
            Waker::Stream(socket) => {
                if let Some(socket) = socket.get() {
                    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
                }
            }
        }
    }
}

/// The server's end of a lane that a `LANE_OPEN` message announced.
pub fn accept_lane(
    open: &Control,
    fd: Option<OwnedFd>,
    arena: &Arc<Arena>,
    liveness: &Arc<Liveness>,
) -> Result<LaneEnd, LaneError> {
    if arena.streamed() {
        let socket = fd.ok_or(LaneError::Open("a socket"))?;
        return Ok(LaneEnd::Stream(StreamLane::new(socket, arena.clone())));
    }
    let length = usize::try_from(open.length).map_err(|_| LaneError::Open("memory"))?;
    LaneEnd::shared(arena, open.offset, length, Side::Server, liveness)
}
