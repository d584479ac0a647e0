//! The devices that a session gives work: waiting for its allowance, and telling the node what the device has done.
//!
//! The node writes how much device time the session may have submitted by now; a call submits while the session's
//! position is below that, and else waits. What work costs is found by waiting for marks behind it, as few as possible
//! (FairGV 3.3.2): one when the allowance is used up, and one whenever half of the work is in flight that may be. The
//! arithmetic is [`Holder`]'s; here are its threads.

mod habits;
mod waiting;

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aviary_control::cpu;
use aviary_gate::{DEVICE_SLOTS, DeviceSlot, GrantPage, monotonic};
use aviary_schedule::{ALONE, Holder, Limits, UNMANAGED};
use habits::{LatencySensitive, ReuseHint};

/// A question to a specification's `drain`; `struct aviary_drain` of `aviary/server.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainRequest {
    /// The number that stands for the device.
    pub device: u64,
    /// The number of the wait. Work that the device had at the first question with this number is waited for; work that
    /// it gets between two questions is not.
    pub wait: u64,
    /// ns to wait at most before the answer "not drained yet".
    pub patience_ns: u64,
}

/// Waits until a device has done everything that this process gave it. Positive: it gave up waiting; negative: not yet, ask
/// again, and let the thread do meanwhile what it has to do besides.
pub type Drain = unsafe extern "C" fn(*const DrainRequest) -> c_int;
/// The name of a device, NUL-terminated and never freed; NULL: unknown.
pub type Name = unsafe extern "C" fn(u64) -> *const c_char;

/// Answers that take longer are not worth being awake for from the beginning on.
const MAX_COST_TO_SPIN_FROM_START: Duration = Duration::from_micros(500);

/// The numbers of waits, of all sessions and devices.
static WAITS: AtomicU64 = AtomicU64::new(0);

/// The slots of one session, and the doorbell that the node hears.
pub struct Devices {
    page: Option<GrantPage>,
    doorbell: Option<OwnedFd>,
    known: Mutex<Vec<Known>>,
    /// See [`Devices::note_preemptive`].
    preemptive: Mutex<Vec<u64>>,
    latency_sensitive: LatencySensitive,
    /// See [`Devices::slice`].
    slice: u64,
}

/// All that is known of the devices, while no other thread changes it.
type Locked<'a> = MutexGuard<'a, Vec<Known>>;

/// A device of the vendor's that has a slot.
struct Known {
    device: u64,
    slot: usize,
    drain: Drain,
    holder: Holder,
    reuse_hint: ReuseHint,
    /// The allowance whose end the node was told last.
    told: u64,
    /// When a call came back, in nanoseconds, that may have waited for all that is in flight.
    waited_at: Option<u64>,
}

/// A call's stay between [`Devices::acquire`] and [`Devices::submit_done`].
#[derive(Debug, Clone, Copy)]
pub struct Admission {
    known: usize,
    /// A program that calls often was just let in: its thread sleeps, and the first answer comes soon.
    pub answers_soon: bool,
}

impl Devices {
    /// `page` and `doorbell`: none if the node schedules nothing.
    pub fn new(page: Option<GrantPage>, doorbell: Option<OwnedFd>, slice: u64) -> Devices {
        let (known, preemptive) = (Mutex::default(), Mutex::default());
        Devices { page, doorbell, known, preemptive, latency_sensitive: LatencySensitive::default(), slice }
    }

    /// Nanoseconds that a part of long work shall take; 0: work goes whole.
    pub fn slice(&self) -> u64 {
        self.slice
    }

    /// The slots on whose devices the session may submit work now.
    fn open_slots(page: &GrantPage) -> impl Iterator<Item = &DeviceSlot> {
        let taken = page.slots().iter().take_while(|slot| slot.taken.load(Ordering::Relaxed) != 0);
        taken.filter(|slot| {
            let allowance = slot.allowance.load(Ordering::Relaxed);
            let wanted = slot.wanted.load(Ordering::Relaxed) != 0;
            wanted && allowance != UNMANAGED && allowance > slot.position.load(Ordering::Relaxed)
        })
    }

    /// A synchronous call is being answered. For how long the threads on both sides should stay awake.
    pub fn reply_spin_window(&self) -> Duration {
        let Some(page) = &self.page else { return Duration::ZERO };
        let windows = Self::open_slots(page).map(|slot| slot.spin_window_ns.load(Ordering::Relaxed));
        let longest = windows.max().unwrap_or(0);
        if longest > 0 && self.latency_sensitive.count(Instant::now()) {
            Duration::from_nanos(longest)
        } else {
            Duration::ZERO
        }
    }

    /// Whether the session may give some device work now.
    pub fn may_submit(&self) -> bool {
        self.page.as_ref().is_some_and(|page| Self::open_slots(page).next().is_some())
    }

    /// The node schedules devices.
    #[inline]
    pub fn scheduled(&self) -> bool {
        self.page.as_ref().is_some_and(GrantPage::is_scheduled)
    }

