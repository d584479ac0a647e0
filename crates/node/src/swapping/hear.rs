//! What API servers say about the memory of their sessions. All of it is held against what the node has granted and ordered.

use super::{NamedDevice, Preparing, Swapping, TooMany};
use crate::node::{Core, CoreState};
use crate::relocation::send::order;
use crate::sessions::events::{Lie, shown_reason};
use aviary_control::{MoveOrder, SwapOrder, SwapReport};
use aviary_gate::{HOST_SWAP, monotonic};
use aviary_schedule::residency::{Impossible, Place};
use std::collections::BTreeMap;

/// Attempts in a row after which the log says why a session does not leave.
const MOST_STAYS: u32 = 5;

impl Core {
    pub(crate) fn hear_swap(
        &self,
        state: &mut CoreState,
        server: u64,
        session: u64,
        report: SwapReport,
    ) -> Result<(), Lie> {
        let Some(known) = state.registry.sessions.get(&session) else { return Ok(()) };
        if known.server != server {
            return Err(Lie::OthersSession(session));
        }
        let (tenant, now) = (known.tenant.clone(), monotonic());
        match report {
            SwapReport::Room { request, device, bytes } => {
                state.swapping.enter(session, server, &tenant, now);
                self.hear_request(state, (session, &tenant), request, (&device, bytes))?;
            }
            SwapReport::Need { request, device, bytes } => {
                state.swapping.enter(session, server, &tenant, now);
                self.hear_need(state, session, request, (&device, bytes))?;
            }
            SwapReport::Surplus { device, bytes } => self.hear_surplus(state, session, &device, bytes)?,
            SwapReport::Kept { bytes } => {
                state.swapping.sessions.entry(session).and_modify(|swapped| {
                    (swapped.kept, swapped.giving) = (swapped.kept.min(bytes), None);
                    swapped.preparing = swapped.preparing.after(swapped.kept);
                });
                self.settle_swap(state, server, session);
            }
            SwapReport::Able => {
                state.registry.sessions.entry(session).and_modify(|known| known.swaps = true);
            }
            SwapReport::Leaving { attempt, freed } => state.swapping.hear_leaving(session, attempt, freed)?,
            SwapReport::Called => state.swapping.residency.want(session, now),
            SwapReport::Evicted { attempt, .. }
            | SwapReport::Returned { attempt, .. }
            | SwapReport::Stays { attempt, .. } => {
                let swapped = state.swapping.sessions.get(&session);
                if swapped.is_none_or(|swapped| swapped.attempt != attempt) {
                    return Err(Lie::NoSuchSwap(session));
                }
                let is_unheard = matches!(report, SwapReport::Stays { kept: u64::MAX, .. });
                self.hear_answer(state, session, report)?;
                self.settle_swap(state, server, session);
                if is_unheard && self.config.test_move_every.is_some() {
                    // The session of a test stands until it hears something, and its process has answered for it.
                    order(state, server, session, MoveOrder::Resume);
                }
            }
        }
        self.swap_step(state);
        Ok(())
    }

    fn hear_request(
        &self,
        state: &mut CoreState,
        (session, tenant): (u64, &str),
        request: u64,
        (device, bytes): (&str, u64),
    ) -> Result<(), Lie> {
        let rules = state.tenancy.shares.rules();
        let number = state.swapping.device(&rules, device, tenant).map_err(|TooMany| Lie::InventsDevices(session))?;
        let Some(number) = number else {
            // A device that is not shared any more has room.
            self.tell_swap(state, session, SwapOrder::Room { request, granted: true });
            return Ok(());
        };
        let asked = state.swapping.residency.ask(session, request, (number, bytes), monotonic());
        asked.map_err(|Impossible| Lie::NoSuchSwap(session))
    }

    /// The session has less of a device than it was granted.
    fn hear_surplus(&self, state: &mut CoreState, session: u64, device: &str, bytes: u64) -> Result<(), Lie> {
        let Some(number) = state.swapping.devices.get(device).map(|known| known.number) else { return Ok(()) };
        let given = state.swapping.residency.give_back(session, number, bytes);
        given.map_err(|Impossible| Lie::NoSuchSwap(session))?;
        let held = state.swapping.residency.held(session).into_iter().map(|(_, bytes)| bytes);
        self.let_keep(state, session, held.fold(0, u64::saturating_add), monotonic());
        Ok(())
    }

    /// The vendor's library does not have what was granted.
    fn hear_need(
        &self,
        state: &mut CoreState,
        session: u64,
        request: u64,
        (device, bytes): (&str, u64),
    ) -> Result<(), Lie> {
        let Some(number) = state.swapping.devices.get(device).map(|known| known.number) else {
            // Nobody whom the node knows has anything there.
            self.tell_swap(state, session, SwapOrder::Room { request, granted: false });
            return Ok(());
        };
        let asked = state.swapping.residency.ask_beyond(session, request, (number, bytes), monotonic());
        asked.map_err(|Impossible| Lie::NoSuchSwap(session))?;
        self.log.debug(format_args!("session {session}: {bytes} bytes were granted that its device does not have"));
        Ok(())
    }

