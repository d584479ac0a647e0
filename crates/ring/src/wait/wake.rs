//! Wake-ups of the threads that sleep at a ring.

use crate::doorbell::Doorbell;
use crate::futex;
use crate::memory::RingMemory;
use crate::sync::{AtomicU32, Ordering, fence};
use crate::wait::{ASLEEP, here};

/// Wakes the peer if its flag says that it sleeps. The caller has published the data that the peer
/// waits for.
///
/// The fence pairs with the one in [`crate::wait`]: either the sleeper's check after raising its
/// flag sees the publication, or this load sees the flag. A peer that lies here only misses its own
/// wake-up or costs one system call.
#[inline]
pub(crate) fn wake_if_asleep(flag: &AtomicU32, memory: &RingMemory) {
    fence(Ordering::SeqCst);
    if flag.load(Ordering::Relaxed) & ASLEEP != 0 {
        wake_peer(flag, memory.doorbell());
    }
}

#[cold]
fn wake_peer(flag: &AtomicU32, doorbell: Option<&dyn Doorbell>) {
    flag.store(here(doorbell) << 1, Ordering::SeqCst);
    match doorbell {
        Some(doorbell) => doorbell.wake_peer(flag),
        None => futex::wake(flag),
    }
}

fn wake_own(flag: &AtomicU32, doorbell: Option<&dyn Doorbell>) {
    flag.store(0, Ordering::SeqCst);
    match doorbell {
        Some(doorbell) => doorbell.wake_own(flag),
        None => futex::wake(flag),
    }
}

/// Wakes the local side of a pair of rings, from another thread of the same process (the peer died).
///
/// ```
/// # use aviary_ring::{Consumer, Liveness, RingError, RingMemory, WakeHandle};
/// # use std::sync::Arc;
/// # #[repr(align(4096))]
/// # struct Page([u8; 4096]);
/// # let page: &'static mut Page = Box::leak(Box::new(Page([0; 4096])));
/// # // SAFETY: the page is never freed, and only the ring uses it.
/// # let memory = unsafe { RingMemory::new(page.0.as_mut_ptr(), 4096, Arc::new(())) }?;
/// # let sending = memory.clone();
/// let alive = Arc::new(Liveness::notified());
/// let mut consumer = Consumer::new(memory.clone(), alive.clone(), 1000);
/// let sleeper = std::thread::spawn(move || consumer.receive(&mut Vec::new()));
/// // Another thread sees that the peer has ended: it says so first, and wakes the sleeper then.
/// alive.kill();
/// WakeHandle::new(&memory, &sending).wake();
/// assert_eq!(sleeper.join().unwrap(), Err(RingError::Dead));
/// # Ok::<(), RingError>(())
/// ```
#[derive(Clone)]
pub struct WakeHandle {
    pub(crate) receiving: RingMemory,
    pub(crate) sending: RingMemory,
}

impl WakeHandle {
    /// A handle of the side that consumes `receiving` and produces into `sending`.
    pub fn new(receiving: &RingMemory, sending: &RingMemory) -> Self {
        WakeHandle { receiving: receiving.clone(), sending: sending.clone() }
    }

    /// Makes a sleeping local side check its liveness flag, which the caller has set before.
    pub fn wake(&self) {
        wake_own(self.receiving.consumer_sleeps(), self.receiving.doorbell());
        wake_own(self.sending.producer_sleeps(), self.sending.doorbell());
    }
}
