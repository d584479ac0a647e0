//! One device: who holds it, who wants it.

#[path = "beside.rs"]
mod beside;

use super::discipline::{DeviceKind, DeviceSettings, Discipline, Pick, Share, Spent, Tenant};
use super::hurry::{Hurry, Runner};
use super::meter::{self, Meter};
use aviary_gate::{DeviceSeat, GrantPage, NOT_YET, grant};
use std::sync::{Arc, atomic::Ordering::Relaxed, atomic::Ordering::SeqCst};

/// A session on this device.
#[derive(Debug)]
struct Entry {
    session: u64,
    tenant: Tenant,
    page: Arc<GrantPage>,
    seat: usize,
    /// Whose threads wait; `None`: unknown.
    runner: Option<Runner>,
    /// What it is believed to have used; all of that is charged.
    meter: Meter,
    /// When it last got a slice, to take turns among the sessions of a tenant.
    last: u64,
    /// When its present slice began.
    since: u64,
    /// What `meter` said then.
    used_before: u64,
    /// Since when it waits.
    waits_since: Option<u64>,
    /// The budget of its present slice, unless that ends early.
    budget: u64,
    /// When it was last seen to get on, or when it got its present slice.
    progress_at: u64,
    /// It was admitted beside another session of its tenant, whose slice is charged already.
    is_paid: bool,
    /// It ended a slice a moment ago and probably comes back: until then its tenant counts as awake.
    expected: u64,
}

/// A tenant as this device knows it.
#[derive(Debug)]
struct Known {
    name: String,
    share: Share,
    awake: bool,
    used: u64,
    /// Nanoseconds of `used` that were charged before they were used.
    ahead: u64,
}

/// What a tenant got of a device.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Usage {
    pub tenant: String,
    pub weight: u32,
    pub priority: i32,
    /// Nanoseconds that its work took on the device.
    pub used_ns: u64,
    /// Sessions that have used the device.
    pub sessions: usize,
    /// Sessions that wait for it now.
    pub waiting: usize,
}

#[derive(Debug)]
pub struct Device {
    settings: DeviceSettings,
    /// Its kind where the settings do not say.
    usual_kind: DeviceKind,
    discipline: Box<dyn Discipline>,
    entries: Vec<Entry>,
    tenants: Vec<Known>,
    /// A session can have two seats here: one for a part of the device beside that of the whole.
    holder: Option<Place>,
    /// Who held it before, while the device is still at its last work; the holder's comes behind that.
    leaving: Option<Place>,
    /// Sessions that were admitted beside the holder: others of its tenant, because its work may wait for theirs, and
    /// on a device that preempts those of other tenants.
    beside: Vec<Place>,
    /// The holder's slice was found to last so long that others of its tenant are admitted beside it at once.
    is_stuck: bool,
    /// Since when sessions of other tenants wait for what the holder has.
    contested: Option<u64>,
    /// Since when nobody waits for it, and what all had used of it by then.
    calm: Option<(u64, u64)>,
    /// When it was told last that the holder is overdue.
    told: u64,
    turn: u64,
    /// When it was brought up to date last.
    looked: u64,
}

/// A session, and which of its seats.
type Place = (u64, usize);

/// How long before the end of a slice the next one is granted, in nanoseconds. Two threads must wake up for that, which takes
/// up to 250 us in virtual machines with few processors.
const LEAD: u64 = 300_000;
/// How soon the node looks again at who is beyond its limit.
const SOON: u64 = 1_000_000;

impl Entry {
    fn place(&self) -> Place {
        (self.session, self.seat)
    }

    fn seat(&self) -> &DeviceSeat {
        &self.page.seats()[self.seat]
    }

    fn waits(&self) -> bool {
        self.seat().waiting.load(SeqCst) > 0
    }

