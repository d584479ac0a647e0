//! The commit: one step, before which sessions are the source's and after which they are the target's.

use super::{
    begin::unfit_source,
    machine::{Event, Refusal},
    records::{Attempt, Part, Record, fixed_length},
    request::{MoveFigures, MoveStatus},
    send::order,
    table::{Kind, Purpose, Stage},
};
use crate::node::{Core, CoreState};
use crate::sessions::end::end_server;
use aviary_control::MoveOrder;
use aviary_gate::HeldAmount;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

impl Core {
    /// From here on the sessions are the target's. Everything that says whose they are changes in this one step; of the source
    /// nothing is needed any more.
    pub(super) fn commit(&self, state: &mut CoreState, source: u64) -> Result<(), Refusal> {
        let gone = || Refusal::not_now("the new API server has ended");
        let target = state.relocations.get(source).and_then(Record::target).ok_or_else(gone)?;
        let held = self.check_commit(state, source, target)?;
        self.hand_on(state, source, target);
        let process = |server: &u64| state.registry.servers.get(server).map_or(0, |server| server.process.pid());
        let (old, process) = (process(&source), process(&target));
        let Some(mut record) = state.relocations.remove(source) else { return Err(gone()) };
        let Some(attempt) = record.attempt.take() else { return Err(gone()) };
        let figures = record.figures(&attempt, process, Instant::now());
        let ids = record.relocation.sessions().iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let MoveFigures { stood_us, whole_us, bytes, .. } = figures;
        let source_gone = record.relocation.take_source_gone();
        let level = self.level_of_moves();
        if record.relocation.purpose() == Purpose::Move {
            self.move_sessions(state, target, std::mem::take(&mut record.parts), &figures);
            record.source = target;
            state.relocations.insert(record);
            state.relocations.remember(attempt.number, MoveStatus::Moved(figures));
            self.log.at(
                level,
                format_args!("session {ids}: moved from API server {old} to {process}: {stood_us} us, {bytes} bytes"),
            );
        } else {
            self.keep_parked(state, record, target, held);
            let purpose = state.relocations.get(target).map(|record| record.relocation.purpose());
            let is_new = purpose == Some(Purpose::Park);
            let status = if is_new { MoveStatus::Parked(figures) } else { MoveStatus::Moved(figures) };
            let Attempt { number, rehearser, .. } = attempt;
            let rehearser = rehearser.filter(|server| holds_something(state, *server));
            state.relocations.leave(number, &status, rehearser.into_iter().chain([source]));
            self.log.at(
                level,
                format_args!("session {ids}: parked, from API server {old} to {process}: {whole_us} us, {bytes} bytes"),
            );
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
        self.check_parked_memory(state, source)?;
        let purpose = state.relocations.get(source).map(|record| (record.relocation.purpose(), &record.held));
        let seats = state.registry.servers.get(&source).and_then(|server| server.seat.as_ref());
        let seats = seats.zip(state.registry.servers.get(&target).and_then(|server| server.seat.as_ref()));
        let held = seats.zip(purpose).and_then(|((from, to), (purpose, held))| match purpose {
            Purpose::Upgrade => Some(held.clone()),
            // It holds that until it is reaped.
            Purpose::Park => Some(state.tenancy.accounts.held_by(from)),
            Purpose::Move | Purpose::Check => state.tenancy.accounts.move_slot(from, to).ok().map(|()| Vec::new()),
        });
        held.ok_or_else(|| Refusal::not_now("the tenant's accounts are locked by another API server"))
    }

    fn move_sessions(&self, state: &mut CoreState, target: u64, parts: BTreeMap<u64, Part>, figures: &MoveFigures) {
        for (id, part) in parts {
            self.unschedule(id);
            if let Some(session) = state.registry.sessions.get_mut(&id) {
                session.server = target;
                session.moves.count += 1;
                session.moves.last_us = Some(figures.stood_us);
                session.moves.refused = None;
                if let Some(pages) = &mut session.pages {
                    pages.devices_file = part.devices_file;
                }
                self.schedule(id, &session.tenant, figures.server, part.devices);
            }
            order(state, target, id, MoveOrder::Go);
        }
    }

    /// The sessions are parked from now on, or still, and the target watches their lanes.
    fn keep_parked(&self, state: &mut CoreState, mut record: Record, target: u64, held: Vec<HeldAmount>) {
        let is_new = record.relocation.purpose() == Purpose::Park;
        for (id, part) in &mut record.parts {
            self.unschedule(*id);
            part.bytes = part.state.as_ref().and_then(|state| fixed_length(&state.file)).unwrap_or(0);
            let Some(session) = state.registry.sessions.get_mut(id) else { continue };
            session.server = target;
            session.moves.parks += u64::from(is_new);
            session.moves.refused = None;
            if let Some(pages) = &mut session.pages {
                (pages.devices, pages.devices_file) = (part.devices.take(), part.devices_file.take());
            }
        }
        if is_new {
            record.parked = Instant::now();
        }
        (record.source, record.held) = (target, held);
        state.relocations.insert(record);
    }
}

/// True while an API server that was told to end may hold memory of a device.
fn holds_something(state: &CoreState, server: u64) -> bool {
    state.registry.servers.contains_key(&server) || state.tenancy.emptying.contains_key(&server)
}