    /// Waits until the session may give the device work. `None`: it is not scheduled. An error: the session is over.
    pub fn acquire(
        &self,
        device: u64,
        drain: Drain,
        name: Name,
        over: impl Fn() -> bool,
    ) -> Result<Option<Admission>, ()> {
        let Some(page) = &self.page else { return Ok(None) };
        if device == 0 {
            return Ok(None);
        }
        let mut known = self.known();
        let Some(at) = self.slot_of(&mut known, page, device, drain, name) else { return Ok(None) };
        let slot = &page.slots()[known[at].slot];
        known[at].reuse_hint.back(Duration::from_nanos(slot.idle_hold_ns.load(Ordering::Relaxed)));
        let Some((mut known, waited)) = self.await_allowance(known, page, at, over)? else { return Ok(None) };
        let entry = &mut known[at];
        entry.holder.begin(waited, monotonic());
        entry.waited_at = None;
        let cost = entry.holder.cost().map(Duration::from_nanos);
        let is_short = cost.is_some_and(|cost| cost <= MAX_COST_TO_SPIN_FROM_START);
        Ok(Some(Admission { known: at, answers_soon: waited && is_short && self.spins(slot) }))
    }

    /// The call has given the device its work. `measured`: what that cost, if the library says so.
    pub fn submit_done(&self, admission: Admission, measured: Option<Duration>) {
        let Some(page) = &self.page else { return };
        let (mut known, now) = (self.known(), monotonic());
        let entry = &mut known[admission.known];
        let slot = &page.slots()[entry.slot];
        let measured = measured.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        entry.holder.submitted(measured, now);
        entry.publish(slot, now);
        let limits = limits(slot);
        if limits.allowance < ALONE && entry.holder.position(now) >= limits.allowance {
            self.tell_exhausted(entry, slot, now);
        }
        if entry.holder.wants_mark(limits.depth) {
            drop(self.measure(known, admission.known, slot, Duration::ZERO));
        }
    }

    /// The device gives several processes parts of its time by itself. Counts for devices that have had no work yet.
    pub fn note_preemptive(&self, device: u64) {
        let mut preemptive = self.preemptive.lock().unwrap_or_else(PoisonError::into_inner);
        if !preemptive.contains(&device) && preemptive.len() < DEVICE_SLOTS {
            preemptive.push(device);
        }
    }

    /// Whether a call is about to give the device work, or has just done so.
    pub fn is_given_work(&self, device: u64) -> bool {
        self.known().iter().any(|entry| entry.device == device && entry.holder.is_active())
    }

    /// A call begins of a function that gives the device no work and may wait until it has done what it has. The answer is
    /// for [`Devices::end_blocking_call`].
    pub fn begin_blocking_call(&self) -> Option<usize> {
        self.page.as_ref()?;
        self.known().iter().position(|entry| entry.holder.in_flight() > 0 && !entry.holder.is_active())
    }

    /// That call is over. What it waited for was completed by now: seen at once where others share the device's time
    /// meanwhile, or where a mark is behind the work already; else with the next look.
    pub fn end_blocking_call(&self, at: usize) {
        let Some(page) = &self.page else { return };
        let mut known = self.known();
        let slot = &page.slots()[known[at].slot];
        known[at].waited_at = Some(monotonic());
        let shared = slot.preempts() && slot.allowance.load(Ordering::Relaxed) < ALONE;
        if shared || known[at].holder.has_mark() {
            drop(self.measure(known, at, slot, Duration::ZERO));
        }
    }

    /// Where the device is in the list. `None`: there is no slot for it.
    fn slot_of(
        &self,
        known: &mut Vec<Known>,
        page: &GrantPage,
        device: u64,
        drain: Drain,
        name: Name,
    ) -> Option<usize> {
        if let Some(at) = known.iter().position(|k| k.device == device) {
            return Some(at);
        }
        let slot = known.len();
        let taken = page.slots().get(slot)?;
        if self.preemptive.lock().unwrap_or_else(PoisonError::into_inner).contains(&device) {
            taken.set_preempts();
        }
        taken.take(&device_name(device, name));
        let (holder, reuse_hint) = (Holder::default(), ReuseHint::default());
        known.push(Known { device, slot, drain, holder, reuse_hint, told: u64::MAX, waited_at: None });
        self.ring();
        Some(slot)
    }

    fn ring(&self) {
        // A doorbell that is full has been rung.
        let _ = self.doorbell.as_ref().map(|doorbell| rustix::io::write(doorbell, &1u64.to_ne_bytes()));
    }

    fn known(&self) -> Locked<'_> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Tells the node, when it looks, what the device has done and has to do.
    fn publish(&self, slot: &DeviceSlot, now: u64) {
        let report = self.holder.report(now);
        slot.position.store(report.position, Ordering::Relaxed);
        slot.drains_at.store(report.drains_at, Ordering::Relaxed);
        slot.used_ns.store(report.used, Ordering::Relaxed);
        slot.busy_since.store(report.busy_since, Ordering::SeqCst);
        slot.calls.store(report.completed, Ordering::Relaxed);
    }
}

fn limits(slot: &DeviceSlot) -> Limits {
    Limits { allowance: slot.allowance.load(Ordering::SeqCst), depth: slot.depth_ns.load(Ordering::Relaxed) }
}

/// What a specification calls a device that it answered.
pub fn device_name(device: u64, name: Name) -> Cow<'static, str> {
    // SAFETY: the specification's own function, given a device that its own expression answered.
    let text = unsafe { name(device) };
    match text.is_null() {
        true => "unknown".into(),
        // SAFETY: not NULL, so it ends with a NUL and is never freed, as `Name` says.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy(),
    }
}

/// This thread does not wait any longer, and learns whether the node has made it a real-time thread.
fn note_boosted(slot: &DeviceSlot) {
    let me = cpu::current_tid();
    let _ = slot.waiter_tid.compare_exchange(me, 0, Ordering::SeqCst, Ordering::SeqCst);
    // If the node does so only now, it takes that back.
    if slot.boosted_tid.compare_exchange(me, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
        cpu::note_boosted();
    }
}

#[cfg(test)]
mod tests;
