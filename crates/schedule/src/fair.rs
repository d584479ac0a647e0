//! Start-time fair queueing (FairGV 3.2.1).
//!
//! A job's start tag is the device time that it has used, divided by its weight; the lowest goes first. Virtual time is
//! the lowest start tag of the jobs that want the device. A job that wakes up starts at virtual time: unused share is
//! not saved up, but for two turns, because a program whose thread got no CPU for a moment must not pay for that. Its
//! own tag counts if it is higher: FairGV as printed lowers it, which would forgive a job that overran its turn and
//! slept for a moment. Time in which the device is idle while no job waits takes as much off tags that are more than
//! two turns above virtual time, as no other job could have used it.

use crate::discipline::{Charge, Decision, Discipline, JobIndex, Precedence, Share};

/// Virtual nanoseconds per nanosecond at weight 1: keeps the rounding of the division below a nanosecond.
const VIRTUAL_PER_NS: u128 = 1 << 16;
/// Nanoseconds of device time that a job may make up for after it slept, and that debts never fall below, but no more
/// than two turns. FairGV forgives none; a thread that waited for a CPU then lost up to 4% of its share. Rounds of 30 ms
/// at twice that let two newcomers keep a third job from an H100 for 110 ms.
const MAX_LAG_NS: u64 = 12_000_000;

/// The shortest turn is a round divided by this: 2 ms of 30. Shorter ones cost programs that wait often more than 5%.
const SHORTEST_PART: u64 = 15;

/// Start-time fair queueing: the job that used the least device time for its weight is next.
///
/// ```
/// use aviary_schedule::{Charge, Decision, Discipline, Fair, Share};
///
/// let mut scheduler = Fair::new(6_000_000);
/// let (a, b) = (0, 1);
/// for job in [a, b] {
///     scheduler.set_share(job, Share::default());
///     scheduler.enqueue(job, 0);
/// }
/// // Job `b` counts twice: while both want the device, it gets two of three turns.
/// scheduler.set_share(b, Share { weight: 2, ..Share::default() });
/// let mut turns = [0_u32; 2];
/// for turn in 0..300 {
///     let Decision::Grant(job, time) = scheduler.pick(&[a, b], turn * 6_000_000) else { unreachable!() };
///     scheduler.charge(job, Charge { used: time, ..Charge::default() }, turn * 6_000_000);
///     turns[job] += 1;
/// }
/// assert!(turns[b].abs_diff(200) <= 2, "{turns:?}");
/// ```
#[derive(Debug)]
pub struct Fair {
    quantum: u64,
    /// True: turns are parts of a round of `quantum`, by weight, instead of `quantum` each.
    divides_rounds: bool,
    jobs: Vec<FairJob>,
    /// The jobs that want the device, so that idle ones cost nothing.
    active: Vec<JobIndex>,
    /// Never goes back.
    virtual_time: u128,
    /// Idle nanoseconds of the device so far; each job's debts are reduced when it is looked at.
    idle: u64,
}

#[derive(Debug, Clone)]
struct FairJob {
    weight: u32,
    start: u128,
    active: bool,
    /// `Fair::idle` when the debts were reduced last.
    idle_seen: u64,
}

impl Fair {
    pub fn new(quantum: u64) -> Fair {
        Fair { quantum, divides_rounds: false, jobs: Vec::new(), active: Vec::new(), virtual_time: 0, idle: 0 }
    }

    /// Jobs of little weight get short turns, so that those of great weight wait for short times only. For devices on
    /// which a hand-over costs little.
    pub fn in_rounds(quantum: u64) -> Fair {
        Fair { divides_rounds: true, ..Fair::new(quantum) }
    }

    fn turn_of(&self, job: JobIndex) -> u64 {
        if !self.divides_rounds {
            return self.quantum;
        }
        let weights: u64 = self.active.iter().map(|job| u64::from(self.jobs[*job].weight)).sum();
        let part = u128::from(self.quantum) * u128::from(self.jobs[job].weight) / u128::from(weights.max(1));
        u64::try_from(part).unwrap_or(self.quantum).clamp(self.quantum / SHORTEST_PART, self.quantum)
    }

    fn advance(&mut self) {
        let lowest = self.active.iter().map(|job| self.jobs[*job].start).min();
        self.virtual_time = self.virtual_time.max(lowest.unwrap_or(0));
    }

    fn lag(&self, job: JobIndex) -> u128 {
        self.jobs[job].virtually(MAX_LAG_NS.min(self.quantum.saturating_mul(2)))
    }

    fn forgive(&mut self, job: JobIndex) {
        let highest = self.virtual_time + self.lag(job);
        let entry = &mut self.jobs[job];
        let idle = entry.virtually(self.idle - entry.idle_seen);
        entry.idle_seen = self.idle;
        entry.start = entry.start.min(highest.max(entry.start.saturating_sub(idle)));
    }
}

impl FairJob {
    /// Virtual time of so many nanoseconds of the device.
    fn virtually(&self, time: u64) -> u128 {
        u128::from(time) * VIRTUAL_PER_NS / u128::from(self.weight)
    }
}

impl Discipline for Fair {
    fn set_share(&mut self, job: JobIndex, share: Share) {
        if self.jobs.len() <= job {
            let entry = FairJob { weight: 1, start: 0, active: false, idle_seen: self.idle };
            self.jobs.resize(job + 1, entry);
        }
        self.jobs[job].weight = share.weight.max(1);
    }

    fn enqueue(&mut self, job: JobIndex, _now: u64) {
        self.advance();
        self.forgive(job);
        let earliest = self.virtual_time.saturating_sub(self.lag(job));
        let entry = &mut self.jobs[job];
        entry.start = entry.start.max(earliest);
        if !std::mem::replace(&mut entry.active, true) {
            self.active.push(job);
        }
    }

    fn dequeue(&mut self, job: JobIndex) {
        self.advance();
        self.jobs[job].active = false;
        self.active.retain(|active| *active != job);
    }

    fn device_idle(&mut self, time: u64) {
        self.advance();
        self.idle = self.idle.saturating_add(time);
        for at in 0..self.active.len() {
            self.forgive(self.active[at]);
        }
    }

    fn charge(&mut self, job: JobIndex, charge: Charge, _now: u64) {
        let entry = &mut self.jobs[job];
        // The finish tag, which is the next start tag.
        entry.start = entry.start.saturating_add(entry.virtually(charge.used));
    }

    fn pick(&mut self, waiting: &[JobIndex], _now: u64) -> Decision {
        let first = waiting.iter().copied().min_by_key(|job| self.jobs[*job].start).unwrap_or(0);
        Decision::Grant(first, self.turn_of(first))
    }

    fn turn_beside_others(&self, holder: JobIndex, quantum: u64) -> u64 {
        quantum.min(self.turn_of(holder))
    }

    fn precedence(&mut self, job: JobIndex, holder: JobIndex, _now: u64) -> Precedence {
        if self.jobs[job].start < self.jobs[holder].start { Precedence::Entitled } else { Precedence::Behind }
    }
}
