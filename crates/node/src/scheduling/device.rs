//! One device of the node: its arbiter, and the slots of the sessions that use it.

use super::boost::{Booster, ServerThreads};
use super::settings::{DeviceKind, DeviceSettings, nanoseconds};
use aviary_gate::ablation::{Term, without};
use aviary_gate::{DeviceSlot, GrantPage, WAIT_CLASSES};
use aviary_schedule::{Arbiter, Limits, MemberId, Report, Share, Slots};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

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
    /// The waits of its calls for the device, as its API servers say.
    #[serde(default)]
    pub waits: Waits,
}

/// Waits of calls for a device.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Waits {
    /// Nanoseconds of all together.
    pub sum_ns: u64,
    /// How many there were up to each of [`WAIT_BOUNDS_NS`](aviary_gate::WAIT_BOUNDS_NS), and how many were longer.
    pub counts: [u64; WAIT_CLASSES],
}

impl Waits {
    fn of(slot: &DeviceSlot) -> Waits {
        Waits { sum_ns: slot.waited_ns.load(Relaxed), counts: slot.waits.each_ref().map(|count| count.load(Relaxed)) }
    }

    /// An API server may have written any number: sums stop at the greatest.
    fn add(&mut self, more: &Waits) {
        self.sum_ns = self.sum_ns.saturating_add(more.sum_ns);
        self.counts.iter_mut().zip(more.counts).for_each(|(count, more)| *count = count.saturating_add(more));
    }
}

/// A slot of a session. A session can have two for one device: one for a part of it beside that of the whole.
#[derive(Debug)]
pub struct Place {
    pub session: u64,
    pub tenant: String,
    pub page: Arc<GrantPage>,
    pub slot: usize,
    /// The threads that wait at the slot; `None`: unknown, so none is boosted.
    pub server: Option<ServerThreads>,
}

impl Place {
    fn slot(&self) -> &DeviceSlot {
        &self.page.slots()[self.slot]
    }
}

#[derive(Debug)]
pub struct Device {
    settings: DeviceSettings,
    /// Its kind where the settings do not say.
    usual_kind: DeviceKind,
    arbiter: Arbiter,
    /// By the arbiter's ids.
    places: Vec<Option<Place>>,
    /// The ids of each session.
    ids: HashMap<u64, Vec<MemberId>>,
    /// The waits of sessions that have left, by tenant. Grows with the tenants, as the arbiter's jobs.
    past_waits: HashMap<String, Waits>,
}

/// The slots as the arbiter sees them.
struct PageSlots<'a> {
    places: &'a [Option<Place>],
    /// `None`: threads that are woken are not boosted.
    booster: Option<&'a mut Booster>,
}

impl Slots for PageSlots<'_> {
    fn report(&self, member: MemberId) -> Report {
        let Some(Some(place)) = self.places.get(member) else { return Report::default() };
        let slot = place.slot();
        Report {
            waiting: slot.waiters.load(SeqCst) > 0,
            wanted: slot.wanted.load(SeqCst) != 0,
            busy_since: slot.busy_since.load(SeqCst),
            used: slot.used_ns.load(Relaxed),
            drains_at: slot.drains_at.load(Relaxed),
            completed: slot.calls.load(Relaxed),
            position: slot.position.load(Relaxed),
        }
    }

    fn set_limits(&mut self, member: MemberId, limits: Limits, opens: bool, now: u64) {
        let Some(Some(place)) = self.places.get(member) else { return };
        let slot = place.slot();
        slot.depth_ns.store(limits.depth, Relaxed);
        slot.allowance.store(limits.allowance, SeqCst);
        if opens && slot.waiters.load(SeqCst) > 0 {
            if let (Some(booster), Some(server)) = (&mut self.booster, &place.server) {
                booster.boost_waiter(server, slot, now);
            }
            slot.open();
        }
    }

    fn park(&mut self, member: MemberId) {
        if let Some(Some(place)) = self.places.get(member) {
            place.slot().parked.store(1, SeqCst);
        }
    }
}

impl Device {
    /// `None`: the device is not scheduled.
    pub fn new(settings: DeviceSettings, usual_kind: DeviceKind) -> Option<Device> {
        let discipline = settings.discipline(usual_kind)?;
        let arbiter = Arbiter::new(settings.arbitration(usual_kind), discipline);
        Some(Device {
            settings,
            usual_kind,
            arbiter,
            places: Vec::new(),
            ids: HashMap::new(),
            past_waits: HashMap::new(),
        })
    }

