//! The side of an API server: how far one session may run ahead on one device.
//!
//! The node writes an allowance, "device time that this session may have submitted by now". The holder keeps the device
//! time of the work that was completed, an estimate of the work in flight, and so a position: it submits while the
//! position is below the allowance. A call's cost is estimated from batches whose completion was seen (FairGV 3.3.2).

/// An allowance without a limit: no other job waits for the device. The holder only bounds what is in flight.
pub const ALONE: u64 = u64::MAX - 1;
/// The node does not schedule the device.
pub const UNMANAGED: u64 = u64::MAX;

/// A new measurement counts for one part of so many, unless it is twice or half of what was known: kernels alternate.
const COST_WINDOW: u64 = 4;

/// Nanoseconds between the ends of two marks that were seen together: nobody looked when the first one's work was completed.
const TOGETHER_NS: u64 = 20_000;

/// The end of work that is in flight, where the cost of a call is not known yet.
pub const UNKNOWN_END: u64 = u64::MAX;

/// The node's words in a device slot.
///
/// ```
/// use aviary_schedule::{ALONE, Holder, Limits, Verdict};
///
/// // No other job waits: nothing is counted but the depth.
/// let limits = Limits { allowance: ALONE, depth: 20_000_000 };
/// assert_eq!(Holder::default().verdict(limits, 0), Verdict::Submit);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub allowance: u64,
    /// Nanoseconds of estimated work that may be in flight.
    pub depth: u64,
}

/// The answer to a thread that is about to make a call that submits work.
///
/// ```
/// use aviary_schedule::{Holder, Limits, Verdict};
///
/// // Nothing is allowed yet.
/// assert_eq!(Holder::default().verdict(Limits { allowance: 0, depth: 0 }, 0), Verdict::Exhausted);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The call may submit its work.
    Submit,
    /// Enough is in flight: it waits until some of that is completed.
    Deep,
    /// The allowance is used up: it waits until the node raises it.
    Exhausted,
}

/// The words of the API server in a device slot.
///
/// ```
/// use aviary_schedule::Report;
///
/// // A session of which nothing is known has nothing in flight and wants nothing.
/// let report = Report::default();
/// assert!(report.busy_since == 0 && !report.waiting && !report.wanted);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Nanoseconds that completed work took.
    pub used: u64,
    /// Since when work is in flight that `used` does not contain; 0: none is.
    pub busy_since: u64,
    /// When that will be completed, as estimated; [`UNKNOWN_END`]: no estimate.
    pub drains_at: u64,
    /// Calls whose work was completed.
    pub completed: u64,
    /// Nanoseconds of device time that were submitted ever, as estimated with the last submission.
    pub position: u64,
    /// Threads that wait for the allowance.
    pub waiting: bool,
    /// The session uses the device, or will do so in a moment.
    pub wanted: bool,
}

/// Calls whose completion is asked for together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    ticket: u64,
    calls: u64,
}

/// What the work of some calls took, together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Measured {
    time: u64,
    calls: u64,
    /// A part of it may have been another job's.
    behind_others: bool,
}

/// One device of a session.
///
/// ```
/// use aviary_schedule::{Holder, Limits, Verdict};
///
/// let mut holder = Holder::default();
/// let limits = Limits { allowance: 1_000, depth: 500 };
/// assert_eq!(holder.verdict(limits, 0), Verdict::Submit);
/// holder.begin(false, 0);
/// holder.submitted(Some(1_200), 1_200);
/// // The session has used more than it was allowed: its next call waits for the node.
/// assert_eq!((holder.position(1_200), holder.verdict(limits, 1_200)), (1_200, Verdict::Exhausted));
/// ```
#[derive(Debug, Default)]
pub struct Holder {
    /// Calls between `begin` and `submitted`.
    active: u32,
    /// Calls in flight behind the mark.
    open: u64,
    mark: Option<Mark>,
    tickets: u64,
    busy_since: Option<u64>,
    used: u64,
    completed: u64,
    /// Nanoseconds of a call; 0: unknown.
    cost: u64,
    /// The work in flight may have come behind another job's, so that it takes no longer than its time.
    behind_others: bool,
    /// The last marks that were seen together, since work has been in flight without a pause.
    last: Measured,
}

impl Holder {
    pub fn in_flight(&self) -> u64 {
        self.open + self.mark.map_or(0, |mark| mark.calls)
    }

    pub fn has_mark(&self) -> bool {
        self.mark.is_some()
    }

    pub fn is_active(&self) -> bool {
        self.active > 0
    }

    /// Nanoseconds of a call, as far as known.
    pub fn cost(&self) -> Option<u64> {
        Some(self.cost).filter(|cost| *cost > 0)
    }

    /// Nanoseconds of the work in flight.
    fn estimate(&self) -> u64 {
        self.cost.saturating_mul(self.in_flight())
    }

    /// Device time that was submitted by now. Work that takes longer than its estimate counts for as long as it takes.
    pub fn position(&self, now: u64) -> u64 {
        let elapsed = self.busy_since.map_or(0, |since| now.saturating_sub(since));
        let in_flight = if self.in_flight() > 0 { self.estimate().max(elapsed) } else { 0 };
        self.used.saturating_add(in_flight)
    }

