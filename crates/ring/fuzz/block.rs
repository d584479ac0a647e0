//! Memory of a small ring that a test scribbles on.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aviary_ring::{HEADER, RingError, RingMemory};

pub const CAPACITY: usize = 512;
pub const LIMIT: usize = 2048;

pub struct Block(*mut u8);

// SAFETY: the memory is only accessed through atomics.
unsafe impl Send for Block {}
// SAFETY: the memory is only accessed through atomics.
unsafe impl Sync for Block {}

fn layout() -> Layout {
    Layout::from_size_align(HEADER + CAPACITY, 64).unwrap_or(Layout::new::<u64>())
}

impl Block {
    pub fn new() -> Arc<Block> {
        // SAFETY: the layout's size is not zero.
        Arc::new(Block(unsafe { alloc_zeroed(layout()) }))
    }

    pub fn ring(self: &Arc<Block>) -> Result<RingMemory, RingError> {
        // SAFETY: the block is kept alive by the Arc and accessed atomically only.
        unsafe { RingMemory::new(self.0, HEADER + CAPACITY, self.clone()) }
    }

    pub fn scribble(&self, place: u16, value: u64) {
        let offset = usize::from(place) % ((HEADER + CAPACITY) / 8) * 8;
        // SAFETY: aligned and inside the block.
        unsafe { AtomicU64::from_ptr(self.0.add(offset).cast()) }.store(value, Ordering::Relaxed);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout.
        unsafe { dealloc(self.0, layout()) }
    }
}
