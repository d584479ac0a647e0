//! Whose memory is on a device that is smaller than all of it together.
//!
//! The arbiter knows how much each session has on each device, and decides who leaves and who comes: it never does so itself.
//! Time is an argument. What it promises (tests.rs holds it against a model): the memory that is on a device, or may be,
//! is never more than there is; who waits longest comes first, so that nobody starves; and what a session was brought in for stays
//! for [`TURNS`] times as long as the exchange took, unless it has nothing to do for a part of that (member.rs). A session that allocates in its turn has what is free. Other free room is kept for one that
//! waits as long as the rest may come free: a session that refused to leave a moment ago keeps it from that one alone.

mod credit;
mod entitled;
mod interface;
mod member;
mod place;
mod room;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
pub(crate) mod simulated;
#[cfg(test)]
mod tests;
mod victims;

pub use interface::{DeviceMemory, Impossible, Order, Patience};
pub use member::Claim;
pub use place::{Place, Step};

use entitled::Entitled;
use member::{Ask, Resident, Victim};
use room::Room;
use std::collections::BTreeMap;

/// A turn is so many times as long as the exchange that it causes.
pub const TURNS: u64 = 5;
/// An allocation waits so many times as long if others only have to end their turns.
const LONG_ROOM: u64 = 12;
/// Of the slowest copy, with the making of its pages.
const BYTES_PER_NS: u64 = 1;

#[derive(Debug)]
pub struct Residency {
    patience: Patience,
    devices: Vec<DeviceMemory>,
    claims: BTreeMap<String, Claim>,
    entitled: Entitled,
    members: BTreeMap<u64, Resident>,
}

impl Residency {
    pub fn new(patience: Patience) -> Residency {
        let (devices, claims, entitled) = Default::default();
        Residency { patience, devices, claims, entitled, members: BTreeMap::new() }
    }

    /// The number of one more device.
    pub fn add_device(&mut self, device: DeviceMemory) -> usize {
        self.devices.push(device);
        self.devices.len() - 1
    }

    /// A device has another size from now on. Who is there stays until somebody else needs the room.
    pub fn resize(&mut self, device: usize, size: DeviceMemory) {
        self.devices[device] = size;
    }

    pub fn set_claim(&mut self, tenant: &str, claim: Claim) {
        self.claims.insert(tenant.to_owned(), claim);
    }

    fn claim(&self, tenant: &str) -> Claim {
        self.claims.get(tenant).copied().unwrap_or_default()
    }

    /// All the time of the devices that a tenant has had: where nobody knows, turns are as long for all.
    pub fn note_used(&mut self, tenant: &str, used: u64) {
        let weight = self.claim(tenant).weight;
        self.entitled.note(tenant, used, weight);
    }

    /// A session that was idle is wanted: its tenant is owed nothing for that time.
    fn begins_to_wait(&mut self, session: u64) {
        let Some(member) = self.members.get(&session).filter(|member| member.left_idle) else { return };
        let others = self.members.values().filter(|other| other.tenant != member.tenant && other.place == Place::In);
        if let Some(least) = others.map(|other| self.entitled.tag(&other.tenant)).min() {
            self.entitled.begins(&member.tenant, least);
        }
    }

    pub fn enter(&mut self, session: u64, tenant: &str, now: u64) {
        self.members.insert(session, Resident::new(tenant, now));
    }

    /// Nothing of the session is anywhere any more.
    pub fn leave(&mut self, session: u64) {
        let Some(gone) = self.members.remove(&session) else { return };
        self.members.values_mut().for_each(|member| member.gave_way_for_nothing(session));
        if !self.members.values().any(|member| member.tenant == gone.tenant) {
            self.entitled.forget(&gone.tenant);
        }
    }

    /// The session is over, and what it has on devices stays there until it leaves.
    pub fn retire(&mut self, session: u64) {
        if let Some(member) = self.members.get_mut(&session) {
            member.held = member.remains();
            (member.gone, member.credit) = (BTreeMap::new(), None);
            (member.part, member.can_go_further, member.keeps_rest) = (None, false, false);
            (member.ask, member.wanted, member.leaves_for) = (None, None, None);
            member.short.clear();
            (member.place, member.turn_until) = (Place::In, u64::MAX);
        }
    }

