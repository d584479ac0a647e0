//! Who leaves for one that waits, and when the turns of those that are there are over.

use super::member::{Resident, Victim};
use super::{Place, Residency, TURNS};
use std::collections::{BTreeMap, BTreeSet};

impl Residency {
    /// Sessions that leave so that so much comes free; none if that is not possible now.
    pub(super) fn victims(&self, waiter: u64, lacking: &BTreeMap<usize, u64>, now: u64) -> Vec<u64> {
        if lacking.is_empty() {
            return Vec::new();
        }
        let may_leave = |session: u64, member: &Resident| {
            session != waiter
                && self.can_be_told(session, member, waiter, now)
                && member.not_before <= now
                && lacking.keys().any(|device| member.occupies(*device) > 0)
        };
        let mut candidates: Vec<_> = self
            .members
            .iter()
            .filter(|(session, member)| may_leave(**session, member))
            .map(|(session, member)| (self.rank(member, lacking, now), *session))
            .collect();
        candidates.sort_unstable();
        let mut chosen: Vec<u64> = Vec::new();
        for (_, session) in candidates {
            if self.would_free(&chosen, lacking) {
                break;
            }
            chosen.push(session);
        }
        if !self.would_free(&chosen, lacking) {
            return Vec::new();
        }
        // One that came later may be enough without an earlier one.
        for at in (0..chosen.len()).rev() {
            let without: Vec<u64> = chosen.iter().copied().filter(|session| *session != chosen[at]).collect();
            if self.would_free(&without, lacking) {
                chosen = without;
            }
        }
        // One that refused the last time may refuse again, and the others would have left for nothing.
        let refused = |session: &u64| self.members.get(session).is_some_and(|member| member.stays > 0);
        if chosen.iter().any(refused) {
            chosen.retain(refused);
        }
        chosen
    }

    /// One that works is told when its turn is over; one of which a part is out, unless it waits for longer than `waiter` and can come.
    fn can_be_told(&self, session: u64, member: &Resident, waiter: u64, now: u64) -> bool {
        let since = |number: u64, member: &Resident| Some((member.waits_since()?, number));
        let waits = self.members.get(&waiter).and_then(|member| since(waiter, member));
        match member.place {
            Place::In => self.turn_ends(member, waiter, now) <= now,
            Place::Out if member.can_go_further => {
                let is_first = since(session, member).is_some_and(|own| waits.is_none_or(|waits| own < waits));
                !is_first || !self.can_come_free(session, &member.need(), |other| other.not_before > now)
            }
            _ => false,
        }
    }

    /// The same, with what each of them gives up. For one that comes back it is known how much it needs, and no more leaves than that, where the rest
    /// can stay: nobody else wants its place. Programs allocate piece by piece: for one that does all leave, or each piece would be an
    /// exchange.
    pub(super) fn parts(&self, waiter: u64, lacking: &BTreeMap<usize, u64>, now: u64) -> Vec<Victim> {
        let chosen = self.victims(waiter, lacking, now);
        let comes_back = self.members.get(&waiter).is_some_and(|member| member.place != Place::In);
        let mut left = match lacking.iter().next() {
            Some((device, bytes)) if comes_back && lacking.len() == 1 && self.rest_can_stay(*device, *bytes) => {
                Some((*device, *bytes))
            }
            _ => None,
        };
        let part_of = |session: &u64| {
            let (member, (device, bytes)) = (self.members.get(session)?, left.as_mut()?);
            let there = member.occupies(*device);
            let part = there.min(*bytes);
            *bytes -= part;
            (part < there && part > 0 && member.is_only_on(*device)).then_some(part)
        };
        let parts: Vec<Option<u64>> = chosen.iter().map(part_of).collect();
        chosen.iter().zip(parts).map(|(session, part)| Victim { session: *session, part }).collect()
    }

    /// Whether all that is on the device or waits for it has room there but for so many bytes. Of one that is out and does not wait
    /// only what is still there counts.
    fn rest_can_stay(&self, device: usize, but: u64) -> bool {
        let wants = |member: &Resident| match member.place {
            Place::Out if member.waits_since().is_none() => member.occupies(device),
            _ => member.held_on(device),
        };
        let wanted = self.members.values().map(wants).fold(0, u64::saturating_add);
        self.devices.get(device).is_some_and(|known| wanted.saturating_sub(but) <= known.memory)
    }

    /// When a session's turn is over for one that waits. If its tenant has had less by its weight than those that contend on the mean,
    /// that is later by a turn at most, by their weights, unless it is idle.
    pub(super) fn turn_ends(&self, member: &Resident, waiter: u64, now: u64) -> u64 {
        let Some(waiter) = self.members.get(&waiter) else { return member.turn_ends() };
        if member.is_idle(now) || self.entitled.tag(&member.tenant) >= self.mean_tag(now) {
            return member.turn_ends();
        }
        let (weight, others) = (self.claim(&member.tenant).weight, self.claim(&waiter.tenant).weight);
        member.turn_ends().saturating_add(member.turn(TURNS).saturating_mul(u64::from((weight / others.max(1)).max(1))))
    }

    /// Of tenants with a session that works or waits.
    fn mean_tag(&self, now: u64) -> u64 {
        let contends =
            |member: &&Resident| member.waits_since().is_some() || member.place == Place::In && !member.is_idle(now);
        let tenants: BTreeSet<&str> =
            self.members.values().filter(contends).map(|member| member.tenant.as_str()).collect();
        let sum = tenants.iter().map(|tenant| u128::from(self.entitled.tag(tenant))).sum::<u128>();
        u64::try_from(sum / tenants.len().max(1) as u128).unwrap_or(u64::MAX)
    }

    fn would_free(&self, sessions: &[u64], lacking: &BTreeMap<usize, u64>) -> bool {
        let freed = |device: usize| {
            let there = sessions.iter().filter_map(|session| self.members.get(session));
            there.map(|member| member.occupies(device)).fold(0, u64::saturating_add)
        };
        lacking.iter().all(|(device, bytes)| freed(*device) >= *bytes)
    }

    /// The order in which sessions leave: those without work, of tenants over their guarantee, idle for longest (by powers of
    /// two), of the lowest weight, the largest.
    fn rank(&self, member: &Resident, lacking: &BTreeMap<usize, u64>, now: u64) -> (bool, bool, u32, u32, u64) {
        let claim = self.claim(&member.tenant);
        let within = lacking.keys().all(|device| self.resident_of(&member.tenant, *device) <= claim.guarantee);
        let idle_ms = now.saturating_sub(member.active_at) / 1_000_000;
        let size = lacking.keys().map(|device| member.occupies(*device)).fold(0, u64::saturating_add);
        (member.busy, within, idle_ms.leading_zeros(), claim.weight, u64::MAX - size)
    }

    fn resident_of(&self, tenant: &str, device: usize) -> u64 {
        let own = self.members.values().filter(|member| member.tenant == tenant);
        own.map(|member| member.occupies(device)).fold(0, u64::saturating_add)
    }
}