    fn wants(&self) -> bool {
        let seat = self.seat();
        self.waits()
            || match seat.grant.load(SeqCst) {
                grant::ENDED => true,
                grant::LAST => seat.goes_on.load(Relaxed) != 0,
                _ => false,
            }
    }

    /// Who sleeps there gets a processor at once.
    fn hurry(&self, hurry: &mut Hurry, now: u64) {
        if let Some(runner) = &self.runner {
            hurry.before_waking(runner, self.seat(), now);
        }
    }

    /// What it used and was not charged for, as of `now`.
    fn uncharged(&self, now: u64) -> u64 {
        self.meter.unread(self.seat(), now).0
    }
}

impl Device {
    /// `None`: the device is not scheduled.
    pub fn new(settings: DeviceSettings, usual_kind: DeviceKind) -> Option<Device> {
        let discipline = settings.discipline()?;
        let (entries, tenants) = (Vec::new(), Vec::new());
        Some(Device {
            settings,
            usual_kind,
            discipline,
            entries,
            tenants,
            holder: None,
            leaving: None,
            beside: Vec::new(),
            is_stuck: false,
            contested: None,
            calm: None,
            told: 0,
            turn: 0,
            looked: 0,
        })
    }

    /// `now`: from when on its use of the device counts.
    pub fn join(
        &mut self,
        now: u64,
        session: u64,
        tenant: &str,
        share: Share,
        (page, seat): (Arc<GrantPage>, usize),
        runner: Option<Runner>,
    ) {
        let tenant = self.set_share(tenant, share);
        // What was used before it joined, while nobody scheduled the device, is not charged.
        let meter = Meter::new(&page.seats()[seat], now);
        let entry = Entry {
            session,
            tenant,
            page,
            seat,
            runner,
            meter,
            last: self.turn,
            since: 0,
            used_before: 0,
            waits_since: None,
            budget: 0,
            progress_at: now,
            is_paid: false,
            expected: 0,
        };
        self.settings.tell(entry.seat(), &*self.discipline);
        self.entries.push(entry);
    }

    /// Other settings from now on. Who holds the device keeps it until the end of its slice.
    pub fn configure(&mut self, settings: DeviceSettings, now: u64) {
        if settings == self.settings {
            return;
        }
        let same = settings.scheduler == self.settings.scheduler
            && settings.slice == self.settings.slice
            && settings.policy == self.settings.policy;
        if let (false, Some(discipline)) = (same, settings.discipline()) {
            self.discipline = discipline;
            for (tenant, known) in self.tenants.iter().enumerate() {
                self.discipline.set_share(tenant, known.share);
                if known.awake {
                    self.discipline.wakes(tenant, now);
                }
            }
        }
        self.settings = settings;
        self.entries.iter().for_each(|entry| self.settings.tell(entry.seat(), &*self.discipline));
    }

    /// Nobody schedules the device any longer.
    pub fn set_free(&mut self) {
        for entry in &self.entries {
            entry.seat().grant.store(grant::FREE, SeqCst);
            entry.seat().wake();
        }
    }

    /// Tenants stay known: what they used counts when they come back.
    pub fn set_share(&mut self, name: &str, share: Share) -> Tenant {
        let tenant = self.tenants.iter().position(|t| t.name == name).unwrap_or_else(|| {
            self.tenants.push(Known { name: name.to_owned(), share, awake: false, used: 0, ahead: 0 });
            self.tenants.len() - 1
        });
        self.tenants[tenant].share = share;
        self.discipline.set_share(tenant, share);
        tenant
    }

