//! What the node and one API server share about the devices that a session uses: who may give them work now.
//!
//! One page per session, made by the node, written by that session's API server and the node, never by a guest. FairGV's
//! board is one page for all; here a broken API server reaches nobody's grant but its own.

use crate::sealed::{Atomics, SealedPage};
use crate::text::Text;
use aviary_ring::futex;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Devices that one session can use.
pub const DEVICE_SEATS: usize = 16;
/// Longest name of a device, in words.
const NAME: usize = 8;

/// What [`DeviceSeat::grant`] says.
pub mod grant {
    /// Nobody may give the device work. The node's answer to a seat that wants.
    pub const CLOSED: u32 = 0;
    /// Until [`DeviceSeat::budget`] is used up, or there is nothing more to do.
    pub const SLICE: u32 = 1;
    /// As long as nobody else wants the device; there is work under way.
    pub const ALONE: u32 = 2;
    /// As `ALONE`, and nothing is under way: the node may close it at once.
    pub const IDLE: u32 = 3;
    /// The slice is used up and the node decides whether another follows at once. Until then nobody may give the
    /// device work.
    pub const ENDED: u32 = 4;
    /// Nobody schedules this device.
    pub const FREE: u32 = 5;
    /// As `ENDED`, but the device is still at the slice's last work, until [`super::DeviceSeat::ends_at`] or so. The
    /// node may let the next session queue its work behind that, so that the device does not stand still meanwhile.
    pub const LAST: u32 = 6;
}

/// How a holder behaves, set by the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Manner {
    /// Measures what its calls cost and gives the device back when it is used up or not needed.
    Measured = 0,
    /// A slice is a span of time, whatever is queued on the device at its end, and however little is done in it:
    /// what schedulers do that do not look into the device. For comparison only.
    Blind = 1,
}

/// One device of a session.
#[repr(C, align(64))]
#[derive(Default)]
pub struct DeviceSeat {
    /// The API server has written the name; never taken back.
    pub taken: AtomicU32,
    /// See [`grant`].
    pub grant: AtomicU32,
    /// Threads of the API server that wait for the grant.
    pub waiting: AtomicU32,
    /// The id of one of them that sleeps, or with `LAST` of who waits for the device; 0: none. The node believes nothing: it
    /// looks whose thread that is.
    pub sleeper: AtomicU32,
    /// The thread that the node has made a real-time thread, until it gives that up; 0: none since the last one saw it.
    pub hurried: AtomicU32,
    /// See [`Manner`].
    manner: AtomicU32,
    /// 1: the device gives several processes parts of its time by itself. Written by the API server before it takes the
    /// seat.
    preempts: AtomicU32,
    /// Nanoseconds that a `SLICE` lasts.
    pub budget: AtomicU64,
    /// Nanoseconds that a holder without work keeps a slice, because more work usually follows.
    pub linger: AtomicU64,
    /// Nanoseconds for which the threads of a program that calls often stay awake while it has the device; 0: they
    /// sleep when they think best.
    pub awake: AtomicU64,
    /// Nanoseconds of work that the session may have in flight, because another tenant can come before it at any time;
    /// 0: as much as it likes within its slice. Written by the node.
    pub depth: AtomicU64,
    /// Nanoseconds that the device was occupied, ever.
    pub used: AtomicU64,
    /// Calls that gave the device work, ever.
    pub calls: AtomicU64,
    /// Nanoseconds that calls waited for the grant, ever.
    pub waited: AtomicU64,
    /// With `LAST`: when the device will have done what it has, as [`monotonic`] tells the time.
    pub ends_at: AtomicU64,
    /// With `LAST`: nanoseconds of work that `used` does not contain yet.
    pub remaining: AtomicU64,
    /// With `LAST`: 1 if more work will probably follow at once.
    pub goes_on: AtomicU32,
    /// When the device had done what was under way with `LAST`; written before the slice is given back.
    pub freed_at: AtomicU64,
    /// Since when the device is at the work of this slice: whoever queued its work behind another session's does not
    /// pay for that one's. 0: since it got work. [`NOT_YET`]: the other one is not done. Written by the node.
    pub free_at: AtomicU64,
    name: Text<NAME>,
}

/// See [`DeviceSeat::free_at`].
pub const NOT_YET: u64 = u64::MAX;

/// Nanoseconds of a clock that all processes share.
pub fn monotonic() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[repr(C)]
struct Page {
    seats: [DeviceSeat; DEVICE_SEATS],
    /// See [`GrantPage::is_scheduled`].
    scheduled: AtomicU32,
}