    pub fn place(&self, session: u64) -> Option<Place> {
        self.members.get(&session).map(|member| member.place)
    }

    pub fn knows(&self, session: u64) -> bool {
        self.members.contains_key(&session)
    }

    /// True if the session has memory that the arbiter counts.
    pub fn holds_any(&self, session: u64) -> bool {
        self.members.get(&session).is_some_and(|member| member.held.values().any(|bytes| *bytes > 0))
    }

    /// By device: the bytes of a session that are on it, or may be.
    pub fn resident(&self, session: u64) -> Vec<(usize, u64)> {
        self.members.get(&session).map_or_else(Vec::new, |member| member.remains().into_iter().collect())
    }

    /// By device: the bytes of a session, wherever they are.
    pub fn held(&self, session: u64) -> Vec<(usize, u64)> {
        let of = |member: &Resident| member.held.iter().map(|(device, bytes)| (*device, *bytes)).collect();
        self.members.get(&session).map_or_else(Vec::new, of)
    }

    /// Sessions that are on devices which have not room for all that sessions have there, each with all its bytes.
    pub fn contended(&self) -> Vec<(u64, u64)> {
        let is_short = |(number, device): (usize, &DeviceMemory)| {
            let held = self.members.values().map(|member| member.held_on(number)).fold(0, u64::saturating_add);
            held > device.memory
        };
        let short: Vec<bool> = self.devices.iter().enumerate().map(is_short).collect();
        let contends = |member: &Resident| {
            let there = |(device, bytes): (&usize, &u64)| *bytes > 0 && short[*device];
            member.place == Place::In && member.turn_until < u64::MAX && member.held.iter().any(there)
        };
        let contending = self.members.iter().filter(|(_, member)| contends(member));
        contending.map(|(session, member)| (*session, member.held.values().sum())).collect()
    }

    /// Bytes on a device, of all sessions.
    pub fn occupied(&self, device: usize) -> u64 {
        self.members.values().map(|member| member.occupies(device)).fold(0, u64::saturating_add)
    }

    /// Time that exchanges for a session have taken: what it pays for being brought in.
    pub fn exchanged(&self, session: u64) -> u64 {
        self.members.get(&session).map_or(0, |member| member.exchanged)
    }

    /// Sessions of which one waits: for room, or for being brought in.
    pub fn has_waiters(&self) -> bool {
        self.members.values().any(|member| member.waits_since().is_some())
    }

    // ---- Events --------------------------------------------------------------------------------

    /// The session needs room for an allocation: answered by [`Order::Grant`] or [`Order::Refuse`].
    ///
    /// # Errors
    /// It waits for another one already.
    pub fn ask(
        &mut self,
        session: u64,
        request: u64,
        (device, bytes): (usize, u64),
        now: u64,
    ) -> Result<(), Impossible> {
        let member = self.members.get_mut(&session).filter(|member| member.ask.is_none()).ok_or(Impossible)?;
        member.ask = Some(Ask { request, device, bytes, since: now });
        member.active_at = now;
        Ok(())
    }

    /// An allocation found no memory although it was granted: so much that others have must leave. Answered as [`Residency::ask`].
    ///
    /// # Errors
    /// It waits for another answer already.
    pub fn ask_beyond(
        &mut self,
        session: u64,
        request: u64,
        (device, bytes): (usize, u64),
        now: u64,
    ) -> Result<(), Impossible> {
        self.ask(session, request, (device, 0), now)?;
        if let Some(member) = self.members.get_mut(&session) {
            // What others would leave for is at most what it has itself.
            member.short = BTreeMap::from([(device, bytes.clamp(1, member.held_on(device).max(1)))]);
        }
        Ok(())
    }

