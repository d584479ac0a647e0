//! One session, as the arbiter of memory knows it.

use super::place::Place;
use std::collections::BTreeMap;

/// The least and the longest time, in nanoseconds, after which a session that stayed is asked again.
const FIRST_GAP: u64 = 20_000_000;
const LONGEST_GAP: u64 = 1_000_000_000;
/// An idle session keeps its memory for such a part of its exchange, as a power of two: the first time, and the least part.
const FIRST_HOLD: u32 = 3;
const SHORTEST_HOLD: u32 = 5;
/// And for so many nanoseconds at least, if its exchange took as long: nobody sees less.
const LEAST_HOLD: u64 = 1_000_000;

/// The part of a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    pub weight: u32,
    /// Bytes of each device that its sessions keep while others have more than theirs.
    pub guarantee: u64,
}

impl Default for Claim {
    fn default() -> Self {
        Claim { weight: 1, guarantee: 0 }
    }
}

/// An allocation that waits for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    pub request: u64,
    pub device: usize,
    pub bytes: u64,
    pub since: u64,
}

/// One that leaves for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Victim {
    pub session: u64,
    /// As in `Order::Evict`.
    pub part: Option<u64>,
}

#[derive(Debug)]
pub struct Resident {
    pub tenant: String,
    pub place: Place,
    /// Of the place.
    pub since: u64,
    /// By device: what it has, wherever that is.
    pub held: BTreeMap<usize, u64>,
    /// While it is out: what of that is still on the device.
    pub kept: BTreeMap<usize, u64>,
    /// While it is leaving: what of that has left since it was told to.
    pub gone: BTreeMap<usize, u64>,
    /// While it is leaving: bytes of its only device that must; `None`: all.
    pub part: Option<u64>,
    /// While it is out: of what is still there some can leave, too.
    pub can_go_further: bool,
    /// It has refused to, since something of it left the last time.
    pub keeps_rest: bool,
    /// While it is coming in: how much of what had left may be there; `None`: all of it.
    pub credit: Option<BTreeMap<usize, u64>>,
    /// When it was told of more the last time.
    pub heard_at: u64,
    /// Until then what others have copied for it is paid.
    pub paid_until: u64,
    pub ask: Option<Ask>,
    /// By device: bytes that others must give up before it is tried again, although there seemed to be room: the vendor's library had
    /// none.
    pub short: BTreeMap<usize, u64>,
    /// Since when it is wanted on its devices.
    pub wanted: Option<u64>,
    /// For whom it leaves.
    pub leaves_for: Option<u64>,
    /// Time that copies have taken which bring it in or make room for it, since its last turn began.
    pub exchange: u64,
    /// Until then nobody turns it out.
    pub turn_until: u64,
    /// A session that has had nothing to do for so long gives up the rest of its turn.
    pub patience: u64,
    /// Of the exchange that brought it in, as a power of two: a part for which it keeps its memory when it is idle.
    hold: u32,
    /// It was told to leave within its turn, as it was idle, for this session, which is not served yet.
    gave_way: Option<u64>,
    /// It was idle when it was told to leave the last time.
    pub left_idle: bool,
    /// Time of the exchange that brought it in.
    brought: u64,
    /// Time that exchanges for it have taken.
    pub exchanged: u64,
    pub active_at: u64,
    pub busy: bool,
    /// It stayed, and is not asked before.
    pub not_before: u64,
    pub stays: u32,
}

impl Resident {
    pub fn new(tenant: &str, now: u64) -> Resident {
        Resident {
            tenant: tenant.to_owned(),
            place: Place::In,
            since: now,
            held: BTreeMap::new(),
            kept: BTreeMap::new(),
            gone: BTreeMap::new(),
            part: None,
            can_go_further: false,
            keeps_rest: false,
            credit: None,
            heard_at: 0,
            paid_until: 0,
            ask: None,
            short: BTreeMap::new(),
            wanted: None,
            leaves_for: None,
            exchange: 0,
            turn_until: 0,
            patience: 0,
            hold: FIRST_HOLD,
            gave_way: None,
            left_idle: false,
            brought: 0,
            exchanged: 0,
            active_at: now,
            busy: false,
            not_before: 0,
            stays: 0,
        }
    }

    pub fn held_on(&self, device: usize) -> u64 {
        self.held.get(&device).copied().unwrap_or(0)
    }

