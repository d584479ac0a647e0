//! The page that the node and one API server share about a session's devices: how much work it may submit now.
//!
//! One page per session, made by the node, written by that session's API server and the node, never by a guest. FairGV's
//! board is one page for all; here a broken API server changes no allowance but its own.

use crate::shared::sealed::{Atomics, SealedPage};
use crate::shared::text::Text;
use aviary_ring::futex;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Devices that one session can use.
pub const DEVICE_SLOTS: usize = 16;
/// Upper bounds of the classes of waits, in nanoseconds; a last class has no bound.
pub const WAIT_BOUNDS_NS: [u64; 5] = [100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000];
/// Classes of waits.
pub const WAIT_CLASSES: usize = WAIT_BOUNDS_NS.len() + 1;
/// Longest name of a device, in words.
const NAME_WORDS: usize = 8;

/// One device of a session. All words are hints to their reader: the node bounds what it reads by its own clock, an API
/// server that ignores the node's words is charged for what it keeps from others.
#[repr(C, align(64))]
#[derive(Default)]
pub struct DeviceSlot {
    /// 1: the API server has written the name; never taken back.
    pub taken: AtomicU32,
    /// Changes with each increase of the allowance; threads sleep on it. Written by the node.
    opened: AtomicU32,
    /// Threads of the API server that wait for the allowance. Written by the API server.
    pub waiters: AtomicU32,
    /// The id of one of them that sleeps; 0: none. Written by the API server; the node looks whose thread that is.
    pub waiter_tid: AtomicU32,
    /// The thread that the node has made a real-time thread, until it gives that up; 0: none since the last one saw it.
    pub boosted_tid: AtomicU32,
    /// 1: the device gives several processes parts of its time by itself. Written by the API server before it takes the
    /// slot.
    preempts: AtomicU32,
    /// 1: the node does not look at the slot until the doorbell rings. Written by the node; the API server clears it and
    /// rings with its next call.
    pub parked: AtomicU32,
    /// 1: the session uses the device, or will do so in a moment. Written by the API server.
    pub wanted: AtomicU32,
    /// Nanoseconds of device time that the session may have submitted by now. Written by the node.
    pub allowance: AtomicU64,
    /// Nanoseconds of work that the session may have in flight. Written by the node.
    pub depth_ns: AtomicU64,
    /// Nanoseconds for which a session without work is still taken to want the device. Written by the node.
    pub idle_hold_ns: AtomicU64,
    /// Nanoseconds for which the threads of a program that calls often stay awake while it may use the device; 0: they
    /// sleep when they think best. Written by the node.
    pub spin_window_ns: AtomicU64,
    /// Nanoseconds for which the device had completed work of the session, ever. This and the next three are written by
    /// the API server.
    pub used_ns: AtomicU64,
    /// Since when it has work that `used_ns` does not contain, as [`monotonic`] tells the time; 0: none is in flight.
    pub busy_since: AtomicU64,
    /// When that will be completed, as estimated.
    pub drains_at: AtomicU64,
    /// Nanoseconds that were submitted ever, as estimated.
    pub position: AtomicU64,
    /// Calls whose work was completed, ever. Written by the API server.
    pub calls: AtomicU64,
    /// Nanoseconds that calls waited for the allowance, ever. Written by the API server.
    pub waited_ns: AtomicU64,
    /// How many of these waits there were, by their length. Written by the API server; read for people only.
    pub waits: [AtomicU64; WAIT_CLASSES],
    name: Text<NAME_WORDS>,
}

/// Nanoseconds of a clock that all processes share.
pub fn monotonic() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[repr(C)]
struct Page {
    slots: [DeviceSlot; DEVICE_SLOTS],
    /// See [`GrantPage::is_scheduled`].
    scheduled: AtomicU32,
}

// SAFETY: it consists of atomics only.
unsafe impl Atomics for Page {}

impl DeviceSlot {
    /// Takes the slot for a device. Long names are cut off.
    pub fn take(&self, name: &str) {
        self.name.store(name);
        self.taken.store(1, Ordering::Release);
    }

