//! The order in which jobs get a device: the interface of the disciplines, which are pure bookkeeping.
//!
//! Times are nanoseconds of one monotonic clock.

use std::fmt;

/// A job on one device, as long as the device is scheduled.
pub type JobIndex = usize;

/// The entitlement of a job.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Charge {
    /// Nanoseconds for which the device worked for the job.
    pub used: u64,
    /// Nanoseconds for which the job held a contended device, perhaps without using it.
    pub held: u64,
    /// Calls whose work was completed.
    pub calls: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// This job may use the device for so many nanoseconds.
    Grant(JobIndex, u64),
    /// No job before then.
    IdleUntil { until: u64 },
}

/// The answer to a job that begins to wait while another one has its turn.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccountingMode {
    /// The device time that the job used.
    DeviceTime,
    /// The time for which it held the device, without a look at what it queued: schedulers that cannot see into the
    /// device. For comparison only.
    WallClock,
}

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
