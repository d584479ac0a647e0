//! Sleep and wake-up where a futex is not the means: the two sides of a ring may be in different
//! machines, or one may run the other itself.

use std::time::Duration;

use crate::sync::AtomicU32;

/// The means by which one side of a ring sleeps and is woken. Without a doorbell both sides use
/// futexes on the shared words.
///
/// The words mean the same with and without a doorbell: a sleeper sets its word to 1, and its waker
/// clears the word before it rings.
///
/// ```
/// use aviary_ring::Doorbell;
/// use std::{sync::atomic::{AtomicU32, Ordering}, time::Duration};
///
/// /// A peer that is reached by polling: nobody has to be woken.
/// struct Polled;
///
/// impl Doorbell for Polled {
///     fn wait(&self, word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
///         if word.load(Ordering::SeqCst) == expected {
///             std::thread::sleep(timeout.unwrap_or(Duration::MAX).min(Duration::from_millis(1)));
///         }
///     }
///     fn wake_peer(&self, _: &AtomicU32) {}
///     fn wake_own(&self, _: &AtomicU32) {}
/// }
/// # Polled.wait(&AtomicU32::new(1), 1, None);
/// ```
pub trait Doorbell: Send + Sync {
    /// Sleeps until the word is woken, no longer holds `expected`, or `timeout` is over. May return
    /// early.
    fn wait(&self, word: &AtomicU32, expected: u32, timeout: Option<Duration>);
    /// Wakes the peer that sleeps at the word.
    fn wake_peer(&self, word: &AtomicU32);
    /// Wakes the thread of this side that sleeps at the word.
    fn wake_own(&self, word: &AtomicU32);
    /// How far away the peer is.
    fn reach(&self) -> Reach {
        Reach::Far
    }
    /// Whether the calling thread waits for the answer to what it sends from now on, and for nothing else.
    fn asks(&self, _: bool) {}
}

/// How far away a ring's peer is, which decides how long a side spins before it sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// On this machine.
    Near,
    /// In another machine: a wake-up takes long.
    Far,
    /// The peer runs this side itself as soon as it sleeps, so that this side never spins.
    Borrowing,
}