    /// Bytes that are on the device, or may be.
    pub fn occupies(&self, device: usize) -> u64 {
        let of = |bytes: &BTreeMap<usize, u64>| bytes.get(&device).copied().unwrap_or(0);
        match (self.place, &self.credit) {
            (Place::Out, _) => of(&self.kept),
            (Place::GoingOut, _) => self.held_on(device).saturating_sub(of(&self.gone)),
            (Place::GoingFurther, _) => of(&self.kept).saturating_sub(of(&self.gone)),
            (Place::ComingIn, Some(credit)) => of(&self.kept).saturating_add(of(credit)).min(self.held_on(device)),
            (Place::In | Place::ComingIn, _) => self.held_on(device),
        }
    }

    /// What of its memory is still on devices, or may be.
    pub fn remains(&self) -> BTreeMap<usize, u64> {
        self.held.keys().map(|device| (*device, self.occupies(*device))).collect()
    }

    /// While it is leaving: what of that has not left yet, and will.
    pub fn leaves(&self) -> BTreeMap<usize, u64> {
        let gone = |device: usize| self.gone.get(&device).copied().unwrap_or(0);
        let of = |(device, there): (usize, u64)| {
            (device, there.min(self.part.map_or(u64::MAX, |part| part.saturating_sub(gone(device)))))
        };
        self.remains().into_iter().map(of).collect()
    }

    /// True if it has memory on this device alone.
    pub fn is_only_on(&self, device: usize) -> bool {
        self.held.iter().all(|(other, bytes)| *other == device || *bytes == 0)
    }

    /// What has left since it was told to; `rest`: bytes of what is still there that can leave, too. Of one that does not say,
    /// that is what it was not told to take, if it has given all that it was told to.
    pub fn has_left(&mut self, freed: &[(usize, u64)], rest: Option<u64>) {
        let mut kept = if self.place == Place::GoingFurther { self.kept.clone() } else { self.held.clone() };
        for (device, bytes) in freed {
            if let Some(there) = kept.get_mut(device) {
                *there = there.saturating_sub(*bytes);
            }
        }
        let all: u64 = freed.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
        let can_leave = rest.map_or_else(|| self.part.is_some_and(|part| all >= part), |rest| rest > 0);
        self.can_go_further = can_leave && kept.values().any(|bytes| *bytes > 0);
        (self.kept, self.not_before, self.gone, self.part) = (kept, 0, BTreeMap::new(), None);
        self.keeps_rest = false;
    }

    /// Since when it waits, if it does.
    pub fn waits_since(&self) -> Option<u64> {
        self.ask.map(|ask| ask.since).into_iter().chain(self.wanted).min()
    }

    /// What has to be free, by device, before it goes on.
    pub fn need(&self) -> BTreeMap<usize, u64> {
        let mut need = BTreeMap::new();
        if self.place == Place::Out || self.credit.is_some() {
            need.extend(self.held.keys().map(|device| (*device, self.held_on(*device) - self.occupies(*device))));
        }
        if let Some(ask) = self.ask {
            *need.entry(ask.device).or_default() += ask.bytes;
        }
        need
    }

    /// Others have left for it, and so much has come free.
    pub fn note_freed(&mut self, freed: &[(usize, u64)]) {
        for (device, bytes) in freed {
            self.short.entry(*device).and_modify(|short| *short = short.saturating_sub(*bytes));
        }
        self.short.retain(|_, short| *short > 0);
    }

    /// A copy has ended that brings it in or makes room for it.
    pub fn pay(&mut self, time: u64) {
        self.exchange = self.exchange.saturating_add(time);
        self.exchanged = self.exchanged.saturating_add(time);
    }

    /// What was exchanged for it is there: others wait for `turns` times as long as that took, or until it has had nothing to do
    /// for a part of that.
    pub fn begin_turn(&mut self, turns: u64, now: u64) {
        let exchange = std::mem::take(&mut self.exchange);
        let until = now.saturating_add(exchange.saturating_mul(turns));
        self.brought = if self.turn_until > now { self.brought.max(exchange) } else { exchange };
        self.patience = (self.brought >> self.hold).max(LEAST_HOLD.min(self.brought));
        self.turn_until = self.turn_until.max(until);
        self.active_at = now;
    }

    /// It is told to leave for another one.
    pub fn gives_way(&mut self, to: u64, now: u64) {
        self.left_idle = self.is_idle(now);
        self.gave_way = (self.turn_until > now).then_some(to);
    }

    /// The other one goes on, and this one had nothing to do until then: it did not leave too early, whatever it wants from now on.
    /// Programs that work strictly in turn are always in time. The next time it keeps its memory half as long.
    pub fn was_in_time(&mut self, to: u64) {
        if self.gave_way == Some(to) {
            (self.gave_way, self.hold) = (None, (self.hold + 1).min(SHORTEST_HOLD));
        }
    }