    /// Before [`DeviceSlot::take`]: the device gives several processes parts of its time by itself.
    pub fn set_preempts(&self) {
        self.preempts.store(1, Ordering::Relaxed);
    }

    pub fn preempts(&self) -> bool {
        self.preempts.load(Ordering::Relaxed) != 0
    }

    /// The device's name; `None`: the slot is not taken.
    pub fn name(&self) -> Option<String> {
        (self.taken.load(Ordering::Acquire) != 0).then(|| self.name.load())
    }

    /// A call has waited so long for the allowance.
    pub fn note_wait(&self, ns: u64) {
        let class = WAIT_BOUNDS_NS.partition_point(|bound| *bound < ns);
        self.waits[class].fetch_add(1, Ordering::Relaxed);
        self.waited_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Wakes the threads that wait for a greater allowance.
    pub fn open(&self) {
        self.opened.fetch_add(1, Ordering::SeqCst);
        futex::wake(&self.opened);
    }

    /// For [`DeviceSlot::sleep`]; read before the allowance.
    pub fn openings(&self) -> u32 {
        self.opened.load(Ordering::SeqCst)
    }

    /// Sleeps until the slot was opened since it was opened so often, at most so long. May return early.
    pub fn sleep(&self, openings: u32, at_most: Duration) {
        futex::wait(&self.opened, openings, Some(at_most));
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

    pub fn slots(&self) -> &[DeviceSlot; DEVICE_SLOTS] {
        &self.0.slots
    }

    /// By the node: from now on it matters how much work devices get. Never taken back.
    pub fn schedule(&self) {
        self.0.scheduled.store(1, Ordering::Relaxed);
    }

    /// True if the node schedules devices, or did so once. Until then the session need not look at its slots.
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
    fn both_sides_see_one_slot() {
        let fd = GrantPage::create().unwrap();
        let (node, server) = (GrantPage::open(fd.as_fd()).unwrap(), GrantPage::open(fd.as_fd()).unwrap());
        assert_eq!(node.slots()[3].name(), None);
        server.slots()[3].set_preempts();
        server.slots()[3].take("a device\u{7} of ours");
        assert_eq!(node.slots()[3].name().unwrap(), "a device of ours");
        assert!(node.slots()[3].preempts() && !node.slots()[4].preempts());
        let name = "ä".repeat(40);
        server.slots()[4].take(&name);
        assert_eq!(node.slots()[4].name().unwrap(), "ä".repeat(32));
        assert!(!server.is_scheduled());
        node.schedule();
        assert!(server.is_scheduled());
    }

    #[test]
    fn waits_are_counted_by_length() {
        let slot = DeviceSlot::default();
        for ns in [0, 100_000, 100_001, 1_000_000_000, 1_000_000_001, 60_000_000_000] {
            slot.note_wait(ns);
        }
        let waits = slot.waits.each_ref().map(|count| count.load(Ordering::Relaxed));
        assert_eq!(waits, [2, 1, 0, 0, 1, 2]);
        assert_eq!(slot.waited_ns.load(Ordering::Relaxed), 62_000_200_002);
    }

    #[test]
    fn sleeper_is_woken_by_an_allowance() {
        let fd = GrantPage::create().unwrap();
        let (node, server) = (GrantPage::open(fd.as_fd()).unwrap(), GrantPage::open(fd.as_fd()).unwrap());
        let sleeper = std::thread::spawn(move || {
            let slot = &server.slots()[0];
            loop {
                let openings = slot.openings();
                match slot.allowance.load(Ordering::SeqCst) {
                    0 => slot.sleep(openings, Duration::from_secs(30)),
                    allowance => return allowance,
                }
            }
        });
        std::thread::sleep(Duration::from_millis(20));
        node.slots()[0].allowance.store(7, Ordering::SeqCst);
        node.slots()[0].open();
        assert_eq!(sleeper.join().unwrap(), 7);
    }
}
