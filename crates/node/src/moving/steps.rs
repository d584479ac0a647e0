//! The node's steps of a move, each under its lock.

use super::{
    Asker, Halt, MAX_STOP_MS, Move, MoveBegun, MoveEvent, MoveFigures, MoveRequest, MoveStatus, Next, Part, Progress,
    Purpose, Refusal, Stage, TEST_STOP, hand_over::refusal_of_target, rehearsal::holds_something,
};
use crate::{
    NodeError,
    events::{Lie, shown_reason},
    life::{EndReason, ServerEvent, ServerState, SessionState},
    log::Level,
    node::{Core, CoreState},
};
use aviary_control::{MoveOrder, MoveReport, Patience, StateDescriptors, ToServer};
use std::{
    collections::BTreeSet,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

impl Core {
    /// An operator moves a session, or asks if it could be moved.
    pub(crate) fn begin_move(&self, request: &MoveRequest) -> Result<MoveBegun, NodeError> {
        let stop = Duration::from_millis(request.stop_ms.min(MAX_STOP_MS));
        let asker = match (request.check, request.park) {
            (true, _) => Asker::Check,
            (false, true) => Asker::Parker,
            (false, false) => Asker::Operator,
        };
        let mut state = self.state();
        let server = state.registry.sessions.get(&request.session).map(|session| session.server);
        let server = server.ok_or(NodeError::NoSession(request.session))?;
        if let (Asker::Parker, Some(bytes)) = (asker, state.parks.bytes_of(server)) {
            let number = state.moves.next_number();
            let figures = MoveFigures { bytes, ..MoveFigures::default() };
            state.moves.remember(number, MoveStatus::Parked(figures));
            return Ok(MoveBegun { number });
        }
        let number = self.start_move(&mut state, request.session, asker, stop).unwrap_or_else(|refusal| {
            let number = state.moves.next_number();
            let Refusal { reason, lasting } = refusal;
            state.moves.remember(number, MoveStatus::Refused { reason, lasting });
            number
        });
        // The node's loop hears no report before this lock is released.
        if let Some(one) = state.moves.numbered(number) {
            one.halt = request.halt;
        }
        Ok(MoveBegun { number })
    }

    /// A halted move goes on. Answers its state.
    pub(crate) fn proceed_with_move(&self, number: u64) -> Result<MoveStatus, NodeError> {
        let mut state = self.state();
        let halted = state.moves.numbered(number).and_then(|one| Some((one.source, one.halted.take()?)));
        if let Some((source, next)) = halted {
            self.take_step(&mut state, source, next);
        }
        state.moves.status(number).ok_or(NodeError::NoMove(number))
    }

    pub(crate) fn move_status(&self, number: u64) -> Result<MoveStatus, NodeError> {
        self.state().moves.status(number).ok_or(NodeError::NoMove(number))
    }

    pub(crate) fn start_move(
        &self,
        state: &mut CoreState,
        session: u64,
        asker: Asker,
        stop: Duration,
    ) -> Result<u64, Refusal> {
        let source = state.registry.sessions.get(&session).map(|session| session.server);
        let source = source.ok_or_else(|| Refusal::lasting("there is no such session (`aviary ps` lists them)"))?;
        let sessions: BTreeSet<u64> = state.registry.sessions_of(source).into_iter().collect();
        movable(state, source, &sessions)?;
        let target = match asker {
            Asker::Check if state.parks.of(source).is_some() => return Err(Refusal::lasting("it is parked")),
            Asker::Check => None,
            Asker::Operator | Asker::Parker | Asker::Idle | Asker::Session => Some(self.reserve_target(state, source)?),
        };
        let purpose = match asker {
            // It stays parked, and another API server watches for its calls.
            _ if state.parks.of(source).is_some() => Purpose::Park,
            Asker::Parker | Asker::Idle => Purpose::Park,
            Asker::Session if self.config.test_parks => Purpose::Park,
            Asker::Operator | Asker::Check | Asker::Session => Purpose::Move,
        };
        let (now, number) = (Instant::now(), state.moves.next_number());
        let progress = match (target, purpose) {
            (Some(_), Purpose::Move) => Progress::new(sessions.clone(), stop, now),
            // The new API server makes nothing yet.
            (Some(_), Purpose::Park) => Progress::unannounced(sessions.clone(), stop, now),
            (None, _) => Progress::of_check(sessions.clone(), stop, now),
        };
        let parts = sessions.iter().map(|session| (*session, Part::default())).collect();
        // Where nothing is prepared the order is the first step.
        let (ordered, halt, halted) = (target.is_none().then_some(now), None, None);
        let rehearser = None;
        let begun =
            Move { number, source, target, rehearser, purpose, progress, parts, since: now, ordered, halt, halted };
        state.moves.begin(begun);
        let begun = match (target, purpose) {
            (Some(_), Purpose::Move) => order(state, source, &sessions, MoveOrder::Announce),
            (Some(_), Purpose::Park) => self.prepare(state, source).map_err(|error| refusal_of_target(&error)),
            (None, _) => order_capture(state, source, &sessions, stop, purpose),
        };
        if let Err(refusal) = begun {
            self.give_up(state, source, &refusal);
            return Err(refusal);
        }
        Ok(number)
    }

    /// A report of an API server about a session that moves.
    pub(crate) fn hear_move(
        &self,
        state: &mut CoreState,
        server: u64,
        session: u64,
        report: MoveReport,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Lie> {
        if state.parks.has_session(server, session) {
            return self.hear_parked(state, server, session, report);
        }
        if report == MoveReport::Wanted {
            return self.hear_wish(state, server, session);
        }
        if report.is_answer() && state.moves.is_late_answer(server, session) {
            self.tell_of(state, server, Level::Debug, format_args!("session {session}: a late report"));
            return Ok(());
        }
        let Some(one) = state.moves.of(server) else {
            // The move was given up a moment ago.
            self.tell_of(state, server, Level::Debug, format_args!("session {session}: a report of no move"));
            return Ok(());
        };
        let (source, is_source, purpose) = (one.source, one.source == server, one.purpose);
        let Some(part) = one.parts.get_mut(&session) else { return Err(Lie::OthersSession(session)) };
        let event = match report {
            MoveReport::Captured(figures) if is_source => {
                part.state = StateDescriptors::of(descriptors);
                part.figures = figures;
                if figures.rehearse && purpose == Purpose::Park {
                    one.progress.rehearse();
                }
                MoveEvent::Captured(session)
            }
            MoveReport::Announced if is_source => {
                part.announced = descriptors.into_iter().next();
                MoveEvent::Announced(session)
            }
            MoveReport::Prepared if !is_source => MoveEvent::Prepared(session),
            // The new one says so only of a session that it is prepared for.
            MoveReport::Unmovable { reason, lasting } => {
                if is_source {
                    one.progress.refused(session);
                }
                let refusal = Refusal { reason: shown_reason(&reason), lasting };
                if is_source { MoveEvent::Refused(refusal) } else { one.progress.failed_in_target(refusal) }
            }
            MoveReport::Differs { reason } if !is_source => {
                one.progress.failed_in_target(Refusal::lasting(shown_reason(&reason)))
            }
            MoveReport::Parked if !is_source && one.progress.stage() == Stage::Rehearsing => {
                // One that does not listen has ended, or is late: both are seen.
                let _ = tell(state, server, &ToServer::Move { session, order: MoveOrder::Rebuild }, &[]);
                return Ok(());
            }
            MoveReport::Parked if !is_source && purpose == Purpose::Park => MoveEvent::Rebuilt(session),
            MoveReport::Rebuilt { .. }
                if !is_source && purpose == Purpose::Park && one.progress.stage() != Stage::Rehearsing =>
            {
                MoveEvent::Refused(Refusal::lasting("its module is of an earlier Aviary, which cannot park"))
            }
            MoveReport::Rebuilt { rebuild_us } if !is_source => {
                part.rebuild_us = rebuild_us;
                MoveEvent::Rebuilt(session)
            }
            _ => return Err(Lie::NoSuchMove(session)),
        };
        if self.step_move(state, source, event) { Ok(()) } else { Err(Lie::NoSuchMove(session)) }
    }

    /// A session of a test stands and asks to be moved. It gets an answer in any case.
    fn hear_wish(&self, state: &mut CoreState, server: u64, session: u64) -> Result<(), Lie> {
        if let Some(part) = state.moves.of(server).filter(|one| one.target == Some(server)).map(|one| &mut one.parts)
            && let Some(part) = part.get_mut(&session)
        {
            part.wanted = true;
            return Ok(());
        }
        let own = state.registry.sessions.get(&session).is_some_and(|known| known.server == server);
        if !own {
            return Err(Lie::OthersSession(session));
        }
        // The end of the move that has it answers, too. To go on before that would be to go on in two processes.
        if state.moves.of(server).is_some_and(|one| one.parts.contains_key(&session)) {
            return Ok(());
        }
        let begun = match self.config.test_move_every {
            Some(_) => self.start_move(state, session, Asker::Session, TEST_STOP),
            None => Err(Refusal::lasting("sessions of this node do not move by themselves")),
        };
        if let Err(refusal) = begun {
            self.log.debug(format_args!("session {session} does not move: {}", refusal.reason));
            let _ = tell(state, server, &ToServer::Move { session, order: MoveOrder::Resume }, &[]);
        }
        Ok(())
    }

    /// The new API server says that a session is over before it was its own: it could not be rebuilt.
    pub(crate) fn hear_failed_rebuild(&self, state: &mut CoreState, server: u64, reason: &str) -> bool {
        let Some(one) = state.moves.of(server).filter(|one| one.target == Some(server)) else { return false };
        let (source, event) = (one.source, one.progress.failed_in_target(Refusal::lasting(shown_reason(reason))));
        self.step_move(state, source, event)
    }

    /// False: the event cannot be.
    fn step_move(&self, state: &mut CoreState, source: u64, event: MoveEvent) -> bool {
        let Some(one) = state.moves.of(source) else { return true };
        let next = one.progress.after(event, Instant::now());
        if one.halt.is_some() && Halt::before(&next) == one.halt {
            one.halted = Some(next);
            return true;
        }
        if !matches!(next, Next::Wait | Next::Lie) {
            // Something else has come between.
            one.halted = None;
        }
        self.take_step(state, source, next)
    }

    /// False: the event before it cannot be.
    fn take_step(&self, state: &mut CoreState, source: u64, next: Next) -> bool {
        let Some(one) = state.moves.of(source) else { return true };
        let purpose = one.purpose;
        match next {
            Next::Wait => {}
            Next::Prepare => {
                if let Err(error) = self.prepare(state, source) {
                    self.give_up(state, source, &refusal_of_target(&error));
                }
            }
            Next::Capture if state.parks.of(source).is_some() => match self.lend_kept(state, source) {
                Ok(()) => return self.take_step(state, source, Next::Rebuild),
                Err(refusal) => self.give_up(state, source, &refusal),
            },
            Next::Capture => {
                let (sessions, stop) = (one.progress.sessions().clone(), one.progress.stop());
                one.ordered = Some(Instant::now());
                if let Err(refusal) = order_capture(state, source, &sessions, stop, purpose) {
                    self.give_up(state, source, &refusal);
                }
            }
            Next::Rebuild if one.target.is_none() => self.end_check(state, source),
            Next::Rehearse | Next::Replace | Next::Rebuild => {
                let made = if next == Next::Replace { self.replace_rehearser(state, source) } else { Ok(()) };
                let room = made.and_then(|()| self.check_parked_memory(state, source));
                let handed = room.and_then(|()| self.hand_to_target(state, source).map_err(|e| refusal_of_target(&e)));
                if let Err(refusal) = handed {
                    self.give_up(state, source, &refusal);
                }
            }
            Next::Commit => self.commit(state, source),
            Next::GiveUp(refusal) => self.give_up(state, source, &refusal),
            Next::Lie => return false,
        }
        true
    }

    /// From here on the sessions are the new API server's. Everything that says whose they are changes in this one step; of
    /// the old API server nothing is needed any more.
    fn commit(&self, state: &mut CoreState, source: u64) {
        let Some(one) = state.moves.of(source) else { return };
        let (purpose, Some(target), sessions) = (one.purpose, one.target, one.progress.sessions().clone()) else {
            return;
        };
        let now: BTreeSet<u64> = state.registry.sessions_of(source).into_iter().collect();
        if now != sessions {
            return self.give_up(state, source, &Refusal::not_now("another session of the program has begun or ended"));
        }
        if let Some(refusal) = unfit_source(state.registry.servers.get(&source).map(|server| server.state)) {
            return self.give_up(state, source, &refusal);
        }
        // It may have died after its report; the old one still has the sessions.
        if state.registry.servers.get(&target).is_none_or(|server| server.process.has_ended()) {
            return self.give_up(state, source, &Refusal::not_now("the new API server has ended"));
        }
        // Others may have been parked since the states went to the new API server.
        if let Err(refusal) = self.check_parked_memory(state, source) {
            return self.give_up(state, source, &refusal);
        }
        let seats = state.registry.servers.get(&source).and_then(|server| server.seat.as_ref());
        let seats = seats.zip(state.registry.servers.get(&target).and_then(|server| server.seat.as_ref()));
        let Some(held) = seats.and_then(|(from, to)| match (purpose, state.parks.of(source)) {
            (Purpose::Move, _) => state.accounts.move_slot(from, to).ok().map(|()| Vec::new()),
            (Purpose::Park, Some(park)) => Some(park.held.clone()),
            // It holds that until it is reaped.
            (Purpose::Park, None) => Some(state.accounts.held_by(from)),
        }) else {
            return self.give_up(
                state,
                source,
                &Refusal::not_now("the tenant's accounts are locked by another API server"),
            );
        };
        self.hand_on(state, source, target);
        let process = state.registry.servers.get(&target).map_or(0, |server| server.process.pid());
        let Some(one) = state.moves.of(source) else { return };
        let figures = one.figures(process, Instant::now());
        let (number, rehearser) = (one.number, one.rehearser);
        let gone = one.progress.source_gone();
        let parts = std::mem::take(&mut one.parts);
        let old = state.registry.servers.get(&source).map_or(0, |server| server.process.pid());
        let ids = sessions.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        if purpose == Purpose::Park {
            let before = self.keep_parked(state, source, target, parts, held);
            let rehearser = rehearser.filter(|one| holds_something(state, *one));
            let status = if before { MoveStatus::Moved(figures) } else { MoveStatus::Parked(figures) };
            state.moves.leave(number, status, rehearser);
            let MoveFigures { whole_us, bytes, .. } = figures;
            let line =
                format_args!("session {ids}: parked, from API server {old} to {process}: {whole_us} us, {bytes} bytes");
            self.log.at(self.level_of_moves(), line);
            return self.end_source(state, source, gone);
        }
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
                self.schedule(&state.tenants, id, &session.tenant, process, part.devices);
            }
            // One that has just ended is seen when it is reaped.
            let _ = tell(state, target, &ToServer::Move { session: id, order: MoveOrder::Go }, &[]);
        }
        state.moves.end(number, MoveStatus::Moved(figures));
        let MoveFigures { stood_us, bytes, .. } = figures;
        let line =
            format_args!("session {ids}: moved from API server {old} to {process}: {stood_us} us, {bytes} bytes");
        self.log.at(self.level_of_moves(), line);
        self.end_source(state, source, gone);
    }

    /// Of the old API server nothing is needed any more. `gone`: it has ended before.
    fn end_source(&self, state: &mut CoreState, source: u64, gone: bool) {
        crate::end::end_server(&mut state.registry, source);
        if gone {
            self.reap_source(state, source);
        }
    }

    /// Only whether it would work was asked.
    fn end_check(&self, state: &mut CoreState, source: u64) {
        let process = state.registry.servers.get(&source).map_or(0, |server| server.process.pid());
        let Some(one) = state.moves.of(source) else { return };
        let (number, figures) = (one.number, one.figures(process, Instant::now()));
        if let Some(one) = state.moves.end(number, MoveStatus::Movable(figures)) {
            resume(state, &one);
        }
    }

    /// The sessions go on in the old API server, if that is still there.
    pub(crate) fn give_up(&self, state: &mut CoreState, source: u64, refusal: &Refusal) {
        let Some(number) = state.moves.of(source).map(|one| one.number) else { return };
        let status = MoveStatus::Refused { reason: refusal.reason.clone(), lasting: refusal.lasting };
        let Some(one) = state.moves.end(number, status) else { return };
        state.moves.owe_answers(&one);
        for id in one.progress.sessions() {
            if let Some(session) = state.registry.sessions.get_mut(id) {
                session.moves.refused = Some(refusal.reason.clone());
            }
            self.log.at(self.level_of_moves(), format_args!("session {id}: not moved: {}", refusal.reason));
        }
        // First the new one, which must not answer anybody any more.
        if let Some(target) = one.target {
            crate::end::end_server(&mut state.registry, target);
        }
        match one.progress.source_gone() {
            true => self.reap_source(state, source),
            false => resume(state, &one),
        }
        if one.parts.values().any(|part| part.wanted) {
            self.unpark_for(state, source);
        }
    }

    /// An API server has ended. True: it is reaped when its move is over.
    pub(crate) fn move_loses_server(&self, state: &mut CoreState, server: u64) -> bool {
        let Some(one) = state.moves.of(server) else { return false };
        let (source, number) = (one.source, one.number);
        let killed = state.registry.servers.get(&server).is_some_and(|known| known.state == ServerState::Killed);
        if source != server {
            self.step_move(state, source, MoveEvent::TargetGone);
            return false;
        }
        if killed {
            // The node has ended it, and its sessions with it.
            self.step_move(state, source, MoveEvent::Refused(Refusal::lasting("its API server was ended")));
            return false;
        }
        if let Some(known) = state.registry.servers.get(&server) {
            self.epoll.remove(known.process.exit.as_fd());
        }
        // It cannot be killed any more, however long the new one takes.
        state.registry.change(server, ServerEvent::Ended, Instant::now());
        self.step_move(state, source, MoveEvent::SourceGone);
        // Given up at once, it was reaped with that.
        state.moves.is_under_way(number) || !state.registry.servers.contains_key(&server)
    }

    /// An operator has ended an API server, and what it had with it.
    pub(crate) fn end_move_of(&self, state: &mut CoreState, server: u64) {
        if let Some(source) = state.moves.of(server).map(|one| one.source) {
            self.step_move(state, source, MoveEvent::Refused(Refusal::lasting("it was ended by an operator")));
        }
    }

    /// The guest of an API server has ended.
    pub(crate) fn move_loses_guest(&self, state: &mut CoreState, server: u64) {
        if let Some(source) = state.moves.of(server).map(|one| one.source) {
            self.step_move(state, source, MoveEvent::GuestGone);
        }
    }

    pub(crate) fn give_up_overdue_moves(&self, now: Instant) {
        let mut state = self.state();
        for source in state.moves.overdue(now) {
            self.step_move(&mut state, source, MoveEvent::Overdue);
        }
    }

    /// Thousands of moves of a test are of no interest to readers of the log.
    pub(crate) fn level_of_moves(&self) -> Level {
        if self.config.test_move_every.is_some() { Level::Debug } else { Level::Info }
    }
}

