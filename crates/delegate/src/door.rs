//! The door: how a guest's library and a server module reach berths that neither has made.
//!
//! Both sides contain a copy of this crate, perhaps of different versions, so only plain C types cross, and the table's version
//! is checked first.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use aviary_ring::{Doorbell, Reach, futex};

/// What became of an attempt to continue in a server's context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Entered {
    /// The context sleeps again.
    Returned,
    /// The context continues in its own thread.
    HandedOver,
    /// It runs already, or cannot be entered: the caller wakes it, as without a door.
    Refused,
}

/// Changes whenever the table or the meaning of its fields changes.
pub const DOOR_VERSION: u32 = 1;

/// The function by which a door is found in the program: `extern "C" fn() -> *const DoorTable`.
pub const DOOR: &CStr = c"aviary_door";

/// A time that never comes, for [`DoorTable::sleep`].
const FOREVER: u64 = u64::MAX;

#[repr(C)]
pub struct DoorTable {
    pub version: u32,
    /// A socket to a new API server behind this door, and the number of the session; -1: there is none.
    pub connect: extern "C" fn(session: *mut u64) -> c_int,
    /// A reference of the berth of a lane, which the first call makes; NULL: nothing can be borrowed.
    pub open: extern "C" fn(session: u64, lane: u32) -> *const c_void,
    /// Releases a reference.
    pub close: extern "C" fn(berth: *const c_void),
    /// `Berth::sleep`, at most so many nanoseconds.
    pub sleep: extern "C" fn(berth: *const c_void, at_most_ns: u64),
    pub wake: extern "C" fn(berth: *const c_void),
    /// `Berth::enter`; the answer is an [`Entered`].
    pub enter: extern "C" fn(berth: *const c_void) -> u32,
}

impl DoorTable {
    /// The door of this program. `None`: it has none.
    pub fn find() -> Option<&'static DoorTable> {
        // SAFETY: a NUL-terminated name; a function of this name answers a table that stays, in every version. Its first field has
        // the same place in every version, and the others are used only if the version is ours.
        let table = unsafe {
            let symbol = libc::dlsym(libc::RTLD_DEFAULT, DOOR.as_ptr());
            if symbol.is_null() {
                return None;
            }
            std::mem::transmute::<*mut c_void, extern "C" fn() -> *const DoorTable>(symbol)().as_ref()?
        };
        table.is_known().then_some(table)
    }

    /// Whether the fields behind the version are as in this build.
    pub fn is_known(&self) -> bool {
        self.version == DOOR_VERSION
    }

    /// The berth of this lane.
    pub fn berth(&'static self, session: u64, lane: u32) -> Option<BerthHandle> {
        let berth = NonNull::new((self.open)(session, lane).cast_mut())?;
        Some(BerthHandle { table: self, berth })
    }
}

/// A way into a sleeping thread's context.
pub trait Door: Send + Sync {
    fn enter(&self) -> Entered;
    /// Wakes the thread itself.
    fn wake(&self);
}

/// A reference of a berth behind a door's table.
pub struct BerthHandle {
    table: &'static DoorTable,
    berth: NonNull<c_void>,
}

// SAFETY: the table's functions may be called on any thread, and the berth lives until `close`.
unsafe impl Send for BerthHandle {}
// SAFETY: as above.
unsafe impl Sync for BerthHandle {}

impl BerthHandle {
    fn sleep(&self, at_most_ns: u64) {
        (self.table.sleep)(self.berth.as_ptr(), at_most_ns);
    }
}

impl Door for BerthHandle {
    fn enter(&self) -> Entered {
        match (self.table.enter)(self.berth.as_ptr()) {
            0 => Entered::Returned,
            1 => Entered::HandedOver,
            _ => Entered::Refused,
        }
    }

    fn wake(&self) {
        (self.table.wake)(self.berth.as_ptr());
    }
}

impl Drop for BerthHandle {
    fn drop(&mut self) {
        (self.table.close)(self.berth.as_ptr());
    }
}

/// The doorbell of the server's end of a lane, whose thread sleeps in a berth.
pub struct LaneBell(BerthHandle);

impl LaneBell {
    pub fn new(berth: BerthHandle) -> LaneBell {
        LaneBell(berth)
    }

    /// From here on the lane's own thread runs, and no borrower: called in the lane's context.
    pub fn return_to_thread(&self) {
        self.0.sleep(0);
    }
}

impl Doorbell for LaneBell {
    fn wait(&self, _: &AtomicU32, _: u32, timeout: Option<Duration>) {
        let at_most = timeout.map_or(FOREVER, |time| u64::try_from(time.as_nanos()).unwrap_or(FOREVER));
        // A peer that clears the word does not end the sleep, and one that does not clear it does not prolong it: only the berth's
        // word decides.
        self.0.sleep(at_most);
    }

    fn wake_peer(&self, word: &AtomicU32) {
        futex::wake(word);
    }

    fn wake_own(&self, _: &AtomicU32) {
        self.0.wake();
    }

    fn reach(&self) -> Reach {
        Reach::Borrowing
    }
}

/// The doorbell of the guest's end: where its thread would wake the server's and wait, it continues in that thread's context.
pub struct GuestBell<D> {
    door: D,
    asks: AtomicBool,
}

impl<D: Door> GuestBell<D> {
    pub fn new(door: D) -> GuestBell<D> {
        GuestBell { door, asks: AtomicBool::new(false) }
    }
}

impl<D: Door> Doorbell for GuestBell<D> {
    fn wait(&self, word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
        futex::wait(word, expected, timeout);
    }

    fn wake_peer(&self, _: &AtomicU32) {
        let entered = if self.asks.load(Ordering::Relaxed) { self.door.enter() } else { Entered::Refused };
        if entered == Entered::Refused {
            self.door.wake();
        }
    }

    fn wake_own(&self, word: &AtomicU32) {
        futex::wake(word);
    }

    fn reach(&self) -> Reach {
        Reach::Near
    }

    fn asks(&self, asks: bool) {
        self.asks.store(asks, Ordering::Relaxed);
    }
}
