//! A futex for the model checker: a sleeper that is never woken makes no progress, which the
//! checker reports.

use std::time::Duration;

use crate::sync::{AtomicU32, Ordering};

pub fn wait(word: &AtomicU32, expected: u32, _timeout: Option<Duration>) {
    while word.load(Ordering::SeqCst) == expected {
        loom::thread::yield_now();
    }
}

/// Does nothing: the sleeper polls the word, which the waker has changed.
pub fn wake(_word: &AtomicU32) {}