    pub fn verdict(&self, limits: Limits, now: u64) -> Verdict {
        if limits.allowance < ALONE && self.position(now) >= limits.allowance {
            Verdict::Exhausted
        } else if self.is_deep(limits.depth) {
            Verdict::Deep
        } else {
            Verdict::Submit
        }
    }

    /// The first call of all is measured alone. Otherwise one call is always behind the one that the device is at.
    fn is_deep(&self, depth: u64) -> bool {
        match self.in_flight() {
            0 => false,
            1 => self.cost == 0 && depth < u64::MAX,
            _ => self.estimate() >= depth,
        }
    }

    /// A call is about to submit its work. `waited`: for the allowance, while another job had the device.
    pub fn begin(&mut self, waited: bool, now: u64) {
        self.active += 1;
        if self.busy_since.is_none() {
            self.busy_since = Some(now);
            self.behind_others = waited;
            self.last = Measured::default();
        }
    }

    /// The call has submitted its work. `device_time`: what that took, if the API says so; it is completed then.
    pub fn submitted(&mut self, device_time: Option<u64>, now: u64) {
        self.active = self.active.saturating_sub(1);
        match device_time {
            None => self.open += 1,
            Some(time) => {
                self.used = self.used.saturating_add(time);
                self.completed += 1;
                self.rest_if_idle(now);
            }
        }
    }

    /// True if a mark belongs behind the work in flight, so that its completion is seen before the device is idle.
    pub fn wants_mark(&self, depth: u64) -> bool {
        self.mark.is_none() && self.open > 0 && self.cost.saturating_mul(self.open) >= depth / 2
    }

    /// The mark whose completion is asked for now: the present one, or a new one behind all that is in flight. `tickets`
    /// of all devices must differ, so `next` makes one.
    pub fn mark(&mut self, next: impl FnOnce() -> u64) -> Option<u64> {
        if self.mark.is_none() && self.open > 0 {
            self.tickets = next();
            self.mark = Some(Mark { ticket: self.tickets, calls: std::mem::take(&mut self.open) });
        }
        self.mark.map(|mark| mark.ticket)
    }

    /// The device has completed what the mark stands for, by `now` at the latest. False: another thread has seen it
    /// first.
    pub fn completed(&mut self, ticket: u64, now: u64) -> bool {
        let Some(mark) = self.mark.take_if(|mark| mark.ticket == ticket) else { return false };
        let elapsed = self.busy_since.map_or(0, |since| now.saturating_sub(since));
        // The node takes off the time in which the device was at another job's work: it knows both.
        self.used = self.used.saturating_add(elapsed);
        self.completed = self.completed.saturating_add(mark.calls);
        self.measured(elapsed, mark.calls);
        self.busy_since = Some(now.max(self.busy_since.unwrap_or(now)));
        self.rest_if_idle(now);
        true
    }

    /// A thread in the library's own wait sees the ends of several marks at once, when the last one's work is completed: all of the
    /// time has passed before the first.
    fn measured(&mut self, time: u64, calls: u64) {
        let together = Some(self.last).filter(|last| time < TOGETHER_NS && last.calls > 0).unwrap_or_default();
        self.last = Measured {
            time: together.time.saturating_add(time),
            calls: together.calls.saturating_add(calls),
            behind_others: together.behind_others | std::mem::take(&mut self.behind_others),
        };
        let each = self.last.time / self.last.calls.max(1);
        if !self.last.behind_others || self.cost == 0 {
            self.learn(each);
        } else if each < self.cost {
            self.cost = each.max(1);
        } else {
            // Not all of that is others': a cost that is too small would never be seen otherwise.
            self.learn(each.min(self.cost.saturating_mul(2)));
        }
    }

    fn learn(&mut self, each: u64) {
        let each = each.max(1);
        let alike = self.cost > 0 && each / 2 <= self.cost && each >= self.cost / 2;
        self.cost = if alike { (self.cost * (COST_WINDOW - 1) + each) / COST_WINDOW } else { each };
    }

    fn rest_if_idle(&mut self, now: u64) {
        if self.in_flight() == 0 {
            // A thread that is about to submit has the device from now on.
            self.busy_since = (self.active > 0).then_some(now);
        }
    }

    /// Work of many submissions, by a thread that makes no calls, is between two of them: the device is idle.
    pub fn pause(&mut self, now: u64) {
        if let Some(since) = self.busy_since.take() {
            self.used = self.used.saturating_add(now.saturating_sub(since));
        }
    }

    /// True if that work may go on.
    pub fn may_resume(&self, limits: Limits) -> bool {
        self.used < limits.allowance
    }

    pub fn resume(&mut self, now: u64) {
        self.busy_since.get_or_insert(now);
    }

    /// The words for the node; `waiting` and `wanted` are the caller's.
    pub fn report(&self, now: u64) -> Report {
        let since = self.busy_since.filter(|_| self.in_flight() > 0);
        Report {
            used: self.used,
            busy_since: since.map_or(0, |since| since.max(1)),
            // The end of work whose cost is unknown is unknown: no other job's work comes behind it by expectation.
            drains_at: match (since, self.cost) {
                (None, _) => 0,
                (Some(_), 0) => UNKNOWN_END,
                (Some(since), _) => since.saturating_add(self.estimate()).max(now),
            },
            completed: self.completed,
            position: self.used.saturating_add(self.estimate()),
            ..Report::default()
        }
    }
}
