//! A peer that writes anything at any time: a second thread stores words into the shared memory in
//! a loop, while the honest ends send and receive. They must answer with messages or errors, in
//! bounded memory.

use arbitrary::{Arbitrary, Unstructured};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aviary_ring::{Consumer, Liveness, Producer};

use super::block::{Block, LIMIT};

/// Words that are stored over and over; messages of some length that are sent, or received.
type Input = (Vec<(u16, u64)>, Vec<(bool, u16)>);

pub fn run(bytes: &[u8]) {
    let Ok((writes, steps)) = Input::arbitrary_take_rest(Unstructured::new(bytes)) else { return };
    let block = Block::new();
    let (Ok(a), Ok(b)) = (block.ring(), block.ring()) else { return };
    let live = Arc::new(Liveness::notified());
    // No end sleeps for ever.
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
        // The scope does not wait for the thread's last frees, which would look like a leak.
        assert!(scribbler.join().is_ok());
    });
}
