//! The layout of a ring in shared memory.
//!
//! ```text
//! 0    consumed         u64   bytes of lines ever released, by the consumer
//! 64   consumer sleeps  u32   set by the consumer, cleared by its waker; with a CPU (`WaitFlag`)
//! 128  producer sleeps  u32   set by the producer, cleared by its waker; with a CPU
//! 256  lines            a power of two bytes
//! ```
//!
//! A line is one cache line: its seal, then 56 bytes of a message. Each word before the lines has a
//! cache line of its own: a word that one side writes often must not share a line with one that the
//! other side polls.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::HEADER;
use crate::LINE;
use crate::RingError;
use crate::doorbell::{Doorbell, Reach};

const CONSUMED: usize = 0;
const CONSUMER_SLEEPS: usize = 64;
const PRODUCER_SLEEPS: usize = 128;

/// Smallest data area in bytes: space is returned in quarters, and a quarter must hold a line.
const MIN_CAPACITY: usize = 4 * LINE;

/// A ring's shared memory, kept mapped.
///
/// ```
/// use aviary_ring::{RingError, RingMemory};
/// use std::sync::Arc;
///
/// #[repr(align(4096))]
/// struct Page([u8; 4096]);
/// let page: &'static mut Page = Box::leak(Box::new(Page([0; 4096])));
/// // SAFETY: the page is never freed, and only rings use it.
/// let memory = unsafe { RingMemory::new(page.0.as_mut_ptr(), 4096, Arc::new(())) }?;
/// // The largest power of two behind the header; both sides compute it for themselves.
/// assert_eq!(memory.capacity(), 2048);
/// # Ok::<(), RingError>(())
/// ```
#[derive(Clone)]
pub struct RingMemory {
    base: NonNull<u8>,
    capacity: usize,
    /// Absent if futexes wake both sides.
    doorbell: Option<Arc<dyn Doorbell>>,
    /// The owner of the mapping; keeps the memory mapped.
    _keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the memory is only accessed through atomics, from any thread, and `_keep` is Send and Sync.
unsafe impl Send for RingMemory {}
// SAFETY: shared references access the memory only through atomics, and `_keep` is Sync.
unsafe impl Sync for RingMemory {}

impl RingMemory {
    /// Describes a ring in `length` bytes at `base`. The ring is empty if its first
    /// [`crate::EMPTY`] bytes are zero.
    ///
    /// # Safety
    /// `base..base + length` must stay mapped readable and writable as long as `keep` lives, and this
    /// process must access it only through rings. Another process may write it at will.
    pub unsafe fn new(base: *mut u8, length: usize, keep: Arc<dyn Any + Send + Sync>) -> Result<Self, RingError> {
        let refused = RingError::Memory { address: base as usize, length };
        let base = NonNull::new(base).filter(|b| (b.as_ptr() as usize).is_multiple_of(LINE)).ok_or(refused)?;
        let room = length.checked_sub(HEADER).filter(|r| *r >= MIN_CAPACITY).ok_or(refused)?;
        // The largest power of two that fits; both sides compute it from an equal length.
        let capacity = 1usize << room.ilog2();
        Ok(RingMemory { base, capacity, doorbell: None, _keep: keep })
    }

    /// Sets the doorbell of a ring whose peer no futex reaches: sleepers on both sides are woken by
    /// it.
    pub fn with_doorbell(self, doorbell: Option<Arc<dyn Doorbell>>) -> Self {
        RingMemory { doorbell, ..self }
    }

    pub(crate) fn doorbell(&self) -> Option<&dyn Doorbell> {
        self.doorbell.as_deref()
    }

    pub(crate) fn reach(&self) -> Reach {
        self.doorbell.as_ref().map_or(Reach::Near, |doorbell| doorbell.reach())
    }

    /// Bytes of all lines, a power of two.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    #[inline]
    fn u64_at(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: `offset` is a multiple of 8 below HEADER + capacity <= length, so the word lies in the
        // mapping that `_keep` keeps, aligned since the base is 64-aligned. The peer may write it at any
        // time, also non-atomically: every bit pattern is a valid u64 and nothing is assumed about it.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    #[inline]
    fn u32_at(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `offset` is a constant below HEADER and a multiple of 64, so the word lies
        // aligned in the mapping that `_keep` keeps. The peer may write it at any time: every bit
        // pattern is a valid u32 and nothing is assumed about it.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    #[inline]
    pub(crate) fn consumed(&self) -> &AtomicU64 {
        self.u64_at(CONSUMED)
    }

    #[inline]
    pub(crate) fn consumer_sleeps(&self) -> &AtomicU32 {
        self.u32_at(CONSUMER_SLEEPS)
    }

    #[inline]
    pub(crate) fn producer_sleeps(&self) -> &AtomicU32 {
        self.u32_at(PRODUCER_SLEEPS)
    }

    /// The line at position `at`; positions wrap around.
    #[inline]
    pub(crate) fn line(&self, at: u64) -> &[AtomicU64; LINE / 8] {
        // The mask makes any position the start of a whole line: a multiple of LINE below the
        // capacity.
        let offset = HEADER + (at as usize & (self.capacity - 1) & !(LINE - 1));
        // SAFETY: `offset` + LINE <= HEADER + capacity <= length, so the line lies in the mapping
        // that `_keep` keeps, aligned since the base is 64-aligned. The peer may write it at any
        // time: every bit pattern is a valid u64.
        unsafe { &*self.base.as_ptr().add(offset).cast() }
    }

    /// Tells the model checker that this side is about to write, or to read, the content of a line.
    #[inline]
    pub(crate) fn writes(&self, _at: u64) {}

    #[inline]
    pub(crate) fn reads(&self, _at: u64) {}
}
