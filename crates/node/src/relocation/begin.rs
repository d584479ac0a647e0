//! How relocations begin: an operator's wish, a session's own in tests, or the node's, for sessions that are idle.

use super::{
    machine::{Effects, Refusal, Relocation},
    records::{Attempt, Part, Record},
    request::{MAX_STOP_MS, MoveBegun, MoveFigures, MoveRequest, MoveStatus, UnparkStatus},
    table::Purpose,
};
use crate::error::NodeError;
use crate::node::{Core, CoreState};
use crate::sessions::life::{EndReason, ServerState, SessionState};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// Time in which a session that the node parks by itself, because it is idle, must be paused: nobody has asked for it.
const OWN_BUDGET: Duration = Duration::from_millis(100);

impl Core {
    /// An operator moves or parks a session, or asks if it could be moved.
    pub(crate) fn begin_move(&self, request: &MoveRequest) -> Result<MoveBegun, NodeError> {
        let stop = Duration::from_millis(request.stop_ms.min(MAX_STOP_MS));
        let purpose = match (request.check, request.park) {
            (true, _) => Purpose::Check,
            (false, true) => Purpose::Park,
            (false, false) => Purpose::Move,
        };
        let mut state = self.state();
        let server = state.registry.sessions.get(&request.session).map(|session| session.server);
        let server = server.ok_or(NodeError::NoSession(request.session))?;
        if let (Purpose::Park, Some(bytes)) = (purpose, state.relocations.parked_bytes_of(server)) {
            let number = state.relocations.next_number();
            let figures = MoveFigures { bytes, ..MoveFigures::default() };
            state.relocations.remember(number, MoveStatus::Parked(figures));
            return Ok(MoveBegun { number });
        }
        let begun = self.start_relocation(&mut state, request.session, purpose, stop);
        let number = begun.unwrap_or_else(|Refusal { reason, lasting }| {
            let number = state.relocations.next_number();
            state.relocations.remember(number, MoveStatus::Refused { reason, lasting });
            number
        });
        // The node's loop hears no report before this lock is released.
        if let Some(attempt) = state.relocations.numbered(number).and_then(|record| record.attempt.as_mut()) {
            attempt.halt = request.halt;
        }
        Ok(MoveBegun { number })
    }

    /// A halted relocation continues. Answers its state.
    pub(crate) fn proceed_with_move(&self, number: u64) -> Result<MoveStatus, NodeError> {
        let mut state = self.state();
        let halted = state.relocations.numbered(number);
        let halted = halted.and_then(|record| Some((record.source, record.attempt.as_mut()?.halted.take()?)));
        if let Some((source, effects)) = halted {
            self.carry_out(&mut state, source, &effects);
        }
        state.relocations.status(number).ok_or(NodeError::NoMove(number))
    }

    pub(crate) fn move_status(&self, number: u64) -> Result<MoveStatus, NodeError> {
        self.state().relocations.status(number).ok_or(NodeError::NoMove(number))
    }

    /// The sessions of the program that has `session` begin to move, or to be parked. Those that are parked already stay so,
    /// and another API server watches for their calls. Answers the number of the attempt.
    pub(crate) fn start_relocation(
        &self,
        state: &mut CoreState,
        session: u64,
        purpose: Purpose,
        stop: Duration,
    ) -> Result<u64, Refusal> {
        let source = state.registry.sessions.get(&session).map(|session| session.server);
        let source = source.ok_or_else(|| Refusal::lasting("there is no such session (`aviary ps` lists them)"))?;
        let sessions: BTreeSet<u64> = state.registry.sessions_of(source).into_iter().collect();
        movable(state, source, &sessions)?;
        let is_parked = state.relocations.parked(source).is_some();
        let target = match purpose {
            Purpose::Check | Purpose::Keep if is_parked => return Err(Refusal::lasting("it is parked")),
            Purpose::Check | Purpose::Keep => None,
            Purpose::Move | Purpose::Park | Purpose::Upgrade => Some(self.reserve_target(state, source)?),
        };
        let (now, number) = (Instant::now(), state.relocations.next_number());
        // Where nothing is prepared the order is the first step.
        let ordered = target.is_none().then_some(now);
        let attempt = Attempt { number, target, rehearser: None, since: now, ordered, halt: None, halted: None };
        let effect = match state.relocations.get_mut(source) {
            Some(parked) => {
                for part in parked.parts.values_mut() {
                    (part.figures, part.rebuild_us) = (Default::default(), 0);
                    part.figures.bytes = part.bytes;
                }
                parked.attempt = Some(attempt);
                parked.relocation.upgrade(now)
            }
            None => {
                let parts = sessions.iter().map(|session| (*session, Part::default())).collect();
                let (relocation, effect) = Relocation::begin(purpose, sessions, stop, now);
                let attempt = Some(attempt);
                state.relocations.insert(Record { source, relocation, parts, attempt, held: Vec::new(), parked: now });
                effect
            }
        };
        let begun = self.carry_out_one(state, source, effect, &Effects::none());
        if let Err(refusal) = begun {
            self.give_up(state, source, refusal.clone());
            return Err(refusal);
        }
        Ok(number)
    }

