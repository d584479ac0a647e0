//! Sessions that have a device at the same time as its holder.
//!
//! Usually one session has a device. Its work may wait for that of another session of its tenant, though, and a device
//! that preempts can be at the work of several tenants by itself, so that none has to wait for another's long work.

use super::{Device, Entry, Place, charge};
use crate::scheduling::discipline::{DeviceKind, Tenant};
use crate::scheduling::hurry::Hurry;
use aviary_gate::{Manner, grant};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// How long a session waits for another one of its tenant, in nanoseconds, beyond that one's slice, before it is admitted
/// beside it. Longer than work that ends by itself usually takes.
const STUCK: u64 = 50_000_000;
/// How long a holder keeps a device that preempts to itself while others wait, in nanoseconds: FairGV's slice for such
/// devices.
const PREEMPTIVE_SLICE: u64 = 30_000_000;

impl Device {
    /// Since when the holder has kept the device from other tenants. On a device that preempts they are admitted beside
    /// it: it keeps the device from them only while none of them gets on, nor does the holder.
    pub(super) fn kept_since(&self) -> Option<u64> {
        if self.kind() == DeviceKind::Exclusive {
            return self.contested;
        }
        let place = self.leaving.or(self.holder)?;
        let holder = self.entries.iter().find(|e| e.place() == place)?;
        let others = || self.entries.iter().filter(|e| e.tenant != holder.tenant && self.has(e));
        let last = others().map(|e| e.progress_at).max()?;
        Some(last.max(holder.progress_at))
    }

    /// True if sessions of other tenants were admitted beside the holder.
    pub(super) fn has_others_beside(&self, tenant: Tenant) -> bool {
        let is_beside = |entry: &&Entry| self.beside.contains(&entry.place());
        self.entries.iter().filter(is_beside).any(|entry| entry.tenant != tenant)
    }

    /// Drops those that were admitted beside the holder and have given the device back. If the holder has done so, one of
    /// them takes its place.
    pub(super) fn review_beside(&mut self, now: u64) {
        let expected = now.saturating_add(self.linger());
        for at in 0..self.entries.len() {
            let place = self.entries[at].place();
            if !self.beside.contains(&place) {
                continue;
            }
            let seat = self.entries[at].seat();
            let others = self.entries.iter().any(|e| e.waits() && e.place() != place);
            let over = match seat.grant.load(SeqCst) {
                grant::IDLE => others && seat.change(grant::IDLE, grant::CLOSED),
                grant::SLICE | grant::ALONE | grant::LAST => false,
                _ => true,
            };
            if over {
                let entry = &mut self.entries[at];
                if entry.seat().change(grant::ENDED, grant::CLOSED) {
                    entry.expected = expected;
                }
                let held = now.saturating_sub(entry.since);
                charge(entry, &mut self.tenants, &mut *self.discipline, held, now);
                entry.is_paid = false;
                self.beside.retain(|beside| *beside != place);
            }
        }
        let given_back = |place: Place| {
            let entry = self.entries.iter().find(|e| e.place() == place);
            entry.is_none_or(|e| matches!(e.seat().grant.load(SeqCst), grant::CLOSED | grant::ENDED))
        };
        if self.holder.is_none_or(given_back) && self.leaving.is_none() && !self.beside.is_empty() {
            if let Some(at) = self.entries.iter().position(|e| Some(e.place()) == self.holder) {
                let entry = &mut self.entries[at];
                if entry.seat().change(grant::ENDED, grant::CLOSED) {
                    entry.expected = expected;
                }
                let held = now.saturating_sub(entry.since);
                charge(entry, &mut self.tenants, &mut *self.discipline, held, now);
            }
            let place = self.beside.remove(0);
            (self.holder, self.contested, self.is_stuck) = (Some(place), None, false);
            let next = self.entries.iter_mut().find(|e| e.place() == place && e.is_paid);
            if let Some(next) = next {
                next.is_paid = false;
                // Its work from before came behind the other one's.
                next.seat().free_at.store(now.max(1), SeqCst);
            }
        }
    }

    /// Admits sessions that wait beside the holder. The result is when to look again.
    ///
    /// The holder's work may wait for that of another session of its tenant: that one is admitted when the slice lasts
    /// too long, on every device. A device that preempts can be at the work of several tenants: who is entitled to it
    /// before the holder is admitted at once, and anybody when the holder has had it for long. The holder then gives
    /// it no more work; what it has there goes on, time-sliced.
    pub(super) fn admit_beside(&mut self, now: u64, hurry: &mut Hurry) -> Option<u64> {
        let place = self.leaving.or(self.holder)?;
        let (first, since) = self.entries.iter().find(|e| e.place() == place).map(|e| (e.tenant, e.since))?;
        let slice = u64::try_from(self.settings.slice.as_nanos()).unwrap_or(u64::MAX);
        let preemptive = self.kind() == DeviceKind::Preemptive && self.discipline.manner() == Manner::Measured;
        let mut look: Option<u64> = None;
        for at in 0..self.entries.len() {
            let entry = &self.entries[at];
            let Some(waits_since) = entry.waits_since.filter(|_| !self.has(entry)) else { continue };
            let tenant = entry.tenant;
            let due = if tenant == first {
                if self.is_stuck { now } else { waits_since.saturating_add(slice).saturating_add(STUCK) }
            } else if preemptive && waits_since == now && self.discipline.precedes(tenant, first, now) {
                now
            } else if preemptive {
                since.saturating_add(slice.max(PREEMPTIVE_SLICE))
            } else {
                continue;
            };
            // One of a tenant: its other sessions wait as they would for each other.
            let is_there = tenant != first && self.entries.iter().any(|e| e.tenant == tenant && self.has(e));
            if due > now || is_there {
                look = if is_there { look } else { Some(look.map_or(due, |look| look.min(due))) };
                continue;
            }
            self.entries[at].is_paid = tenant == first;
            if self.open_beside(at, slice, now, hurry) {
                if tenant == first {
                    self.is_stuck = true;
                } else if let Some(holder) = self.entries.iter().find(|e| Some(e.place()) == self.holder) {
                    holder.seat().budget.store(0, Relaxed);
                }
            }
        }
        look
    }

    /// False: the API server has changed its grant meanwhile.
    fn open_beside(&mut self, at: usize, budget: u64, now: u64, hurry: &mut Hurry) -> bool {
        self.turn += 1;
        let entry = &mut self.entries[at];
        (entry.last, entry.since, entry.expected, entry.progress_at) = (self.turn, now, 0, now);
        (entry.used_before, entry.budget) = (entry.meter.used(), budget);
        entry.seat().budget.store(budget, Relaxed);
        entry.seat().free_at.store(0, SeqCst);
        entry.hurry(hurry, now);
        let seat = entry.seat();
        let given = [grant::CLOSED, grant::ENDED].iter().any(|from| seat.change(*from, grant::SLICE));
        if given {
            self.beside.push(self.entries[at].place());
        }
        given
    }
}

#[cfg(test)]
#[path = "beside_tests.rs"]
mod tests;
