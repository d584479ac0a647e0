//! Xen's credit scheduler for devices, as FairGV measures itself against it (5.4), and Pegasus' strict coscheduling
//! (FairGV, algorithms 1 and 2). For comparison only: both count the time for which a tenant held the device, not
//! what it made the device do.

use super::discipline::{Discipline, Pick, Share, Spent, Tenant};
use aviary_gate::Manner;

/// How often credits are handed out.
const PERIOD: u64 = 30_000_000;

#[derive(Debug)]
pub struct Credit {
    slice: u64,
    preempts: bool,
    tenants: Vec<Entry>,
    next: u64,
    turn: u64,
}

#[derive(Debug, Clone)]
struct Entry {
    weight: u32,
    active: bool,
    credit: i64,
    last: u64,
}

impl Credit {
    pub fn new(slice: u64, preempts: bool) -> Credit {
        Credit { slice, preempts, tenants: Vec::new(), next: 0, turn: 0 }
    }

    fn hand_out(&mut self, now: u64) {
        if now < self.next {
            return;
        }
        let periods = (now - self.next) / PERIOD + 1;
        self.next += periods * PERIOD;
        let weights: u64 = self.tenants.iter().filter(|t| t.active).map(|t| u64::from(t.weight)).sum();
        for tenant in self.tenants.iter_mut().filter(|t| t.active) {
            let part = PERIOD * u64::from(tenant.weight) / weights.max(1);
            // Credit that nobody used does not pile up.
            tenant.credit = (tenant.credit + part as i64).min(PERIOD as i64);
        }
    }
}

impl Discipline for Credit {
    fn set_share(&mut self, tenant: Tenant, share: Share) {
        if self.tenants.len() <= tenant {
            self.tenants.resize(tenant + 1, Entry { weight: 1, active: false, credit: 0, last: 0 });
        }
        self.tenants[tenant].weight = share.weight.max(1);
    }

    fn wakes(&mut self, tenant: Tenant, now: u64) {
        self.tenants[tenant].active = true;
        self.hand_out(now);
    }

    fn rests(&mut self, tenant: Tenant) {
        self.tenants[tenant].active = false;
    }

    fn charge(&mut self, tenant: Tenant, spent: Spent, _now: u64) {
        let entry = &mut self.tenants[tenant];
        // Exactly the time for which it held the device. Rounded up to whole slices, every tenant that overruns one by a
        // microsecond pays for two, all sink to the floor, and weights mean nothing.
        let paid = i64::try_from(spent.held).unwrap_or(i64::MAX);
        entry.credit = entry.credit.saturating_sub(paid).max(-(PERIOD as i64));
    }

    fn pick(&mut self, wanting: &[Tenant], now: u64) -> Pick {
        self.hand_out(now);
        // Who has credit before who has none, in turn.
        let first = wanting.iter().copied().min_by_key(|t| {
            let entry = &self.tenants[*t];
            (entry.credit <= 0, entry.last)
        });
        let tenant = first.unwrap_or(0);
        self.turn += 1;
        self.tenants[tenant].last = self.turn;
        Pick::Grant(tenant, self.slice)
    }

    fn preempts(&mut self, tenant: Tenant, holder: Tenant, now: u64) -> bool {
        self.hand_out(now);
        let highest = self.tenants.iter().filter(|t| t.active).map(|t| t.credit).max().unwrap_or(0);
        self.preempts && tenant != holder && self.tenants[tenant].credit >= highest
    }

    fn manner(&self) -> Manner {
        Manner::Blind
    }
}