    pub fn leave(&mut self, session: u64, now: u64) {
        if self.leaving.is_some_and(|(leaving, _)| leaving == session) {
            self.set_free_at(now);
        }
        for entry in self.entries.iter_mut().filter(|e| e.session == session) {
            let place = Some(entry.place());
            let holds = self.holder == place || self.leaving == place || self.beside.contains(&entry.place());
            let held = if holds { now.saturating_sub(entry.since) } else { 0 };
            charge(entry, &mut self.tenants, &mut *self.discipline, held, now);
            // Who came behind another one has kept nobody waiting yet.
            let kept_others = if self.leaving.is_some() { self.leaving == place } else { self.holder == place };
            if let (true, Some(contested)) = (kept_others, self.contested) {
                // An API server that was killed has not told what its last work took. Others waited for that; otherwise
                // who dies in every slice would get the device for nothing.
                let known = &mut self.tenants[entry.tenant];
                let told = entry.meter.used().saturating_sub(entry.used_before);
                let charged = told.saturating_add(std::mem::take(&mut known.ahead));
                let untold = now.saturating_sub(contested.max(entry.since)).saturating_sub(charged);
                known.used = known.used.saturating_add(untold);
                self.discipline.charge(entry.tenant, Spent { used: untold, held: 0, calls: 0 }, now);
            }
        }
        self.entries.retain(|e| e.session != session);
        self.beside.retain(|(beside, _)| *beside != session);
        if self.leaving.is_some_and(|(leaving, _)| leaving == session) {
            (self.leaving, self.contested) = (None, None);
        }
        if self.holder.is_some_and(|(holder, _)| holder == session) {
            self.release();
        }
    }

    pub fn usage(&self) -> Vec<Usage> {
        let one = |(at, tenant): (usize, &Known)| {
            let of = || self.entries.iter().filter(move |e| e.tenant == at);
            let uncharged = of().fold(0u64, |sum, entry| sum.saturating_add(entry.uncharged(self.looked)));
            Usage {
                tenant: tenant.name.clone(),
                weight: tenant.share.weight,
                priority: tenant.share.priority,
                used_ns: tenant.used.saturating_add(uncharged).saturating_sub(tenant.ahead),
                sessions: of().count(),
                waiting: of().filter(|e| e.waits()).count(),
            }
        };
        self.tenants.iter().enumerate().map(one).collect()
    }

    /// Brings everything up to date and decides. The result is when to look again.
    pub fn step(&mut self, now: u64, hurry: &mut Hurry) -> Option<u64> {
        self.looked = now;
        self.close_others();
        self.hear(now);
        self.review_leaving(now);
        self.review_beside(now);
        let mut look = self.review_holder(now, hurry);
        if self.holder.is_none() && self.leaving.is_none() {
            look = self.grant_next(now, hurry);
        }
        let admits = self.admit_beside(now, hurry);
        if self.calm.is_none() && !self.entries.iter().any(|e| e.waits() && !self.has(e)) {
            self.calm = Some((now, self.used()));
        }
        // Whoever is beyond it may pretend for a moment to have given the device back.
        let limit = self.limit().map(|at| at.max(now.saturating_add(SOON)));
        [look, admits, limit].into_iter().flatten().min()
    }

    fn kind(&self) -> DeviceKind {
        self.settings.kind.unwrap_or(self.usual_kind)
    }

    /// The session that has kept the device from others beyond its limit, and for how many nanoseconds they wait.
    pub fn overdue(&self, now: u64) -> Option<(u64, u64)> {
        // The others' work is behind that of who is leaving.
        let place = self.leaving.or(self.holder)?;
        let waiting = now.saturating_sub(self.kept_since()?);
        let entry = self.entries.iter().find(|e| e.place() == place)?;
        let has_it = !matches!(entry.seat().grant.load(SeqCst), grant::CLOSED | grant::ENDED);
        (has_it && self.limit()? <= now).then_some((place.0, waiting))
    }

    /// The same for who ends it; told again only after as long again.
    pub fn take_overdue(&mut self, now: u64) -> Option<(u64, u64)> {
        let overdue = self.overdue(now)?;
        self.told = now;
        Some(overdue)
    }

    /// When the holder will have kept the device from others for too long.
    fn limit(&self) -> Option<u64> {
        let beyond = Some(self.settings.hold_limit).filter(|limit| !limit.is_zero())?;
        let allowed = u64::try_from((self.settings.slice + beyond).as_nanos()).unwrap_or(u64::MAX);
        self.kept_since().map(|since| since.max(self.told).saturating_add(allowed))
    }

