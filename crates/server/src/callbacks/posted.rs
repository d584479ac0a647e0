//! Callbacks that the vendor library does not wait for (`posted`).
//!
//! A vendor's thread may hold locks of the library while it calls back, and a call of the guest may
//! need one of them before it can answer. So no thread of the vendor's waits for the guest here: the
//! message is left behind, and goes out after the vendor's function has returned on a lane whose
//! guest waits, or from a thread of this module.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aviary_wire::Encoder;

use crate::callbacks::closures::KeptObject;
use crate::session::config::MAX_POSTED_BYTES;

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

/// the guest does not execute its callbacks
#[derive(Debug)]
pub struct TooManyPosted;

impl PostedCallbacks {
    /// Takes a callback. Never waits for the guest. `start`: starts a thread that calls [`PostedCallbacks::send_all`], if
    /// there is none yet.
    pub fn push(&self, callback: PostedCallback, start: impl FnOnce() -> io::Result<()>) -> Result<(), TooManyPosted> {
        let mut state = self.lock();
        if state.sender == Sender::Ended {
            return Ok(());
        }
        state.bytes += callback.message.len();
        if state.bytes > MAX_POSTED_BYTES {
            return Err(TooManyPosted);
        }
        state.queue.push_back(callback);
        state.posted += 1;
        if state.sender == Sender::NotStarted {
            match start() {
                Ok(()) => state.sender = Sender::Running,
                Err(_) => drop(state.queue.pop_back()),
            }
        }
        self.changed.notify_all();
        Ok(())
    }

    /// The life of the sending thread: gives `send` one message after the other until the session is over.
    pub fn send_all(&self, mut send: impl FnMut(&mut Encoder)) {
        while let Some(mut callback) = self.next() {
            send(&mut callback.message);
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
