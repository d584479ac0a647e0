//! In a VM: the application's own memory, shown to the host without a copy (qCUDA, section II.D).
//!
//! The driver pins the pages of a buffer, and the host maps them at an offset of the arena where this side has nothing
//! mapped: the message names that place, and the vendor's library reads or writes the application's pages. Pinning
//! costs a message to the host, so that only large buffers are worth it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aviary_transport::{Device, Pin};
use rustix::io::Errno;

use crate::blocks::Block;
use crate::log;

const PAGE: u64 = 4096;
/// Smaller buffers are copied (`./x bench vm` shows where pinning begins to pay); `AVIARY_PIN` overrides it.
const SMALLEST: usize = 4 << 20;

/// The host maps no more pieces of memory at a time. In another buffer the pages may lie together.
const SCATTERED: Errno = Errno::NOSPC;

/// Places for pinned memory in one arena.
pub(crate) struct Pins {
    device: Arc<Device>,
    places: Range<u64>,
    smallest: usize,
    /// Such large buffers lie in more pieces than the host maps.
    too_large: AtomicUsize,
    books: Mutex<Books>,
    /// The process may not pin so much, as the application was told.
    told: AtomicBool,
}

struct Books {
    /// Places from here on were never used.
    fresh: u64,
    /// Free places by their length, a power of two.
    free: HashMap<u64, Vec<u64>>,
    /// What is pinned: its length.
    pinned: HashMap<u64, u64>,
}

impl Pins {
    /// `places`: offsets of the arena that nothing else uses.
    pub fn new(device: Arc<Device>, places: Range<u64>) -> Self {
        let books = Books { fresh: places.start, free: HashMap::new(), pinned: HashMap::new() };
        let smallest = std::env::var("AVIARY_PIN").ok().and_then(|text| text.parse().ok()).unwrap_or(SMALLEST);
        let too_large = AtomicUsize::new(usize::MAX);
        Pins { device, places, smallest, too_large, books: Mutex::new(books), told: AtomicBool::new(false) }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn owns(&self, block: Block) -> bool {
        self.places.contains(&block.offset)
    }

    pub fn worthwhile(&self, n: usize) -> bool {
        let largest = self.too_large.load(Ordering::Relaxed);
        n >= self.smallest && n < largest && !self.told.load(Ordering::Relaxed)
    }

    /// Pins `n` bytes at `p` and answers what to give back later, and where in the arena the host sees them. `None`: they
    /// are to be copied.
    ///
    /// # Safety
    /// The bytes stay mapped until the block is given back and, with `write`, may be changed until then.
    pub unsafe fn lend(&self, p: *const u8, n: usize, write: bool) -> Option<(Block, u64)> {
        if !self.worthwhile(n) {
            return None;
        }
        let first = p.addr() as u64 & !(PAGE - 1);
        let length = (p.addr() as u64 + n as u64).next_multiple_of(PAGE) - first;
        let block = self.take(length)?;
        let pin = Pin { address: first as usize, length, offset: block.offset, write };
        // SAFETY: the caller's promise; whole pages around the bytes belong to the application as well.
        if let Err(error) = unsafe { self.device.pin(pin) } {
            self.put(block);
            if error == SCATTERED {
                self.too_large.fetch_min(n, Ordering::Relaxed);
                return None;
            }
            // Other errors are this buffer's own: it may be a file's memory, which cannot be pinned for long.
            if error == Errno::NOMEM && !self.told.swap(true, Ordering::Relaxed) {
                log::line(&format!("large buffers are copied: they cannot be pinned ({error}; see ulimit -l)"));
            }
            return None;
        }
        self.books().pinned.insert(block.offset, length);
        Some((block, block.offset + (p.addr() as u64 - first)))
    }

    pub fn give_back(&self, block: Block) {
        let length = self.books().pinned.remove(&block.offset);
        if let Some(length) = length
            && self.device.unpin(block.offset, length).is_err()
        {
            // The session is over, with which the driver unpins everything. The place is not used again.
            return;
        }
        self.put(block);
    }

    fn take(&self, length: u64) -> Option<Block> {
        // A place per power of two: the address space is large, and few lengths come back often.
        let size = length.checked_next_power_of_two()?;
        let mut books = self.books();
        if let Some(offset) = books.free.get_mut(&size).and_then(Vec::pop) {
            return Some(Block { offset, size });
        }
        let offset = books.fresh;
        books.fresh = offset.checked_add(size).filter(|next| *next <= self.places.end)?;
        Some(Block { offset, size })
    }

    fn put(&self, block: Block) {
        self.books().free.entry(block.size).or_default().push(block.offset);
    }
}
