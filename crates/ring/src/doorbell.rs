//! Sleeping where a futex does not reach: the two sides of a ring may be in different machines.

use std::time::Duration;

use crate::sync::AtomicU32;

/// How one side of a ring sleeps and is woken. Without one, both sides use futexes on the shared words.
///
/// The words keep their meaning: a sleeper has set its word to 1, and whoever wakes it has cleared it before.
pub trait Doorbell: Send + Sync {
    /// Sleeps until the word is woken, no longer holds `expected`, or the time is over. May return early.
    fn wait(&self, word: &AtomicU32, expected: u32, timeout: Option<Duration>);
    /// Wakes the peer, which sleeps at the word.
    fn wake_peer(&self, word: &AtomicU32);
    /// Wakes this side, which sleeps at the word.
    fn wake_own(&self, word: &AtomicU32);
}