    /// The session has given memory back. What it had before the device was shared is none of what was granted.
    ///
    /// # Errors
    /// There is no such session.
    pub fn give_back(&mut self, session: u64, device: usize, bytes: u64) -> Result<(), Impossible> {
        let member = self.members.get_mut(&session).ok_or(Impossible)?;
        let Some(held) = member.held.get_mut(&device) else { return Ok(()) };
        *held = held.saturating_sub(bytes);
        if let Some(kept) = member.kept.get_mut(&device) {
            *kept = (*kept).min(*held);
        }
        Ok(())
    }

    /// Its program has called, or an operator wants it in.
    pub fn want(&mut self, session: u64, now: u64) {
        self.begins_to_wait(session);
        let wanted = |member: &&mut Resident| member.place != Place::In && member.wanted.is_none();
        if let Some(member) = self.members.get_mut(&session).filter(wanted) {
            member.wanted = Some(now);
            member.wants_back();
        }
    }

    /// What is known of a session's work.
    pub fn note_activity(&mut self, session: u64, active: bool, busy: bool, now: u64) {
        if let Some(member) = self.members.get_mut(&session) {
            member.busy = busy;
            if active || busy {
                member.active_at = now;
            }
        }
    }

    /// An operator turns a session out.
    ///
    /// # Errors
    /// Its memory is elsewhere.
    pub fn evict(&mut self, session: u64, now: u64) -> Result<(), Impossible> {
        self.begin_leaving(session, None, now)
    }

    fn begin_leaving(&mut self, session: u64, part: Option<u64>, now: u64) -> Result<(), Impossible> {
        let member = self.members.get_mut(&session).ok_or(Impossible)?;
        if member.place == Place::Out && !member.can_go_further {
            return Err(Impossible);
        }
        self.step(session, Step::Evict, now)?;
        self.members.entry(session).and_modify(|member| member.part = part);
        Ok(())
    }

    /// The session's memory has left; `freed`: by device, of which what was granted counts; `rest`: bytes of what is
    /// still there that can leave, too, or `None` if nobody says.
    ///
    /// # Errors
    /// It was not told to.
    pub fn left(
        &mut self,
        session: u64,
        freed: &[(usize, u64)],
        rest: Option<u64>,
        now: u64,
    ) -> Result<(), Impossible> {
        let member = self.members.get_mut(&session).filter(|member| member.place.is_leaving()).ok_or(Impossible)?;
        let took = now.saturating_sub(member.since);
        member.has_left(freed, rest);
        self.step(session, Step::Left, now)?;
        let Some(member) = self.members.get_mut(&session) else { return Ok(()) };
        if let Some(comes) = member.leaves_for.take().and_then(|comes| self.members.get_mut(&comes)) {
            comes.pay(took);
            comes.paid_until = now;
            comes.note_freed(freed);
        }
        Ok(())
    }

    /// # Errors
    /// It was not told to return.
    pub fn back(&mut self, session: u64, now: u64) -> Result<(), Impossible> {
        let ordered = self.members.get(&session).map_or(now, |member| member.since);
        self.step(session, Step::Back, now)?;
        if let Some(member) = self.members.get_mut(&session) {
            member.pay(now.saturating_sub(ordered.max(member.paid_until)));
            (member.wanted, member.credit) = (None, None);
            if member.is_fruitless() {
                // Nothing of it can leave: it is not asked again at once.
                member.note_stay(now);
            } else {
                (member.stays, member.not_before) = (0, 0);
            }
            member.kept.clear();
            (member.can_go_further, member.keeps_rest) = (false, false);
            member.short.clear();
            member.active_at = now;
            member.begin_turn(TURNS, now);
        }
        self.is_served(session);
        Ok(())
    }

    /// What a session has waited for is there.
    fn is_served(&mut self, session: u64) {
        self.members.values_mut().for_each(|member| member.was_in_time(session));
    }

    /// The session, told to leave, was not stopped before the host's memory was there, which took so long: others pay for the
    /// copies alone.
    pub fn note_prepared(&mut self, session: u64, took: u64, now: u64) {
        if let Some(member) = self.members.get_mut(&session).filter(|member| member.place.is_leaving()) {
            member.since = member.since.saturating_add(took).min(now);
        }
    }

