//! Carries out the effects of events, each under the node's lock. An effect that cannot be carried out is an event, too.

use super::{
    machine::{Effects, Event, Impossible, Refusal},
    records::Record,
    request::MoveStatus,
    send::{order, order_all},
    table::{Effect, Kind, Stage},
};
use crate::log::Level;
use crate::node::{Core, CoreState};
use crate::sessions::end::end_server;
use aviary_control::MoveOrder;
use std::time::Instant;

impl Core {
    /// An event of the relocation of an API server's sessions, if there is one.
    pub(super) fn step(&self, state: &mut CoreState, source: u64, event: &Event) -> Result<(), Impossible> {
        let Some(record) = state.relocations.get_mut(source) else { return Ok(()) };
        let effects = record.relocation.after(event, Instant::now())?;
        if let Some(attempt) = &mut record.attempt {
            if attempt.halt.is_some() && effects.halt == attempt.halt {
                attempt.halted = Some(effects);
                return Ok(());
            }
            if !effects.list.is_empty() {
                // Something else has come between.
                attempt.halted = None;
            }
        }
        self.carry_out(state, source, &effects);
        Ok(())
    }

    pub(super) fn carry_out(&self, state: &mut CoreState, source: u64, effects: &Effects) {
        for effect in effects.list {
            if let Err(refusal) = self.carry_out_one(state, source, *effect, effects) {
                return self.give_up(state, source, refusal);
            }
        }
    }

    /// # Errors
    /// The attempt is to be given up.
    pub(super) fn carry_out_one(
        &self,
        state: &mut CoreState,
        source: u64,
        effect: Effect,
        effects: &Effects,
    ) -> Result<(), Refusal> {
        match effect {
            Effect::Announce => return state.with_relocation(source, |state, it| Self::order_announcement(state, it)),
            Effect::Prepare => return state.with_relocation(source, |state, it| self.prepare(state, it)),
            Effect::Capture => return state.with_relocation(source, |state, it| self.order_capture(state, it)),
            Effect::HandOver => return state.with_relocation(source, |state, it| self.hand_over(state, it)),
            Effect::ReplaceTarget => return state.with_relocation(source, |state, it| self.replace_target(state, it)),
            Effect::Commit => return self.commit(state, source),
            Effect::Rehearse => {
                let target = state.relocations.get(source).and_then(Record::target);
                if let Some((target, session)) = target.zip(effects.session) {
                    order(state, target, session, MoveOrder::Rebuild);
                }
            }
            Effect::Rebuild => {
                let sessions = state.relocations.get(source).into_iter().flat_map(|it| it.relocation.sessions());
                order_all(state, source, sessions, MoveOrder::Rebuild);
            }
            Effect::Charge => {
                let charged = match self.charge_parked(state, source) {
                    Ok(()) => Event::new(Kind::Charged),
                    Err(error) => Event::because(Kind::NoRoom, Refusal::not_now(error)),
                };
                let _ = self.step(state, source, &charged);
            }
            Effect::ReplaceSource => {
                if let Err(refusal) = self.replace_watcher(state, source) {
                    self.lose_parked(state, source, &refusal.reason);
                }
            }
            Effect::EndCheck => self.end_check(state, source),
            Effect::Keep => return self.keep_captured(state, source),
            Effect::GiveUp => self.end_attempt(state, source, &effects.why),
            Effect::Continue => self.let_parked_continue(state, source),
            Effect::Lose => self.lose_parked(state, source, &effects.why.reason),
            Effect::Forget => drop(state.relocations.remove(source)),
        }
        Ok(())
    }

    /// The node's own obstacle to an attempt.
    pub(super) fn give_up(&self, state: &mut CoreState, source: u64, refusal: Refusal) {
        let _ = self.step(state, source, &Event::because(Kind::Refused, refusal));
    }

    /// The sessions continue in the source, if that is still there, or stay parked.
    fn end_attempt(&self, state: &mut CoreState, source: u64, why: &Refusal) {
        let Some(record) = state.relocations.get_mut(source) else { return };
        let (Some(attempt), stays) = (record.attempt.take(), record.relocation.stage() == Stage::Kept) else { return };
        let gone = record.relocation.take_source_gone();
        let sessions = record.relocation.sessions().clone();
        if !stays {
            state.relocations.remove(source);
        }
        let status = MoveStatus::Refused { reason: why.reason.clone(), lasting: why.lasting };
        state.relocations.remember(attempt.number, status);
        for id in &sessions {
            if let Some(session) = state.registry.sessions.get_mut(id) {
                session.moves.refused = Some(why.reason.clone());
            }
            self.log.at(self.level_of_moves(), format_args!("session {id}: not moved: {}", why.reason));
        }
        // First the new one, which must not answer anybody any more.
        if let Some(target) = attempt.target {
            end_server(&mut state.registry, target);
        }
        if gone {
            self.reap_source(state, source);
        } else {
            order_all(state, source, &sessions, MoveOrder::Resume);
        }
        if state.relocations.parked(source).is_some_and(|record| record.relocation.is_wanted()) {
            let _ = self.step(state, source, &Event::new(Kind::Wanted));
        }
    }

    /// Only whether it would work was asked.
    fn end_check(&self, state: &mut CoreState, source: u64) {
        let process = state.registry.process_of(source);
        let Some(record) = state.relocations.remove(source) else { return };
        let Some(attempt) = &record.attempt else { return };
        let figures = record.figures(attempt, process, Instant::now());
        state.relocations.remember(attempt.number, MoveStatus::Movable(figures));
        order_all(state, source, record.relocation.sessions(), MoveOrder::Resume);
    }

    /// Charges their API server with all that parked sessions held, if the tenant's limits have room for it and none of its
    /// other sessions waits longer. An error says what they wait for, for people.
    fn charge_parked(&self, state: &CoreState, server: u64) -> Result<(), String> {
        let seat_of = |server: u64| state.registry.servers.get(&server).and_then(|server| server.seat.as_ref());
        let Some(seat) = seat_of(server) else { return Ok(()) };
        let same_tenant = |other: u64| seat_of(other).is_some_and(|other| other.tenant == seat.tenant);
        match state.relocations.ahead_of(server, same_tenant) {
            0 => {}
            ahead => return Err(format!("{ahead} of its tenant's parked programs come back first")),
        }
        let held = state.relocations.get(server).map_or(&[][..], |record| &record.held);
        state.tenancy.accounts.charge_all(seat, held).map_err(|error| error.to_string())
    }

    /// Thousands of moves of a test are of no interest to readers of the log.
    pub(super) fn level_of_moves(&self) -> Level {
        if self.config.test_move_every.is_some() { Level::Debug } else { Level::Info }
    }
}

impl CoreState {
    /// Lends the relocation of an API server's sessions, if there is one, beside the rest of the state.
    ///
    /// # Errors
    /// Those of `work`.
    pub(super) fn with_relocation(
        &mut self,
        source: u64,
        work: impl FnOnce(&mut Self, &mut Record) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let Some(mut record) = self.relocations.remove(source) else { return Ok(()) };
        let done = work(self, &mut record);
        self.relocations.insert(record);
        done
    }
}
