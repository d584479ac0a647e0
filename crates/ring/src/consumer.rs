//! The receiving end of a ring.

use std::sync::Arc;
use std::time::Duration;

use crate::LINE;
use crate::RingError;
use crate::line::{PAYLOAD, Seal};
use crate::memory::RingMemory;
use crate::sync::Ordering;
use crate::wait::liveness::{Interruption, Liveness, WaitPoint, uninterrupted};
use crate::wait::wake::wake_if_asleep;
use crate::wait::{Spinner, WaitFlag, shares_cpu, wait, wait_within};

/// Reads messages from a ring.
///
/// ```
/// # use aviary_ring::{Consumer, Liveness, Producer, RingError, RingMemory};
/// # use std::sync::Arc;
/// # #[repr(align(4096))]
/// # struct Page([u8; 4096]);
/// # let page: &'static mut Page = Box::leak(Box::new(Page([0; 4096])));
/// # // SAFETY: the page is never freed, and only the ring uses it.
/// # let memory = unsafe { RingMemory::new(page.0.as_mut_ptr(), 4096, Arc::new(())) }?;
/// # let alive = Arc::new(Liveness::notified());
/// let mut producer = Producer::new(memory.clone(), alive.clone(), 1000);
/// let mut consumer = Consumer::new(memory, alive.clone(), 1000);
/// let mut message = Vec::new();
/// assert!(!consumer.try_receive(&mut message)?);
/// producer.send(b"a reply")?;
/// consumer.receive(&mut message)?;
/// assert_eq!(message, b"a reply");
/// // A peer that ended sends nothing more: the wait ends with an error instead of lasting for ever.
/// alive.kill();
/// assert_eq!(consumer.receive(&mut message), Err(RingError::Dead));
/// # Ok::<(), RingError>(())
/// ```
pub struct Consumer {
    memory: RingMemory,
    liveness: Arc<Liveness>,
    spinner: Spinner,
    /// Bytes of lines ever read. Private to this side, so the peer cannot choose which line is read
    /// next.
    read: u64,
    /// Bytes of lines returned to the producer: `released <= read`.
    released: u64,
    /// 1 + the CPU that the producer ran on when it wrote the last line; 0: unknown. A hint: the
    /// peer may lie.
    peer_cpu: u32,
    limit: usize,
    /// Waits for the beginning of a message end when this side is interrupted.
    interruptible: bool,
}

/// The position of a consumer between two messages: all that another process needs to go on with
/// the ring.
///
/// ```
/// # use aviary_ring::{Consumer, ConsumerPosition, Liveness, Producer, RingError, RingMemory};
/// # use std::sync::Arc;
/// # #[repr(align(4096))]
/// # struct Page([u8; 4096]);
/// # let page: &'static mut Page = Box::leak(Box::new(Page([0; 4096])));
/// # // SAFETY: the page is never freed, and only the ring uses it.
/// # let memory = unsafe { RingMemory::new(page.0.as_mut_ptr(), 4096, Arc::new(())) }?;
/// # let alive = Arc::new(Liveness::notified());
/// let mut producer = Producer::new(memory.clone(), alive.clone(), 1000);
/// let mut first = Consumer::new(memory.clone(), alive.clone(), 1000);
/// let mut message = Vec::new();
/// producer.send(b"first")?;
/// first.receive(&mut message)?;
/// producer.send(b"second")?;
/// let mut second = Consumer::new(memory, alive, 1000).resume(first.position())?;
/// second.receive(&mut message)?;
/// assert_eq!(message, b"second");
/// # assert_eq!(ConsumerPosition::default().read, 0);
/// # Ok::<(), RingError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConsumerPosition {
    /// Bytes of lines ever read.
    pub read: u64,
    /// Bytes of lines returned to the producer.
    pub released: u64,
}

impl Consumer {
    /// The consumer of an empty ring; a message of more than `limit` bytes is an error.
    pub fn new(memory: RingMemory, liveness: Arc<Liveness>, limit: usize) -> Self {
        let spinner = Spinner::new(memory.reach());
        Consumer { memory, liveness, spinner, read: 0, released: 0, peer_cpu: 0, limit, interruptible: false }
    }

    pub fn position(&self) -> ConsumerPosition {
        ConsumerPosition { read: self.read, released: self.released }
    }

    /// Goes on where another consumer of this ring has stopped. Refuses a position that no consumer
    /// of such a ring can have: it may come out of a file.
    pub fn resume(self, at: ConsumerPosition) -> Result<Self, RingError> {
        let capacity = self.memory.capacity();
        let refuse = |what, value| Err(RingError::Position { what, value, capacity });
        let ConsumerPosition { read, released } = at;
        if !read.is_multiple_of(LINE as u64) {
            return refuse("the number of bytes read", read);
        }
        if !released.is_multiple_of(LINE as u64) || read.checked_sub(released).is_none_or(|n| n >= capacity as u64) {
            return refuse("the number of bytes released", released);
        }
        Ok(Consumer { read, released, ..self })
    }

    /// Waits for a message and replaces the content of `into` with it. Before the message has begun
    /// to arrive the wait may be interrupted ([`Consumer::set_interruptible`]).
    #[inline]
    pub fn receive(&mut self, into: &mut Vec<u8>) -> Result<(), RingError> {
        self.receive_unless(&mut uninterrupted, into)
    }