    /// The session's memory is where it was before the last order.
    ///
    /// # Errors
    /// It has none to answer, or some of it has left.
    pub fn stayed(&mut self, session: u64, now: u64) -> Result<(), Impossible> {
        if self.members.get(&session).is_some_and(|member| !member.gone.is_empty()) {
            return Err(Impossible);
        }
        let was_coming = self.place(session) == Some(Place::ComingIn);
        self.step(session, Step::Stayed, now)?;
        if let Some(member) = self.members.get_mut(&session) {
            member.part = None;
            if member.place == Place::Out && !was_coming {
                (member.keeps_rest, member.leaves_for) = (true, None);
                member.note_stay(now);
                return Ok(());
            }
            member.note_stay(now);
            member.credit = None;
            let comes = member.leaves_for.take();
            if let Some(comes) = comes {
                member.gave_way_for_nothing(comes);
            }
            if was_coming {
                // The vendor's library had no memory for it: a byte of others stands for the next one of them.
                member.short = member.need().into_keys().map(|device| (device, 1)).collect();
                return Ok(());
            }
            member.wanted = None;
            // One that is out is tried again without that, and an allocation asks others.
            let comes = comes.and_then(|comes| self.members.get_mut(&comes));
            if let Some(comes) = comes.filter(|comes| comes.place == Place::Out) {
                comes.short.clear();
            }
        }
        Ok(())
    }

    fn step(&mut self, session: u64, step: Step, now: u64) -> Result<(), Impossible> {
        let member = self.members.get_mut(&session).ok_or(Impossible)?;
        member.place = member.place.after(step).ok_or(Impossible)?;
        member.since = now;
        Ok(())
    }

    // ---- Decisions -----------------------------------------------------------------------------

    /// When an order to this session has taken too long: a gigabyte takes a second at most.
    fn late_at(&self, member: &Resident) -> u64 {
        let copies = member.held.values().fold(0, |sum: u64, bytes| sum.saturating_add(bytes / BYTES_PER_NS));
        member.since.max(member.heard_at).saturating_add(self.patience.leave).saturating_add(copies)
    }

    /// Sessions that have not answered in time.
    pub fn late(&self, now: u64) -> Vec<u64> {
        let is_late = |member: &Resident| member.place.is_under_way() && self.late_at(member) <= now;
        self.members.iter().filter(|(_, member)| is_late(member)).map(|(session, _)| *session).collect()
    }

    /// When to decide again, if nothing happens before.
    pub fn next_look(&self, now: u64) -> Option<u64> {
        let waits = self.has_waiters();
        let first = self.members.iter().filter_map(|(session, member)| Some((member.waits_since()?, *session))).min();
        let extended = |member: &Resident| {
            let until = self.turn_ends(member, first?.1, now);
            // It may have had as much as the one that waits before.
            (member.turn_ends() <= now && until > now).then(|| until.min(now.saturating_add(member.look_again())))
        };
        let of = |member: &Resident| {
            let answer = member.place.is_under_way().then(|| self.late_at(member));
            let room = [1, LONG_ROOM].into_iter().filter_map(|times| {
                let ask = member.ask?;
                Some(ask.since.saturating_add(self.patience.room.saturating_mul(times)))
            });
            let later =
                [member.turn_ends(), member.not_before].into_iter().filter(|at| waits && *at > now && *at < u64::MAX);
            later.chain(answer).chain(room.filter(|at| *at > now)).chain(extended(member)).min()
        };
        self.members.values().filter_map(of).min()
    }