    /// An API server that writes a grant which the node did not give has none: otherwise it could neither be given the
    /// device nor passed over.
    fn close_others(&self) {
        for entry in self.entries.iter().filter(|entry| !self.has(entry)) {
            let seat = entry.seat();
            if !matches!(seat.grant.load(SeqCst), grant::CLOSED | grant::ENDED) {
                seat.grant.store(grant::CLOSED, SeqCst);
            }
        }
    }

    /// Charges what was used and notices who woke up or went to rest.
    fn hear(&mut self, now: u64) {
        for entry in &mut self.entries {
            // Who holds a slice is charged at its end as well.
            charge(entry, &mut self.tenants, &mut *self.discipline, 0, now);
            let place = entry.place();
            let has = self.holder == Some(place) || self.leaving == Some(place) || self.beside.contains(&place);
            entry.waits_since = (!has && entry.waits()).then(|| entry.waits_since.unwrap_or(now));
        }
        let awake = |tenant: Tenant| {
            let mut of = self.entries.iter().filter(|e| e.tenant == tenant);
            of.any(|e| e.wants() || e.expected > now || self.has(e))
        };
        let awake: Vec<bool> = (0..self.tenants.len()).map(awake).collect();
        // Nobody looks just because somebody does not come back: that is noticed now, before it is compared with who wakes up.
        for (tenant, known) in self.tenants.iter_mut().enumerate().filter(|(tenant, _)| !awake[*tenant]) {
            if std::mem::replace(&mut known.awake, false) {
                self.discipline.rests(tenant);
            }
        }
        for (tenant, known) in self.tenants.iter_mut().enumerate().filter(|(tenant, _)| awake[*tenant]) {
            if !std::mem::replace(&mut known.awake, true) {
                self.discipline.wakes(tenant, now);
            }
        }
    }

    /// The holder has given the device back or is gone. Others may still wait for who was there before it.
    fn release(&mut self) {
        self.holder = None;
        if self.leaving.is_none() {
            self.contested = None;
        }
    }

    /// Nanoseconds of the device that were charged so far.
    fn used(&self) -> u64 {
        self.tenants.iter().fold(0, |sum, tenant| sum.saturating_add(tenant.used))
    }

    fn has(&self, entry: &Entry) -> bool {
        let place = Some(entry.place());
        self.holder == place || self.leaving == place || self.beside.contains(&entry.place())
    }

    /// Whether the device has done the last work of who had it before.
    fn review_leaving(&mut self, now: u64) {
        let Some(at) = self.entries.iter().position(|e| Some(e.place()) == self.leaving) else { return };
        let grant = self.entries[at].seat().grant.load(SeqCst);
        if grant == grant::LAST {
            return;
        }
        let next = self.entries.iter().find(|e| Some(e.place()) == self.holder);
        let freed_at = meter::freed_at(self.entries[at].seat(), next.map_or(0, |next| next.since), now);
        self.set_free_at(freed_at);
        (self.leaving, self.contested) = (None, None);
        let expected = now.saturating_add(self.linger());
        let entry = &mut self.entries[at];
        if entry.seat().change(grant::ENDED, grant::CLOSED) {
            entry.expected = expected;
        }
        let held = now.saturating_sub(entry.since);
        charge(entry, &mut self.tenants, &mut *self.discipline, held, now);
    }

    /// What the holder is charged for begins at `time`: then the device had done what came before.
    fn set_free_at(&self, time: u64) {
        let holder = self.entries.iter().find(|e| Some(e.place()) == self.holder);
        if let Some(seat) = holder.map(Entry::seat)
            && seat.free_at.load(SeqCst) == NOT_YET
        {
            seat.free_at.store(time.max(1), SeqCst);
        }
    }

