//! A peer that writes anything at any time: a second thread stores words into the shared memory, again and
//! again, while the honest ends send and receive. They must answer with messages or errors, in bounded memory.
#![no_main]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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

impl Block {
    fn scribble(&self, place: u16, value: u64) {
        let offset = usize::from(place) % ((HEADER + CAPACITY) / 8) * 8;
        // SAFETY: aligned and inside the block.
        unsafe { AtomicU64::from_ptr(self.0.add(offset).cast()) }.store(value, Ordering::Relaxed);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated below with the same layout.
        unsafe { dealloc(self.0, layout()) }
    }
}

fuzz_target!(|input: (Vec<(u16, u64)>, Vec<(bool, u16)>)| {
    let (writes, steps) = input;
    // SAFETY: the layout's size is not zero.
    let block = Arc::new(Block(unsafe { alloc_zeroed(layout()) }));
    // SAFETY: the block is kept alive by the Arc and accessed atomically only.
    let ring = || unsafe { RingMemory::new(block.0, HEADER + CAPACITY, block.clone()) };
    let (Ok(a), Ok(b)) = (ring(), ring()) else { return };
    let live = Arc::new(Liveness::notified());
    // Nobody sleeps for ever.
    live.kill();
    let (mut tx, mut rx) = (Producer::new(a, live.clone(), LIMIT), Consumer::new(b, live, LIMIT));
    let over = AtomicBool::new(writes.is_empty());
    std::thread::scope(|scope| {
        let scribbler = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                writes.iter().for_each(|(place, value)| block.scribble(*place, *value));
            }
        });
        let mut got = Vec::new();
        for (send, length) in steps {
            if send {
                let _ = tx.send(&vec![7; usize::from(length) % (LIMIT + 100)]);
            } else {
                let _ = rx.try_receive(&mut got);
                assert!(got.len() <= LIMIT);
            }
        }
        over.store(true, Ordering::Relaxed);
        // The scope alone does not wait for the thread's last bytes, which look like a leak.
        assert!(scribbler.join().is_ok());
    });
});
