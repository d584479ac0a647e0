//! The node's steps of a move, each under its lock.

use super::{
    Asker, Halt, MAX_STOP_MS, Move, MoveBegun, MoveEvent, MoveRequest, MoveStatus, Next, Part, Progress, Refusal,
    TEST_STOP,
};
use crate::{
    NodeError,
    epoll::Token,
    events::Lie,
    life::{EndReason, ServerEvent, ServerState, SessionState},
    log::Level,
    node::{Core, CoreState},
    tenants::copies,
};
use aviary_control::{
    DeviceDescriptors, MoveOrder, MoveReport, Patience, Preparation, SessionDescriptors, StateDescriptors, ToServer,
};
use std::{
    collections::BTreeSet,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

/// Longest reason that is kept and shown, in bytes: an API server wrote it.
const MAX_REASON_BYTES: usize = 512;

impl Core {
    /// An operator moves a session, or asks if it could be moved.
    pub(crate) fn begin_move(&self, request: &MoveRequest) -> Result<MoveBegun, NodeError> {
        let stop = Duration::from_millis(request.stop_ms.min(MAX_STOP_MS));
        let asker = if request.check { Asker::Check } else { Asker::Operator };
        let mut state = self.state();
        if !state.registry.sessions.contains_key(&request.session) {
            return Err(NodeError::NoSession(request.session));
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

    fn start_move(&self, state: &mut CoreState, session: u64, asker: Asker, stop: Duration) -> Result<u64, Refusal> {
        let source = state.registry.sessions.get(&session).map(|session| session.server);
        let source = source.ok_or_else(|| Refusal::lasting("there is no such session (`aviary ps` lists them)"))?;
        let sessions: BTreeSet<u64> = state.registry.sessions_of(source).into_iter().collect();
        movable(state, source, &sessions)?;
        let target = match asker {
            Asker::Check => None,
            Asker::Operator | Asker::Session => Some(self.reserve_target(state, source)?),
        };
        let (now, number) = (Instant::now(), state.moves.next_number());
        let progress = match target {
            Some(_) => Progress::new(sessions.clone(), stop, now),
            None => Progress::of_check(sessions.clone(), stop, now),
        };
        let parts = sessions.iter().map(|session| (*session, Part::default())).collect();
        state.moves.begin(Move { number, source, target, progress, parts, since: now, halt: None, halted: None });
        let begun = match target {
            Some(target) => self.prepare(state, target, &sessions),
            None => order_capture(state, source, &sessions, stop),
        };
        if let Err(refusal) = begun {
            self.give_up(state, source, &refusal);
            return Err(refusal);
        }
        Ok(number)
    }

    /// The new API server loads what the sessions need, while they still run.
    fn prepare(&self, state: &CoreState, target: u64, sessions: &BTreeSet<u64>) -> Result<(), Refusal> {
        for id in sessions {
            let Some(session) = state.registry.sessions.get(id) else { continue };
            let (modules, api) = (self.config.modules.clone(), session.api.clone());
            let wanted = Preparation { session: *id, modules, api, spec_hash: session.spec_hash };
            let told = tell(state, target, &ToServer::Prepare(wanted), &[]);
            told.map_err(|error| refusal_of_target(&NodeError::HandOver(0, error)))?;
        }
        Ok(())
    }

    /// A spare API server with a place in the tenant's page, for the guest of `source`.
    fn reserve_target(&self, state: &mut CoreState, source: u64) -> Result<u64, Refusal> {
        let none = |error: &dyn std::fmt::Display| Refusal::not_now(format!("there is no new API server: {error}"));
        let known = state.registry.servers.get(&source).and_then(|known| known.guest.zip(known.seat.as_ref()));
        let (guest, tenant) =
            known.map(|(guest, seat)| (guest, seat.tenant.clone())).ok_or_else(|| none(&"no guest"))?;
        if state.registry.spares() == 0 {
            self.spawn_spare(state).map_err(|error| none(&error))?;
        }
        self.refill_soon(state);
        let tenant = state.tenants.called(&tenant);
        let seat = state.accounts.assign_slot(&tenant).map_err(|error| none(&error))?;
        match state.registry.reserve_spare(guest) {
            Some((id, server)) => {
                server.seat = Some(seat);
                state.registry.change(id, ServerEvent::SessionGiven, Instant::now());
                Ok(id)
            }
            None => {
                state.accounts.release(&seat);
                Err(none(&"none is ready"))
            }
        }
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
        if report == MoveReport::Wanted {
            return self.hear_wish(state, server, session);
        }
        let Some(one) = state.moves.of(server) else {
            // The move was given up a moment ago.
            self.tell_of(state, server, Level::Debug, format_args!("session {session}: a report of no move"));
            return Ok(());
        };
        let (source, is_source) = (one.source, one.source == server);
        let Some(part) = one.parts.get_mut(&session) else { return Err(Lie::OthersSession(session)) };
        let event = match report {
            MoveReport::Captured(figures) if is_source => {
                part.state = StateDescriptors::of(descriptors);
                part.figures = figures;
                MoveEvent::Captured(session)
            }
            MoveReport::Prepared if !is_source => MoveEvent::Prepared(session),
            // The new one says so only of a session that it is prepared for.
            MoveReport::Unmovable { reason, lasting } => {
                let reason = reason[..reason.floor_char_boundary(MAX_REASON_BYTES)].escape_debug().to_string();
                MoveEvent::Refused(Refusal { reason, lasting })
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
        let source = state.moves.of(server).filter(|one| one.target == Some(server)).map(|one| one.source);
        let Some(source) = source else { return false };
        let reason = reason[..reason.floor_char_boundary(MAX_REASON_BYTES)].escape_debug().to_string();
        self.step_move(state, source, MoveEvent::Refused(Refusal::lasting(reason)))
    }

    /// False: the event cannot be.
    fn step_move(&self, state: &mut CoreState, source: u64, event: MoveEvent) -> bool {
        let Some(one) = state.moves.of(source) else { return true };
        let next = one.progress.after(event, Instant::now());
        if one.halt.is_some() && Halt::before(&next) == one.halt {
            one.halted = Some(next);
            return true;
        }
        self.take_step(state, source, next)
    }

    /// False: the event before it cannot be.
    fn take_step(&self, state: &mut CoreState, source: u64, next: Next) -> bool {
        let Some(one) = state.moves.of(source) else { return true };
        match next {
            Next::Wait => {}
            Next::Capture => {
                let (sessions, stop) = (one.progress.sessions().clone(), one.progress.stop());
                if let Err(refusal) = order_capture(state, source, &sessions, stop) {
                    self.give_up(state, source, &refusal);
                }
            }
            Next::Rebuild if one.target.is_none() => self.end_check(state, source),
            Next::Rebuild => {
                if let Err(error) = self.hand_to_target(state, source) {
                    self.give_up(state, source, &refusal_of_target(&error));
                }
            }
            Next::Commit => self.commit(state, source),
            Next::GiveUp(refusal) => self.give_up(state, source, &refusal),
            Next::Lie => return false,
        }
        true
    }

    /// All of the state to the new API server.
    fn hand_to_target(&self, state: &mut CoreState, source: u64) -> Result<(), NodeError> {
        let gone = || NodeError::HandOver(0, io::ErrorKind::NotFound.into());
        let one = state.moves.of(source).ok_or_else(gone)?;
        let target = one.target.ok_or_else(gone)?;
        let captured: Vec<_> = one.parts.iter_mut().map(|(id, part)| (*id, part.state.take())).collect();
        for (id, captured) in captured {
            let captured = captured.ok_or_else(gone)?;
            let (own, theirs) = self.new_devices().map_err(|errno| NodeError::HandOver(0, errno.into()))?.unzip();
            let seat = state.registry.servers.get(&target).and_then(|server| server.seat.as_ref()).ok_or_else(gone)?;
            let slot = seat.slot;
            let session = state.registry.sessions.get(&id).ok_or_else(gone)?;
            let (tenant, is_own) = (session.tenant.clone(), session.identity.is_nodes_own(session.guest.uid));
            let user = state.user_for(&tenant, is_own)?;
            let session = state.registry.sessions.get(&id).ok_or_else(gone)?;
            let assignment = self.assignment(id, session, slot, user);
            let seat = state.registry.servers.get(&target).and_then(|server| server.seat.as_ref()).ok_or_else(gone)?;
            let page = state.accounts.descriptor(seat).ok_or_else(gone)?;
            let stats = session.pages.as_ref().map(|pages| pages.stats_file.as_fd()).ok_or_else(gone)?;
            let devices = theirs.as_ref();
            let devices = devices
                .map(|(page, bell): &(OwnedFd, OwnedFd)| DeviceDescriptors { page: page.as_fd(), bell: bell.as_fd() });
            let guest = captured.guest.as_fd();
            let orders = aviary_control::order_sockets().map_err(|errno| NodeError::HandOver(0, errno.into()))?;
            let orders = [orders[0].as_fd(), orders[1].as_fd()];
            let session_descriptors = SessionDescriptors { guest, tenant_page: page, stats, orders, devices };
            let mut all = session_descriptors.list();
            // The guest's socket goes once.
            all.extend(captured.list().into_iter().skip(1));
            let devices_file = theirs.as_ref().map(copies).transpose();
            let devices_file = devices_file.map_err(|errno| NodeError::HandOver(0, errno.into()))?;
            let adopt = ToServer::Adopt { assignment: Box::new(assignment), heap: captured.heap.is_some() };
            tell(state, target, &adopt, &all).map_err(|error| NodeError::HandOver(0, error))?;
            if let Some(server) = state.registry.servers.get_mut(&target) {
                server.log.serves(id);
            }
            if let Some(part) = state.moves.of(source).and_then(|one| one.parts.get_mut(&id)) {
                (part.devices, part.devices_file) = (own, devices_file);
            }
        }
        Ok(())
    }

    /// From here on the sessions are the new API server's. Everything that says whose they are changes in this one step; of
    /// the old API server nothing is needed any more.
    fn commit(&self, state: &mut CoreState, source: u64) {
        let Some(one) = state.moves.of(source) else { return };
        let (Some(target), sessions) = (one.target, one.progress.sessions().clone()) else { return };
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
        let seats = state.registry.servers.get(&source).and_then(|server| server.seat.as_ref());
        let seats = seats.zip(state.registry.servers.get(&target).and_then(|server| server.seat.as_ref()));
        let moved = seats.map(|(from, to)| state.accounts.move_slot(from, to));
        if !matches!(moved, Some(Ok(()))) {
            return self.give_up(
                state,
                source,
                &Refusal::not_now("the tenant's accounts are locked by another API server"),
            );
        }
        state.registry.hand_on(source, target);
        let watched = state.registry.servers.get(&target).and_then(|server| server.guest_exit.as_ref());
        if let Some(exit) = watched {
            self.epoll.remove(exit.as_fd());
            // Without it the guest's hang-up still ends the session.
            if let Err(error) = self.epoll.add(exit.as_fd(), Token::GuestExit(target)) {
                self.log.warn(error);
            }
        }
        let process = state.registry.servers.get(&target).map_or(0, |server| server.process.pid());
        let Some(one) = state.moves.of(source) else { return };
        let figures = one.figures(process, Instant::now());
        let number = one.number;
        let gone = one.progress.source_gone();
        let parts = std::mem::take(&mut one.parts);
        for (id, part) in parts {
            self.unschedule(id);
            if let Some(session) = state.registry.sessions.get_mut(&id) {
                session.server = target;
                session.moves.count += 1;
                session.moves.last_us = Some(figures.whole_us);
                session.moves.refused = None;
                if let Some(pages) = &mut session.pages {
                    pages.devices_file = part.devices_file;
                }
                if let (Some(scheduling), Some((page, bell))) = (&self.scheduling, part.devices) {
                    let share = state.tenants.called(&session.tenant).share();
                    scheduling.enter(id, &session.tenant, share, process, page, bell);
                }
            }
            // One that has just ended is seen when it is reaped.
            let _ = tell(state, target, &ToServer::Move { session: id, order: MoveOrder::Go }, &[]);
        }
        state.moves.end(number, MoveStatus::Moved(figures));
        let old = state.registry.servers.get(&source).map_or(0, |server| server.process.pid());
        let ids: Vec<String> = sessions.iter().map(u64::to_string).collect();
        self.log.at(
            self.level_of_moves(),
            format_args!(
                "session {}: moved from API server {old} to {process}: {} us, {} bytes",
                ids.join(", "),
                figures.whole_us,
                figures.bytes
            ),
        );
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
    fn give_up(&self, state: &mut CoreState, source: u64, refusal: &Refusal) {
        let Some(number) = state.moves.of(source).map(|one| one.number) else { return };
        let status = MoveStatus::Refused { reason: refusal.reason.clone(), lasting: refusal.lasting };
        let Some(one) = state.moves.end(number, status) else { return };
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
    fn level_of_moves(&self) -> Level {
        if self.config.test_move_every.is_some() { Level::Debug } else { Level::Info }
    }
}

/// Obstacles that the node itself knows.
fn movable(state: &mut CoreState, source: u64, sessions: &BTreeSet<u64>) -> Result<(), Refusal> {
    if state.moves.of(source).is_some() {
        return Err(Refusal::not_now("it is moving already"));
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

/// The new API server did not take a message. Its end may be seen there first.
fn refusal_of_target(error: &NodeError) -> Refusal {
    match error {
        NodeError::HandOver(_, error)
            if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) =>
        {
            Refusal::not_now("the new API server has ended")
        }
        error => Refusal::not_now(format!("the new API server: {error}")),
    }
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
fn order_capture(state: &CoreState, source: u64, sessions: &BTreeSet<u64>, stop: Duration) -> Result<(), Refusal> {
    let order = MoveOrder::Capture { stop_ms: u64::try_from(stop.as_millis()).unwrap_or(MAX_STOP_MS) };
    let told = |session: &u64| tell(state, source, &ToServer::Move { session: *session, order }, &[]).is_ok();
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

fn tell(state: &CoreState, server: u64, message: &ToServer, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let server = state.registry.servers.get(&server).ok_or(io::ErrorKind::NotFound)?;
    aviary_control::send(server.process.control.as_fd(), message, descriptors, Patience::None)
}
