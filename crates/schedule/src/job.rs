//! The arbiter's records: jobs, their members (sessions), and the turn.

use crate::cap::Bucket;
use crate::discipline::{JobIndex, Share};
use crate::holder::{ALONE, Limits, Report, UNKNOWN_END};

/// A session on one device. Used again after the session has left.
pub type MemberId = usize;

/// Nanoseconds that an API server is believed to have work for at most, counted from now.
const MAX_DRAIN_NS: u64 = 60_000_000_000;
/// Nanoseconds that a call takes at least: bounds the calls that an API server reports.
const MIN_CALL_NS: u64 = 100;
/// Nanoseconds that an honest report may take back: a thread sees the end of work, and gets no CPU before it has written that.
const SKEW_NS: u64 = 1_000_000;
/// So many reports within [`DOUBT_WINDOW_NS`] that take back more make a job doubted. Fewer are made by looks between two of an API
/// server's stores.
const MOST_CONTRADICTIONS: u32 = 3;
const DOUBT_WINDOW_NS: u64 = 1_000_000_000;
/// Nanoseconds for which a job is doubted after the last of them.
const DOUBT_NS: u64 = 10_000_000_000;

/// Sessions that have the device together: those of a tenant.
#[derive(Debug, Default)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) share: Share,
    pub(crate) cap: Option<Bucket>,
    /// Nanoseconds that were charged.
    pub(crate) used: u64,
    /// Its sessions on the device.
    pub(crate) members: Vec<MemberId>,
    pub(crate) now: Demand,
    /// It has just begun to wait or to work, and was not compared with the turn's job yet.
    pub(crate) is_new: bool,
    /// When calls were last seen to be completed, or when its work began.
    pub(crate) progress_at: u64,
    /// When its last turn ended.
    pub(crate) ended_at: u64,
    pub(crate) doubt: Doubt,
}

/// Whether the reports of a job's API servers contradict themselves: anything can be written into the page that they come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Doubt {
    count: u32,
    /// When the present window began.
    since: u64,
    until: u64,
}

impl Doubt {
    pub(crate) fn contradicts(&mut self, now: u64) {
        if now >= self.since.saturating_add(DOUBT_WINDOW_NS) {
            (self.count, self.since) = (0, now);
        }
        self.count += 1;
        if self.count >= MOST_CONTRADICTIONS {
            self.until = now.saturating_add(DOUBT_NS);
        }
    }

    /// It pays for all the time for which it keeps the device from others.
    pub(crate) fn is_doubted(&self, now: u64) -> bool {
        now < self.until
    }
}

/// The wishes and the work of a job's members, as of the last look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    /// It waits, has work in flight, or will have some in a moment.
    pub(crate) runnable: bool,
    pub(crate) waiting: bool,
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
    /// The limits that were written last.
    pub(crate) limits: Limits,
    /// When it was looked at last; what of its busy time and its calls was accounted by then.
    looked: u64,
    seen: u64,
    seen_calls: u64,
    /// The most nanoseconds that it has reported: honest reports never fall far below.
    reported: u64,
    /// Its job was doubted at the last look.
    doubted: bool,
    /// Its API server did nothing with a turn: its word that it waits counts no more until its doorbell rings.
    pub(crate) silent: bool,
    /// It is one of the arbiter's `active`.
    pub(crate) active: bool,
}

impl Member {
    /// Its work before `now`, while the device was not scheduled, is not charged.
    pub(crate) fn new(job: JobIndex, report: Report, now: u64) -> Member {
        let limits = Limits { allowance: 0, depth: 0 };
        let mut member = Member {
            job,
            report,
            limits,
            looked: now,
            seen: 0,
            seen_calls: report.completed,
            reported: 0,
            doubted: false,
            silent: false,
            active: false,
        };
        member.seen = member.busy(now);
        member.reported = member.seen;
        member.limits.allowance = member.seen.min(ALONE - 1);
        member
    }

    /// Nanoseconds in which it had work on the device, ever, as its API server says; of a doubted job as much as was accounted.
    pub(crate) fn busy(&self, now: u64) -> u64 {
        if self.doubted { self.seen } else { self.reported_at(now) }
    }

    fn reported_at(&self, now: u64) -> u64 {
        let since = if self.in_flight() { now.saturating_sub(self.report.busy_since) } else { 0 };
        self.report.used.saturating_add(since)
    }

    pub(crate) fn in_flight(&self) -> bool {
        self.report.busy_since != 0
    }

    pub(crate) fn is_idle(&self) -> bool {
        !self.in_flight() && (self.silent || !self.report.waiting && !self.report.wanted)
    }

    pub(crate) fn is_exhausted(&self) -> bool {
        self.report.position >= self.limits.allowance
    }

    /// Takes in a report. The results are nanoseconds and calls that are new; never more than the time that passed.
    pub(crate) fn hear(&mut self, report: Report, now: u64, doubt: &mut Doubt) -> (u64, u64) {
        self.report = report;
        if report.drains_at != UNKNOWN_END {
            self.report.drains_at = report.drains_at.min(now.saturating_add(MAX_DRAIN_NS));
        }
        let passed = now.saturating_sub(std::mem::replace(&mut self.looked, now));
        let reported = self.reported_at(now);
        if reported.saturating_add(SKEW_NS) < self.reported {
            doubt.contradicts(now);
        }
        self.reported = self.reported.max(reported);
        self.doubted = doubt.is_doubted(now);
        let busy = reported.saturating_sub(self.seen).min(passed);
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
    /// Nanoseconds that its work had of the device, and for which it kept the device from other jobs.
    pub(crate) used: u64,
    pub(crate) held: u64,
    /// The part of that which was charged: see [`Turn::due`].
    pub(crate) charged: u64,
    /// As of the last look: it kept the device from another job.
    pub(crate) contended: bool,
    /// It is used up, since then.
    pub(crate) over: Option<u64>,
}

/// A job pays for at least three quarters of the time for which it kept the device from others, whatever its API server
/// says to have used: one that says less has 4/7 of the device beside another (2/3 with a half). Programs that wait
/// after kernels of 20 us use about three quarters of their turns on an H100. One whose reports
/// contradict each other pays for all of it.
const LEAST_PAID: (u64, u64) = (3, 4);

impl Turn {
    pub(crate) fn new(job: JobIndex, quantum: u64, now: u64) -> Turn {
        Turn { job, since: now, quantum, used: 0, held: 0, charged: 0, contended: false, over: None }
    }

    /// Nanoseconds that are to be charged and were not yet.
    pub(crate) fn due(&mut self, doubted: bool) -> u64 {
        let least = if doubted { self.held } else { self.held / LEAST_PAID.1 * LEAST_PAID.0 };
        let all = self.used.max(least);
        let due = all.saturating_sub(self.charged);
        self.charged += due;
        due
    }

    pub(crate) fn left(&self) -> u64 {
        self.quantum.saturating_sub(self.charged)
    }
}
