//! Threads that wait until something under a lock changes. Used by the outbox and the inboxes.
//!
//! The standard library's condition variable makes a kernel call for each notification, whether or not anybody waits. This
//! one knows: it makes one only if a thread has begun to wait since the last one.

#[cfg(test)]
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::Duration;

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn all_sleepers_wake_and_nobody_costs_nothing() {
        let shared = Arc::new((Mutex::new(0), Sleepers::default()));
        let wake = || shared.1.wake(&mut shared.0.lock().unwrap());
        (0..10).for_each(|_| wake());
        assert_eq!(shared.1.woken(), 0, "nobody waits");
        let threads = [(); 3].map(|()| {
            let shared = shared.clone();
            std::thread::spawn(move || {
                let mut state = shared.0.lock().unwrap();
                *state += 1;
                while *state < 100 {
                    state = shared.1.wait(state);
                }
            })
        });
        while *shared.0.lock().unwrap() < 3 {
            std::thread::yield_now();
        }
        *shared.0.lock().unwrap() = 100;
        wake();
        wake();
        assert_eq!(shared.1.woken(), 1, "all at once");
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
