//! The order in which jobs get a device: the interface of the disciplines, which are pure bookkeeping.
//!
//! Times are nanoseconds of one monotonic clock.

use std::fmt;

/// A job on one device, as long as the device is scheduled.
pub type JobIndex = usize;

/// The entitlement of a job.
///
/// ```
/// use aviary_schedule::Share;
///
/// // Twice as much as a job of weight 1, but never more than a quarter of the device.
/// let share = Share { weight: 2, cap: Some(250), ..Share::default() };
/// assert_eq!(share.priority, 0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Relative to the weights of the other jobs; at least 1.
    pub weight: u32,
    /// Higher goes first where priorities count.
    pub priority: i32,
    /// The most that the job may have of the device, in thousandths of its time, also while nothing else wants it.
    /// `None`: no limit.
    pub cap: Option<u32>,
}

impl Default for Share {
    fn default() -> Self {
        Self { weight: 1, priority: 0, cap: None }
    }
}

/// The use of a device by a job since the last charge.
///
/// ```
/// use aviary_schedule::Charge;
///
/// // It held the device for a turn and used half of it.
/// let charge = Charge { used: 3_000_000, held: 6_000_000, calls: 12 };
/// assert!(charge.used <= charge.held);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Charge {
    /// Nanoseconds for which the device worked for the job.
    pub used: u64,
    /// Nanoseconds for which the job held a contended device, perhaps without using it.
    pub held: u64,
    /// Calls whose work was completed.
    pub calls: u64,
}

/// The next job, or none for a while.
///
/// ```
/// use aviary_schedule::{Decision, Discipline, Fair, Share};
///
/// let mut fair = Fair::new(6_000_000);
/// fair.set_share(0, Share::default());
/// fair.enqueue(0, 0);
/// assert_eq!(fair.pick(&[0], 0), Decision::Grant(0, 6_000_000));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// This job may use the device for so many nanoseconds.
    Grant(JobIndex, u64),
    /// No job before then.
    IdleUntil { until: u64 },
}

/// The answer to a job that begins to wait while another one has its turn.
///
/// ```
/// use aviary_schedule::{Discipline, Precedence, RoundRobin, Share};
///
/// let mut slices = RoundRobin::by_priority(6_000_000);
/// slices.set_share(0, Share::default());
/// slices.set_share(1, Share { priority: 5, ..Share::default() });
/// assert_eq!(slices.precedence(1, 0, 0), Precedence::First);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precedence {
    /// It waits for the end of the turn.
    Behind,
    /// It is entitled to more than the other one: on a device that preempts it is admitted at once.
    Entitled,
    /// It goes first on every device.
    First,
}

/// The end of a turn.
///
/// ```
/// use aviary_schedule::{AccountingMode, Discipline, Fair};
///
/// assert_eq!(Fair::new(6_000_000).accounting(), AccountingMode::DeviceTime);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccountingMode {
    /// The device time that the job used.
    DeviceTime,
    /// The time for which it held the device, without a look at what it queued: schedulers that cannot see into the
    /// device. For comparison only.
    WallClock,
}

/// An order of jobs. It is told who wants the device and what was used, and answers who is next.
///
/// ```
/// use aviary_schedule::{Charge, Decision, Discipline, JobIndex, Share};
///
/// /// The job with the lowest number is always next.
/// #[derive(Debug)]
/// struct FirstOnly;
///
/// impl Discipline for FirstOnly {
///     fn set_share(&mut self, _: JobIndex, _: Share) {}
///     fn enqueue(&mut self, _: JobIndex, _: u64) {}
///     fn charge(&mut self, _: JobIndex, _: Charge, _: u64) {}
///     fn pick(&mut self, waiting: &[JobIndex], _: u64) -> Decision {
///         Decision::Grant(waiting.iter().copied().min().unwrap_or_default(), 1_000_000)
///     }
/// }
///
/// assert_eq!(FirstOnly.pick(&[4, 2], 0), Decision::Grant(2, 1_000_000));
/// ```
pub trait Discipline: fmt::Debug + Send {
    /// A job is there, perhaps with another share than before.
    fn set_share(&mut self, job: JobIndex, share: Share);
    /// A job that had nothing to do wants the device.
    fn enqueue(&mut self, job: JobIndex, now: u64);
    /// A job wants nothing any longer.
    fn dequeue(&mut self, _job: JobIndex) {}
    /// The device was idle for so many nanoseconds in which no job waited for it.
    fn device_idle(&mut self, _time: u64) {}
    fn charge(&mut self, job: JobIndex, charge: Charge, now: u64);
    /// The next of `waiting`, which is not empty.
    fn pick(&mut self, waiting: &[JobIndex], now: u64) -> Decision;
    /// How long a turn of `quantum` lasts in all, now that others wait, which may not have been there when it began.
    fn turn_beside_others(&self, _holder: JobIndex, quantum: u64) -> u64 {
        quantum
    }
    /// The order of `job`, which has just begun to wait, and `holder`.
    fn precedence(&mut self, _job: JobIndex, _holder: JobIndex, _now: u64) -> Precedence {
        Precedence::Behind
    }
    /// True if a job with this share can come first on every device while `other` has its turn, so that what `other` has in
    /// flight must stay short.
    fn may_precede(&self, _other: Share, _job: Share) -> bool {
        false
    }
    fn accounting(&self) -> AccountingMode {
        AccountingMode::DeviceTime
    }
}
