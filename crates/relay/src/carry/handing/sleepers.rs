//! Threads that wait until something under a lock changes. Used by the outbox and the inboxes.
//!
//! The standard library's condition variable makes a kernel call for each notification, whether or not anybody waits. This
//! one knows: it makes one only if a thread has begun to wait since the last one.

use std::sync::PoisonError;
#[cfg(test)]
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::{AtomicBool, Ordering};

use std::time::Duration;

use super::sync::{Condvar, MutexGuard};

/// All of its methods are called under the same lock.
#[derive(Debug, Default)]
pub struct Sleepers {
    changed: Condvar,
    /// A thread has begun to wait since the last [`Sleepers::wake`]. Changed under the lock, so its order is the lock's.
    any: AtomicBool,
    #[cfg(test)]
    woken: AtomicUsize,
}

impl Sleepers {
    /// Waits until [`Sleepers::wake`], or without a reason.
    pub fn wait<'a, T>(&self, state: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.any.store(true, Ordering::Relaxed);
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as [`Sleepers::wait`] does, for this time at most.
    pub fn wait_for<'a, T>(&self, state: MutexGuard<'a, T>, time: Duration) -> MutexGuard<'a, T> {
        self.any.store(true, Ordering::Relaxed);
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Wakes all that wait. `_state`: the lock is held.
    pub fn wake<T>(&self, _state: &mut MutexGuard<'_, T>) {
        if self.any.swap(false, Ordering::Relaxed) {
            #[cfg(test)]
            self.woken.fetch_add(1, Ordering::Relaxed);
            self.changed.notify_all();
        }
    }

    /// How often [`Sleepers::wake`] has made a kernel call.
    #[cfg(test)]
    pub fn woken(&self) -> usize {
        self.woken.load(Ordering::Relaxed)
    }
}
