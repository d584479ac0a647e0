//! The receiving end of a ring.

use std::sync::Arc;
use std::time::Duration;

use crate::line::{PAYLOAD, Seal};
use crate::sync::Ordering;
use crate::wait::{Flag, Spinner, shares_cpu, wait, wait_within};
use crate::wake::wake_if_asleep;
use crate::{LINE, Liveness, RingError, RingMemory};

/// Reads messages from a ring.
pub struct Consumer {
    memory: RingMemory,
    liveness: Arc<Liveness>,
    spinner: Spinner,
    /// Bytes of lines ever read. Private: this, and not the peer, says which line comes next.
    read: u64,
    /// Bytes given back to the producer: `released <= read`.
    released: u64,
    /// Where the producer ran when it wrote the last line, as far as known.
    peer_cpu: u32,
    limit: usize,
}

impl Consumer {
    /// The consumer of an empty ring; longer messages than `limit` are an error.
    pub fn new(memory: RingMemory, liveness: Arc<Liveness>, limit: usize) -> Self {
        let spinner = Spinner::new(memory.doorbell().is_some());
        Consumer { memory, liveness, spinner, read: 0, released: 0, peer_cpu: 0, limit }
    }

    /// Waits for a message and puts it into `into`, replacing what was there.
    #[inline]
    pub fn receive(&mut self, into: &mut Vec<u8>) -> Result<(), RingError> {
        let seal = self.next_seal()?;
        self.message(seal, into)
    }

    /// The message that begins with the line of this seal.
    #[inline]
    fn message(&mut self, seal: Seal, into: &mut Vec<u8>) -> Result<(), RingError> {
        into.clear();
        if seal.length() > self.limit {
            return Err(RingError::TooLong { length: seal.length(), limit: self.limit });
        }
        self.read_line(seal, into);
        if seal.length() > PAYLOAD { self.receive_rest(seal.length() - PAYLOAD, into) } else { Ok(()) }
    }

    /// Like [`Consumer::receive`] if a message has begun to arrive; otherwise returns false at once.
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

    /// The seal of the next line, once it is there. Only this copy of it is used.
    #[inline]
    fn next_seal(&mut self) -> Result<Seal, RingError> {
        match self.memory.seal(self.read) {
            Some(seal) => Ok(seal),
            None => self.wait_for_seal(),
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

    /// CPUs of another machine have other numbers.
    fn peer_cpu(&self) -> u32 {
        if self.memory.doorbell().is_some() { 0 } else { self.peer_cpu }
    }

    #[cold]
    fn wait_for_seal(&mut self) -> Result<Seal, RingError> {
        let (memory, at, peer_cpu) = (&self.memory, self.read, self.peer_cpu());
        loop {
            let ready = || memory.seal(at).is_some();
            let flag = Flag { word: memory.consumer_sleeps(), doorbell: memory.doorbell() };
            wait(flag, &self.liveness, &mut self.spinner, peer_cpu, ready)?;
            // A lying peer may have taken the seal back.
            if let Some(seal) = memory.seal(at) {
                return Ok(seal);
            }
        }
    }

    /// What comes are answers only, each to something that was sent before waiting.
    pub fn expect_answers(&mut self) {
        self.spinner.expect_answers();
    }

    /// Whether the peer, when it sent its last message, ran where this thread runs now.
    pub fn shares_cpu(&self) -> bool {
        shares_cpu(self.peer_cpu())
    }

    /// Spins for about so long before every sleep; zero: as recent waits suggest.
    pub fn stay_awake(&mut self, time: Duration) {
        self.spinner.stay_awake(time);
    }

    /// Waits for the next message, for at most so long; false if none has begun to arrive. May return early.
    pub fn await_message(&mut self, at_most: Duration) -> Result<bool, RingError> {
        let (memory, at, peer_cpu) = (&self.memory, self.read, self.peer_cpu());
        let ready = || memory.seal(at).is_some();
        let flag = Flag { word: memory.consumer_sleeps(), doorbell: memory.doorbell() };
        Ok(wait_within(flag, &self.liveness, &mut self.spinner, peer_cpu, at_most, ready)?)
    }

    /// Gives the space of everything read back to the producer. In quarters is enough: it never waits for
    /// more than a quarter, and has the other three when everything else has been read.
    #[cold]
    fn release(&mut self) {
        self.released = self.read;
        // SYNC POINT: everything before this index has been copied.
        self.memory.consumed().store(self.released, Ordering::Release);
        wake_if_asleep(self.memory.producer_sleeps(), &self.memory);
    }
}
