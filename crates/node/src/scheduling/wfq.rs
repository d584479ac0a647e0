//! Weighted fair queueing by postponing (AvA 5.2.2).
//!
//! Device time is counted in windows. A tenant whose part of the window's device time exceeds its share is
//! postponed: by a fixed interval, or by a delay that adapts. The paper prints the adaptive rule as "halve the
//! delay if the tenant exhausted its share, lengthen it otherwise": that would speed up who took too much and
//! slow down who got too little. The feedback that settles is the other way round, and that is what is done here:
//! a tenant above its share waits longer by a step each time, one below it waits half as long.

use super::discipline::{Discipline, Pick, Share, Spent, Tenant};

const MILLISECOND: u64 = 1_000_000;
/// AvA's measurement window.
const WINDOW: u64 = 500 * MILLISECOND;
/// AvA's polling interval.
const INTERVAL: u64 = 5 * MILLISECOND;
/// The additive step, `a` in the paper.
const STEP: u64 = MILLISECOND;
/// A delay never exceeds what a window can make good.
const LONGEST: u64 = WINDOW / 4;

#[derive(Debug)]
pub struct Wfq {
    slice: u64,
    adaptive: bool,
    tenants: Vec<Entry>,
    window: u64,
}

#[derive(Debug, Clone)]
struct Entry {
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
        Wfq { slice, adaptive: false, tenants: Vec::new(), window: 0 }
    }

    pub fn adaptive(slice: u64) -> Wfq {
        Wfq { adaptive: true, ..Wfq::polling(slice) }
    }

    /// How much of the window's device time the tenant got beyond its share, in nanoseconds; negative: it lacks it.
    fn excess(&self, tenant: Tenant) -> i128 {
        let active = || self.tenants.iter().filter(|t| t.active || t.used > 0);
        let weights: u64 = active().map(|t| u64::from(t.weight)).sum();
        let all: u128 = active().map(|t| u128::from(t.used)).sum();
        let entry = &self.tenants[tenant];
        let all = i128::try_from(all).unwrap_or(i128::MAX);
        i128::from(entry.used) - all.saturating_mul(i128::from(entry.weight)) / i128::from(weights.max(1))
    }

    fn roll(&mut self, now: u64) {
        if now >= self.window.saturating_add(WINDOW) {
            self.window = now - now % WINDOW;
            // What was over or under at the end of a window is made good in the next.
            let excesses: Vec<i128> = (0..self.tenants.len()).map(|t| self.excess(t)).collect();
            let lowest = excesses.iter().copied().min().unwrap_or(0);
            for (entry, excess) in self.tenants.iter_mut().zip(excesses) {
                let carried = if entry.active { (excess - lowest).min(i128::from(WINDOW)) } else { 0 };
                entry.used = u64::try_from(carried).unwrap_or(0);
            }
        }
    }
}

impl Discipline for Wfq {
    fn set_share(&mut self, tenant: Tenant, share: Share) {
        if self.tenants.len() <= tenant {
            let entry = Entry { weight: 1, active: false, used: 0, delay: 0, until: 0, last: 0 };
            self.tenants.resize(tenant + 1, entry);
        }
        self.tenants[tenant].weight = share.weight.max(1);
    }

    fn wakes(&mut self, tenant: Tenant, now: u64) {
        self.roll(now);
        let entry = &mut self.tenants[tenant];
        entry.active = true;
        entry.delay = 0;
    }

    fn rests(&mut self, tenant: Tenant) {
        self.tenants[tenant].active = false;
    }

    fn charge(&mut self, tenant: Tenant, spent: Spent, now: u64) {
        self.roll(now);
        let used = &mut self.tenants[tenant].used;
        *used = used.saturating_add(spent.used);
        self.tenants[tenant].last = now;
        let excess = self.excess(tenant);
        let (over, adaptive) = (excess > 0, self.adaptive);
        let entry = &mut self.tenants[tenant];
        entry.delay = match (over, adaptive) {
            (true, true) => (entry.delay + STEP).min(LONGEST),
            (false, true) => entry.delay / 2,
            (true, false) => INTERVAL,
            (false, false) => 0,
        };
        entry.until = now.saturating_add(if over { entry.delay } else { 0 });
    }

    fn pick(&mut self, wanting: &[Tenant], now: u64) -> Pick {
        self.roll(now);
        let over = |t: &Tenant| self.excess(*t) > 0;
        // Who has become entitled again need not wait any longer.
        let ready = wanting.iter().copied().filter(|t| self.tenants[*t].until <= now || !over(t));
        match ready.min_by_key(|t| (self.excess(*t), self.tenants[*t].last)) {
            Some(tenant) => Pick::Grant(tenant, self.slice),
            None => Pick::Nobody { until: wanting.iter().map(|t| self.tenants[*t].until).min().unwrap_or(now) },
        }
    }
}
