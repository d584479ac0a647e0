//! Wake-ups of the threads that sleep at a ring.

use crate::sync::{AtomicU32, Ordering, fence};
use crate::wait::{ASLEEP, here};
use crate::{Doorbell, RingMemory, futex};

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
