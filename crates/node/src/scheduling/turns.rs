//! Slices in turn: equal, weighted or by priority (Optimus 5 and 6.8).
//!
//! A device that cannot be preempted does not end its work where a slice ends. What a tenant overran is taken off its next
//! slice, and what it left is added to it: over time everybody gets what was promised. So is what a tenant left whose
//! thread got no processor for a moment; but never more than a slice, however long it slept.

use super::discipline::{Discipline, Pick, Share, Spent, Tenant};

#[derive(Debug)]
pub struct Turns {
    slice: u64,
    weighted: bool,
    priorities: bool,
    tenants: Vec<Entry>,
    turn: u64,
}

#[derive(Debug, Clone)]
struct Entry {
    share: Share,
    /// When it had its last turn.
    last: u64,
    /// Device time of earlier turns beyond their slices.
    overrun: u64,
    /// What is left of its last turn.
    budget: u64,
}

impl Turns {
    pub fn equal(slice: u64) -> Turns {
        Turns { slice, weighted: false, priorities: false, tenants: Vec::new(), turn: 0 }
    }

    pub fn weighted(slice: u64) -> Turns {
        Turns { weighted: true, ..Turns::equal(slice) }
    }

    pub fn by_priority(slice: u64) -> Turns {
        Turns { priorities: true, ..Turns::equal(slice) }
    }

    fn whole_slice(&self, tenant: Tenant) -> u64 {
        let weight = if self.weighted { u64::from(self.tenants[tenant].share.weight.max(1)) } else { 1 };
        self.slice.saturating_mul(weight)
    }
}

impl Discipline for Turns {
    fn set_share(&mut self, tenant: Tenant, share: Share) {
        if self.tenants.len() <= tenant {
            self.tenants.resize(tenant + 1, Entry { share, last: 0, overrun: 0, budget: 0 });
        }
        self.tenants[tenant].share = share;
    }

    fn wakes(&mut self, _tenant: Tenant, _now: u64) {}

    fn charge(&mut self, tenant: Tenant, spent: Spent, _now: u64) {
        let entry = &mut self.tenants[tenant];
        entry.overrun = entry.overrun.saturating_add(spent.used.saturating_sub(entry.budget));
        entry.budget = entry.budget.saturating_sub(spent.used);
    }

    fn pick(&mut self, wanting: &[Tenant], _now: u64) -> Pick {
        let level = |t: &Tenant| if self.priorities { self.tenants[*t].share.priority } else { 0 };
        let highest = wanting.iter().map(level).max().unwrap_or(0);
        let mut equals: Vec<Tenant> = wanting.iter().copied().filter(|t| level(t) == highest).collect();
        equals.sort_by_key(|t| self.tenants[*t].last);
        // A first round, in which what is left of last turns counts.
        let at = equals.iter().position(|tenant| self.may(*tenant));
        let Some(at) = at else {
            equals.iter().for_each(|tenant| self.pass(*tenant));
            return self.pick_of_waiting(&equals);
        };
        equals[..at].iter().for_each(|tenant| self.pass(*tenant));
        self.give(equals[at])
    }

    fn has_first_ones(&self) -> bool {
        self.priorities
    }

    fn preempts(&mut self, tenant: Tenant, holder: Tenant, _now: u64) -> bool {
        self.priorities && self.tenants[tenant].share.priority > self.tenants[holder].share.priority
    }
}

impl Turns {
    /// What a tenant gets if it has its turn now.
    fn due(&self, tenant: Tenant) -> u64 {
        let slice = self.whole_slice(tenant);
        slice.saturating_add(self.tenants[tenant].budget.min(slice))
    }

    /// Whether something is left of the turn that it would get.
    fn may(&self, tenant: Tenant) -> bool {
        self.tenants[tenant].overrun < self.due(tenant)
    }

    /// It had this turn already.
    fn pass(&mut self, tenant: Tenant) {
        let due = self.due(tenant);
        self.turn += 1;
        let entry = &mut self.tenants[tenant];
        entry.last = self.turn;
        entry.overrun = entry.overrun.saturating_sub(due);
        entry.budget = 0;
    }

    fn give(&mut self, tenant: Tenant) -> Pick {
        let due = self.due(tenant);
        self.turn += 1;
        let entry = &mut self.tenants[tenant];
        entry.last = self.turn;
        entry.budget = due.saturating_sub(std::mem::take(&mut entry.overrun));
        Pick::Grant(tenant, entry.budget)
    }

    /// As many rounds at once as pass until somebody has something left of a turn: an API server says what was overrun, so
    /// the number of rounds may be any.
    fn pick_of_waiting(&mut self, equals: &[Tenant]) -> Pick {
        let rounds = |turns: &Turns, tenant: Tenant| turns.tenants[tenant].overrun / turns.whole_slice(tenant);
        let first = (0..equals.len()).min_by_key(|at| rounds(self, equals[*at])).unwrap_or(0);
        let Some(chosen) = equals.get(first).copied() else { return Pick::Nobody { until: 0 } };
        let whole = rounds(self, chosen);
        // Those behind the chosen one have had one turn less, and so come before the others next time.
        let (before, behind) = (&equals[..first], &equals[first..]);
        for (tenants, rounds) in [(behind, whole), (before, whole.saturating_add(1))] {
            for tenant in tenants {
                let had = self.whole_slice(*tenant).saturating_mul(rounds);
                self.turn += 1;
                let entry = &mut self.tenants[*tenant];
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
    fn by_rounds(turns: &mut Turns, wanting: &[Tenant]) -> Pick {
        let mut equals = wanting.to_vec();
        equals.sort_by_key(|tenant| turns.tenants[*tenant].last);
        loop {
            for tenant in &equals {
                if turns.may(*tenant) {
                    return turns.give(*tenant);
                }
                turns.pass(*tenant);
            }
        }
    }

    fn of(weights: &[u32]) -> Turns {
        let mut turns = Turns::weighted(10);
        for (tenant, weight) in weights.iter().enumerate() {
            turns.set_share(tenant, Share { weight: *weight, priority: 0 });
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
            for (used, tenant, wanting) in steps {
                let spent = Spent { used, ..Spent::default() };
                fast.charge(tenant % weights.len(), spent, 0);
                slow.charge(tenant % weights.len(), spent, 0);
                let wanting: Vec<Tenant> = (0..weights.len()).filter(|at| wanting >> at & 1 == 1).collect();
                if wanting.is_empty() {
                    continue;
                }
                prop_assert_eq!(fast.pick(&wanting, 0), by_rounds(&mut slow, &wanting));
                let order = |turns: &Turns| {
                    let mut all: Vec<Tenant> = (0..weights.len()).collect();
                    all.sort_by_key(|tenant| turns.tenants[*tenant].last);
                    all
                };
                prop_assert_eq!(order(&fast), order(&slow));
                for (fast, slow) in fast.tenants.iter().zip(&slow.tenants) {
                    prop_assert_eq!((fast.overrun, fast.budget), (slow.overrun, slow.budget));
                }
            }
        }
    }

    /// Round by round this would not end.
    #[test]
    fn an_overrun_of_centuries_costs_no_time() {
        let mut turns = of(&[1, 1]);
        turns.charge(0, Spent { used: u64::MAX, ..Spent::default() }, 0);
        turns.charge(0, Spent { used: u64::MAX, ..Spent::default() }, 0);
        assert!(matches!(turns.pick(&[0], 0), Pick::Grant(0, _)));
        turns.charge(1, Spent { used: u64::MAX, ..Spent::default() }, 0);
        assert!(matches!(turns.pick(&[0, 1], 0), Pick::Grant(0, _)));
    }
}
