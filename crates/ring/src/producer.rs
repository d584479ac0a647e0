//! The sending end of a ring.

use std::sync::Arc;

use crate::sync::Ordering;
use crate::wait::{Spinner, current_cpu, wait};
use crate::wake::wake_if_asleep;
use crate::{Liveness, RingError, RingMemory};

/// Set in a record's word when the message continues in the next record.
pub(crate) const MORE: u64 = 1 << 32;

/// Longest payload of one record in a ring of this capacity.
pub(crate) fn longest_fragment(capacity: usize) -> usize {
    capacity / 4 - 8
}

#[inline]
pub(crate) fn padded(length: usize) -> usize {
    (length + 7) & !7
}

/// Writes messages into a ring.
pub struct Producer {
    memory: RingMemory,
    liveness: Arc<Liveness>,
    spinner: Spinner,
    /// Bytes ever written. Private: what the peer does to the shared copy does not matter.
    written: u64,
    /// The consumer's index as last seen and checked: `written - capacity <= consumed <= written`.
    consumed: u64,
    limit: usize,
}

impl Producer {
    /// The producer of a fresh (zeroed) ring; messages above `limit` bytes are refused.
    pub fn new(memory: RingMemory, liveness: Arc<Liveness>, limit: usize) -> Self {
        Producer { memory, liveness, spinner: Spinner::new(), written: 0, consumed: 0, limit }
    }

    /// Sends one message, waiting for room.
    #[inline]
    pub fn send(&mut self, message: &[u8]) -> Result<(), RingError> {
        if message.len() > longest_fragment(self.memory.capacity()) {
            return self.send_fragments(message);
        }
        self.write(message, 0)?;
        self.publish();
        Ok(())
    }

    #[cold]
    fn send_fragments(&mut self, message: &[u8]) -> Result<(), RingError> {
        if message.len() > self.limit {
            return Err(RingError::TooLong { length: message.len(), limit: self.limit });
        }
        let mut fragments = message.chunks(longest_fragment(self.memory.capacity())).peekable();
        while let Some(fragment) = fragments.next() {
            let more = if fragments.peek().is_some() { MORE } else { 0 };
            self.write(fragment, more)?;
            self.publish();
        }
        Ok(())
    }

    /// Writes one record without publishing it.
    #[inline]
    fn write(&mut self, payload: &[u8], more: u64) -> Result<(), RingError> {
        let needed = 8 + padded(payload.len());
        self.reserve(needed)?;
        self.memory.store_word(self.written, payload.len() as u64 | more);
        self.memory.store(self.written + 8, payload);
        self.written += needed as u64;
        Ok(())
    }

    #[inline]
    fn publish(&mut self) {
        // SYNC POINT: the records' words become visible with this index.
        self.memory.producer_cpu().store(current_cpu(), Ordering::Relaxed);
        self.memory.published().store(self.written, Ordering::Release);
        wake_if_asleep(self.memory.consumer_sleeps());
    }

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
            wait(memory.producer_sleeps(), &self.liveness, &mut self.spinner, 0, || {
                memory.consumed().load(Ordering::Relaxed) != seen
            })?;
            self.refresh()?;
        }
        Ok(())
    }

    /// Loads the consumer's index and believes it only if it moved forward and not beyond `written`.
    fn refresh(&mut self) -> Result<(), RingError> {
        // SYNC POINT: the consumer has copied everything before this index.
        let consumed = self.memory.consumed().load(Ordering::Acquire);
        if consumed < self.consumed || consumed > self.written || !consumed.is_multiple_of(8) {
            return Err(RingError::Peer { what: "consumer index", value: consumed, capacity: self.memory.capacity() });
        }
        self.consumed = consumed;
        Ok(())
    }
}
