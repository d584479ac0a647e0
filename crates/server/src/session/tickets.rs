//! The order of asynchronous calls across lanes (contract 2).
//!
//! Asynchronous calls carry dense tickets 1, 2, 3...; `done` is the last one
//! executed with all before it. An asynchronous call runs when its
//! predecessor is done, a synchronous one when the ticket it names is done.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Condvar, Mutex, PoisonError};

/// Looks at `done` this often before going to sleep: the predecessor is usually a few microseconds away.
const SPIN_LOOKS: u32 = 200;

#[derive(Default)]
pub struct Tickets {
    done: AtomicU64,
    sleepers: AtomicUsize,
    dead: AtomicBool,
    /// Waits that can be repeated end.
    paused: AtomicBool,
    gate: Mutex<()>,
    changed: Condvar,
}

/// The end of a wait whose ticket is not done.
#[derive(Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub enum Interrupted {
    /// the session ended while a call waited for its turn
    SessionOver,
    /// the session was paused while a call waited for its turn
    Paused,
}

/// A wait, as a pause sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// The message can be kept and its wait be repeated.
    Possible,
    /// The vendor library waits for this call.
    Impossible,
}

impl Tickets {
    /// Returns when every asynchronous call up to `ticket` has been executed.
    pub fn wait(&self, ticket: u64, repeat: Repeat) -> Result<(), Interrupted> {
        // Only for tests/order-broken, which shows that the tests of the order can fail.
        if cfg!(break_order) {
            return Ok(());
        }
        for _ in 0..SPIN_LOOKS {
            if self.done.load(Ordering::Acquire) >= ticket {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.sleep(ticket, repeat)
    }

    /// Every asynchronous call up to this one has been executed.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }

    /// The asynchronous call `ticket` has been executed, as far as the order is concerned.
    pub fn finish(&self, ticket: u64) {
        // A guest that repeats or skips tickets only confuses its own order.
        self.done.fetch_max(ticket, Ordering::Release);
        // Pairs with the fence in `sleep`: either we see the sleeper or it sees the new `done`.
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            let _guard = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
            self.changed.notify_all();
        }
    }

    /// Ends every wait, now and later.
    pub fn interrupt(&self) {
        self.dead.store(true, Ordering::SeqCst);
        let _guard = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        self.changed.notify_all();
    }

    /// Ends the waits that can be repeated, now and until [`Tickets::resume`].
    pub fn pause(&self) {
        self.paused.store(true, Ordering::SeqCst);
        let _guard = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        self.changed.notify_all();
    }

    pub fn resume(&self) {
        self.paused.store(false, Ordering::SeqCst);
    }

    fn sleep(&self, ticket: u64, repeat: Repeat) -> Result<(), Interrupted> {
        let mut guard = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let result = loop {
            if self.done.load(Ordering::Acquire) >= ticket {
                break Ok(());
            }
            if self.dead.load(Ordering::SeqCst) {
                break Err(Interrupted::SessionOver);
            }
            if repeat == Repeat::Possible && self.paused.load(Ordering::SeqCst) {
                break Err(Interrupted::Paused);
            }
            guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_run_in_ticket_order_whatever_thread_brings_them() {
        const CALLS: u64 = 30_000;
        let tickets = Tickets::default();
        let seen = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for lane in 0..3 {
                let (tickets, seen) = (&tickets, &seen);
                scope.spawn(move || {
                    for ticket in (1..=CALLS).filter(|t| t % 3 == lane) {
                        tickets.wait(ticket - 1, Repeat::Impossible).unwrap();
                        seen.lock().unwrap().push(ticket);
                        tickets.finish(ticket);
                    }
                });
            }
        });
        assert!(seen.into_inner().unwrap().into_iter().eq(1..=CALLS));
    }

    #[test]
    fn pause_ends_waits_that_can_be_repeated() {
        let tickets = Tickets::default();
        std::thread::scope(|scope| {
            let lane = scope.spawn(|| tickets.wait(1, Repeat::Possible));
            let below_a_call = scope.spawn(|| tickets.wait(1, Repeat::Impossible));
            std::thread::sleep(std::time::Duration::from_millis(20));
            tickets.pause();
            assert_eq!(lane.join().unwrap(), Err(Interrupted::Paused));
            tickets.resume();
            tickets.finish(1);
            assert_eq!(below_a_call.join().unwrap(), Ok(()));
        });
        assert_eq!(tickets.wait(1, Repeat::Possible), Ok(()));
    }

    #[test]
    fn death_ends_a_wait() {
        let tickets = Tickets::default();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| tickets.wait(5, Repeat::Impossible));
            std::thread::sleep(std::time::Duration::from_millis(20));
            tickets.interrupt();
            assert_eq!(waiter.join().unwrap(), Err(Interrupted::SessionOver));
        });
        assert_eq!(tickets.wait(1, Repeat::Possible), Err(Interrupted::SessionOver));
        assert_eq!(tickets.wait(0, Repeat::Possible), Ok(()));
    }
}
