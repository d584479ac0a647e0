//! Messages that have arrived for one lane and wait for room in its ring. Filled by the network reader, emptied by the lane's
//! thread. The carrier checks its size before each push, so a peer that exceeds its credit loses its session.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use aviary_wire::Control;

use crate::carry::handing::sleepers::Sleepers;

/// Memory of a parcel besides its payload, in bytes.
const PARCEL_COST: usize = 128;
/// The size in bytes up to which a batch is extended by the next one.
const SHORT_BATCH: usize = 4 << 10;

pub enum Parcel {
    Message(Vec<u8>),
    /// Several messages, as [`Batch`] gathers them.
    Batch(Batch),
    /// Passed on after the messages before it.
    Control(Control),
}

/// Small messages in one piece of memory: their lengths, then their bytes.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
}

impl Batch {
    pub fn push(&mut self, message: &[u8]) {
        self.bytes.extend_from_slice(&(message.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(message);
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// As [`Batch::of`] takes it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn of(bytes: &[u8]) -> Batch {
        Batch { bytes: bytes.to_vec() }
    }

    pub fn messages(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let (length, tail) = rest.split_first_chunk::<4>()?;
            let (message, tail) = tail.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            rest = tail;
            Some(message)
        })
    }
}

impl Parcel {
    /// Memory of the parcel, in bytes.
    fn held(&self) -> usize {
        PARCEL_COST
            + match self {
                Parcel::Message(message) => message.len(),
                Parcel::Batch(batch) => batch.bytes.len(),
                Parcel::Control(_) => Control::CONTROL_BYTES,
            }
    }
}

#[derive(Default)]
struct InboxState {
    queue: VecDeque<Parcel>,
    /// Memory of the queue, in bytes.
    held: usize,
    /// The last parcel is being handled.
    busy: bool,
    /// Parcels stay, and wait for the process that goes on with the session.
    held_back: bool,
    /// The consumer stops, whatever waits.
    stopped: bool,
    finished: bool,
    ended: bool,
}

impl InboxState {
    /// Returns by how many bytes the memory has grown.
    fn push(&mut self, parcel: Parcel) -> usize {
        let more = match (self.queue.back_mut(), &parcel) {
            (Some(Parcel::Batch(last)), Parcel::Batch(next)) if last.bytes.len() < SHORT_BATCH => {
                last.bytes.extend_from_slice(&next.bytes);
                next.bytes.len()
            }
            _ => {
                let held = parcel.held();
                self.queue.push_back(parcel);
                held
            }
        };
        self.held += more;
        more
    }
}

/// Memory of all inboxes of one connection, in bytes.
#[derive(Debug, Default, Clone)]
pub struct Total(Arc<AtomicUsize>);

impl Total {
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
pub struct Inbox {
    state: Mutex<InboxState>,
    /// The consumer waits for parcels.
    more: Sleepers,
    /// Others wait until parcels were handled.
    done: Sleepers,
    total: Total,
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let held = self.state().held;
        self.total.0.fetch_sub(held, Ordering::Relaxed);
    }
}

impl Inbox {
    /// `total`: the memory of all inboxes of a session, which includes this one.
    pub fn new(total: Total) -> Self {
        Inbox { state: Mutex::default(), more: Sleepers::default(), done: Sleepers::default(), total }
    }

    fn state(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn push(&self, parcel: Parcel) {
        let mut state = self.state();
        let more = state.push(parcel);
        self.total.0.fetch_add(more, Ordering::Relaxed);
        self.more.wake(&mut state);
    }

    /// Memory of the waiting parcels, in bytes.
    pub fn held(&self) -> usize {
        self.state().held
    }

    /// Marks the previous parcel as handled and waits for the next one. `None`: nothing follows.
    pub fn next(&self) -> Option<Parcel> {
        let mut state = self.state();
        state.busy = false;
        loop {
            if state.stopped {
                return None;
            }
            let next = if state.held_back { None } else { state.queue.pop_front() };
            if let Some(parcel) = next {
                state.held -= parcel.held();
                self.total.0.fetch_sub(parcel.held(), Ordering::Relaxed);
                state.busy = true;
                return Some(parcel);
            }
            if state.finished && !state.held_back {
                return None;
            }
            self.done.wake(&mut state);
            state = self.more.wait(state);
        }
    }

    /// The last parcel was pushed.
    pub fn finish(&self) {
        let mut state = self.state();
        (state.finished, state.held_back) = (true, false);
        self.more.wake(&mut state);
    }

    /// From now on parcels stay.
    pub fn hold_back(&self) {
        self.state().held_back = true;
    }

    /// After [`Inbox::hold_back`]: false if the parcel that is being handled is not in the ring at `deadline`.
    pub fn await_idle(&self, deadline: Instant) -> bool {
        self.wait_until(deadline, |state| !state.busy)
    }

    /// The consumer stops; what waits stays.
    pub fn stop(&self) {
        let mut state = self.state();
        state.stopped = true;
        self.more.wake(&mut state);
    }

    /// Everything that waits, in order. Nothing waits afterwards.
    pub fn take_all(&self) -> Vec<Parcel> {
        let mut state = self.state();
        self.total.0.fetch_sub(std::mem::take(&mut state.held), Ordering::Relaxed);
        state.queue.drain(..).collect()
    }

    /// The consumer of parcels has stopped.
    pub fn ended(&self) {
        let mut state = self.state();
        (state.ended, state.busy) = (true, false);
        self.done.wake(&mut state);
    }

    /// After [`Inbox::finish`]: waits until everything was handled, until `deadline` at most.
    pub fn await_end(&self, deadline: Instant) -> bool {
        self.wait_until(deadline, |state| state.ended)
    }

    /// Waits until everything that was pushed so far was handled, until `deadline` at most.
    pub fn settle(&self, deadline: Instant) -> bool {
        self.wait_until(deadline, |state| (state.queue.is_empty() && !state.busy) || state.ended)
    }

    fn wait_until(&self, deadline: Instant, done: impl Fn(&InboxState) -> bool) -> bool {
        let mut state = self.state();
        while !done(&state) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.done.wait_for(state, left);
        }
        true
    }
}
