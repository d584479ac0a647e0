//! What API servers report about sessions that move or are parked, and other events of those: each becomes one event of the
//! relocation. What an API server says of a session that is not its own, or cannot be, is a lie and ends it.

use super::{
    machine::{Event, Impossible, Refusal},
    table::{Kind, Purpose},
};
use crate::config::TestKind;
use crate::log::Level;
use crate::node::{Core, CoreState};
use crate::sessions::events::{Lie, shown_reason};
use crate::sessions::life::ServerEvent;
use crate::sessions::registry::ServerRecord;
use aviary_control::{MoveOrder, MoveReport};
use std::{
    os::fd::AsFd,
    time::{Duration, Instant},
};

/// Time in which the session of a test must be paused: what is not is left alone.
const TEST_STOP: Duration = Duration::from_millis(200);

impl Core {
    pub(crate) fn hear_relocation(
        &self,
        state: &mut CoreState,
        server: u64,
        session: u64,
        report: MoveReport,
    ) -> Result<(), Lie> {
        let watches = state.relocations.has_parked(server, session);
        match &report {
            // The hang-up of a program that ends: nothing is rebuilt for that.
            MoveReport::Wanted
                if watches && state.registry.servers.get(&server).is_some_and(ServerRecord::has_lost_guest) =>
            {
                return Ok(());
            }
            MoveReport::Wanted if !watches => return self.hear_wish(state, server, session),
            MoveReport::Rebuilt { rebuild_us } if watches => {
                self.log.at(self.level_of_moves(), format_args!("session {session}: rebuilt in {rebuild_us} us"));
            }
            _ => {}
        }
        let source = state.relocations.source_of(server);
        let Some(record) = source.and_then(|source| state.relocations.get_mut(source)) else {
            // The move was given up a moment ago.
            self.tell_of(state, server, Level::Debug, format_args!("session {session}: a report of no move"));
            return Ok(());
        };
        let (source, is_source) = (record.source, record.source == server);
        let attempt = record.attempt.as_ref().map(|attempt| attempt.number);
        if is_source && !watches && report.answers().is_some_and(|answered| Some(answered) != attempt) {
            self.tell_of(
                state,
                server,
                Level::Debug,
                format_args!("session {session}: an answer to an earlier attempt"),
            );
            return Ok(());
        }
        let part = record.parts.get_mut(&session).ok_or(Lie::OthersSession(session))?;
        let sender = match (is_source, watches) {
            (_, true) => Sender::Watcher,
            (true, false) => Sender::Source,
            (false, false) => Sender::Target,
        };
        match &report {
            MoveReport::Captured { figures, .. } if sender == Sender::Source => part.figures = *figures,
            MoveReport::Rebuilt { rebuild_us } if sender == Sender::Target => part.rebuild_us = *rebuild_us,
            _ => {}
        }
        let event = event_of(sender, session, report).ok_or(Lie::NoSuchMove(session))?;
        if watches && event.kind != Kind::Wanted {
            self.watcher_fails(state, server);
        }
        self.step(state, source, &event).map_err(|Impossible| Lie::NoSuchMove(session))
    }

    /// An API server that watches has failed: another one that was to take its place does not.
    fn watcher_fails(&self, state: &mut CoreState, server: u64) {
        if state.relocations.get(server).is_some_and(|record| record.relocation.purpose() == Purpose::Upgrade) {
            self.give_up(state, server, Refusal::not_now("the API server that watches for its calls has failed"));
        }
    }

    /// A session of a test is paused and asks to be moved. It gets an answer in any case.
    fn hear_wish(&self, state: &mut CoreState, server: u64, session: u64) -> Result<(), Lie> {
        let source = state.relocations.source_of(server);
        let record = source.and_then(|source| state.relocations.get(source));
        let moves = record.is_some_and(|record| record.parts.contains_key(&session));
        if let Some(source) = source.filter(|source| moves && *source != server) {
            // Its program has called while it was being parked.
            return self.step(state, source, &Event::new(Kind::Wanted)).map_err(|Impossible| Lie::NoSuchMove(session));
        }
        match state.registry.sessions.get(&session) {
            // Its program has ended a moment ago, which an API server that watches takes for a call.
            None => return Ok(()),
            Some(known) if known.server != server => return Err(Lie::OthersSession(session)),
            Some(_) => {}
        }
        // The end of the move that has it answers, too. To continue before that would be to continue in two processes.
        if moves {
            return Ok(());
        }
        let purpose = match self.config.test_move_kind {
            TestKind::Move => Purpose::Move,
            TestKind::Park => Purpose::Park,
            TestKind::Swap => {
                self.swap_in_test(state, server, session);
                return Ok(());
            }
        };
        let begun = match self.config.test_move_every {
            Some(_) => self.start_relocation(state, session, purpose, TEST_STOP),
            None => Err(Refusal::lasting("sessions of this node do not move on their own")),
        };
        if let Err(refusal) = begun {
            self.log.debug(format_args!("session {session} is not moved: {}", refusal.reason));
            super::send::order(state, server, session, MoveOrder::Resume);
        }
        Ok(())
    }

