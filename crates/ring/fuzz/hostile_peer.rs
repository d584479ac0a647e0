//! A peer that writes anything anywhere: words of the shared memory change between two steps of the
//! honest side, which must answer with messages or errors, in bounded memory and time.

use arbitrary::{Arbitrary, Unstructured};
use std::sync::Arc;

use aviary_ring::{Consumer, Liveness, Producer};

use super::block::{Block, LIMIT};

pub fn run(bytes: &[u8]) {
    let Ok(steps) = <Vec<(u8, u16, u64)>>::arbitrary_take_rest(Unstructured::new(bytes)) else { return };
    let block = Block::new();
    let (Ok(a), Ok(b)) = (block.ring(), block.ring()) else { return };
    let live = Arc::new(Liveness::notified());
    live.kill();
    let (mut tx, mut rx) = (Producer::new(a, live.clone(), LIMIT), Consumer::new(b, live, LIMIT));
    let mut got = Vec::new();
    for (action, place, value) in steps {
        // Half of all steps: the hostile peer writes. The others: the honest side sends or receives.
        match action % 4 {
            0 | 1 => block.scribble(place, value),
            2 => drop(tx.send(&vec![7; usize::from(place) % (LIMIT + 100)])),
            _ => drop(rx.try_receive(&mut got)),
        }
        assert!(got.len() <= LIMIT);
    }
}