    fn linger(&self) -> u64 {
        u64::try_from(self.settings.linger.as_nanos()).unwrap_or(0)
    }

    /// Whether the holder keeps the device. The result is when to look again, if that depends on the holder.
    fn review_holder(&mut self, now: u64, hurry: &mut Hurry) -> Option<u64> {
        let at = self.entries.iter().position(|e| Some(e.place()) == self.holder)?;
        let holder = &self.entries[at];
        let beside = self.has_others_beside(holder.tenant);
        let waits = |e: &Entry| e.waits() && !self.has(e);
        let others = beside || self.entries.iter().enumerate().any(|(i, e)| i != at && waits(e));
        if self.leaving.is_none() {
            let contested = self.entries.iter().any(|e| e.tenant != holder.tenant && waits(e));
            self.contested = contested.then(|| self.contested.unwrap_or(now));
        }
        let seat = holder.seat();
        let over = match seat.grant.load(SeqCst) {
            grant::SLICE if !others => {
                // It may have been cut for who has gone.
                seat.budget.store(holder.budget, Relaxed);
                seat.change(grant::SLICE, grant::ALONE);
                false
            }
            grant::SLICE => {
                self.preempt(at, now);
                false
            }
            // One at a time comes behind another, and none where others are at work beside it.
            grant::LAST if self.leaving.is_some() || beside => false,
            grant::LAST => return self.hand_over(at, now, hurry),
            grant::ALONE if others => {
                seat.change(grant::ALONE, grant::SLICE);
                self.preempt(at, now);
                false
            }
            // Nothing is under way: nobody has to be waited for.
            grant::IDLE => others && seat.change(grant::IDLE, grant::CLOSED),
            grant::ALONE => false,
            // `CLOSED` or `ENDED`.
            _ => true,
        };
        if over {
            let held = now.saturating_sub(self.entries[at].since);
            charge(&mut self.entries[at], &mut self.tenants, &mut *self.discipline, held, now);
            self.release();
        }
        None
    }

    /// The device is at the last work of the holder's slice: shortly before that ends, whoever is next may queue
    /// its work behind it. The result is when to look again.
    fn hand_over(&mut self, at: usize, now: u64, hurry: &mut Hurry) -> Option<u64> {
        let seat = self.entries[at].seat();
        let due = meter::ends_at(seat, now).saturating_sub(LEAD);
        if due > now {
            return Some(due);
        }
        // Whose turn it is depends on what this work costs: it is charged as expected, and set right at its end.
        let entry = &mut self.entries[at];
        charge(entry, &mut self.tenants, &mut *self.discipline, 0, now);
        let known = &mut self.tenants[entry.tenant];
        let remaining = meter::remaining(entry.seat());
        if remaining > known.ahead {
            let used = remaining - known.ahead;
            known.ahead = remaining;
            known.used = known.used.saturating_add(used);
            self.discipline.charge(entry.tenant, Spent { used, held: 0, calls: 0 }, now);
        }
        let before = self.holder;
        let look = self.grant_next(now, hurry);
        if self.holder != before {
            self.leaving = before;
            // What the next one is charged for begins when this one says that it is done.
            self.entries[at].hurry(hurry, now);
        }
        look
    }

    /// Somebody who waits may take the device before the slice is over.
    fn preempt(&mut self, holder: usize, now: u64) {
        let of = self.entries[holder].tenant;
        // Each is compared once: who came before the slice, or was passed over, waits for its end.
        let waiting: Vec<Tenant> =
            self.entries.iter().filter(|e| e.waits_since == Some(now)).map(|e| e.tenant).collect();
        if waiting.into_iter().any(|tenant| self.discipline.preempts(tenant, of, now)) {
            self.entries[holder].seat().budget.store(0, Relaxed);
        }
    }

