//! Buffers that the vendor library uses after its function returned (`lifetime_until`).
//!
//! Whenever a message goes to the guest, what has become final meanwhile goes
//! along as deliveries. They are numbered under one lock; the number in every
//! message tells the guest what it must have applied before it lets a call return.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use crate::api::Poll;
use crate::session::config::{MAX_LATE, MAX_LATE_BYTES};
use crate::tables::foreign::Readable;

/// The block at this arena offset is final; so many bytes of it go to the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    pub offset: u64,
    pub bytes: u64,
}

/// A copy that has to wait until the vendor library is done.
pub struct DeferredCopy {
    pub from: *const u8,
    pub to: *mut u8,
    pub bytes: usize,
    /// Of the memory that `from` is in: nothing is copied once that ends.
    pub readable: Option<Readable>,
}

impl DeferredCopy {
    fn run(&self) {
        // SAFETY: `from` is vendor memory of at least `bytes` bytes as long as it is readable, which it is during the copy
        // (its poll says that its content is valid); `to` was range-checked against the arena, which is never unmapped while
        // entries are pending. The guest may write the block during the copy: it would garble its own data only.
        let copy = || unsafe { std::ptr::copy(self.from, self.to, self.bytes) };
        match &self.readable {
            Some(readable) => readable.copy_if_readable(copy),
            None => copy(),
        }
    }
}

/// Something the vendor library is not done with.
pub struct DeferredOutput {
    /// `None`: final already.
    pub until: Option<(u64, Poll)>,
    pub delivery: Option<Delivery>,
    pub copy: Option<DeferredCopy>,
    /// Private memory that the vendor library still reads.
    pub keep: Option<Box<[u8]>>,
}

// SAFETY: the pointers name vendor memory and the arena, which any thread may access;
// the token is a number to us.
unsafe impl Send for DeferredOutput {}

#[derive(Default)]
struct DeferredState {
    pending: Vec<DeferredOutput>,
    /// Bytes that unfinished entries keep, those in the poller's hands as well.
    kept: usize,
    poller: Option<Poller>,
}

/// The thread that has the list in its hands and asks the vendor library.
struct Poller {
    thread: ThreadId,
    /// The vendor library called the application back from inside a poll: nobody may wait for this thread.
    away: bool,
}

#[derive(Default)]
pub struct DeferredOutputs {
    state: Mutex<DeferredState>,
    changed: Condvar,
    unfinished: AtomicUsize,
    delivered: AtomicU64,
}

impl DeferredOutputs {
    /// Adds an entry. It never waits: what ends the transfer may be the guest's next call. False: there are too many, so
    /// that the session has to end.
    #[must_use]
    pub fn add(&self, pending: DeferredOutput) -> bool {
        let kept = pending.kept();
        let mut state = self.lock();
        let unfinished = self.unfinished.load(Ordering::Relaxed);
        if unfinished >= MAX_LATE || state.kept + kept > MAX_LATE_BYTES {
            return false;
        }
        state.kept += kept;
        self.unfinished.fetch_add(1, Ordering::Release);
        state.pending.push(pending);
        true
    }

    pub fn is_empty(&self) -> bool {
        self.unfinished.load(Ordering::Acquire) == 0
    }

    /// Takes what has become final into `deliveries` and answers how many were ever delivered.
    #[inline]
    pub fn collect(&self, deliveries: &mut Vec<Delivery>) -> u64 {
        // Acquire: a list that another thread emptied comes with that thread's count.
        if self.is_empty() { self.delivered.load(Ordering::Acquire) } else { self.collect_taken(deliveries) }
    }

    #[cold]
    fn collect_taken(&self, deliveries: &mut Vec<Delivery>) -> u64 {
        let Some(taken) = self.take() else { return self.delivered.load(Ordering::Acquire) };
        let (mut done, mut rest) = (Vec::new(), Vec::new());
        for mut entry in taken {
            if entry.is_final() { &mut done } else { &mut rest }.push(entry);
        }
        self.put_back(done, rest, deliveries)
    }

