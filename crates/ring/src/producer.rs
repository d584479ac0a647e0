//! The sending end of a ring.

use std::sync::Arc;

use crate::LINE;
use crate::RingError;
use crate::line::PAYLOAD;
use crate::memory::RingMemory;
use crate::sync::Ordering;
use crate::wait::liveness::{Liveness, uninterrupted};
use crate::wait::wake::wake_if_asleep;
use crate::wait::{PeerWaitState, Spinner, WaitFlag, current_cpu, shares_cpu, wait};

/// Writes messages into a ring.
///
/// ```
/// # use aviary_ring::{Consumer, Liveness, Producer, RingError, RingMemory};
/// # use std::sync::Arc;
/// # #[repr(align(4096))]
/// # struct Page([u8; 4096]);
/// # let page: &'static mut Page = Box::leak(Box::new(Page([0; 4096])));
/// # // SAFETY: the page is never freed, and only the ring uses it.
/// # let memory = unsafe { RingMemory::new(page.0.as_mut_ptr(), 4096, Arc::new(())) }?;
/// let alive = Arc::new(Liveness::notified());
/// let mut producer = Producer::new(memory.clone(), alive.clone(), 1000);
/// producer.send(b"a call")?;
/// // A message above the limit is refused before anything of it is written.
/// assert!(matches!(producer.send(&[0; 1001]), Err(RingError::TooLong { length: 1001, limit: 1000 })));
/// # let mut message = Vec::new();
/// # Consumer::new(memory, alive, 1000).receive(&mut message)?;
/// # assert_eq!(message, b"a call");
/// # Ok::<(), RingError>(())
/// ```
pub struct Producer {
    memory: RingMemory,
    liveness: Arc<Liveness>,
    spinner: Spinner,
    /// Bytes of lines ever written. Private to this side, like every value that decides where it
    /// writes.
    written: u64,
    /// The consumer's index in bytes, as last loaded and checked: `written - capacity <= consumed
    /// <= written`.
    consumed: u64,
    limit: usize,
}

/// The position of a producer between two messages: all that another process needs to go on with
/// the ring.
///
/// ```
/// # use aviary_ring::{Liveness, Producer, ProducerPosition, RingError, RingMemory};
/// # use std::sync::Arc;
/// # #[repr(align(4096))]
/// # struct Page([u8; 4096]);
/// # let page: &'static mut Page = Box::leak(Box::new(Page([0; 4096])));
/// # // SAFETY: the page is never freed, and only the ring uses it.
/// # let memory = unsafe { RingMemory::new(page.0.as_mut_ptr(), 4096, Arc::new(())) }?;
/// # let alive = Arc::new(Liveness::notified());
/// let mut first = Producer::new(memory.clone(), alive.clone(), 1000);
/// first.send(b"one line")?;
/// let at = first.position();
/// // Another process may continue the ring there; a position that no producer can have is refused.
/// let mut second = Producer::new(memory.clone(), alive.clone(), 1000).resume(at)?;
/// second.send(b"another line")?;
/// let impossible = ProducerPosition { written: 64, consumed: 128 };
/// assert!(Producer::new(memory, alive, 1000).resume(impossible).is_err());
/// # Ok::<(), RingError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProducerPosition {
    /// Bytes of lines ever written.
    pub written: u64,
    /// The consumer's index in bytes, as this side knows it.
    pub consumed: u64,
}

impl Producer {
    /// The producer of an empty ring; a message of more than `limit` bytes is refused.
    pub fn new(memory: RingMemory, liveness: Arc<Liveness>, limit: usize) -> Self {
        let limit = limit.min(u32::MAX as usize);
        let spinner = Spinner::new(memory.reach());
        Producer { memory, liveness, spinner, written: 0, consumed: 0, limit }
    }

    pub fn position(&self) -> ProducerPosition {
        ProducerPosition { written: self.written, consumed: self.consumed }
    }

    /// Goes on where another producer of this ring has stopped. Refuses a position that no producer
    /// of such a ring can have: it may come out of a file.
    pub fn resume(self, at: ProducerPosition) -> Result<Self, RingError> {
        let capacity = self.memory.capacity();
        let refuse = |what, value| Err(RingError::Position { what, value, capacity });
        let ProducerPosition { written, consumed } = at;
        if !written.is_multiple_of(LINE as u64) {
            return refuse("the number of bytes written", written);
        }
        if !consumed.is_multiple_of(LINE as u64) || written.checked_sub(consumed).is_none_or(|n| n > capacity as u64) {
            return refuse("the number of bytes consumed", consumed);
        }
        Ok(Producer { written, consumed, ..self })
    }