// SAFETY: it consists of atomics only.
unsafe impl Atomics for Page {}

impl DeviceSeat {
    /// Takes the seat for a device. Long names are cut off.
    pub fn take(&self, name: &str) {
        self.name.store(name);
        self.taken.store(1, Ordering::Release);
    }

    /// Before [`DeviceSeat::take`]: the device gives several processes parts of its time by itself.
    pub fn set_preempts(&self) {
        self.preempts.store(1, Ordering::Relaxed);
    }

    pub fn preempts(&self) -> bool {
        self.preempts.load(Ordering::Relaxed) != 0
    }

    /// The device's name; `None`: the seat is not taken.
    pub fn name(&self) -> Option<String> {
        (self.taken.load(Ordering::Acquire) != 0).then(|| self.name.load())
    }

    pub fn set_manner(&self, manner: Manner) {
        self.manner.store(manner as u32, Ordering::Relaxed);
    }

    pub fn manner(&self) -> Manner {
        if self.manner.load(Ordering::Relaxed) == Manner::Blind as u32 { Manner::Blind } else { Manner::Measured }
    }

    /// Changes the grant if it is still `from`, and wakes who waits for it to open. False if it was something else.
    pub fn change(&self, from: u32, to: u32) -> bool {
        let changed = self.grant.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if changed && matches!(from, grant::CLOSED | grant::ENDED) && to != grant::CLOSED {
            self.wake();
        }
        changed
    }

    /// Sleeps while the grant is `is`, at most so long. May return early.
    pub fn sleep(&self, is: u32, at_most: Duration) {
        futex::wait(&self.grant, is, Some(at_most));
    }

    /// Wakes all who sleep.
    pub fn wake(&self) {
        futex::wake(&self.grant);
    }
}

/// A mapping of the page.
#[derive(Debug)]
pub struct GrantPage(SealedPage<Page>);

impl GrantPage {
    pub fn create() -> rustix::io::Result<OwnedFd> {
        SealedPage::<Page>::create("aviary-grants")
    }

    pub fn open(fd: BorrowedFd<'_>) -> rustix::io::Result<GrantPage> {
        SealedPage::open(fd).map(GrantPage)
    }

    pub fn seats(&self) -> &[DeviceSeat; DEVICE_SEATS] {
        &self.0.seats
    }

    /// By the node: from now on it matters who gives devices work. Never taken back.
    pub fn schedule(&self) {
        self.0.scheduled.store(1, Ordering::Relaxed);
    }

    /// Whether the node schedules devices, or did so once. Until then the session need not look at its seats.
    #[inline]
    pub fn is_scheduled(&self) -> bool {
        self.0.scheduled.load(Ordering::Relaxed) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn both_sides_see_one_seat() {
        let fd = GrantPage::create().unwrap();
        let (node, server) = (GrantPage::open(fd.as_fd()).unwrap(), GrantPage::open(fd.as_fd()).unwrap());
        assert_eq!(node.seats()[3].name(), None);
        server.seats()[3].set_preempts();
        server.seats()[3].take("a device\u{7} of ours");
        assert_eq!(node.seats()[3].name().unwrap(), "a device of ours");
        assert!(node.seats()[3].preempts() && !node.seats()[4].preempts());
        let name = "ä".repeat(40);
        server.seats()[4].take(&name);
        assert_eq!(node.seats()[4].name().unwrap(), "ä".repeat(32));
        assert!(!server.is_scheduled());
        node.schedule();
        assert!(server.is_scheduled());
    }

    #[test]
    fn a_sleeper_is_woken_by_the_grant() {
        let fd = GrantPage::create().unwrap();
        let (node, server) = (GrantPage::open(fd.as_fd()).unwrap(), GrantPage::open(fd.as_fd()).unwrap());
        let sleeper = std::thread::spawn(move || {
            let seat = &server.seats()[0];
            while seat.grant.load(Ordering::SeqCst) == grant::CLOSED {
                seat.sleep(grant::CLOSED, Duration::from_secs(30));
            }
            seat.grant.load(Ordering::SeqCst)
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(node.seats()[0].change(grant::CLOSED, grant::SLICE));
        assert_eq!(sleeper.join().unwrap(), grant::SLICE);
        assert!(!node.seats()[0].change(grant::CLOSED, grant::SLICE));
    }
}
