//! The receiving end of a ring.

use std::sync::Arc;

use crate::producer::{MORE, longest_fragment, padded};
use crate::sync::Ordering;
use crate::wait::{Spinner, wait};
use crate::wake::wake_if_asleep;
use crate::{Liveness, RingError, RingMemory};

/// Reads messages from a ring.
pub struct Consumer {
    memory: RingMemory,
    liveness: Arc<Liveness>,
    spinner: Spinner,
    /// Bytes ever read. Private.
    read: u64,
    /// Bytes given back to the producer: `released <= read`.
    released: u64,
    /// The producer's index as last seen and checked: `read <= published <= read + capacity`.
    published: u64,
    limit: usize,
}

impl Consumer {
    /// The consumer of a fresh (zeroed) ring; longer messages than `limit` are an error.
    pub fn new(memory: RingMemory, liveness: Arc<Liveness>, limit: usize) -> Self {
        Consumer { memory, liveness, spinner: Spinner::new(), read: 0, released: 0, published: 0, limit }
    }

    /// Waits for a message and puts it into `into`, replacing what was there.
    #[inline]
    pub fn receive(&mut self, into: &mut Vec<u8>) -> Result<(), RingError> {
        into.clear();
        while self.fragment(into)? {}
        Ok(())
    }

    /// Like [`Consumer::receive`] if a message has begun to arrive; otherwise returns false at once.
    pub fn try_receive(&mut self, into: &mut Vec<u8>) -> Result<bool, RingError> {
        if !self.available()? {
            self.release();
            return Ok(false);
        }
        self.receive(into)?;
        Ok(true)
    }

    /// Whether something was published that has not been read.
    #[inline]
    fn available(&mut self) -> Result<bool, RingError> {
        if self.published == self.read {
            self.refresh()?;
        }
        Ok(self.published != self.read)
    }

    /// Appends the next record's payload; true if the message continues.
    #[inline]
    fn fragment(&mut self, into: &mut Vec<u8>) -> Result<bool, RingError> {
        if !self.available()? {
            self.wait_for_data()?;
        }
        // The record's word is loaded once; only this copy is used.
        let word = self.memory.load_word(self.read);
        let length = (word & (MORE - 1)) as usize;
        let more = word & MORE != 0;
        self.check_record(word, length, more)?;
        if into.len() + length > self.limit {
            return Err(RingError::TooLong { length: into.len() + length, limit: self.limit });
        }
        self.memory.load(self.read + 8, length, into);
        self.read += 8 + padded(length) as u64;
        // Usually the space is given back when the ring runs empty, which is while nobody waits for
        // this side; a producer that fills the ring gets it back in quarters.
        if (self.read - self.released) as usize >= self.memory.capacity() / 4 {
            self.release();
        }
        Ok(more)
    }

    fn check_record(&self, word: u64, length: usize, more: bool) -> Result<(), RingError> {
        let capacity = self.memory.capacity();
        let published = (self.published - self.read) as usize;
        // A fragment that continues must bring something: otherwise a peer could keep this side
        // collecting nothing for ever.
        let sound = word >> 33 == 0
            && length <= longest_fragment(capacity)
            && 8 + padded(length) <= published
            && !(more && length == 0);
        if sound { Ok(()) } else { Err(RingError::Peer { what: "record", value: word, capacity }) }
    }

    #[cold]
    fn wait_for_data(&mut self) -> Result<(), RingError> {
        self.release();
        while self.published == self.read {
            let (memory, seen) = (&self.memory, self.published);
            let peer_cpu = memory.producer_cpu().load(Ordering::Relaxed);
            wait(memory.consumer_sleeps(), &self.liveness, &mut self.spinner, peer_cpu, || {
                memory.published().load(Ordering::Relaxed) != seen
            })?;
            self.refresh()?;
        }
        Ok(())
    }

    /// Gives the space of everything read back to the producer.
    fn release(&mut self) {
        if self.released != self.read {
            self.released = self.read;
            // SYNC POINT: everything before this index has been copied.
            self.memory.consumed().store(self.released, Ordering::Release);
            wake_if_asleep(self.memory.producer_sleeps());
        }
    }

    /// Loads the producer's index and believes it only if it moved forward within one capacity of
    /// what was released.
    fn refresh(&mut self) -> Result<(), RingError> {
        // SYNC POINT: the records before this index are visible.
        let published = self.memory.published().load(Ordering::Acquire);
        // `published - released` cannot underflow in the second test thanks to the first.
        if published < self.published
            || published - self.released > self.memory.capacity() as u64
            || !published.is_multiple_of(8)
        {
            return Err(RingError::Peer { what: "producer index", value: published, capacity: self.memory.capacity() });
        }
        self.published = published;
        Ok(())
    }
}