    /// What is to be done now. The orders count as given.
    pub fn decide(&mut self, now: u64) -> Vec<Order> {
        let mut waiters: Vec<(u64, u64)> =
            self.members.iter().filter_map(|(session, member)| Some((member.waits_since()?, *session))).collect();
        waiters.sort_unstable();
        let mut room = self.room();
        let mut orders = Vec::new();
        // What one that is coming has not come for yet is nobody else's.
        let is_coming =
            |(_, session): &(u64, u64)| self.members.get(session).is_some_and(|member| member.credit.is_some());
        let (coming, waiters): (Vec<_>, Vec<_>) = waiters.into_iter().partition(is_coming);
        coming.into_iter().for_each(|(_, session)| self.serve(session, &mut room, &mut orders, now));
        // Programs allocate piece by piece: an exchange for each would be one too many. Those in their turn have what is free.
        let grows = |session: &u64| {
            let member = self.members.get(session).filter(|member| member.grows(now));
            member.is_some_and(|member| room.has(&member.need()))
        };
        let growing: Vec<u64> = waiters.iter().map(|(_, session)| *session).filter(grows).collect();
        let others = waiters.iter().map(|(_, session)| *session).filter(|session| !growing.contains(session));
        for session in growing.iter().copied().chain(others) {
            self.serve(session, &mut room, &mut orders, now);
        }
        orders
    }

    fn room(&self) -> Room {
        let free = |(number, device): (usize, &DeviceMemory)| device.memory.saturating_sub(self.occupied(number));
        let mut room = Room::new(self.devices.iter().enumerate().map(free).collect());
        let leaving = self.members.values().filter(|member| member.place.is_leaving());
        leaving.for_each(|member| room.comes_free(&member.leaves()));
        room
    }

    /// Lets one that waits go on, or makes room for it: those that wait for less time have what is left.
    fn serve(&mut self, session: u64, room: &mut Room, orders: &mut Vec<Order>, now: u64) {
        let Some(member) = self.members.get(&session) else { return };
        let (place, need, ask, not_before) = (member.place, member.need(), member.ask, member.not_before);
        if let Some(ask) = ask.filter(|ask| !self.can_fit(member, ask)) {
            return self.refuse(session, ask, orders);
        }
        if member.credit.is_some() {
            return self.give_credit(session, room, orders, now);
        }
        if !place.is_under_way() && self.frees_first(session, room, orders, now) {
            return;
        }
        if place == Place::Out && ask.is_none() && not_before <= now && self.may_begin(session, &need, room) {
            return self.begin_return(session, room, orders, now);
        }
        if !place.is_under_way() && room.has(&need) {
            match place {
                // It could not return a moment ago. Until it is asked again others may have the room.
                Place::Out if not_before > now => return,
                Place::Out => {
                    if self.step(session, Step::Return, now).is_ok() {
                        orders.push(Order::Return { session });
                    }
                }
                _ => self.grant(session, orders, now),
            }
            room.take(&need);
            return;
        }
        if let (Place::In, Some(ask)) = (place, ask)
            && self.gives_up(session, &need, ask.since, now)
        {
            return self.refuse(session, ask, orders);
        }
        if !place.is_under_way() {
            let lacking = room.lacking(&need);
            let victims = self.parts(session, &lacking, now);
            self.turn_out(session, victims, room, orders, now);
        }
        if self.can_come_free(session, &need, |member| member.not_before > now) {
            room.take(&need);
        }
    }

    /// Others leave before one is tried again for which there was no memory. False: that is not to be waited for, as they have left,
    /// or cannot.
    fn frees_first(&mut self, session: u64, room: &mut Room, orders: &mut Vec<Order>, now: u64) -> bool {
        let Some(member) = self.members.get(&session).filter(|member| !member.short.is_empty()) else { return false };
        let (place, ask, short) = (member.place, member.ask, member.short.clone());
        let leaves = |member: &Resident| member.place.is_leaving() && member.leaves_for == Some(session);
        if self.members.values().any(leaves) || place == Place::Out && member.not_before > now {
            return true;
        }
        let victims = self.victims(session, &short, now);
        if !victims.is_empty() {
            // Where there seemed to be room as much as possible leaves.
            let whole = victims.into_iter().map(|victim| Victim { session: victim, part: None }).collect();
            self.turn_out(session, whole, room, orders, now);
            return true;
        }
        let is_late = ask.is_some_and(|ask| ask.since.saturating_add(self.patience.room) <= now);
        if !is_late && self.others_may_free(session, &short) {
            return true;
        }
        self.members.entry(session).and_modify(|member| member.short.clear());
        match ask.filter(|_| place == Place::In) {
            Some(ask) => self.refuse(session, ask, orders),
            None => return false,
        }
        true
    }

