//! Callbacks that the vendor library does not wait for (`posted`).
//!
//! A vendor's thread may hold locks of the library while it calls back, and a call of the guest may
//! need one of them before it can answer. So no thread of the vendor's waits for the guest here: the
//! message is left behind, and goes out after the vendor's function has returned on a lane whose
//! guest waits, or from a thread of this module.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aviary_wire::Encoder;

use crate::config::MAX_POSTED_BYTES;
use crate::outgoing::exchange_apart;
use crate::session::{KeptObject, Session};

/// A callback without an answer, ready to be sent.
pub struct PostedCallback {
    pub message: Encoder,
    /// The handle that it hands back is valid until it has run.
    pub kept: Option<KeptObject>,
}

/// The thread that sends posted callbacks.
#[derive(Default, PartialEq, Eq)]
enum Sender {
    #[default]
    NotStarted,
    Running,
    /// The session is over.
    Ended,
}

#[derive(Default)]
struct PostedState {
    queue: VecDeque<PostedCallback>,
    /// Bytes of the messages in the queue.
    bytes: usize,
    sender: Sender,
    /// Callbacks that were ever posted here, and that have run.
    posted: u64,
    done: u64,
}

/// The posted callbacks of a session that no waiting call of the guest carries, in their order.
#[derive(Default)]
pub struct PostedCallbacks {
    state: Mutex<PostedState>,
    changed: Condvar,
}

impl PostedCallbacks {
    /// Takes a callback. Never waits for the guest.
    pub fn push(&self, session: &Arc<Session>, callback: PostedCallback) {
        let mut state = self.lock();
        if state.sender == Sender::Ended {
            return;
        }
        state.bytes += callback.message.len();
        if state.bytes > MAX_POSTED_BYTES {
            drop(state);
            return session.fail("the guest does not run its callbacks");
        }
        state.queue.push_back(callback);
        state.posted += 1;
        if state.sender == Sender::NotStarted {
            let session = session.clone();
            let sender = move || session.posted.send_all(&session);
            match std::thread::Builder::new().name("posted-callbacks".into()).spawn(sender) {
                Ok(_) => state.sender = Sender::Running,
                Err(_) => drop(state.queue.pop_back()),
            }
        }
        self.changed.notify_all();
    }

    fn send_all(&self, session: &Arc<Session>) {
        while let Some(mut callback) = self.next() {
            // A guest that is gone or answers nonsense has ended the session.
            let _ = exchange_apart(session, &mut callback.message, &mut Vec::new());
            drop(callback);
            self.lock().done += 1;
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Option<PostedCallback> {
        let mut state = self.lock();
        loop {
            if state.sender == Sender::Ended {
                return None;
            }
            if let Some(callback) = state.queue.pop_front() {
                state.bytes -= callback.message.len();
                return Some(callback);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until what was posted before has run, at most until `deadline`: a callback may itself wait for the caller.
    pub fn settle(&self, deadline: Instant) {
        let mut state = self.lock();
        let posted = state.posted;
        while state.done < posted && state.sender == Sender::Running {
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// True: everything that was posted has run.
    pub fn is_idle(&self) -> bool {
        let state = self.lock();
        state.done == state.posted
    }

    /// Ends the thread, and every wait.
    pub fn end(&self) {
        let mut state = self.lock();
        state.sender = Sender::Ended;
        let dropped = std::mem::take(&mut state.queue);
        self.changed.notify_all();
        drop(state);
        // Objects end with what kept them, which asks the session's tables.
        drop(dropped);
    }

    fn lock(&self) -> MutexGuard<'_, PostedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
