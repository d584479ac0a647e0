//! Every interleaving of a producer and a consumer, under the C11 memory model:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p aviary-ring --test model`
#![cfg(loom)]

use std::sync::Arc;

use aviary_ring::{Consumer, Liveness, Producer, RingMemory};

/// A line holds 8 bytes of a message here.
fn ends(lines: usize) -> (Producer, Consumer) {
    let (memory, live) = (RingMemory::model(lines), Arc::new(Liveness::notified()));
    (Producer::new(memory.clone(), live.clone(), 1 << 20), Consumer::new(memory, live, 1 << 20))
}

fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

#[test]
fn sleeping_consumer_is_woken_and_sees_the_message() {
    check(4, || {
        let (mut tx, mut rx) = ends(16);
        let sender = loom::thread::spawn(move || {
            tx.send(&[1; 8]).unwrap();
            tx.send(&[2; 8]).unwrap();
        });
        let mut got = Vec::new();
        for n in [1, 2] {
            rx.receive(&mut got).unwrap();
            assert_eq!(got, [n; 8]);
        }
        sender.join().unwrap();
    });
}

#[test]
fn sleeping_producer_is_woken_and_overwrites_nothing() {
    check(2, || {
        let (mut tx, mut rx) = ends(4);
        let sender = loom::thread::spawn(move || {
            for n in 1..=6u8 {
                // The first four messages fill the ring.
                tx.send(&[n; 8]).unwrap();
            }
        });
        let mut got = Vec::new();
        for n in 1..=6u8 {
            rx.receive(&mut got).unwrap();
            assert_eq!(got, [n; 8]);
        }
        sender.join().unwrap();
    });
}

#[test]
fn message_of_several_lines_is_seen_as_a_whole() {
    check(3, || {
        // A quarter of the ring holds two lines: two segments, the second over the end of the ring.
        let (mut tx, mut rx) = ends(8);
        for _ in 0..5 {
            tx.send(&[0; 8]).unwrap();
            rx.receive(&mut Vec::new()).unwrap();
        }
        let sender = loom::thread::spawn(move || tx.send(&[7; 29]).unwrap());
        let mut got = Vec::new();
        rx.receive(&mut got).unwrap();
        assert_eq!(got, [7; 29]);
        sender.join().unwrap();
    });
}

#[test]
fn both_sides_sleep_in_turn() {
    check(2, || {
        let ((mut tx, mut their_rx), (mut their_tx, mut rx)) = (ends(4), ends(4));
        let peer = loom::thread::spawn(move || {
            let mut got = Vec::new();
            for _ in 0..2 {
                their_rx.receive(&mut got).unwrap();
                their_tx.send(&got).unwrap();
            }
        });
        let mut got = Vec::new();
        for n in 1..=2u8 {
            tx.send(&[n; 8]).unwrap();
            rx.receive(&mut got).unwrap();
            assert_eq!(got, [n; 8]);
        }
        peer.join().unwrap();
    });
}
