//! The commit: one step, before which sessions are the source's and after which they are the target's.

use super::{
    begin::unfit_source,
    machine::{Event, Refusal},
    records::{Record, fixed_length},
    request::{MoveFigures, MoveStatus},
    send::order_all,
    table::{Kind, Purpose, Stage},
};
use crate::node::{Core, CoreState};
use crate::sessions::end::end_server;
use aviary_control::MoveOrder;
use aviary_gate::HeldAmount;
use std::{collections::BTreeSet, time::Instant};

impl Core {
    /// From here on the sessions are the target's. Everything that says whose they are changes in this one step; of the source
    /// nothing is needed any more.
    pub(super) fn commit(&self, state: &mut CoreState, source: u64) -> Result<(), Refusal> {
        let gone = || Refusal::not_now("the new API server has ended");
        let target = state.relocations.get(source).and_then(Record::target).ok_or_else(gone)?;
        let held = self.check_commit(state, source, target)?;
        let (old, process) = (state.registry.process_of(source), state.registry.process_of(target));
        let mut record = state.relocations.remove(source).ok_or_else(gone)?;
        let attempt = record.attempt.take().ok_or_else(gone)?;
        let figures = record.figures(&attempt, process, Instant::now());
        let (ids, purpose, source_gone) =
            (record.ids(), record.relocation.purpose(), record.relocation.take_source_gone());
        record.held = held;
        for (id, part) in &mut record.parts {
            part.bytes = part.state.as_ref().and_then(|state| fixed_length(&state.file)).unwrap_or(0);
            if let Some(session) = state.registry.sessions.get_mut(id) {
                session.moves.add(purpose, &figures);
            }
        }
        if purpose == Purpose::Park {
            record.parked = Instant::now();
        }
        self.give_to(state, record, target);
        let MoveFigures { stood_us, whole_us, bytes, .. } = figures;
        let (what, us) = if purpose == Purpose::Move { ("moved", stood_us) } else { ("parked,", whole_us) };
        let told = format_args!("session {ids}: {what} from API server {old} to {process}: {us} us, {bytes} bytes");
        self.log.at(self.level_of_moves(), told);
        let status = if purpose == Purpose::Park { MoveStatus::Parked(figures) } else { MoveStatus::Moved(figures) };
        if purpose == Purpose::Move {
            self.continue_in(state, target);
            state.relocations.remember(attempt.number, status);
        } else {
            let rehearser = attempt.rehearser.filter(|server| holds_something(state, *server));
            state.relocations.leave(attempt.number, &status, rehearser.into_iter().chain([source]));
        }
        let _ = self.step(state, target, &Event::new(Kind::Committed));
        if state.relocations.get(target).is_some_and(|record| record.relocation.stage() == Stage::Committed) {
            state.relocations.remove(target);
        }
        end_server(&mut state.registry, source);
        if source_gone {
            self.reap_source(state, source);
        }
        Ok(())
    }

    /// Obstacles that have arisen since the beginning. Answers what parked sessions hold from now on.
    fn check_commit(&self, state: &mut CoreState, source: u64, target: u64) -> Result<Vec<HeldAmount>, Refusal> {
        let sessions = state.relocations.get(source).map(|record| record.relocation.sessions());
        let present: BTreeSet<u64> = state.registry.sessions_of(source).into_iter().collect();
        if sessions != Some(&present) {
            return Err(Refusal::not_now("another session of the program has begun or ended during the move"));
        }
        if let Some(refusal) = unfit_source(state, source) {
            return Err(refusal);
        }
        // It may have died after its report; the source still has the sessions.
        if state.registry.servers.get(&target).is_none_or(|server| server.process.has_ended()) {
            return Err(Refusal::not_now("the new API server has ended"));
        }
        // Others may have been parked since the states went to the target.
        state.with_relocation(source, |state, record| self.check_parked_memory(state, record))?;
        let seats = state.registry.servers.get(&source).and_then(|server| server.seat.as_ref());
        let seats = seats.zip(state.registry.servers.get(&target).and_then(|server| server.seat.as_ref()));
        let locked = || Refusal::not_now("the tenant's accounts are locked by another API server");
        let ((from, to), record) = seats.zip(state.relocations.get(source)).ok_or_else(locked)?;
        let accounts = &state.tenancy.accounts;
        match record.relocation.purpose() {
            // What it watches over.
            Purpose::Upgrade => accounts.move_slot(from, to).map(|()| record.held.clone()).map_err(|_| locked()),
            Purpose::Park => {
                // It holds that until it is reaped.
                let held = accounts.held_by(from);
                let charged = accounts.charge_swap(to, record.bytes_written());
                charged.map(|()| held).map_err(|error| Refusal::not_now(error.to_string()))
            }
            Purpose::Move | Purpose::Check | Purpose::Keep => {
                accounts.move_slot(from, to).map(|()| Vec::new()).map_err(|_| locked())
            }
        }
    }

    /// All sessions of a relocation are another API server's from now on, which does not have them continue yet.
    pub(super) fn give_to(&self, state: &mut CoreState, mut record: Record, target: u64) {
        self.hand_on(state, record.source, target);
        for (id, part) in &mut record.parts {
            self.unschedule(*id);
            let Some(session) = state.registry.sessions.get_mut(id) else { continue };
            session.server = target;
            if let Some(pages) = &mut session.pages {
                (pages.devices, pages.devices_file) = (part.devices.take(), part.devices_file.take());
            }
        }
        record.source = target;
        state.relocations.insert(record);
    }

    /// The rebuilt sessions of an API server continue, and may have their turns on devices.
    pub(super) fn continue_in(&self, state: &mut CoreState, server: u64) {
        let process = state.registry.process_of(server);
        let Some(record) = state.relocations.get(server) else { return };
        for id in record.parts.keys() {
            if let Some(session) = state.registry.sessions.get_mut(id) {
                let devices = session.pages.as_mut().and_then(|pages| pages.devices.take());
                self.schedule(*id, &session.tenant, process, devices);
            }
        }
        order_all(state, server, record.parts.keys(), MoveOrder::Go);
    }
}

/// True while an API server that was told to end may hold memory of a device.
fn holds_something(state: &CoreState, server: u64) -> bool {
    state.registry.servers.contains_key(&server) || state.tenancy.emptying.contains_key(&server)
}
