//! In a VM: the application's own memory, mapped on the host without a copy (qCUDA, section II.D).
//!
//! The driver pins the pages of a buffer, and the host maps them at an offset of the arena where
//! this side has no mapping: the message names that offset, and the vendor's library reads or
//! writes the application's pages. Pinning costs a message to the host, so it pays only for large
//! buffers.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aviary_transport::{Device, Pin};
use rustix::io::Errno;

use crate::memory::block::Block;
use crate::process::log;

const PAGE_BYTES: u64 = 4096;
/// Smallest buffer in bytes that is pinned (`./x bench vm` measures the break-even); `AVIARY_PIN`
/// overrides it.
const MIN_PIN_BYTES: usize = 4 << 20;

/// The driver's error for a buffer in more fragments than the host maps. Another buffer may be less
/// fragmented.
const TOO_FRAGMENTED: Errno = Errno::NOSPC;

/// Pinned memory of one arena.
pub(crate) struct Pins {
    device: Arc<Device>,
    places: Range<u64>,
    smallest: usize,
    /// Size in bytes from which buffers are not pinned, because one of this size had too many
    /// fragments.
    too_large: AtomicUsize,
    lists: Mutex<PinLists>,
    /// True once the log says that this process may not pin more memory.
    reported: AtomicBool,
}

struct PinLists {
    /// Lowest offset that was never used.
    fresh: u64,
    /// Free offsets by the length of their range, a power of two.
    free: HashMap<u64, Vec<u64>>,
    /// Lengths of the pinned buffers, by offset.
    pinned: HashMap<u64, u64>,
}

impl Pins {
    /// `places`: offsets of the arena without another use.
    pub fn new(device: Arc<Device>, places: Range<u64>) -> Self {
        let lists = PinLists { fresh: places.start, free: HashMap::new(), pinned: HashMap::new() };
        let smallest = std::env::var("AVIARY_PIN").ok().and_then(|text| text.parse().ok()).unwrap_or(MIN_PIN_BYTES);
        let too_large = AtomicUsize::new(usize::MAX);
        Pins { device, places, smallest, too_large, lists: Mutex::new(lists), reported: AtomicBool::new(false) }
    }

    fn lists(&self) -> MutexGuard<'_, PinLists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn owns(&self, block: Block) -> bool {
        self.places.contains(&block.offset)
    }

    pub fn worthwhile(&self, n: usize) -> bool {
        let largest = self.too_large.load(Ordering::Relaxed);
        n >= self.smallest && n < largest && !self.reported.load(Ordering::Relaxed)
    }

    /// Pins `n` bytes at `p`. Returns the block to free later, and the offset in the arena at which
    /// the host maps the bytes. `None`: they are to be copied.
    ///
    /// # Safety
    /// The bytes stay mapped until the block is freed and, with `write`, may be changed until then.
    pub unsafe fn lend(&self, p: *const u8, n: usize, write: bool) -> Option<(Block, u64)> {
        if !self.worthwhile(n) {
            return None;
        }
        let first = p.addr() as u64 & !(PAGE_BYTES - 1);
        let length = (p.addr() as u64 + n as u64).next_multiple_of(PAGE_BYTES) - first;
        let block = self.take(length)?;
        let pin = Pin { address: first as usize, length, offset: block.offset, write };
        // SAFETY: the caller's promise; whole pages around the bytes belong to the application as
        // well.
        if let Err(error) = unsafe { self.device.pin(pin) } {
            self.put(block);
            if error == TOO_FRAGMENTED {
                self.too_large.fetch_min(n, Ordering::Relaxed);
                return None;
            }
            // Other errors concern this buffer only: memory of a file, for example, cannot be
            // pinned for long.
            if error == Errno::NOMEM && !self.reported.swap(true, Ordering::Relaxed) {
                log::line(&format!("large buffers are copied: they cannot be pinned ({error}; see ulimit -l)"));
            }
            return None;
        }
        self.lists().pinned.insert(block.offset, length);
        Some((block, block.offset + (p.addr() as u64 - first)))
    }

    pub fn give_back(&self, block: Block) {
        let length = self.lists().pinned.remove(&block.offset);
        if let Some(length) = length
            && self.device.unpin(block.offset, length).is_err()
        {
            // The session is over, and the driver has unpinned everything. The offset is not
            // reused.
            return;
        }
        self.put(block);
    }

    fn take(&self, length: u64) -> Option<Block> {
        // Ranges have a power of two as their length: the address space is large, and a program
        // uses few lengths.
        let size = length.checked_next_power_of_two()?;
        let mut lists = self.lists();
        if let Some(offset) = lists.free.get_mut(&size).and_then(Vec::pop) {
            return Some(Block { offset, size });
        }
        let offset = lists.fresh;
        lists.fresh = offset.checked_add(size).filter(|next| *next <= self.places.end)?;
        Some(Block { offset, size })
    }

    fn put(&self, block: Block) {
        self.lists().free.entry(block.size).or_default().push(block.offset);
    }
}
