//! A peer that writes anything anywhere: between two steps of the honest side, words of the shared
//! memory change. The honest side must answer with messages or errors, in bounded memory and time.
#![no_main]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aviary_ring::{Consumer, HEADER, Liveness, Producer, RingMemory};
use libfuzzer_sys::fuzz_target;

const CAPACITY: usize = 512;
const LIMIT: usize = 2048;

struct Block(*mut u8);

// SAFETY: only accessed through atomics.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

fn layout() -> Layout {
    Layout::from_size_align(HEADER + CAPACITY, 64).unwrap_or(Layout::new::<u64>())
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated below with the same layout.
        unsafe { dealloc(self.0, layout()) }
    }
}

fuzz_target!(|steps: Vec<(u8, u16, u64)>| {
    // SAFETY: the layout's size is not zero.
    let block = Arc::new(Block(unsafe { alloc_zeroed(layout()) }));
    // SAFETY: the block is kept alive by the Arc and accessed atomically only.
    let ring = || unsafe { RingMemory::new(block.0, HEADER + CAPACITY, block.clone()) };
    let (Ok(a), Ok(b)) = (ring(), ring()) else { return };
    let live = Arc::new(Liveness::notified());
    live.kill();
    let (mut tx, mut rx) = (Producer::new(a, live.clone(), LIMIT), Consumer::new(b, live, LIMIT));
    let mut got = Vec::new();
    for (what, place, value) in steps {
        match what % 4 {
            0 | 1 => {
                let offset = usize::from(place) % ((HEADER + CAPACITY) / 8) * 8;
                // SAFETY: aligned and inside the block.
                unsafe { AtomicU64::from_ptr(block.0.add(offset).cast()) }.store(value, Ordering::Relaxed);
            }
            2 => drop(tx.send(&vec![7; usize::from(place) % (LIMIT + 100)])),
            _ => drop(rx.try_receive(&mut got)),
        }
        assert!(got.len() <= LIMIT);
    }
});