    /// Whether others have so much on the devices that have not refused to leave the last time.
    fn others_may_free(&self, session: u64, bytes: &BTreeMap<usize, u64>) -> bool {
        let others = |(number, member): &(&u64, &Resident)| {
            let is_there = member.place != Place::Out || member.can_go_further;
            **number != session && is_there && member.turn_ends() < u64::MAX && member.stays == 0
        };
        bytes.iter().all(|(device, bytes)| {
            let held = self.members.iter().filter(others).map(|(_, member)| member.occupies(*device));
            held.fold(0, u64::saturating_add) >= *bytes
        })
    }

    /// What they give up comes free.
    fn turn_out(&mut self, session: u64, victims: Vec<Victim>, room: &mut Room, orders: &mut Vec<Order>, now: u64) {
        for Victim { session: victim, part } in victims {
            self.members.entry(victim).and_modify(|member| {
                member.leaves_for = Some(session);
                if member.place == Place::In {
                    member.gives_way(session, now);
                }
            });
            if self.begin_leaving(victim, part, now).is_ok() {
                room.comes_free(&self.members[&victim].leaves());
                orders.push(Order::Evict { session: victim, part });
            }
        }
    }

    /// Whether so much may come free for a session while those stay that keep what they have: for ever, or as they have refused to
    /// leave. Without that the session keeps no others waiting: one that never leaves would do so for good.
    fn can_come_free(&self, session: u64, need: &BTreeMap<usize, u64>, refuses: impl Fn(&Resident) -> bool) -> bool {
        let stays = |number: &u64, member: &Resident| {
            *number == session
                || member.place == Place::Out && (!member.can_go_further || member.keeps_rest && refuses(member))
                || member.place == Place::In && (refuses(member) || member.turn_until == u64::MAX)
        };
        need.iter().all(|(device, bytes)| {
            let memory = self.devices.get(*device).map_or(0, |device| device.memory);
            let staying = self.members.iter().filter(|(number, member)| stays(number, member));
            let kept = staying.map(|(_, member)| member.occupies(*device)).fold(0, u64::saturating_add);
            kept.saturating_add(*bytes) <= memory
        })
    }

    /// Whether an allocation has waited for long enough: for as long as others' turns may last, if they leave at all.
    fn gives_up(&self, session: u64, need: &BTreeMap<usize, u64>, since: u64, now: u64) -> bool {
        let patience = if self.can_come_free(session, need, |member| member.stays > 0) { LONG_ROOM } else { 1 };
        since.saturating_add(self.patience.room.saturating_mul(patience)) <= now
    }

    /// Whether an allocation can ever have room.
    fn can_fit(&self, member: &Resident, ask: &Ask) -> bool {
        let Some(device) = self.devices.get(ask.device) else { return false };
        let all = self.members.values().map(|member| member.held_on(ask.device)).fold(0, u64::saturating_add);
        member.held_on(ask.device).saturating_add(ask.bytes) <= device.memory
            && all.saturating_add(ask.bytes) <= device.most
    }

    fn grant(&mut self, session: u64, orders: &mut Vec<Order>, now: u64) {
        let Some(member) = self.members.get_mut(&session) else { return };
        let Some(ask) = member.ask.take() else { return };
        *member.held.entry(ask.device).or_default() += ask.bytes;
        member.begin_turn(TURNS, now);
        self.is_served(session);
        orders.push(Order::Grant { session, request: ask.request });
    }

    fn refuse(&mut self, session: u64, ask: Ask, orders: &mut Vec<Order>) {
        if let Some(member) = self.members.get_mut(&session) {
            member.ask = None;
            member.short.clear();
            if member.place != Place::In {
                // Its program waits for the answer, and that for the memory.
                member.wanted.get_or_insert(ask.since);
            }
        }
        orders.push(Order::Refuse { session, request: ask.request });
    }
}
