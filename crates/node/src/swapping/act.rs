//! The node's steps: operators' wishes, and what the residency decides.

use super::{OWN_STOP_MS, Swapping, WATCH, request::SwapRequest, request::SwapStatus, stop_of};
use crate::error::NodeError;
use crate::node::{Core, CoreState};
use crate::relocation::send::order;
use crate::scheduling::DeviceWork;
use crate::sessions::end::end_server;
use crate::sessions::life::SessionState;
use crate::sessions::stats;
use aviary_control::{MoveOrder, SwapOrder};
use aviary_gate::monotonic;
use aviary_schedule::residency::{Claim, Order, Place};
use std::time::{Duration, Instant};

impl Core {
    /// An operator turns a session's memory out, or wants it in. How that goes on is asked with `swap_status`.
    pub(crate) fn swap(&self, request: &SwapRequest) -> Result<SwapStatus, NodeError> {
        let mut guard = self.state();
        let (state, now) = (&mut *guard, monotonic());
        let session = request.session;
        let known = state.registry.sessions.get(&session).ok_or(NodeError::NoSession(session))?;
        let (server, tenant) = (known.server, known.tenant.clone());
        let swapped = state.swapping.enter(session, server, &tenant, now);
        swapped.refused = None;
        if !request.out {
            state.swapping.residency.want(session, now);
        } else if let Some(why) = unfit(state, session) {
            state.swapping.sessions.entry(session).and_modify(|swapped| swapped.refused = Some(why.to_owned()));
        } else if state.swapping.residency.evict(session, now).is_ok() {
            self.order_eviction(state, session, stop_of(request.stop_ms), None);
        }
        self.swap_step(state);
        self.wake();
        Ok(state.swapping.status(session))
    }

    /// The session of a test stands, and waits for an order in any case.
    pub(crate) fn swap_in_test(&self, state: &mut CoreState, server: u64, session: u64) {
        let Some(known) = state.registry.sessions.get(&session) else { return };
        let (tenant, now) = (known.tenant.clone(), monotonic());
        state.swapping.enter(session, server, &tenant, now);
        let asked = self.config.test_move_every.is_some() && unfit(state, session).is_none();
        let goes = asked && state.swapping.residency.evict(session, now).is_ok();
        if !goes || !self.order_eviction(state, session, OWN_STOP_MS, None) {
            order(state, server, session, MoveOrder::Resume);
        }
    }

    pub(crate) fn swap_status(&self, session: u64) -> Result<SwapStatus, NodeError> {
        let state = self.state();
        state.registry.sessions.get(&session).ok_or(NodeError::NoSession(session))?;
        Ok(state.swapping.status(session))
    }

    /// Once its time has come.
    pub(crate) fn look_at_swaps(&self) {
        let mut state = self.state();
        let now = monotonic();
        let is_late =
            |swapping: &Swapping| !swapping.residency.late(now).is_empty() || !swapping.late_givers(now).is_empty();
        if state.swapping.watches() || is_late(&state.swapping) {
            self.swap_step(&mut state);
        }
        self.look_at_holders(&mut state, now);
    }

    /// Does what is to be done now.
    pub(crate) fn swap_step(&self, state: &mut CoreState) {
        let now = monotonic();
        for session in state.swapping.residency.late(now) {
            let Some(server) = state.swapping.sessions.get(&session).map(|swapped| swapped.server) else { continue };
            self.log.error(format_args!(
                "session {session}: its memory has not left or returned in time (leave_limit): its API server is ended"
            ));
            end_server(&mut state.registry, server);
            // What it has counts until it has ended.
            state.swapping.residency.retire(session);
        }
        self.end_late_givers(state, now);
        if state.swapping.watches() {
            let shared = |name: &str| state.swapping.devices.contains_key(name);
            let work = self.scheduling.as_ref().map(|scheduling| scheduling.work_on(shared)).unwrap_or_default();
            note_activity(state, &work, now);
            self.prepare_host_memory(state);
        }
        // What cannot be carried out changes what can.
        for _ in 0..=state.swapping.sessions.len() {
            let orders = state.swapping.residency.decide(now);
            if orders.is_empty() {
                return;
            }
            orders.into_iter().for_each(|order| self.carry_swap_out(state, order, now));
        }
    }

    fn carry_swap_out(&self, state: &mut CoreState, given: Order, now: u64) {
        match given {
            Order::Evict { session, part } => match unfit(state, session) {
                Some(_) => drop(state.swapping.residency.stayed(session, now)),
                None => drop(self.order_eviction(state, session, OWN_STOP_MS, part)),
            },
            Order::Return { session } => {
                let attempt = state.swapping.next_attempt(session);
                let credit = state.swapping.residency.credit(session);
                if let Some(bytes) = credit {
                    self.log.debug(format_args!(
                        "session {session}: comes in while others still leave: {bytes} bytes first"
                    ));
                }
                self.tell_swap(state, session, SwapOrder::Return { attempt, credit });
            }
            Order::Credit { session } => {
                let attempt = state.swapping.sessions.get(&session).map_or(0, |swapped| swapped.attempt);
                let bytes = state.swapping.residency.credit(session).unwrap_or(u64::MAX);
                self.tell_swap(state, session, SwapOrder::Credit { attempt, bytes });
            }
            Order::Grant { session, request } => {
                self.tell_swap(state, session, SwapOrder::Room { request, granted: true });
            }
            Order::Refuse { session, request } => {
                self.tell_swap(state, session, SwapOrder::Room { request, granted: false });
            }
        }
    }

