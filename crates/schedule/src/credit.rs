//! Xen's credit scheduler for devices, as FairGV measures itself against it (5.4), and Pegasus' strict coscheduling
//! (FairGV, algorithms 1 and 2). For comparison only: both count the time for which a job held the device, not its
//! device time.

use crate::discipline::{AccountingMode, Charge, Decision, Discipline, JobIndex, Precedence, Share};

/// How often credits are handed out, in nanoseconds.
const REFILL_PERIOD_NS: u64 = 30_000_000;

/// Credits that are handed out by weight. For comparison only.
///
/// ```
/// use aviary_schedule::{AccountingMode, Credit, Discipline};
///
/// // It counts the time for which a job holds the device, whether it uses it or not.
/// assert_eq!(Credit::new(1_000, false).accounting(), AccountingMode::WallClock);
/// ```
#[derive(Debug)]
pub struct Credit {
    quantum: u64,
    preempts: bool,
    jobs: Vec<CreditJob>,
    next: u64,
    turn: u64,
}

#[derive(Debug, Clone)]
struct CreditJob {
    weight: u32,
    active: bool,
    credit: i64,
    last: u64,
}

impl Credit {
    pub fn new(quantum: u64, preempts: bool) -> Credit {
        Credit { quantum, preempts, jobs: Vec::new(), next: 0, turn: 0 }
    }

    fn refill(&mut self, now: u64) {
        if now < self.next {
            return;
        }
        let periods = (now - self.next) / REFILL_PERIOD_NS + 1;
        self.next += periods * REFILL_PERIOD_NS;
        let weights: u64 = self.jobs.iter().filter(|t| t.active).map(|t| u64::from(t.weight)).sum();
        for job in self.jobs.iter_mut().filter(|t| t.active) {
            let part = REFILL_PERIOD_NS * u64::from(job.weight) / weights.max(1);
            // Unused credit is not saved up.
            job.credit = (job.credit + part as i64).min(REFILL_PERIOD_NS as i64);
        }
    }
}

impl Discipline for Credit {
    fn set_share(&mut self, job: JobIndex, share: Share) {
        if self.jobs.len() <= job {
            self.jobs.resize(job + 1, CreditJob { weight: 1, active: false, credit: 0, last: 0 });
        }
        self.jobs[job].weight = share.weight.max(1);
    }

    fn enqueue(&mut self, job: JobIndex, now: u64) {
        self.jobs[job].active = true;
        self.refill(now);
    }

    fn dequeue(&mut self, job: JobIndex) {
        self.jobs[job].active = false;
    }

    fn charge(&mut self, job: JobIndex, charge: Charge, _now: u64) {
        let entry = &mut self.jobs[job];
        // Exactly the time for which it held the device. Rounded up to whole turns, as Xen's tick does, every job that
        // overruns a turn by a microsecond pays for two, all sink to the floor, and the weights mean nothing.
        let paid = i64::try_from(charge.held).unwrap_or(i64::MAX);
        entry.credit = entry.credit.saturating_sub(paid).max(-(REFILL_PERIOD_NS as i64));
    }

    fn pick(&mut self, waiting: &[JobIndex], now: u64) -> Decision {
        self.refill(now);
        // Jobs with credit go before those without, in turn.
        let first = waiting.iter().copied().min_by_key(|t| {
            let entry = &self.jobs[*t];
            (entry.credit <= 0, entry.last)
        });
        let job = first.unwrap_or(0);
        self.turn += 1;
        self.jobs[job].last = self.turn;
        Decision::Grant(job, self.quantum)
    }

    fn precedence(&mut self, job: JobIndex, holder: JobIndex, now: u64) -> Precedence {
        self.refill(now);
        let highest = self.jobs.iter().filter(|t| t.active).map(|t| t.credit).max().unwrap_or(0);
        let first = self.preempts && job != holder && self.jobs[job].credit >= highest;
        if first { Precedence::First } else { Precedence::Behind }
    }

    fn accounting(&self) -> AccountingMode {
        AccountingMode::WallClock
    }
}
