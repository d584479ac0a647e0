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
        entry.overrun += spent.used.saturating_sub(entry.budget);
        entry.budget = entry.budget.saturating_sub(spent.used);
    }

    fn pick(&mut self, wanting: &[Tenant], _now: u64) -> Pick {
        let level = |t: &Tenant| if self.priorities { self.tenants[*t].share.priority } else { 0 };
        let highest = wanting.iter().map(level).max().unwrap_or(0);
        let mut equals: Vec<Tenant> = wanting.iter().copied().filter(|t| level(t) == highest).collect();
        equals.sort_by_key(|t| self.tenants[*t].last);
        loop {
            for tenant in &equals {
                self.turn += 1;
                let slice = self.whole_slice(*tenant);
                let entry = &mut self.tenants[*tenant];
                entry.last = self.turn;
                let due = slice + entry.budget.min(slice);
                if entry.overrun < due {
                    entry.budget = due - std::mem::take(&mut entry.overrun);
                    return Pick::Grant(*tenant, entry.budget);
                }
                // It had this turn already.
                entry.overrun -= due;
                entry.budget = 0;
            }
        }
    }
}