    /// Sends one message, waiting for room.
    #[inline]
    pub fn send(&mut self, message: &[u8]) -> Result<(), RingError> {
        if message.len() > PAYLOAD {
            return self.send_long(message);
        }
        self.reserve(LINE)?;
        self.memory.clear_in_first_lap(self.written + LINE as u64);
        self.memory.write_line(self.written, message, current_cpu(), Ordering::Release);
        self.written += LINE as u64;
        wake_if_asleep(self.memory.consumer_sleeps(), &self.memory);
        Ok(())
    }

    /// Sends one message if the ring has room for all of it now; otherwise returns false at once and writes nothing.
    pub fn try_send(&mut self, message: &[u8]) -> Result<bool, RingError> {
        let needed = message.len().div_ceil(PAYLOAD).max(1) * LINE;
        if self.room() < needed {
            self.refresh()?;
        }
        if self.room() < needed { Ok(false) } else { self.send(message).map(|()| true) }
    }

    /// True if a message will have to wake the peer, or the peer was woken and does not run yet.
    /// The peer says so and may lie.
    pub fn peer_sleeps(&self) -> bool {
        PeerWaitState::look(self.memory.consumer_sleeps()).asleep
    }

    /// True if the peer went to sleep or woke up on the CPU that this thread runs on now, by its
    /// own word. `None`: the peer has not slept in its present wait, or its CPU is unknown.
    pub fn peer_slept_here(&self) -> Option<bool> {
        let at = PeerWaitState::look(self.memory.consumer_sleeps()).at;
        (at != 0).then(|| shares_cpu(at))
    }

    /// Wakes the consumer if it sleeps, ahead of a message that will follow soon.
    pub fn wake_peer(&self) {
        wake_if_asleep(self.memory.consumer_sleeps(), &self.memory);
    }

    /// Sends a long message in segments of at most a quarter of the ring. The first line of a
    /// segment is sealed last, so the consumer that polls it does not fetch lines while they are
    /// written.
    #[inline(never)]
    fn send_long(&mut self, message: &[u8]) -> Result<(), RingError> {
        if message.len() > self.limit {
            return Err(RingError::TooLong { length: message.len(), limit: self.limit });
        }
        let (cpu, quarter) = (current_cpu(), self.memory.capacity() / 4 / LINE);
        let mut rest = message;
        while !rest.is_empty() {
            let lines = rest.len().div_ceil(PAYLOAD).min(quarter);
            self.reserve(lines * LINE)?;
            for line in 1..lines {
                let at = self.written + (line * LINE) as u64;
                self.memory.write_line(at, &rest[line * PAYLOAD..], cpu, Ordering::Relaxed);
            }
            let end = self.written + (lines * LINE) as u64;
            self.memory.clear_in_first_lap(end);
            self.memory.write_line(self.written, rest, cpu, Ordering::Release);
            self.written = end;
            wake_if_asleep(self.memory.consumer_sleeps(), &self.memory);
            rest = &rest[rest.len().min(lines * PAYLOAD)..];
        }
        Ok(())
    }

    #[inline]
    fn room(&self) -> usize {
        // No underflow: `consumed <= written <= consumed + capacity`.
        self.memory.capacity() - (self.written - self.consumed) as usize
    }

    #[inline]
    fn reserve(&mut self, needed: usize) -> Result<(), RingError> {
        if self.room() >= needed { Ok(()) } else { self.wait_for_room(needed) }
    }

    #[cold]
    fn wait_for_room(&mut self, needed: usize) -> Result<(), RingError> {
        self.refresh()?;
        while self.room() < needed {
            let (memory, seen) = (&self.memory, self.consumed);
            let flag = WaitFlag { word: memory.producer_sleeps(), doorbell: memory.doorbell(), interruptible: false };
            let moved = || memory.consumed().load(Ordering::Relaxed) != seen;
            wait(flag, &self.liveness, &mut self.spinner, 0, &mut uninterrupted, moved)?;
            self.refresh()?;
        }
        Ok(())
    }

    /// Loads the consumer's index and accepts it only if it moved forward and not beyond `written`.
    fn refresh(&mut self) -> Result<(), RingError> {
        // SYNC POINT: the consumer has copied everything before this index.
        let consumed = self.memory.consumed().load(Ordering::Acquire);
        if consumed < self.consumed || consumed > self.written || !consumed.is_multiple_of(LINE as u64) {
            return Err(RingError::Peer { what: "consumer index", value: consumed, capacity: self.memory.capacity() });
        }
        self.consumed = consumed;
        Ok(())
    }
}
