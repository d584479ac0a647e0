//! Sleep and wake-up where a futex does not reach: the two sides of a ring may be in different
//! machines.

use std::time::Duration;

use crate::sync::AtomicU32;

/// The means by which one side of a ring sleeps and is woken. Without a doorbell both sides use
/// futexes on the shared words.
///
/// The words mean the same with and without a doorbell: a sleeper sets its word to 1, and its waker
/// clears the word before it rings.
pub trait Doorbell: Send + Sync {
    /// Sleeps until the word is woken, no longer holds `expected`, or `timeout` is over. May return
    /// early.
    fn wait(&self, word: &AtomicU32, expected: u32, timeout: Option<Duration>);
    /// Wakes the peer that sleeps at the word.
    fn wake_peer(&self, word: &AtomicU32);
    /// Wakes the thread of this side that sleeps at the word.
    fn wake_own(&self, word: &AtomicU32);
}
