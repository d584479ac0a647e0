//! Slices in turn: equal, weighted or by priority (Optimus 5 and 6.8).
//!
//! A device that cannot be preempted does not end its work where a slice ends. What a job overran is taken off its next
//! slice, and what it left is added to it: over time everybody gets what was promised. So is what a job left whose
//! thread got no processor for a moment; but never more than a slice, however long it slept.

use crate::discipline::{Charge, Decision, Discipline, JobIndex, Precedence, Share};

/// Slices in turn; what a job overran is taken off its next slice.
///
/// ```
/// use aviary_schedule::{Charge, Decision, Discipline, RoundRobin, Share};
///
/// let mut scheduler = RoundRobin::equal(1_000);
/// let (a, b) = (0, 1);
/// for job in [a, b] {
///     scheduler.set_share(job, Share::default());
///     scheduler.enqueue(job, 0);
/// }
/// let Decision::Grant(first, _) = scheduler.pick(&[a, b], 0) else { unreachable!() };
/// scheduler.charge(first, Charge { used: 1_000, ..Charge::default() }, 1_000);
/// let Decision::Grant(second, _) = scheduler.pick(&[a, b], 1_000) else { unreachable!() };
/// assert_ne!(first, second);
/// ```
#[derive(Debug)]
pub struct RoundRobin {
    slice: u64,
    weighted: bool,
    priorities: bool,
    jobs: Vec<RoundRobinJob>,
    turn: u64,
}

#[derive(Debug, Clone)]
struct RoundRobinJob {
    share: Share,
    /// When it had its last turn.
    last: u64,
    /// Device time of earlier turns beyond their slices.
    overrun: u64,
    /// The rest of its last turn.
    budget: u64,
}

impl RoundRobin {
    pub fn equal(slice: u64) -> RoundRobin {
        RoundRobin { slice, weighted: false, priorities: false, jobs: Vec::new(), turn: 0 }
    }

    pub fn weighted(slice: u64) -> RoundRobin {
        RoundRobin { weighted: true, ..RoundRobin::equal(slice) }
    }

    pub fn by_priority(slice: u64) -> RoundRobin {
        RoundRobin { priorities: true, ..RoundRobin::equal(slice) }
    }

    fn whole_slice(&self, job: JobIndex) -> u64 {
        let weight = if self.weighted { u64::from(self.jobs[job].share.weight.max(1)) } else { 1 };
        self.slice.saturating_mul(weight)
    }
}

impl Discipline for RoundRobin {
    fn set_share(&mut self, job: JobIndex, share: Share) {
        if self.jobs.len() <= job {
            self.jobs.resize(job + 1, RoundRobinJob { share, last: 0, overrun: 0, budget: 0 });
        }
        self.jobs[job].share = share;
    }

    fn enqueue(&mut self, _job: JobIndex, _now: u64) {}

    fn charge(&mut self, job: JobIndex, charge: Charge, _now: u64) {
        let entry = &mut self.jobs[job];
        entry.overrun = entry.overrun.saturating_add(charge.used.saturating_sub(entry.budget));
        entry.budget = entry.budget.saturating_sub(charge.used);
    }

    fn pick(&mut self, waiting: &[JobIndex], _now: u64) -> Decision {
        let level = |t: &JobIndex| if self.priorities { self.jobs[*t].share.priority } else { 0 };
        let highest = waiting.iter().map(level).max().unwrap_or(0);
        let mut equals: Vec<JobIndex> = waiting.iter().copied().filter(|t| level(t) == highest).collect();
        equals.sort_by_key(|t| self.jobs[*t].last);
        // A first round, in which what is left of last turns counts.
        let at = equals.iter().position(|job| self.may(*job));
        let Some(at) = at else {
            equals.iter().for_each(|job| self.pass(*job));
            return self.pick_of_waiting(&equals);
        };
        equals[..at].iter().for_each(|job| self.pass(*job));
        self.give(equals[at])
    }

    fn precedence(&mut self, job: JobIndex, holder: JobIndex, _now: u64) -> Precedence {
        let first = self.may_precede(self.jobs[holder].share, self.jobs[job].share);
        if first { Precedence::First } else { Precedence::Behind }
    }

    fn may_precede(&self, other: Share, job: Share) -> bool {
        self.priorities && job.priority > other.priority
    }
}

impl RoundRobin {
    /// The length of a job's turn if it has it now.
    fn due(&self, job: JobIndex) -> u64 {
        let slice = self.whole_slice(job);
        slice.saturating_add(self.jobs[job].budget.min(slice))
    }