    /// Grants the device to who is next. The result is when to look again. An API server whose grant changes while it is
    /// given the device is passed over: at most as many times as there are sessions.
    fn grant_next(&mut self, now: u64, hurry: &mut Hurry) -> Option<u64> {
        let may = |entry: &Entry| entry.wants() && !self.beside.contains(&entry.place());
        let mut candidates: Vec<usize> = (0..self.entries.len()).filter(|at| may(&self.entries[*at])).collect();
        while !candidates.is_empty() {
            let mut wanting: Vec<Tenant> = candidates.iter().map(|at| self.entries[*at].tenant).collect();
            wanting.sort_unstable();
            wanting.dedup();
            let (tenant, budget) = match self.discipline.pick(&wanting, now) {
                Pick::Grant(tenant, budget) => (tenant, budget),
                Pick::Nobody { until } => return Some(until.max(now.saturating_add(1))),
            };
            let of_tenant = candidates.iter().copied().filter(|at| self.entries[*at].tenant == tenant);
            let chosen = of_tenant.min_by_key(|at| self.entries[*at].last)?;
            if self.give(chosen, budget, now, hurry) {
                return None;
            }
            candidates.retain(|at| *at != chosen);
        }
        None
    }

    /// False: the API server has changed its grant meanwhile.
    fn give(&mut self, chosen: usize, budget: u64, now: u64, hurry: &mut Hurry) -> bool {
        self.turn += 1;
        // Whoever had it to itself until others came has been charged by now.
        if let Some((since, used)) = self.calm.take() {
            self.discipline.stood_still(now.saturating_sub(since).saturating_sub(self.used().saturating_sub(used)));
        }
        let expected = now.saturating_add(self.linger());
        // Whether its work comes behind that of the present holder.
        let behind = self.holder.is_some_and(|holder| holder != self.entries[chosen].place());
        let others = self.entries.iter().enumerate().any(|(i, e)| i != chosen && e.wants());
        for (i, entry) in self.entries.iter_mut().enumerate() {
            // Somebody else is next: it waits like everybody, and is not forgotten if that takes it a moment.
            if i != chosen && entry.seat().change(grant::ENDED, grant::CLOSED) {
                entry.expected = expected;
            }
        }
        let entry = &mut self.entries[chosen];
        (entry.last, entry.since, entry.expected) = (self.turn, now, 0);
        (entry.used_before, entry.budget, entry.progress_at) = (entry.meter.used(), budget, now);
        entry.is_paid = false;
        entry.seat().budget.store(budget, Relaxed);
        // Where the device is at the work of both, nobody waits for the other's.
        let waits_behind = behind && self.settings.kind.unwrap_or(self.usual_kind) == DeviceKind::Exclusive;
        entry.seat().free_at.store(if waits_behind { NOT_YET } else { 0 }, SeqCst);
        let to = if others { grant::SLICE } else { grant::ALONE };
        let seat = entry.seat();
        entry.hurry(hurry, now);
        let given = [grant::CLOSED, grant::ENDED, grant::LAST].iter().any(|from| seat.change(*from, to));
        if given {
            self.holder = Some(entry.place());
            self.is_stuck = false;
            if !behind {
                self.contested = None;
            }
        }
        given
    }
}

/// Charges what the session used since the last look, and for how long it held the device.
fn charge(entry: &mut Entry, tenants: &mut [Known], discipline: &mut dyn Discipline, held: u64, now: u64) {
    if entry.uncharged(now) > 0 || held > 0 {
        let (new, new_calls) = entry.meter.take(&entry.page.seats()[entry.seat], now);
        if new > 0 || new_calls > 0 {
            entry.progress_at = now;
        }
        if entry.is_paid {
            return;
        }
        let known = &mut tenants[entry.tenant];
        let paid = new.min(known.ahead);
        known.ahead -= paid;
        let new = new - paid;
        known.used = known.used.saturating_add(new);
        discipline.charge(entry.tenant, Spent { used: new, held, calls: new_calls }, now);
    }
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