    /// The session is going out. It may take what host memory its tenant and the node have left. False: it stays, as others give
    /// theirs back first.
    fn order_eviction(&self, state: &mut CoreState, session: u64, stop_ms: u64, part: Option<u64>) -> bool {
        // One of which a part is out has the memory for all of it.
        let own = (state.swapping.residency.place(session) == Some(Place::GoingFurther)).then_some(0);
        let Some(room) = own.or_else(|| self.host_room(state, session)) else {
            let why = "other sessions give back host memory that they have kept: try again";
            state.swapping.sessions.entry(session).and_modify(|swapped| swapped.refused = Some(why.to_owned()));
            // It cannot be anywhere else.
            let _ = state.swapping.residency.stayed(session, monotonic());
            return false;
        };
        let attempt = state.swapping.next_attempt(session);
        state.swapping.sessions.entry(session).and_modify(|swapped| swapped.promised = room);
        self.tell_swap(state, session, SwapOrder::Evict { attempt, stop_ms, room, part });
        true
    }

    pub(super) fn tell_swap(&self, state: &CoreState, session: u64, given: SwapOrder) {
        if let Some(known) = state.registry.sessions.get(&session) {
            order(state, known.server, session, MoveOrder::Swap(given));
        }
    }
}

impl CoreState {
    /// Bytes of host memory that parked and swapped sessions take.
    pub fn kept_bytes(&self) -> u64 {
        self.relocations.parked_bytes().saturating_add(self.swapping.host_bytes()).saturating_add(self.keeping.bytes())
    }
}

impl Swapping {
    fn next_attempt(&mut self, session: u64) -> u64 {
        self.last_attempt += 1;
        let attempt = self.last_attempt;
        self.sessions.entry(session).and_modify(|swapped| swapped.attempt = attempt);
        attempt
    }

    /// While one waits, or may once another one is out: since when others have nothing to do has to be known then.
    fn watches(&self) -> bool {
        self.residency.has_waiters() || !self.residency.contended().is_empty()
    }

    /// When the node's loop has to look again.
    pub fn next_look(&self) -> Option<Instant> {
        let now = monotonic();
        let watch = self.watches().then(|| now.saturating_add(WATCH));
        let at = self.residency.next_look(now).into_iter().chain(self.next_late_giver()).chain(watch);
        let at = at.chain(self.holders.next_look(now)).min()?;
        Some(Instant::now() + Duration::from_nanos(at.saturating_sub(now)))
    }
}

/// Why a session's memory cannot leave now.
fn unfit(state: &CoreState, session: u64) -> Option<&'static str> {
    let Some(known) = state.registry.sessions.get(&session) else { return Some("it has ended") };
    if state.relocations.parked(known.server).is_some() {
        return Some("it is parked: nothing of it is on a device");
    }
    if state.relocations.source_of(known.server).is_some() {
        return Some("it is being moved");
    }
    if !known.swaps {
        return Some(
            "no object of its API has memory that can leave (evictable), its program shares no memory with its API server \
             (--mirror), or its module was built before that was known",
        );
    }
    (!matches!(known.state, SessionState::Running)).then_some("it is still attaching")
}

/// Looks which sessions have made calls since the last look or wait for a device, and what time of the devices tenants have had.
fn note_activity(state: &mut CoreState, work: &DeviceWork, now: u64) {
    let CoreState { swapping, registry, tenancy, .. } = state;
    let tenants = tenancy.shares.tenants();
    for (session, swapped) in &mut swapping.sessions {
        let tenant = tenants.called(&swapped.tenant);
        let claim = Claim { weight: tenant.weight, guarantee: tenant.resident_guarantee.unwrap_or(0) };
        swapping.residency.set_claim(&swapped.tenant, claim);
        if let Some(used) = work.used.get(&swapped.tenant) {
            swapping.residency.note_used(&swapped.tenant, *used);
        }
        if swapping.residency.place(*session) != Some(Place::In) {
            continue;
        }
        let pages = registry.sessions.get(session).and_then(|known| known.pages.as_ref());
        let calls = pages.map_or(0, |pages| stats::activity(&pages.stats));
        let active = std::mem::replace(&mut swapped.calls, calls) != calls;
        swapping.residency.note_activity(*session, active, work.working.contains(session), now);
    }
}