    /// `now`: from when on its use of the device counts.
    pub fn join(&mut self, now: u64, share: Share, place: Place) {
        self.tell(&place);
        let tenant = place.tenant.clone();
        let id = self.places.iter().position(Option::is_none).unwrap_or(self.places.len());
        if id == self.places.len() {
            self.places.push(None);
        }
        self.ids.entry(place.session).or_default().push(id);
        self.places[id] = Some(place);
        self.arbiter.join(&tenant, share, now, &mut PageSlots { places: &self.places, booster: None }, id);
    }

    fn tell(&self, place: &Place) {
        let linger = if without(Term::Linger) { 0 } else { nanoseconds(self.settings.linger) };
        let awake = if without(Term::Awake) { 0 } else { nanoseconds(self.settings.awake) };
        place.slot().idle_hold_ns.store(linger, Relaxed);
        place.slot().spin_window_ns.store(awake, Relaxed);
    }

    /// The doorbell of that session rang.
    pub fn woke(&mut self, session: u64) {
        self.ids.get(&session).into_iter().flatten().for_each(|id| self.arbiter.woke(*id));
    }

    /// Other settings from now on. The present turn goes on until its end.
    pub fn configure(&mut self, settings: DeviceSettings, now: u64) {
        if settings == self.settings {
            return;
        }
        let same = settings.scheduler == self.settings.scheduler
            && settings.slice == self.settings.slice
            && settings.kind == self.settings.kind
            && settings.policy == self.settings.policy;
        let discipline = settings.discipline(self.usual_kind).filter(|_| !same);
        self.arbiter.configure(settings.arbitration(self.usual_kind), discipline, now);
        self.settings = settings;
        self.places.iter().flatten().for_each(|place| self.tell(place));
    }

    /// The device is not scheduled any longer.
    pub fn end_scheduling(&mut self, now: u64) {
        self.arbiter.open_to_all(now, &mut PageSlots { places: &self.places, booster: None });
    }

    pub fn set_share(&mut self, tenant: &str, share: Share, now: u64) {
        self.arbiter.set_share(tenant, share, now);
    }

    pub fn leave(&mut self, session: u64, now: u64) {
        for id in self.ids.remove(&session).unwrap_or_default() {
            self.arbiter.leave(id, now, &mut PageSlots { places: &self.places, booster: None });
            if let Some(place) = self.places[id].take() {
                self.past_waits.entry(place.tenant.clone()).or_default().add(&Waits::of(place.slot()));
            }
        }
    }

    pub fn usage(&mut self, now: u64) -> Vec<Usage> {
        self.arbiter.refresh(now, &PageSlots { places: &self.places, booster: None });
        let mut waits = self.past_waits.clone();
        for place in self.places.iter().flatten() {
            waits.entry(place.tenant.clone()).or_default().add(&Waits::of(place.slot()));
        }
        let one = |usage: aviary_schedule::Usage| Usage {
            waits: waits.remove(&usage.job).unwrap_or_default(),
            tenant: usage.job,
            weight: usage.share.weight,
            priority: usage.share.priority,
            used_ns: usage.used_ns,
            sessions: usage.sessions,
            waiting: usage.waiting,
        };
        self.arbiter.usage().into_iter().map(one).collect()
    }

    /// Sessions that wait for the device or have work there, as their API servers say.
    pub fn working(&self) -> impl Iterator<Item = u64> {
        let works = |slot: &DeviceSlot| slot.waiters.load(SeqCst) > 0 || slot.wanted.load(SeqCst) != 0;
        self.places.iter().flatten().filter(move |place| works(place.slot())).map(|place| place.session)
    }

    /// Brings everything up to date and decides. The result is when to look again.
    pub fn step(&mut self, now: u64, booster: &mut Booster) -> Option<u64> {
        self.arbiter.step(now, &mut PageSlots { places: &self.places, booster: Some(booster) })
    }

    /// The session that has kept the device from others beyond its limit, and for how many nanoseconds they wait.
    pub fn overdue(&self, now: u64) -> Option<(u64, u64)> {
        let (member, waiting) = self.arbiter.overdue(now)?;
        Some((self.places.get(member)?.as_ref()?.session, waiting))
    }

    /// The same for the part of the node that ends it; told again only after as long again.
    pub fn take_overdue(&mut self, now: u64) -> Option<(u64, u64)> {
        let overdue = self.overdue(now)?;
        self.arbiter.take_overdue(now);
        Some(overdue)
    }
}