    /// Receives as [`Consumer::receive`] does, unless `interrupted` returns true before the message begins. It is called
    /// only if the message is not there yet, at each point of the wait.
    #[inline]
    pub fn receive_unless(&mut self, interrupted: &mut Interruption, into: &mut Vec<u8>) -> Result<(), RingError> {
        let seal = match self.memory.seal(self.read) {
            Some(seal) => seal,
            None => self.wait_for_seal(self.interruptible, interrupted)?,
        };
        self.message(seal, into)
    }

    /// Reads the message whose first line has this seal.
    #[inline]
    fn message(&mut self, seal: Seal, into: &mut Vec<u8>) -> Result<(), RingError> {
        into.clear();
        if seal.length() > self.limit {
            return Err(RingError::TooLong { length: seal.length(), limit: self.limit });
        }
        self.read_line(seal, into);
        if seal.length() > PAYLOAD { self.receive_rest(seal.length() - PAYLOAD, into) } else { Ok(()) }
    }

    /// Reads a message if one has begun to arrive, as [`Consumer::receive`] does; otherwise returns
    /// false at once.
    #[inline]
    pub fn try_receive(&mut self, into: &mut Vec<u8>) -> Result<bool, RingError> {
        match self.memory.seal(self.read) {
            Some(seal) => self.message(seal, into).map(|()| true),
            None => Ok(false),
        }
    }

    #[inline(never)]
    fn receive_rest(&mut self, mut expected: usize, into: &mut Vec<u8>) -> Result<(), RingError> {
        while expected > 0 {
            let seal = self.next_seal()?;
            if seal.length() != expected {
                let capacity = self.memory.capacity();
                return Err(RingError::Peer { what: "line in a message", value: seal.value(), capacity });
            }
            self.read_line(seal, into);
            expected = expected.saturating_sub(PAYLOAD);
        }
        Ok(())
    }

    /// Waits for the seal of a further line of a message. Callers use only the returned copy, never the shared
    /// word.
    #[inline]
    fn next_seal(&mut self) -> Result<Seal, RingError> {
        match self.memory.seal(self.read) {
            Some(seal) => Ok(seal),
            None => self.wait_for_seal(false, &mut uninterrupted),
        }
    }

    #[inline]
    fn read_line(&mut self, seal: Seal, into: &mut Vec<u8>) {
        self.memory.read_line(self.read, seal.length().min(PAYLOAD), into);
        self.peer_cpu = seal.cpu();
        self.read += LINE as u64;
        if (self.read - self.released) as usize >= self.memory.capacity() / 4 {
            self.release();
        }
    }

    /// `peer_cpu`, or 0 if the peer is in another machine, whose CPUs have other numbers.
    fn peer_cpu(&self) -> u32 {
        if self.memory.doorbell().is_some() { 0 } else { self.peer_cpu }
    }

    #[cold]
    fn wait_for_seal(&mut self, interruptible: bool, interrupted: &mut Interruption) -> Result<Seal, RingError> {
        let (memory, at, peer_cpu) = (&self.memory, self.read, self.peer_cpu());
        interrupted(WaitPoint::Begin);
        let seal = loop {
            let ready = || memory.seal(at).is_some();
            let flag = WaitFlag { word: memory.consumer_sleeps(), doorbell: memory.doorbell(), interruptible };
            if let Err(error) = wait(flag, &self.liveness, &mut self.spinner, peer_cpu, interrupted, ready) {
                break Err(error);
            }
            // A lying peer may have cleared the seal again.
            if let Some(seal) = memory.seal(at) {
                break Ok(seal);
            }
        };
        interrupted(WaitPoint::End);
        Ok(seal?)
    }

    /// Sets if a wait for the beginning of a message ends when this side is interrupted
    /// ([`Liveness::interrupt`]); at first it does not.
    pub fn set_interruptible(&mut self, interruptible: bool) {
        self.interruptible = interruptible;
    }

    /// Declares that every message is a reply to a request that this side sent before it waited.
    pub fn expect_answers(&mut self) {
        self.spinner.expect_answers();
    }

    /// True if the peer sent its last message from the CPU that this thread runs on now.
    pub fn shares_cpu(&self) -> bool {
        shares_cpu(self.peer_cpu())
    }

    /// Sets the spin window before every sleep; zero lets recent waits decide.
    pub fn set_spin_window(&mut self, time: Duration) {
        self.spinner.set_spin_window(time);
    }

    /// Waits at most `at_most` for the next message; false if none has begun to arrive. May return
    /// early.
    pub fn await_message(&mut self, at_most: Duration) -> Result<bool, RingError> {
        let (memory, at, peer_cpu) = (&self.memory, self.read, self.peer_cpu());
        let ready = || memory.seal(at).is_some();
        let flag =
            WaitFlag { word: memory.consumer_sleeps(), doorbell: memory.doorbell(), interruptible: self.interruptible };
        Ok(wait_within(flag, &self.liveness, &mut self.spinner, peer_cpu, at_most, ready)?)
    }

    /// Returns the space of everything read to the producer, in quarters of the ring: the producer
    /// never waits for more than one quarter, and has the other three once everything else has been
    /// read.
    #[cold]
    fn release(&mut self) {
        self.released = self.read;
        // SYNC POINT: everything before this index has been copied.
        self.memory.consumed().store(self.released, Ordering::Release);
        wake_if_asleep(self.memory.producer_sleeps(), &self.memory);
    }
}
