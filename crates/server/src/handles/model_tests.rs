//! Every interleaving of calls that use, set and end the same objects.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::entry::Ending;
use super::*;
use crate::handles::in_use::LaneUses;
use crate::handles::interleave::{all, point};
use std::sync::Arc;

const KERNEL: u64 = 1;
const BUFFER: u64 = 2;

struct World {
    table: HandleTable,
    lanes: [Arc<LaneUses>; 3],
    kernel: u64,
    buffer: u64,
    /// State of the vendor's library: the buffer has not ended, and its place in the kernel is being written.
    live: AtomicBool,
    writing: AtomicBool,
    /// The buffer is the kernel's argument.
    set: AtomicBool,
    used: AtomicUsize,
}

fn world() -> World {
    let table = HandleTable::new(&[]);
    let [kernel, buffer] = [KERNEL, BUFFER].map(|native| table.publish(0, native, Role::Allocate).unwrap());
    let lanes = [(); 3].map(|()| table.in_use.lane());
    let (live, [writing, set]) = (AtomicBool::new(true), [(); 2].map(|()| AtomicBool::new(false)));
    World { table, lanes, kernel, buffer, live, writing, set, used: AtomicUsize::new(0) }
}

impl World {
    /// A call that uses the buffer.
    fn use_buffer(&self, lane: usize) {
        let own = &self.lanes[lane];
        own.announce(self.buffer);
        if self.table.usable(0, self.buffer).is_ok() {
            self.follow();
        }
        own.forget_from(0);
    }

    /// A call that uses the buffer through the kernel.
    fn launch(&self, lane: usize) {
        let own = &self.lanes[lane];
        own.announce(self.kernel);
        if self.table.usable(0, self.kernel).is_ok() && !self.table.is_lacking(self.kernel) {
            assert!(!self.writing.load(Ordering::SeqCst), "a launch reads what a call sets");
            if self.set.load(Ordering::SeqCst) {
                self.follow();
            }
            assert!(!self.writing.load(Ordering::SeqCst), "a call sets what a launch reads");
        }
        own.forget_from(0);
    }

    fn follow(&self) {
        assert!(self.live.load(Ordering::SeqCst), "a call uses what has ended");
        point();
        assert!(self.live.load(Ordering::SeqCst), "an object has ended below a call");
        self.used.fetch_add(1, Ordering::SeqCst);
    }

    /// A call that gives the buffer's last reference back, and waits for others for some rounds.
    fn end_buffer(&self, lane: usize) {
        let own = &self.lanes[lane];
        own.announce(self.buffer);
        if self.table.usable(0, self.buffer).is_ok() {
            let mut rounds = 0..1;
            match self.table.ending(self.buffer, false, own, || rounds.next().is_some()) {
                Ok(Some(Ending::Last)) => {
                    assert!(self.live.swap(false, Ordering::SeqCst), "an object ends twice");
                    point();
                    assert!(self.table.release_ending(self.buffer, false).is_some());
                }
                Ok(Some(Ending::OneOfMany)) => assert!(self.table.release_ending(self.buffer, false).is_none()),
                Ok(None) | Err(Busy) => {}
            }
        }
        own.forget_from(0);
    }

    /// A call that sets the buffer on the kernel.
    fn set(&self, lane: usize) {
        let own = &self.lanes[lane];
        own.announce(self.kernel);
        if self.table.usable(0, self.kernel).is_ok() && self.table.try_exclusive(self.kernel) == Exclusive::Taken {
            let mut rounds = 0..1;
            if self.table.await_exclusive(self.kernel, own, || rounds.next().is_some()).is_ok() {
                own.announce(self.buffer);
                if self.table.usable(0, self.buffer).is_ok() {
                    self.writing.store(true, Ordering::SeqCst);
                    point();
                    self.set.store(true, Ordering::SeqCst);
                    self.writing.store(false, Ordering::SeqCst);
                    self.table.refer(self.kernel, 0, &[self.buffer]);
                }
            }
            self.table.end_exclusive(self.kernel);
        }
        own.forget_from(0);
    }

    fn is_consistent(&self) {
        let lacking = self.table.is_lacking(self.kernel);
        assert!(self.live.load(Ordering::SeqCst) || self.table.native(0, self.buffer).is_none());
        assert!(!lacking || !self.live.load(Ordering::SeqCst), "nothing has ended");
        assert_eq!(self.table.usable(0, self.kernel), Ok(KERNEL), "no mark is left");
        assert!(self.lanes.iter().all(|lane| lane.is_empty()));
    }
}

/// The rounds for which an end waits are turns, too: each run ends.
fn explore(what: &str, setup: impl Fn() -> World, threads: &[&(dyn Fn(&World) + Sync)]) {
    let (used, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let runs = all(setup, threads, |world| {
        world.is_consistent();
        used.fetch_add(world.used.load(Ordering::SeqCst), Ordering::SeqCst);
        ended.fetch_add(usize::from(!world.live.load(Ordering::SeqCst)), Ordering::SeqCst);
    });
    println!("{what}: {runs} interleavings, {used:?} uses, {ended:?} ends");
    assert!(runs > 10, "{what}: {runs} interleavings");
}

fn with_argument() -> World {
    let world = world();
    world.table.refer(world.kernel, 0, &[world.buffer]);
    world.set.store(true, Ordering::SeqCst);
    world
}

#[test]
fn no_interleaving_ends_an_object_below_a_call() {
    explore("use and end", world, &[&|w: &World| w.use_buffer(0), &|w: &World| w.end_buffer(1)]);
}

#[test]
fn no_interleaving_ends_an_argument_below_a_launch() {
    explore("launch and end", with_argument, &[&|w: &World| w.launch(0), &|w: &World| w.end_buffer(1)]);
}

#[test]
fn no_interleaving_sets_an_argument_below_a_launch() {
    explore("launch and set", with_argument, &[&|w: &World| w.launch(0), &|w: &World| w.set(1)]);
}

#[test]
fn an_argument_that_ends_while_it_is_set_is_lacking() {
    explore("set and end", world, &[&|w: &World| w.set(0), &|w: &World| w.end_buffer(1)]);
}

#[test]
fn two_ends_are_one_and_end_an_object_once() {
    let twice = || {
        let world = world();
        world.table.retain(world.buffer);
        world
    };
    explore("end and end", twice, &[&|w: &World| w.end_buffer(0), &|w: &World| w.end_buffer(1)]);
    explore("end of one reference", world, &[&|w: &World| w.end_buffer(0), &|w: &World| w.end_buffer(1)]);
}