    /// An API server reports that a session is over. True: it was to be rebuilt there, or is parked there, and is not over.
    pub(crate) fn hear_failed_rebuild(&self, state: &mut CoreState, server: u64, session: u64, reason: &str) -> bool {
        let Some(source) = state.relocations.source_of(server) else { return false };
        if source == server && !state.relocations.has_parked(server, session) {
            return false;
        }
        if source == server {
            self.watcher_fails(state, server);
        }
        self.step(state, source, &Event::because(Kind::Failed, Refusal::lasting(shown_reason(reason)))).is_ok()
    }

    /// The parked sessions of an API server, if it has any, are wanted: by an operator, or since their guest has opened
    /// another connection.
    pub(crate) fn unpark_for(&self, state: &mut CoreState, server: u64) {
        if state.relocations.parked(server).is_some_and(|record| !record.relocation.is_wanted()) {
            let _ = self.step(state, server, &Event::new(Kind::Wanted));
        }
    }

    /// An API server has ended. True: it is reaped when its relocation is over.
    pub(crate) fn relocation_loses_server(&self, state: &mut CoreState, server: u64) -> bool {
        let Some(source) = state.relocations.source_of(server) else { return false };
        if source != server {
            let _ = self.step(state, source, &Event::new(Kind::TargetGone));
            return false;
        }
        let Some(number) = state.relocations.attempt(source).map(|attempt| attempt.number) else { return false };
        if state.registry.servers.get(&server).is_some_and(|known| known.state.was_killed()) {
            // The node has ended it, and its sessions with it.
            self.give_up(state, source, Refusal::lasting("its API server was ended"));
            return false;
        }
        if let Some(known) = state.registry.servers.get(&server) {
            self.epoll.remove(known.process.exit.as_fd());
        }
        // It cannot be killed any more, however long the new one takes.
        state.registry.change(server, ServerEvent::Ended, Instant::now());
        let _ = self.step(state, source, &Event::new(Kind::SourceGone));
        // Given up at once, it was reaped with that.
        state.relocations.is_under_way(number) || !state.registry.servers.contains_key(&server)
    }

    /// An API server that watches has ended by itself: its parked sessions go to another one.
    pub(crate) fn parked_lose_server(&self, state: &mut CoreState, server: u64) {
        if state.relocations.parked(server).is_some() {
            self.watcher_fails(state, server);
            let _ = self.step(state, server, &Event::new(Kind::SourceGone));
        }
    }

    /// The sessions of an API server are over, whatever becomes of it: they are not moved, and nothing is kept of them.
    pub(crate) fn end_relocation_of(&self, state: &mut CoreState, server: u64, why: &str) {
        if let Some(source) = state.relocations.source_of(server) {
            let _ = self.step(state, source, &Event::because(Kind::Ended, Refusal::lasting(why)));
        }
    }

    /// Everything whose time is over: API servers that are late, and sessions that wait for room.
    pub(crate) fn look_at_relocations(&self, now: Instant) {
        let mut state = self.state();
        for source in state.relocations.due(now) {
            let _ = self.step(&mut state, source, &Event::new(Kind::Due));
        }
    }
}

/// An API server that reports something about a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    Source,
    Target,
    /// The source of parked sessions.
    Watcher,
}

/// The event of a report; `None`: an API server in this place cannot say so.
fn event_of(sender: Sender, session: u64, report: MoveReport) -> Option<Event> {
    use Sender::{Source, Target, Watcher};
    let because =
        |kind, reason: &str, lasting| Some(Event::because(kind, Refusal { reason: shown_reason(reason), lasting }));
    match (report, sender) {
        (MoveReport::Announced { .. }, Source) => Some(Event::report(Kind::Announced, session)),
        (MoveReport::Captured { figures, .. }, Source) => Some(Event::captured(session, figures.rehearse)),
        (MoveReport::Unmovable { reason, lasting, .. }, Source) => because(Kind::Refused, &reason, lasting),
        (MoveReport::Prepared, Target) => Some(Event::report(Kind::Prepared, session)),
        (MoveReport::Parked, Target | Watcher) => Some(Event::report(Kind::Settled, session)),
        (MoveReport::Rebuilt { .. }, Target | Watcher) => Some(Event::report(Kind::Rebuilt, session)),
        (MoveReport::Unmovable { reason, lasting, .. }, Target | Watcher) => because(Kind::Failed, &reason, lasting),
        (MoveReport::Differs { reason }, Target | Watcher) => because(Kind::Differs, &reason, true),
        (MoveReport::Wanted, Watcher) => Some(Event::new(Kind::Wanted)),
        _ => None,
    }
}
