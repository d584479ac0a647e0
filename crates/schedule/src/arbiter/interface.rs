//! What an arbiter is told and what it shows: settings, the members' slots, the use of a device.

use crate::discipline::Share;
use crate::holder::{Limits, Report};
use crate::job::MemberId;
use crate::split::DeviceKind;

/// How a device is scheduled, but for the order of jobs.
///
/// ```
/// # use aviary_schedule::{Arbiter, DeviceKind, Fair, Settings, Share};
/// // Turns of 6 ms, for a device that cannot be preempted; no session is ended for keeping it.
/// let settings = Settings { kind: DeviceKind::Exclusive, quantum: 6_000_000, latency: 0, hold_limit: 0 };
/// let arbiter = Arbiter::new(settings, Box::new(Fair::new(settings.quantum)));
/// assert!(arbiter.usage().is_empty());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    pub kind: DeviceKind,
    /// Nanoseconds of device time of one turn.
    pub quantum: u64,
    /// Nanoseconds of work that a job may have in flight that another one can come before; 0: as much as fits.
    pub latency: u64,
    /// Nanoseconds beyond its turn for which a job may keep the device from others before its session is ended; 0: no
    /// limit.
    pub hold_limit: u64,
}

/// The slots of the members in their grant pages.
///
/// ```
/// # use aviary_schedule::{Arbiter, DeviceKind, Fair, Limits, MemberId, Report, Settings, Share, Slots};
/// struct Pages(Vec<(Report, Limits)>);
///
/// impl Slots for Pages {
///     fn report(&self, member: MemberId) -> Report {
///         self.0[member].0
///     }
///     fn set_limits(&mut self, member: MemberId, limits: Limits, _opens: bool, _now: u64) {
///         self.0[member].1 = limits;
///     }
///     fn park(&mut self, _: MemberId) {}
/// }
///
/// let pages = Pages(vec![(Report::default(), Limits { allowance: 0, depth: 0 })]);
/// assert!(!pages.report(0).waiting);
/// ```
pub trait Slots {
    fn report(&self, member: MemberId) -> Report;
    /// Writes limits; wakes the threads that wait, if `opens`.
    fn set_limits(&mut self, member: MemberId, limits: Limits, opens: bool, now: u64);
    /// The member is not looked at until its doorbell rings, which it shall do with its next work.
    fn park(&mut self, member: MemberId);
}

/// The use of a device by one job.
///
/// ```
/// # use aviary_schedule::{Arbiter, DeviceKind, Fair, Settings, Share};
/// # let settings = Settings { kind: DeviceKind::Exclusive, quantum: 6_000_000, latency: 0, hold_limit: 0 };
/// let mut arbiter = Arbiter::new(settings, Box::new(Fair::new(settings.quantum)));
/// arbiter.set_share("alice", Share::default(), 0);
/// let usage = &arbiter.usage()[0];
/// assert_eq!((usage.job.as_str(), usage.used_ns, usage.sessions), ("alice", 0, 0));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Usage {
    pub job: String,
    pub share: Share,
    /// Nanoseconds that its work took on the device.
    pub used_ns: u64,
    /// Sessions that have used the device.
    pub sessions: usize,
    /// Sessions that wait for it now.
    pub waiting: usize,
}