/// Obstacles that the node itself knows.
fn movable(state: &mut CoreState, source: u64, sessions: &BTreeSet<u64>) -> Result<(), Refusal> {
    if state.moves.of(source).is_some() {
        return Err(Refusal::not_now("it is moving already"));
    }
    if state.parks.of(source).is_some_and(|park| !park.life.is_quiet()) {
        return Err(Refusal::not_now("it is parked, and on its way back"));
    }
    if let Some(refusal) = unfit_source(state.registry.servers.get(&source).map(|server| server.state)) {
        return Err(refusal);
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
fn unfit_source(state: Option<ServerState>) -> Option<Refusal> {
    match state {
        Some(ServerState::Serving | ServerState::Ended) => None,
        // It has ended by itself: the node knows what that means only once it has its state.
        Some(ServerState::Doomed { why: EndReason::HungUp, .. }) => None,
        Some(other) => Some(Refusal::lasting(format!("its API server is about to end: {}", other.told()))),
        None => Some(Refusal::lasting("its API server has ended")),
    }
}

/// The old API server stops the sessions and writes their state.
fn order_capture(
    state: &CoreState,
    source: u64,
    sessions: &BTreeSet<u64>,
    stop: Duration,
    purpose: Purpose,
) -> Result<(), Refusal> {
    let stop_ms = u64::try_from(stop.as_millis()).unwrap_or(MAX_STOP_MS);
    order(state, source, sessions, MoveOrder::Capture { stop_ms, park: purpose == Purpose::Park })
}

fn order(state: &CoreState, source: u64, sessions: &BTreeSet<u64>, order: MoveOrder) -> Result<(), Refusal> {
    let told = |session: &u64| {
        let captures = matches!(order, MoveOrder::Capture { .. });
        let sockets = if captures { aviary_control::order_sockets().map(Vec::from) } else { Ok(Vec::new()) };
        let order = ToServer::Move { session: *session, order };
        sockets.is_ok_and(|sockets| {
            let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
            tell(state, source, &order, &sockets).is_ok()
        })
    };
    match sessions.iter().all(told) {
        true => Ok(()),
        false => Err(Refusal::not_now("its API server does not listen")),
    }
}

fn resume(state: &CoreState, one: &Move) {
    for session in one.progress.sessions() {
        // One that has just ended is seen when it is reaped.
        let _ = tell(state, one.source, &ToServer::Move { session: *session, order: MoveOrder::Resume }, &[]);
    }
}

pub(crate) fn tell(
    state: &CoreState,
    server: u64,
    message: &ToServer,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let server = state.registry.servers.get(&server).ok_or(io::ErrorKind::NotFound)?;
    aviary_control::send(server.process.control.as_fd(), message, descriptors, Patience::None)
}
