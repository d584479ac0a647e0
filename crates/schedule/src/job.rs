//! The arbiter's records: jobs, their members (sessions), and the turn.

use crate::cap::Bucket;
use crate::discipline::{JobIndex, Share};
use crate::holder::{ALONE, Limits, Report};

/// No API server is believed to have work for longer than this, in nanoseconds.
const MAX_DRAIN_NS: u64 = 60_000_000_000;
/// Nanoseconds that a call takes at least: bounds the calls that an API server reports.
const MIN_CALL_NS: u64 = 100;

/// Sessions that hold the device together: those of a tenant.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) share: Share,
    pub(crate) cap: Option<Bucket>,
    /// Nanoseconds that were charged.
    pub(crate) used: u64,
    /// Its sessions on the device.
    pub(crate) sessions: usize,
    pub(crate) now: Demand,
    /// It began to wait since the present turn began, and was not compared with the holder yet.
    pub(crate) is_new: bool,
    /// Its API server did not react to a turn: passed over until its doorbell rings.
    pub(crate) unresponsive: bool,
    /// Calls that it was seen to complete, and when that changed last, or when it was admitted.
    pub(crate) progress: (u64, u64),
}

/// What the members of a job want and do, as of the last look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(crate) runnable: bool,
    pub(crate) waiting: bool,
    pub(crate) wanted: bool,
    pub(crate) in_flight: bool,
    /// No member may submit more, and one at least is at its allowance.
    pub(crate) exhausted: bool,
    /// When the last work of all members will be completed, as they estimate.
    pub(crate) drains_at: u64,
    /// Nanoseconds in which it had work on the device since the look before.
    pub(crate) busy: u64,
    /// Calls that were completed since then.
    pub(crate) calls: u64,
}

/// A session on the device.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) job: JobIndex,
    pub(crate) report: Report,
    /// The last written limits.
    pub(crate) limits: Limits,
    /// When it was looked at last; and what of its busy time and its calls was accounted by then.
    looked: u64,
    seen: u64,
    seen_calls: u64,
    pub(crate) active: bool,
    /// When its API server is asked again to look at the device, and how long after the last time.
    pub(crate) attend: (u64, u64),
}

impl Member {
    /// What it did before `now`, while the device was not scheduled, is not charged.
    pub(crate) fn new(job: JobIndex, report: Report, now: u64) -> Member {
        let (looked, seen_calls) = (now, report.completed);
        let limits = Limits { allowance: 0, depth: 0 };
        let mut member = Member { job, report, limits, looked, seen: 0, seen_calls, active: false, attend: (0, 0) };
        member.seen = member.busy(now);
        member.limits.allowance = member.seen.min(ALONE - 1);
        member
    }

    /// Nanoseconds in which it had work on the device, ever, as its API server says.
    pub(crate) fn busy(&self, now: u64) -> u64 {
        let since = if self.in_flight() { now.saturating_sub(self.report.busy_since) } else { 0 };
        self.report.used.saturating_add(since)
    }

    pub(crate) fn in_flight(&self) -> bool {
        self.report.busy_since != 0
    }

    pub(crate) fn is_exhausted(&self) -> bool {
        self.report.exhausted_at == self.limits.allowance
    }

    /// Takes in a report. The results are nanoseconds and calls that are new; never more than the time that passed.
    pub(crate) fn hear(&mut self, report: Report, now: u64) -> (u64, u64) {
        self.report = report;
        self.report.drains_at = report.drains_at.min(now.saturating_add(MAX_DRAIN_NS));
        let passed = now.saturating_sub(std::mem::replace(&mut self.looked, now));
        // An estimate of the work in flight was believed before: what it turned out to be less comes off what follows.
        let busy = self.busy(now).saturating_sub(self.seen).min(passed);
        let calls = report.completed.saturating_sub(self.seen_calls).min(passed / MIN_CALL_NS);
        self.seen = self.seen.saturating_add(busy);
        self.seen_calls = report.completed;
        (busy, calls)
    }
}

/// One job's right to submit.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) job: JobIndex,
    pub(crate) since: u64,
    /// Nanoseconds of device time that it may use.
    pub(crate) quantum: u64,
    /// Nanoseconds that it was charged since it began.
    pub(crate) charged: u64,
    /// Nanoseconds for which it kept the device from other jobs.
    pub(crate) held: u64,
    /// As of the last look: another job waits for the device, and it was this job's.
    pub(crate) contended: bool,
    pub(crate) state: TurnState,
    /// Since when it has nothing in flight and did not end the turn, and its completed calls by then.
    pub(crate) idle: Option<(u64, u64)>,
    /// Since when its work is overdue, and how often its waiting members were let in meanwhile.
    pub(crate) reliefs: Option<(u64, u32)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnState {
    Running,
    /// It may submit no more; the device is at its last work.
    Closing,
    /// As `Closing`, because a job came that goes first.
    Preempted,
}

impl Turn {
    pub(crate) fn new(job: JobIndex, quantum: u64, now: u64) -> Turn {
        Turn {
            job,
            since: now,
            quantum,
            charged: 0,
            held: 0,
            contended: false,
            state: TurnState::Running,
            idle: None,
            reliefs: None,
        }
    }

    pub(crate) fn left(&self) -> u64 {
        self.quantum.saturating_sub(self.charged)
    }
}
