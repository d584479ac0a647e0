//! Messages that have arrived for one lane and wait for room in its ring. Filled by the network reader, emptied by the lane's
//! thread. Where nothing waits, the network reader hands a message over itself ([`Inbox::pass_by`]). The carrier checks its size before each push, so a peer that exceeds its credit loses its session.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use aviary_wire::Control;

use crate::carry::handing::sleepers::Sleepers;
use crate::strands::arrivals::Awaited;

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
    /// What follows waits for these pieces.
    Pieces(Awaited),
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

    /// Without its first `count` messages.
    pub fn without(mut self, count: usize) -> Batch {
        let first: usize = self.messages().take(count).map(|message| 4 + message.len()).sum();
        self.bytes.drain(..first);
        self
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
                Parcel::Pieces(_) => 0,
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
    /// The network reader hands a parcel over itself.
    passed_by: bool,
    /// Parcels stay, and wait for the process that goes on with the session.
    held_back: bool,
    /// There is no consumer until something waits.
    unattended: bool,
    /// The consumer stops, whatever waits.
    stopped: bool,
    finished: bool,
    /// Pieces that have not arrived will not come.
    given_up: bool,
    ended: bool,
}

impl InboxState {
    /// The next parcel is one that waits for pieces.
    fn lacks_pieces(&self) -> bool {
        matches!(self.queue.front(), Some(Parcel::Pieces(awaited)) if !awaited.is_whole())
    }

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
    /// An inbox without a consumer: [`Inbox::push`] and [`Inbox::passed`] say when it needs one. `total`: as of [`Inbox::new`].
    pub fn unattended(total: Total) -> Self {
        let inbox = Inbox::new(total);
        inbox.state().unattended = true;
        inbox
    }

    /// It has a consumer from now on. False: it had one.
    pub fn attend(&self) -> bool {
        std::mem::take(&mut self.state().unattended)
    }

    /// `total`: the memory of all inboxes of a session, which includes this one.
    pub fn new(total: Total) -> Self {
        Inbox { state: Mutex::default(), more: Sleepers::default(), done: Sleepers::default(), total }
    }

    fn state(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True: somebody must become its consumer.
    pub fn push(&self, parcel: Parcel) -> bool {
        let mut state = self.state();
        let more = state.push(parcel);
        self.total.0.fetch_add(more, Ordering::Relaxed);
        self.more.wake(&mut state);
        state.unattended
    }

    /// True if nothing waits or is being handled: the caller hands its parcel over itself, and then calls [`Inbox::passed`]. The
    /// consumer handles nothing until then.
    pub fn pass_by(&self) -> bool {
        let mut state = self.state();
        let kept = state.busy || state.held_back || state.stopped || state.finished || state.ended;
        state.passed_by = !kept && state.queue.is_empty();
        state.passed_by
    }

    /// The caller of [`Inbox::pass_by`] is done. `rest`: what the consumer must handle. True: as of [`Inbox::push`].
    pub fn passed(&self, rest: Option<Parcel>) -> bool {
        let mut state = self.state();
        state.passed_by = false;
        let more = rest.map_or(0, |rest| state.push(rest));
        self.total.0.fetch_add(more, Ordering::Relaxed);
        // The consumer waits for parcels, or, where it is to end, for this.
        if more > 0 || state.stopped || state.finished {
            self.more.wake(&mut state);
        }
        self.done.wake(&mut state);
        more > 0 && state.unattended
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
            while state.passed_by {
                state = self.more.wait(state);
            }
            if state.stopped {
                return None;
            }
            if state.given_up && state.lacks_pieces() {
                return None;
            }
            let next = if state.held_back || state.lacks_pieces() { None } else { state.queue.pop_front() };
            if let Some(parcel) = next {
                state.held -= parcel.held();
                self.total.0.fetch_sub(parcel.held(), Ordering::Relaxed);
                state.busy = true;
                return Some(parcel);
            }
            if state.finished && !state.held_back && state.queue.is_empty() {
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

    /// Pieces have arrived for which the next parcel has waited.
    pub fn look(&self) {
        self.more.wake(&mut self.state());
    }

    /// Nothing more arrives: what waits for pieces waits no longer, and is not delivered.
    pub fn give_up(&self) {
        let mut state = self.state();
        state.given_up = true;
        self.more.wake(&mut state);
    }

    /// From now on parcels stay.
    pub fn hold_back(&self) {
        self.state().held_back = true;
    }

    /// After [`Inbox::hold_back`]: false if the parcel that is being handled is not in the ring at `deadline`.
    pub fn await_idle(&self, deadline: Instant) -> bool {
        self.wait_until(deadline, |state| !state.busy && !state.passed_by)
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
        self.wait_until(deadline, |state| state.ended || (state.unattended && !state.passed_by))
    }

    /// Waits until everything that was pushed so far was handled, until `deadline` at most.
    pub fn settle(&self, deadline: Instant) -> bool {
        self.wait_until(deadline, |state| (state.queue.is_empty() && !state.busy && !state.passed_by) || state.ended)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(messages: &[&[u8]]) -> Batch {
        let mut batch = Batch::default();
        messages.iter().for_each(|message| batch.push(message));
        batch
    }

    #[test]
    fn nobody_passes_by_what_waits() {
        let inbox = Inbox::new(Total::default());
        assert!(inbox.pass_by());
        assert!(!inbox.await_idle(Instant::now()), "it is not in the ring yet");
        inbox.passed(Some(Parcel::Batch(batch(&[b"one", b"", b"three"]).without(1))));
        assert!(!inbox.pass_by(), "something waits");
        let Some(Parcel::Batch(rest)) = inbox.next() else { panic!("no batch") };
        assert_eq!(rest.messages().collect::<Vec<_>>(), [&b""[..], b"three"]);
        assert!(!inbox.pass_by(), "it is being handled");
        inbox.hold_back();
        inbox.finish();
        assert!(inbox.next().is_none());
        assert!(!inbox.pass_by(), "the lane has ended");
        assert_eq!(inbox.total.get(), 0);
    }

    #[test]
    fn an_inbox_asks_for_a_consumer_when_something_waits() {
        let inbox = Inbox::unattended(Total::default());
        assert!(inbox.pass_by() && !inbox.passed(None), "nothing waits");
        inbox.finish();
        assert!(inbox.await_end(Instant::now()), "nobody is to end");
        let inbox = Inbox::unattended(Total::default());
        assert!(inbox.pass_by() && inbox.passed(Some(Parcel::Message(b"rest".to_vec()))));
        assert!(inbox.push(Parcel::Message(b"more".to_vec())) && inbox.attend());
        assert!(!inbox.attend() && !inbox.push(Parcel::Message(b"and more".to_vec())), "it has one");
        inbox.finish();
        assert!(!inbox.await_end(Instant::now()));
        assert_eq!(std::iter::from_fn(|| inbox.next()).count(), 3);
    }

    #[test]
    fn the_consumer_ends_after_whoever_passes_by() {
        let inbox = Arc::new(Inbox::new(Total::default()));
        assert!(inbox.pass_by());
        inbox.finish();
        let consumer = std::thread::spawn({
            let inbox = inbox.clone();
            move || {
                let rest = inbox.next().is_some();
                (rest, inbox.next().is_none())
            }
        });
        inbox.passed(Some(Parcel::Message(b"rest".to_vec())));
        assert_eq!(consumer.join().unwrap(), (true, true));
    }
}
