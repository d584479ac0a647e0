//! A lock in shared memory that says who holds it, so that a dead holder's can be taken over.

use aviary_ring::futex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Somebody sleeps until the lock is free.
const HAS_WAITERS: u32 = 1 << 31;
/// Looks at the word before sleeping: the lock is held for some ten instructions.
const SPIN_LOOKS: u32 = 100;
/// A sleeper looks again after this long, whatever became of its wake-up.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// 0: free. Otherwise the holder's number, which is not 0, and perhaps [`HAS_WAITERS`].
#[repr(transparent)]
pub struct OwnedLock(AtomicU32);

impl OwnedLock {
    /// The holder; 0: none.
    pub fn owner(&self) -> u32 {
        self.0.load(Ordering::Acquire) & !HAS_WAITERS
    }

    /// False: somebody has it.
    pub fn try_lock(&self, owner: u32) -> bool {
        self.0.compare_exchange(0, owner, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// False: not within `patience`.
    pub fn lock(&self, owner: u32, patience: Duration) -> bool {
        if self.try_lock(owner) {
            return true;
        }
        self.wait_for(owner, patience)
    }

    #[cold]
    fn wait_for(&self, owner: u32, patience: Duration) -> bool {
        for _ in 0..SPIN_LOOKS {
            if self.0.compare_exchange_weak(0, owner, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return true;
            }
            std::hint::spin_loop();
        }
        let since = Instant::now();
        loop {
            // A thread that has slept once cannot know whether others still do: it leaves the mark.
            match self.0.compare_exchange(0, owner | HAS_WAITERS, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(held) if held & HAS_WAITERS == 0 => {
                    let _ = self.0.compare_exchange(held, held | HAS_WAITERS, Ordering::Relaxed, Ordering::Relaxed);
                }
                // Woken, timed out, interrupted or too late: this looks again in any case.
                Err(held) => futex::wait(&self.0, held, Some(LOCK_POLL_INTERVAL)),
            }
            if since.elapsed() >= patience {
                return false;
            }
        }
    }

    /// By its holder, or by who takes a dead holder's place.
    pub fn unlock(&self) {
        if self.0.swap(0, Ordering::Release) & HAS_WAITERS != 0 {
            // All of them: one that was chosen and then died would leave the others asleep until their nap ends.
            futex::wake(&self.0);
        }
    }
}