    /// An operator brings a session back.
    pub(crate) fn unpark(&self, session: u64) -> Result<UnparkStatus, NodeError> {
        let mut state = self.state();
        let server = state.registry.sessions.get(&session).map(|known| known.server);
        let server = server.ok_or(NodeError::NoSession(session))?;
        if state.relocations.parked(server).is_none() {
            let moving = state.relocations.stage_of(server).map(|stage| UnparkStatus::UnderWay(stage.into()));
            return Ok(moving.unwrap_or(UnparkStatus::Running));
        }
        self.unpark_for(&mut state, server);
        // Lost at once, it is there until its API server is reaped.
        let told = state.relocations.parked(server).map(|record| record.relocation.told_of_parked());
        Ok(UnparkStatus::UnderWay(told.unwrap_or_else(|| "it ends".into())))
    }

    /// Parks what has made no call for long enough.
    pub(crate) fn park_idle(&self, now: Instant) {
        let mut guard = self.state();
        let state = &mut *guard;
        let Some(least) = state.tenants().least_idle_limit().filter(|_| state.idle.is_due(now)) else { return };
        let mut limits: BTreeMap<String, Option<Duration>> = BTreeMap::new();
        // By API server: one of its sessions, its limit and its calls.
        let mut there: BTreeMap<u64, (u64, Duration, u64)> = BTreeMap::new();
        for (id, session) in &state.registry.sessions {
            let parked = state.relocations.parked(session.server).is_some();
            let limit = limits.entry(session.tenant.clone());
            let limit = *limit.or_insert_with(|| state.tenants().called(&session.tenant).idle_limit());
            let (Some(limit), false, SessionState::Running) = (limit, parked, &session.state) else { continue };
            let made = session.pages.as_ref().map_or(0, |pages| crate::sessions::stats::activity(&pages.stats));
            let all = there.entry(session.server).or_insert((*id, limit, 0));
            all.2 = all.2.wrapping_add(made);
        }
        let is_idle =
            |(server, (_, limit, made)): &(&u64, &(u64, Duration, u64))| state.idle.look(**server, *made, *limit, now);
        let idle: Vec<u64> = there.iter().filter(is_idle).map(|(_, (session, ..))| *session).collect();
        state.idle.looked(least, now, |server| there.contains_key(&server));
        for session in idle {
            self.log.debug(format_args!("session {session}: parking it, because it is idle (idle_park)"));
            if let Err(refusal) = self.start_relocation(state, session, Purpose::Park, OWN_BUDGET) {
                self.log.debug(format_args!("session {session}: not parked: {}", refusal.reason));
            }
        }
    }
}

/// Obstacles that the node itself knows.
fn movable(state: &CoreState, source: u64, sessions: &BTreeSet<u64>) -> Result<(), Refusal> {
    if state.relocations.stage_of(source).is_some() {
        return Err(Refusal::not_now("it is being moved already"));
    }
    if state.relocations.parked(source).is_some_and(|record| !record.relocation.is_quiet()) {
        return Err(Refusal::not_now("it is parked and is being brought back"));
    }
    if let Some(refusal) = unfit_source(state, source) {
        return Err(refusal);
    }
    if let Some(refusal) = state.other_vendor(source) {
        return Err(refusal);
    }
    if let Some(why) = state.swapping.obstacle(source) {
        return Err(Refusal::not_now(why));
    }
    for session in sessions.iter().filter_map(|id| state.registry.sessions.get(id)) {
        if session.in_vm().is_some() {
            return Err(Refusal::lasting("its program is in a virtual machine"));
        }
        if !matches!(session.state, SessionState::Running) {
            return Err(Refusal::not_now("a session of the program is still attaching"));
        }
    }
    Ok(())
}

/// Sessions of an API server that is about to end go nowhere.
pub(super) fn unfit_source(state: &CoreState, source: u64) -> Option<Refusal> {
    match state.registry.servers.get(&source).map(|server| server.state) {
        Some(ServerState::Serving | ServerState::Ended) => None,
        // It has ended by itself: the node knows what that means only once it has its state.
        Some(ServerState::Doomed { why: EndReason::HungUp, .. }) => None,
        Some(other) => Some(Refusal::lasting(format!("its API server is ending: {}", other.told()))),
        None => Some(Refusal::lasting("its API server has ended")),
    }
}