    /// The answer to the last order.
    fn hear_answer(&self, state: &mut CoreState, session: u64, report: SwapReport) -> Result<(), Lie> {
        let (lie, now) = (Lie::NoSuchSwap(session), monotonic());
        let Swapping { residency, devices, sessions, .. } = &mut state.swapping;
        let Some(swapped) = sessions.get_mut(&session) else { return Err(lie) };
        // One of which a part is out has what it was promised before.
        let promised = std::mem::take(&mut swapped.promised).max(swapped.bytes);
        let possible = match report {
            SwapReport::Evicted { bytes, figures, freed, rest, .. } if bytes <= promised => {
                // What has left a device is in the host's memory, whatever the API server says.
                let left = freed.values().fold(0, |sum: u64, part| sum.saturating_add(*part));
                let bytes = left.clamp(bytes, promised);
                (swapped.bytes, swapped.figures, swapped.refused) = (bytes, figures, None);
                (swapped.kept, swapped.giving, swapped.preparing) = (0, None, Preparing::Done);
                swapped.outs += u64::from(residency.place(session) == Some(Place::GoingOut));
                swapped.stays = 0;
                let us = figures.stop_us.saturating_add(figures.drain_us).saturating_add(figures.copy_us);
                self.log.debug(format_args!(
                    "session {session}: swapped out: {us} us, {left} bytes have left, {bytes} bytes of host memory"
                ));
                // One that lies about this makes turns of those that come shorter, by what its copies took at most.
                residency.note_prepared(session, figures.reserve_us.saturating_mul(1000), now);
                residency.left(session, &numbered(devices, freed), rest, now)
            }
            SwapReport::Returned { return_us, kept, .. } => {
                let kept = kept.min(swapped.bytes);
                (swapped.bytes, swapped.kept, swapped.return_us) = (0, kept, return_us);
                swapped.ins += 1;
                self.log.debug(format_args!("session {session}: swapped in: {return_us} us, {kept} bytes are kept"));
                residency.back(session, now)
            }
            SwapReport::Stays { reason, kept, .. } => {
                let reason = shown_reason(&reason);
                if kept != u64::MAX && residency.place(session) == Some(Place::GoingOut) {
                    swapped.kept = kept.min(promised.max(swapped.kept));
                }
                self.log.debug(format_args!("session {session}: its memory is not moved: {reason}"));
                swapped.stays += 1;
                if swapped.stays == MOST_STAYS && residency.has_waiters() {
                    self.log
                        .warn(format_args!("session {session} keeps its device memory ({reason}): others wait for it"));
                }
                swapped.refused = Some(reason);
                residency.stayed(session, now)
            }
            _ => Err(Impossible),
        };
        possible.map_err(|Impossible| lie)?;
        state.swapping.list_holders(session, now);
        Ok(())
    }

    /// Charges an API server with the host memory of its sessions that are out. One that has no room any more, as its tenant's
    /// other sessions have used it meanwhile, comes back.
    pub(crate) fn settle_swap(&self, state: &mut CoreState, server: u64, session: u64) {
        let of_server = state.swapping.sessions.values().filter(|swapped| swapped.server == server);
        let bytes = of_server.map(|swapped| swapped.bytes.saturating_add(swapped.kept)).fold(0, u64::saturating_add);
        let Some(seat) = state.registry.servers.get(&server).and_then(|known| known.seat.as_ref()) else { return };
        let accounts = &state.tenancy.accounts;
        let settled = accounts.uncharge_swap(seat).map_err(Into::into).and_then(|()| match bytes {
            0 => Ok(()),
            _ => accounts.charge_swap(seat, bytes),
        });
        let Err(error) = settled else { return };
        self.log.warn(format_args!("session {session}: no {HOST_SWAP} for {bytes} bytes of its memory: {error}"));
        if state.swapping.residency.place(session) == Some(Place::Out) {
            state.swapping.residency.want(session, monotonic());
        }
        self.let_keep(state, session, 0, monotonic());
    }

    /// A session is over, and its API server is not: what it has in the host's memory is free.
    pub(crate) fn end_swap(&self, state: &mut CoreState, server: u64, session: u64) {
        let Some(swapped) = state.swapping.sessions.get_mut(&session) else { return };
        (swapped.bytes, swapped.promised, swapped.kept, swapped.giving) = (0, 0, 0, None);
        state.swapping.residency.retire(session);
        self.settle_swap(state, server, session);
        self.swap_step(state);
    }
}

impl Swapping {
    /// If the session says that its memory has left: who really has memory there is to be listed.
    fn list_holders(&mut self, session: u64, now: u64) {
        if self.residency.place(session) == Some(Place::Out) {
            self.holders.want(now);
        }
    }

    /// Some of a session's memory has left.
    fn hear_leaving(&mut self, session: u64, attempt: u64, freed: BTreeMap<String, u64>) -> Result<(), Lie> {
        let is_last = self.sessions.get(&session).is_some_and(|swapped| swapped.attempt == attempt);
        let heard = self.residency.leaving(session, &numbered(&self.devices, freed));
        heard.ok().filter(|()| is_last).ok_or(Lie::NoSuchSwap(session))
    }
}

fn numbered(devices: &BTreeMap<String, NamedDevice>, freed: BTreeMap<String, u64>) -> Vec<(usize, u64)> {
    freed.into_iter().filter_map(|(name, bytes)| Some((devices.get(&name)?.number, bytes))).collect()
}