    /// True if something is left of the turn that it would get.
    fn may(&self, job: JobIndex) -> bool {
        self.jobs[job].overrun < self.due(job)
    }

    /// It had this turn already.
    fn pass(&mut self, job: JobIndex) {
        let due = self.due(job);
        self.turn += 1;
        let entry = &mut self.jobs[job];
        entry.last = self.turn;
        entry.overrun = entry.overrun.saturating_sub(due);
        entry.budget = 0;
    }

    fn give(&mut self, job: JobIndex) -> Decision {
        let due = self.due(job);
        self.turn += 1;
        let entry = &mut self.jobs[job];
        entry.last = self.turn;
        entry.budget = due.saturating_sub(std::mem::take(&mut entry.overrun));
        Decision::Grant(job, entry.budget)
    }

    /// As many rounds at once as pass until somebody has something left of a turn: an API server says what was overrun, so
    /// the number of rounds may be any.
    fn pick_of_waiting(&mut self, equals: &[JobIndex]) -> Decision {
        let rounds = |turns: &RoundRobin, job: JobIndex| turns.jobs[job].overrun / turns.whole_slice(job);
        let first = (0..equals.len()).min_by_key(|at| rounds(self, equals[*at])).unwrap_or(0);
        let Some(chosen) = equals.get(first).copied() else { return Decision::IdleUntil { until: 0 } };
        let whole = rounds(self, chosen);
        // Those behind the chosen one have had one turn less, and so come before the others next time.
        let (before, behind) = (&equals[..first], &equals[first..]);
        for (jobs, rounds) in [(behind, whole), (before, whole.saturating_add(1))] {
            for job in jobs {
                let had = self.whole_slice(*job).saturating_mul(rounds);
                self.turn += 1;
                let entry = &mut self.jobs[*job];
                entry.last = self.turn;
                entry.overrun = entry.overrun.saturating_sub(had);
            }
        }
        self.give(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Round by round, as it reads in the paper: what `pick` does at once.
    fn by_rounds(turns: &mut RoundRobin, waiting: &[JobIndex]) -> Decision {
        let mut equals = waiting.to_vec();
        equals.sort_by_key(|job| turns.jobs[*job].last);
        loop {
            for job in &equals {
                if turns.may(*job) {
                    return turns.give(*job);
                }
                turns.pass(*job);
            }
        }
    }

    fn of(weights: &[u32]) -> RoundRobin {
        let mut turns = RoundRobin::weighted(10);
        for (job, weight) in weights.iter().enumerate() {
            turns.set_share(job, Share { weight: *weight, ..Share::default() });
        }
        turns
    }

    proptest! {
        #[test]
        fn rounds_at_once_are_rounds_one_by_one(
            weights in proptest::collection::vec(1u32..4, 1..6),
            steps in proptest::collection::vec((0u64..400, 0usize..6, 1usize..64), 1..40),
        ) {
            let (mut fast, mut slow) = (of(&weights), of(&weights));
            for (used, job, waiting) in steps {
                let charge = Charge { used, ..Charge::default() };
                fast.charge(job % weights.len(), charge, 0);
                slow.charge(job % weights.len(), charge, 0);
                let waiting: Vec<JobIndex> = (0..weights.len()).filter(|at| waiting >> at & 1 == 1).collect();
                if waiting.is_empty() {
                    continue;
                }
                prop_assert_eq!(fast.pick(&waiting, 0), by_rounds(&mut slow, &waiting));
                let order = |turns: &RoundRobin| {
                    let mut all: Vec<JobIndex> = (0..weights.len()).collect();
                    all.sort_by_key(|job| turns.jobs[*job].last);
                    all
                };
                prop_assert_eq!(order(&fast), order(&slow));
                for (fast, slow) in fast.jobs.iter().zip(&slow.jobs) {
                    prop_assert_eq!((fast.overrun, fast.budget), (slow.overrun, slow.budget));
                }
            }
        }
    }

    /// Round by round this would not end.
    #[test]
    fn an_overrun_of_centuries_costs_no_time() {
        let mut turns = of(&[1, 1]);
        turns.charge(0, Charge { used: u64::MAX, ..Charge::default() }, 0);
        turns.charge(0, Charge { used: u64::MAX, ..Charge::default() }, 0);
        assert!(matches!(turns.pick(&[0], 0), Decision::Grant(0, _)));
        turns.charge(1, Charge { used: u64::MAX, ..Charge::default() }, 0);
        assert!(matches!(turns.pick(&[0, 1], 0), Decision::Grant(0, _)));
    }
}