    /// Asks what every entry waits for. True: all that is left are final deliveries, which the next message tells.
    pub fn settle(&self) -> bool {
        let Some(taken) = self.take() else { return false };
        let before = taken.len();
        let rest: Vec<DeferredOutput> = taken.into_iter().filter_map(DeferredOutput::settled).collect();
        let mut state = self.lock();
        self.unfinished.fetch_sub(before - rest.len(), Ordering::Release);
        let final_only = rest.iter().all(|entry| entry.until.is_none()) && state.pending.is_empty();
        state.pending.splice(..0, rest);
        state.kept = state.pending.iter().map(DeferredOutput::kept).sum();
        state.poller = None;
        self.changed.notify_all();
        final_only
    }

    /// Final deliveries that no message has told yet, and how many were ever told.
    pub fn untold(&self) -> (Vec<Delivery>, u64) {
        let state = self.lock();
        let untold = state.pending.iter().filter_map(|entry| entry.delivery).collect();
        (untold, self.delivered.load(Ordering::Acquire))
    }

    /// Goes on where another process has stopped.
    pub fn resume(&self, untold: Vec<Delivery>, delivered: u64) {
        let mut state = self.lock();
        self.unfinished.fetch_add(untold.len(), Ordering::Release);
        let final_ones = untold.into_iter().map(DeferredOutput::told_only);
        state.pending.extend(final_ones);
        self.delivered.store(delivered, Ordering::Release);
    }

    /// This thread is about to wait for the application. If that happens inside a poll,
    /// other threads must not wait for this one: the application may wait for them.
    pub fn leave(&self) {
        if self.is_empty() {
            return;
        }
        if let Some(poller) = self.lock().poller.as_mut().filter(|p| p.thread == std::thread::current().id()) {
            poller.away = true;
            self.changed.notify_all();
        }
    }

    /// All unfinished entries, with this thread as the poller; `None` if they are out of reach.
    fn take(&self) -> Option<Vec<DeferredOutput>> {
        let mut state = self.lock();
        let me = std::thread::current().id();
        while let Some(poller) = &state.poller {
            if poller.away || poller.thread == me {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.poller = Some(Poller { thread: me, away: false });
        Some(std::mem::take(&mut state.pending))
    }

    fn put_back(
        &self,
        done: Vec<DeferredOutput>,
        mut rest: Vec<DeferredOutput>,
        deliveries: &mut Vec<Delivery>,
    ) -> u64 {
        let mut state = self.lock();
        // Entries added meanwhile are younger.
        rest.append(&mut state.pending);
        state.pending = rest;
        state.poller = None;
        state.kept -= done.iter().map(DeferredOutput::kept).sum::<usize>();
        let before = deliveries.len();
        deliveries.extend(done.iter().filter_map(|d| d.delivery));
        let new = (deliveries.len() - before) as u64;
        let delivered = self.delivered.fetch_add(new, Ordering::AcqRel) + new;
        // After `delivered`: see `collect`.
        self.unfinished.fetch_sub(done.len(), Ordering::Release);
        self.changed.notify_all();
        delivered
    }

    fn lock(&self) -> MutexGuard<'_, DeferredState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DeferredOutput {
    /// Bytes of private memory.
    fn kept(&self) -> usize {
        self.keep.as_ref().map_or(0, |keep| keep.len())
    }

    /// Nothing to ask or to copy any more.
    fn told_only(delivery: Delivery) -> DeferredOutput {
        DeferredOutput { until: None, delivery: Some(delivery), copy: None, keep: None }
    }

    /// The entry if it is not final, a delivery that remains to be told, or nothing.
    fn settled(mut self) -> Option<DeferredOutput> {
        if !self.is_final() {
            return Some(self);
        }
        self.delivery.map(DeferredOutput::told_only)
    }

    pub fn is_final(&mut self) -> bool {
        // SAFETY: the generated code passes a utility function of the specification together with the
        // token it understands; it is called until it says non-zero, and then never again.
        let answer = self.until.map_or(1, |(token, poll)| unsafe { poll(token) });
        match (&self.copy, &mut self.delivery) {
            (Some(copy), _) if answer != 0 => copy.run(),
            (None, Some(delivery)) if answer < 0 => delivery.bytes = 0,
            _ => {}
        }
        answer != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::c_int;
    use std::sync::atomic::AtomicBool;

    static READY: [AtomicBool; 4] = [const { AtomicBool::new(false) }; 4];

    unsafe extern "C" fn ready(token: u64) -> c_int {
        c_int::from(READY[token as usize].load(Ordering::SeqCst))
    }

    fn pending(token: u64, offset: u64) -> DeferredOutput {
        let delivery = Some(Delivery { offset, bytes: 8 });
        DeferredOutput { until: Some((token, ready)), delivery, copy: None, keep: None }
    }

    #[test]
    fn deliveries_are_numbered_when_they_become_final() {
        let late = DeferredOutputs::default();
        assert!(late.add(pending(0, 64)));
        assert!(late.add(pending(1, 128)));
        let mut out = Vec::new();
        assert_eq!(late.collect(&mut out), 0);
        READY[1].store(true, Ordering::SeqCst);
        assert_eq!(late.collect(&mut out), 1);
        assert_eq!(out, [Delivery { offset: 128, bytes: 8 }]);
        READY[0].store(true, Ordering::SeqCst);
        assert_eq!(late.collect(&mut out), 2);
        assert_eq!(late.collect(&mut out), 2);
        assert!(late.is_empty());
        assert_eq!(out.len(), 2);
    }

    unsafe extern "C" fn fails(_: u64) -> c_int {
        -1
    }

    #[test]
    fn nothing_of_an_output_counts_that_has_failed() {
        let late = DeferredOutputs::default();
        let delivery = Some(Delivery { offset: 64, bytes: 8 });
        assert!(late.add(DeferredOutput { until: Some((0, fails)), delivery, copy: None, keep: None }));
        let mut out = Vec::new();
        assert_eq!(late.collect(&mut out), 1);
        assert_eq!(out, [Delivery { offset: 64, bytes: 0 }]);
    }

    #[test]
    fn final_output_is_delivered_next_and_copied() {
        let late = DeferredOutputs::default();
        let (from, mut to) = ([1u8, 2, 3], [0u8; 3]);
        let copy = DeferredCopy { from: from.as_ptr(), to: to.as_mut_ptr(), bytes: 3, readable: None };
        assert!(late.add(DeferredOutput { until: None, delivery: None, copy: Some(copy), keep: None }));
        let mut out = Vec::new();
        assert_eq!(late.collect(&mut out), 0);
        assert_eq!(to, from);
        assert!(out.is_empty() && late.is_empty());
    }

    #[test]
    fn a_poll_that_calls_back_does_not_block_others() {
        let late = DeferredOutputs::default();
        assert!(late.add(pending(2, 0)));
        let _held = late.take().unwrap();
        late.leave();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| late.collect(&mut Vec::new()));
            assert_eq!(other.join().unwrap(), 0);
        });
        assert_eq!(late.collect(&mut Vec::new()), 0, "nested in the poll itself");
    }

