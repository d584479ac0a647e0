//! Every interleaving of a lane's thread, its borrowers and its wakers, under the C11 memory model:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p aviary-delegate --test model`
//!
//! The lane's context is a cell: two that run it at once are an error at once. A thread that sleeps for ever makes no progress,
//! which the checker reports.
#![cfg(loom)]

use std::sync::Arc;

use aviary_delegate::{BerthState, BerthWord, Step};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

/// What a ring, a liveness and a berth are to each other.
struct Lane {
    berth: BerthWord,
    /// Messages that the lane's context has read.
    context: UnsafeCell<u32>,
    sent: AtomicU32,
    /// The ring's sleep word.
    asleep: AtomicBool,
    /// The peer has ended, or a pause asks for the lane.
    stopped: AtomicBool,
    /// The last message; the context ends with it.
    last: u32,
    /// Whether the lane's thread has seen the end.
    seen: AtomicBool,
}

/// How the context stops running.
#[derive(PartialEq, Eq)]
enum Stop {
    Sleeps,
    Ends,
}

impl Lane {
    fn new(last: u32) -> Arc<Lane> {
        Arc::new(Lane {
            berth: BerthWord::default(),
            context: UnsafeCell::new(0),
            sent: AtomicU32::new(0),
            asleep: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            last,
            seen: AtomicBool::new(false),
        })
    }

    /// The lane's context, on whichever thread.
    fn run(&self) -> Stop {
        self.context.with_mut(|read| {
            // SAFETY: the checker reports a second user.
            let read = unsafe { &mut *read };
            loop {
                self.asleep.store(true, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                let sent = self.sent.load(Ordering::Acquire);
                if *read == self.last || self.stopped.load(Ordering::SeqCst) {
                    return Stop::Ends;
                }
                if sent == *read {
                    return Stop::Sleeps;
                }
                self.asleep.store(false, Ordering::Relaxed);
                *read = sent;
            }
        })
    }

    /// The lane's thread; `expires`: its first sleep ends by itself.
    fn live(&self, mut expires: bool) {
        while self.run() == Stop::Sleeps {
            let mut state = self.berth.step(Step::Sleep).map_or_else(|state| state, |(_, after)| after);
            while !state.is_own() {
                if std::mem::take(&mut expires) && self.berth.step(Step::Expire).is_ok() {
                    break;
                }
                loom::thread::yield_now();
                state = self.berth.state();
            }
            let _ = self.berth.step(Step::Resume);
        }
        self.seen.store(true, Ordering::SeqCst);
    }

    /// A sender: the sleep word says whether the berth is looked at.
    fn send(&self, borrows: bool) {
        self.sent.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            self.asleep.store(false, Ordering::SeqCst);
            if !borrows || !self.enter() {
                let _ = self.berth.step(Step::Wake);
            }
        }
    }

    fn enter(&self) -> bool {
        if self.berth.step(Step::Claim).is_err() {
            return false;
        }
        let step = if self.run() == Stop::Sleeps { Step::Release } else { Step::HandOver };
        assert!(self.berth.step(step).is_ok(), "only the borrower ends a borrowing");
        true
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.asleep.store(false, Ordering::SeqCst);
        let _ = self.berth.step(Step::Wake);
    }
}

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// A lane, and two senders, who borrow or not. The thread ends once it or a borrower has read both messages.
fn senders(borrow: [bool; 2], expires: bool) {
    check(move || {
        let lane = Lane::new(2);
        let thread = loom::thread::spawn({
            let lane = lane.clone();
            move || lane.live(expires)
        });
        let other = loom::thread::spawn({
            let lane = lane.clone();
            move || lane.send(borrow[1])
        });
        lane.send(borrow[0]);
        other.join().unwrap();
        thread.join().unwrap();
        assert!(lane.seen.load(Ordering::SeqCst), "the thread itself ends");
        assert!(!matches!(lane.berth.state(), BerthState::Asleep | BerthState::Borrowed | BerthState::Recalled));
    });
}

#[test]
fn claim_races_with_a_wake() {
    senders([true, false], false);
}

#[test]
fn two_borrowers_come_at_once() {
    senders([true, true], false);
}

#[test]
fn claim_races_with_a_sleep_that_ends_by_itself() {
    senders([true, false], true);
}

/// A pause is the same: a flag is set, and the sleeper is woken.
#[test]
fn end_of_the_peer_reaches_a_borrowed_lane() {
    check(|| {
        let lane = Lane::new(u32::MAX);
        let thread = loom::thread::spawn({
            let lane = lane.clone();
            move || lane.live(false)
        });
        let killer = loom::thread::spawn({
            let lane = lane.clone();
            move || lane.stop()
        });
        lane.send(true);
        killer.join().unwrap();
        thread.join().unwrap();
        assert!(lane.seen.load(Ordering::SeqCst), "the thread itself ends");
    });
}
