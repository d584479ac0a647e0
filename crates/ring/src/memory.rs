//! The layout of a ring in shared memory.
//!
//! ```text
//! 0    published   u64   bytes ever written, by the producer
//! 8    producer's CPU  u32   1 + the CPU that it ran on when it last published; a hint
//! 64   consumed    u64   bytes ever released, by the consumer
//! 128  consumer sleeps  u32   set by the consumer, cleared by whoever wakes it
//! 192  producer sleeps  u32   set by the producer, cleared by whoever wakes it
//! 256  data        a power of two
//! ```
//!
//! Each word has a cache line of its own: what one side writes often must not
//! share a line with what the other side polls.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::{HEADER, RingError};

const PUBLISHED: usize = 0;
const PRODUCER_CPU: usize = 8;
const CONSUMED: usize = 64;
const CONSUMER_SLEEPS: usize = 128;
const PRODUCER_SLEEPS: usize = 192;

/// Smallest data area: a fragment of a quarter must hold more than its own header.
const MIN_CAPACITY: usize = 256;

/// A ring's shared memory, kept mapped.
#[derive(Clone)]
pub struct RingMemory {
    base: NonNull<u8>,
    capacity: usize,
    /// Whatever keeps the memory mapped.
    _keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the memory is only accessed through atomics, from any thread, and `_keep` is Send and Sync.
unsafe impl Send for RingMemory {}
// SAFETY: as above.
unsafe impl Sync for RingMemory {}

impl RingMemory {
    /// Describes a ring in `length` bytes at `base`. Zeroed memory is an empty ring.
    ///
    /// # Safety
    /// `base..base + length` must stay mapped readable and writable as long as `keep` lives, and this
    /// process must access it only through rings. Another process may write it at will.
    pub unsafe fn new(base: *mut u8, length: usize, keep: Arc<dyn Any + Send + Sync>) -> Result<Self, RingError> {
        let refused = RingError::Memory { address: base as usize, length };
        let base = NonNull::new(base).filter(|b| (b.as_ptr() as usize).is_multiple_of(64)).ok_or(refused)?;
        let room = length.checked_sub(HEADER).filter(|r| *r >= MIN_CAPACITY).ok_or(refused)?;
        // The largest power of two that fits; both sides compute it from the same length.
        let capacity = 1usize << room.ilog2();
        Ok(RingMemory { base, capacity, _keep: keep })
    }

    /// Bytes of the data area, a power of two.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    fn u64_at(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: `offset` is a multiple of 8 below HEADER + capacity <= length, so the word lies in the
        // mapping that `_keep` keeps, aligned since the base is 64-aligned. The peer may write it at any
        // time, also non-atomically: every bit pattern is a valid u64 and nothing is assumed about it.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    fn u32_at(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as in `u64_at`; `offset` is one of the constants above.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    pub(crate) fn published(&self) -> &AtomicU64 {
        self.u64_at(PUBLISHED)
    }

    pub(crate) fn producer_cpu(&self) -> &AtomicU32 {
        self.u32_at(PRODUCER_CPU)
    }

    pub(crate) fn consumed(&self) -> &AtomicU64 {
        self.u64_at(CONSUMED)
    }

    pub(crate) fn consumer_sleeps(&self) -> &AtomicU32 {
        self.u32_at(CONSUMER_SLEEPS)
    }

    pub(crate) fn producer_sleeps(&self) -> &AtomicU32 {
        self.u32_at(PRODUCER_SLEEPS)
    }

    /// The data word at ring position `at`, a multiple of 8; positions wrap.
    #[inline]
    fn data(&self, at: u64) -> &AtomicU64 {
        // The mask makes any position valid: `at & (capacity - 1)` <= capacity - 8.
        self.u64_at(HEADER + (at as usize & (self.capacity - 1)))
    }

    #[inline]
    pub(crate) fn store_word(&self, at: u64, value: u64) {
        self.data(at).store(value, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn load_word(&self, at: u64) -> u64 {
        self.data(at).load(Ordering::Relaxed)
    }
}