    #[test]
    fn content_of_an_ended_mapping_is_not_copied() {
        let late = DeferredOutputs::default();
        let (from, mut to) = ([1u8, 2, 3], [0u8; 3]);
        let readable = Readable::default();
        let copy =
            DeferredCopy { from: from.as_ptr(), to: to.as_mut_ptr(), bytes: 3, readable: Some(readable.clone()) };
        let delivery = Some(Delivery { offset: 64, bytes: 3 });
        assert!(late.add(DeferredOutput { until: None, delivery, copy: Some(copy), keep: None }));
        readable.set(false);
        let mut out = Vec::new();
        assert_eq!(late.collect(&mut out), 1, "the guest learns that its block is free");
        assert_eq!(to, [0; 3]);
    }

    #[test]
    fn an_entry_is_never_waited_for() {
        let late = DeferredOutputs::default();
        for _ in 0..1000 {
            assert!(late.add(pending(3, 0)));
        }
        READY[3].store(true, Ordering::SeqCst);
        assert_eq!(late.collect(&mut Vec::new()), 1000);
    }

    #[test]
    fn kept_memory_is_bounded() {
        let late = DeferredOutputs::default();
        let of = |bytes: usize| DeferredOutput {
            until: Some((2, ready as Poll)),
            delivery: None,
            copy: None,
            keep: Some(vec![0; bytes].into_boxed_slice()),
        };
        assert!(late.add(of(MAX_LATE_BYTES - 8)));
        assert!(!late.add(of(16)), "too much");
        assert!(late.add(of(8)));
        late.collect(&mut Vec::new());
        assert!(!late.add(of(1)), "nothing is final");
    }
}
