//! Start-time fair queueing (FairGV 3.2.1).
//!
//! A tenant's start tag is the device time it has used divided by its weight; the lowest goes first. Virtual time
//! is the lowest start tag of those who want the device. A tenant that wakes up starts at virtual time: what it
//! did not use while it slept is gone, but for two slices: a program whose thread got no processor for a moment must
//! not pay for that. Its own tag counts if that is higher: FairGV as printed lowers it, which would forgive who
//! overran its slice and slept for a moment. Time in which the device stands still and nobody waits for it takes as much off
//! tags that are more than two slices above virtual time: nobody else could have used it. Tenants that take turns are not so
//! far apart, and in their turns nobody may wait for a moment because nobody's thread got a processor.

use super::discipline::{Discipline, Pick, Share, Spent, Tenant};

/// Virtual nanoseconds per nanosecond at weight 1: keeps the rounding of the division below a nanosecond.
const SCALE: u128 = 1 << 16;

/// Slices that tenants are apart without having done anything unusual, and that one may make up for after a nap.
const USUAL: u64 = 2;

#[derive(Debug)]
pub struct Fair {
    slice: u64,
    tenants: Vec<Entry>,
    /// Never goes back.
    virtual_time: u128,
}

#[derive(Debug, Clone)]
struct Entry {
    weight: u32,
    start: u128,
    active: bool,
}

impl Fair {
    pub fn new(slice: u64) -> Fair {
        Fair { slice, tenants: Vec::new(), virtual_time: 0 }
    }

    fn advance(&mut self) {
        let lowest = self.tenants.iter().filter(|t| t.active).map(|t| t.start).min();
        self.virtual_time = self.virtual_time.max(lowest.unwrap_or(0));
    }
}

impl Entry {
    /// Virtual time of so many nanoseconds of the device.
    fn virtually(&self, time: u64) -> u128 {
        u128::from(time) * SCALE / u128::from(self.weight)
    }
}

impl Discipline for Fair {
    fn set_share(&mut self, tenant: Tenant, share: Share) {
        if self.tenants.len() <= tenant {
            self.tenants.resize(tenant + 1, Entry { weight: 1, start: 0, active: false });
        }
        self.tenants[tenant].weight = share.weight.max(1);
    }

    fn wakes(&mut self, tenant: Tenant, _now: u64) {
        self.advance();
        let entry = &mut self.tenants[tenant];
        entry.start =
            entry.start.max(self.virtual_time.saturating_sub(entry.virtually(USUAL.saturating_mul(self.slice))));
        entry.active = true;
    }

    fn rests(&mut self, tenant: Tenant) {
        self.advance();
        self.tenants[tenant].active = false;
    }

    fn stood_still(&mut self, time: u64) {
        self.advance();
        for entry in &mut self.tenants {
            let lowest = self.virtual_time + entry.virtually(USUAL.saturating_mul(self.slice));
            entry.start = entry.start.min(lowest.max(entry.start.saturating_sub(entry.virtually(time))));
        }
    }

    fn charge(&mut self, tenant: Tenant, spent: Spent, _now: u64) {
        let entry = &mut self.tenants[tenant];
        // The finish tag, which is the next start tag.
        entry.start = entry.start.saturating_add(entry.virtually(spent.used));
    }

    fn pick(&mut self, wanting: &[Tenant], _now: u64) -> Pick {
        let first = wanting.iter().copied().min_by_key(|tenant| self.tenants[*tenant].start);
        Pick::Grant(first.unwrap_or(0), self.slice)
    }

    fn precedes(&mut self, tenant: Tenant, holder: Tenant, _now: u64) -> bool {
        self.tenants[tenant].start < self.tenants[holder].start
    }
}
