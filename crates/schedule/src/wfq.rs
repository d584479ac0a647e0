//! Weighted fair queueing by postponing (AvA 5.2.2).
//!
//! Device time is counted in windows. A job whose part of the window's device time exceeds its share is
//! postponed: by a fixed interval, or by a delay that adapts. The paper prints the adaptive rule as "halve the
//! delay if the job exhausted its share, lengthen it otherwise": that would speed up who took too much and
//! slow down who got too little. The feedback that settles is the other way round, and that is what is done here:
//! a job above its share waits longer by a step each time, one below it waits half as long.

use crate::discipline::{Charge, Decision, Discipline, JobIndex, Share};

const MILLISECOND_NS: u64 = 1_000_000;
/// AvA's measurement window.
const SHARE_WINDOW_NS: u64 = 500 * MILLISECOND_NS;
/// AvA's polling interval.
const POLL_INTERVAL_NS: u64 = 5 * MILLISECOND_NS;
/// The additive step, `a` in the paper.
const DELAY_STEP_NS: u64 = MILLISECOND_NS;
/// A delay never exceeds what a window can make good.
const MAX_DELAY_NS: u64 = SHARE_WINDOW_NS / 4;

/// Weighted fair queueing that postpones jobs above their share. For comparison only.
///
/// ```
/// use aviary_schedule::{Decision, Discipline, Share, Wfq};
///
/// let mut scheduler = Wfq::polling(1_000);
/// scheduler.set_share(0, Share::default());
/// scheduler.enqueue(0, 0);
/// assert!(matches!(scheduler.pick(&[0], 0), Decision::Grant(0, _)));
/// ```
#[derive(Debug)]
pub struct Wfq {
    slice: u64,
    adaptive: bool,
    jobs: Vec<WfqJob>,
    window: u64,
}

#[derive(Debug, Clone)]
struct WfqJob {
    weight: u32,
    active: bool,
    used: u64,
    delay: u64,
    /// Postponed until then.
    until: u64,
    last: u64,
}

impl Wfq {
    pub fn polling(slice: u64) -> Wfq {
        Wfq { slice, adaptive: false, jobs: Vec::new(), window: 0 }
    }

    pub fn adaptive(slice: u64) -> Wfq {
        Wfq { adaptive: true, ..Wfq::polling(slice) }
    }

    /// How much of the window's device time the job got beyond its share, in nanoseconds; negative: it lacks it.
    fn excess(&self, job: JobIndex) -> i128 {
        let active = || self.jobs.iter().filter(|t| t.active || t.used > 0);
        let weights: u64 = active().map(|t| u64::from(t.weight)).sum();
        let all: u128 = active().map(|t| u128::from(t.used)).sum();
        let entry = &self.jobs[job];
        let all = i128::try_from(all).unwrap_or(i128::MAX);
        i128::from(entry.used) - all.saturating_mul(i128::from(entry.weight)) / i128::from(weights.max(1))
    }

    fn roll(&mut self, now: u64) {
        if now >= self.window.saturating_add(SHARE_WINDOW_NS) {
            self.window = now - now % SHARE_WINDOW_NS;
            // A difference at the end of a window is made good in the next.
            let excesses: Vec<i128> = (0..self.jobs.len()).map(|t| self.excess(t)).collect();
            let lowest = excesses.iter().copied().min().unwrap_or(0);
            for (entry, excess) in self.jobs.iter_mut().zip(excesses) {
                let carried = if entry.active { (excess - lowest).min(i128::from(SHARE_WINDOW_NS)) } else { 0 };
                entry.used = u64::try_from(carried).unwrap_or(0);
            }
        }
    }
}

impl Discipline for Wfq {
    fn set_share(&mut self, job: JobIndex, share: Share) {
        if self.jobs.len() <= job {
            let entry = WfqJob { weight: 1, active: false, used: 0, delay: 0, until: 0, last: 0 };
            self.jobs.resize(job + 1, entry);
        }
        self.jobs[job].weight = share.weight.max(1);
    }

    fn enqueue(&mut self, job: JobIndex, now: u64) {
        self.roll(now);
        let entry = &mut self.jobs[job];
        entry.active = true;
        entry.delay = 0;
    }

    fn dequeue(&mut self, job: JobIndex) {
        self.jobs[job].active = false;
    }

    fn charge(&mut self, job: JobIndex, charge: Charge, now: u64) {
        self.roll(now);
        let used = &mut self.jobs[job].used;
        *used = used.saturating_add(charge.used);
        self.jobs[job].last = now;
        let excess = self.excess(job);
        let (over, adaptive) = (excess > 0, self.adaptive);
        let entry = &mut self.jobs[job];
        entry.delay = match (over, adaptive) {
            (true, true) => (entry.delay + DELAY_STEP_NS).min(MAX_DELAY_NS),
            (false, true) => entry.delay / 2,
            (true, false) => POLL_INTERVAL_NS,
            (false, false) => 0,
        };
        entry.until = now.saturating_add(if over { entry.delay } else { 0 });
    }

    fn pick(&mut self, waiting: &[JobIndex], now: u64) -> Decision {
        self.roll(now);
        let over = |t: &JobIndex| self.excess(*t) > 0;
        // A job that has become entitled again need not wait any longer.
        let ready = waiting.iter().copied().filter(|t| self.jobs[*t].until <= now || !over(t));
        match ready.min_by_key(|t| (self.excess(*t), self.jobs[*t].last)) {
            Some(job) => Decision::Grant(job, self.slice),
            None => Decision::IdleUntil { until: waiting.iter().map(|t| self.jobs[*t].until).min().unwrap_or(now) },
        }
    }
}
