//! The layout of a ring in shared memory.
//!
//! ```text
//! 0    published   u64   bytes ever written, by the producer
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
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::{HEADER, RingError, futex};

const PUBLISHED: usize = 0;
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

    /// Copies `bytes` to position `at`, padding the last word with zeros.
    #[inline]
    pub(crate) fn store(&self, mut at: u64, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.store_word(at, u64::from_le_bytes(*word));
            at += 8;
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.store_word(at, u64::from_le_bytes(last));
        }
    }

    /// Appends `length` bytes from position `at` to `into`.
    #[inline]
    pub(crate) fn load(&self, mut at: u64, length: usize, into: &mut Vec<u8>) {
        into.reserve(length + 8);
        for _ in 0..length / 8 {
            into.extend_from_slice(&self.load_word(at).to_le_bytes());
            at += 8;
        }
        if !length.is_multiple_of(8) {
            into.extend_from_slice(&self.load_word(at).to_le_bytes()[..length % 8]);
        }
    }
}

/// Wakes a peer if it says that it sleeps. The caller has published what the peer waits for.
///
/// The fence pairs with the one in [`crate::wait`]: either the sleeper's second look sees the
/// publication, or this load sees the sleeper's flag. A peer that lies here only misses its own
/// wake-up or costs one system call.
#[inline]
pub(crate) fn wake_if_asleep(flag: &AtomicU32) {
    fence(Ordering::SeqCst);
    if flag.load(Ordering::Relaxed) != 0 {
        wake_sleeper(flag);
    }
}

#[cold]
fn wake_sleeper(flag: &AtomicU32) {
    flag.store(0, Ordering::SeqCst);
    futex::wake(flag);
}

/// Wakes the local side of a pair of rings, from another thread of the same process (the peer died).
#[derive(Clone)]
pub struct WakeHandle {
    pub(crate) receiving: RingMemory,
    pub(crate) sending: RingMemory,
}

impl WakeHandle {
    /// For the side that consumes `receiving` and produces into `sending`.
    pub fn new(receiving: &RingMemory, sending: &RingMemory) -> Self {
        WakeHandle { receiving: receiving.clone(), sending: sending.clone() }
    }

    /// Makes a sleeping local side look at its liveness flag. Set the flag first.
    pub fn wake(&self) {
        wake_sleeper(self.receiving.consumer_sleeps());
        wake_sleeper(self.sending.producer_sleeps());
    }
}