    /// It wants its memory back, or keeps it. If that is before the exchange that it made way for is over, it left too early and
    /// keeps it four times as long the next time: so of the exchanges that an idle session causes by leaving too early there are
    /// never more than of the others, but for three.
    pub fn wants_back(&mut self) {
        if self.gave_way.take().is_some() {
            self.hold = self.hold.saturating_sub(2);
        }
    }

    /// The other one is over.
    pub fn gave_way_for_nothing(&mut self, to: u64) {
        self.gave_way = self.gave_way.filter(|other| *other != to);
    }

    /// When others may have its memory; `u64::MAX`: not before it has ended.
    pub fn turn_ends(&self) -> u64 {
        let has_work = self.busy || self.ask.is_some();
        let idle = if has_work { u64::MAX } else { self.active_at.saturating_add(self.patience) };
        if self.turn_until == u64::MAX { u64::MAX } else { self.turn_until.min(idle) }
    }

    /// It waits for room within its turn.
    pub fn grows(&self, now: u64) -> bool {
        self.place == Place::In
            && self.ask.is_some()
            && self.short.is_empty()
            && self.turn_until > now
            && self.turn_until < u64::MAX
    }

    /// It has had nothing to do for as long as it keeps its memory then. One that waits for room has.
    pub fn is_idle(&self, now: u64) -> bool {
        !self.busy && self.ask.is_none() && self.active_at.saturating_add(self.patience) <= now
    }

    /// The time of its present turn.
    pub fn turn(&self, turns: u64) -> u64 {
        self.brought.saturating_mul(turns)
    }

    /// After what time it is looked at again whether its tenant has had as much as others.
    pub fn look_again(&self) -> u64 {
        (self.brought / 4).max(LEAST_HOLD)
    }

    /// It is out, and all that it has is on its devices as before.
    pub fn is_fruitless(&self) -> bool {
        self.held.values().any(|held| *held > 0) && self.kept == self.held
    }

    pub fn note_stay(&mut self, now: u64) {
        let gap = FIRST_GAP.saturating_mul(1 << self.stays.min(10)).min(LONGEST_GAP);
        self.stays = self.stays.saturating_add(1);
        self.not_before = now.saturating_add(gap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const EXCHANGE: u64 = 800 * MS;

    /// One that came, worked, and has had nothing to do since then; answers after what time it may be told to leave.
    fn idle_after_its_work(member: &mut Resident, now: u64) -> u64 {
        member.pay(EXCHANGE);
        member.begin_turn(1000, now);
        member.turn_ends() - now
    }

    #[test]
    fn session_that_is_idle_for_long_each_time_gives_way_sooner() {
        let mut member = Resident::new("a", 0);
        let mut now = 0;
        for part in [8, 16, 32, 32] {
            let hold = idle_after_its_work(&mut member, now);
            assert_eq!(hold, EXCHANGE / part);
            member.gives_way(2, now + hold);
            member.was_in_time(3);
            member.was_in_time(2);
            member.wants_back();
            now += EXCHANGE;
        }
        for part in [32, 8, 2, 1, 1] {
            let hold = idle_after_its_work(&mut member, now);
            assert_eq!(hold, EXCHANGE / part);
            member.gives_way(2, now + hold);
            now += hold + 1;
            member.wants_back();
            member.was_in_time(2);
        }
    }

    #[test]
    fn exchanges_of_idle_sessions_that_were_too_early_are_bounded() {
        for seed in 1..1000u64 {
            let (mut member, mut now, mut random) = (Resident::new("a", 0), 0, seed);
            let (mut early, mut others) = (0, 0);
            for _ in 0..200 {
                let hold = idle_after_its_work(&mut member, now);
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let gap = (random >> 33) % (seed * 4 * MS);
                now += gap;
                if gap >= hold {
                    member.gives_way(2, now);
                    if gap < EXCHANGE {
                        early += 1;
                    } else {
                        others += 1;
                        member.was_in_time(2);
                    }
                    member.wants_back();
                }
            }
            assert!(early <= 3 + others, "{seed}: {early} beside {others}");
        }
    }

    #[test]
    fn short_exchange_is_held_against_for_as_long_as_it_took() {
        let mut member = Resident::new("a", 0);
        for (exchange, hold) in [(MS / 2, MS / 2), (2 * MS, MS), (80 * MS, 10 * MS)] {
            member.turn_until = 0;
            member.pay(exchange);
            member.begin_turn(5, 7);
            assert_eq!(member.turn_ends() - 7, hold);
        }
    }
}
