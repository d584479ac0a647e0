//! A lock that is held across `fork`, by the thread that forks, and released on both sides.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and another thread may sleep on the word.
const AWAITED: u32 = 2;

pub struct Lock(AtomicU32);

impl Lock {
    pub const fn new() -> Self {
        Lock(AtomicU32::new(FREE))
    }

    pub fn acquire(&self) {
        if self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return;
        }
        for _ in 0..100 {
            if self.0.load(Ordering::Relaxed) == FREE
                && self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
            std::hint::spin_loop();
        }
        while self.0.swap(AWAITED, Ordering::Acquire) != FREE {
            let _ = futex::wait(&self.0, futex::Flags::PRIVATE, AWAITED, None);
        }
    }

    pub fn release(&self) {
        if self.0.swap(FREE, Ordering::Release) == AWAITED {
            let _ = futex::wake(&self.0, futex::Flags::PRIVATE, 1);
        }
    }

    /// Releases the lock in the child of a fork, whose only thread holds it: no other thread can
    /// wait.
    pub fn release_in_child(&self) {
        self.0.store(FREE, Ordering::Release);
    }
}
