//! Messages of API servers.
//!
//! An API server speaks for its own sessions only, and each of them starts and ends once. One that says anything else was
//! taken over or is broken: it is ended.

use crate::{
    life::{ServerEvent, SessionNotice, SessionState, Transition},
    log::Level,
    node::{Core, CoreState},
    sessions::Session,
    tenant::Tenants,
};
use aviary_control::{FromServer, Garbage, Received, is_api_name, receive};
use aviary_gate::GrantPage;
use rustix::process::Signal;
use std::{
    fmt,
    os::fd::{AsFd, OwnedFd},
    time::Instant,
};

/// Longest reason of another process that is kept and shown, in bytes.
const MAX_REASON_BYTES: usize = 512;

/// A reason that another process has written, for logs and reports: cut, and without anything that a terminal obeys.
pub(crate) fn shown_reason(reason: &str) -> String {
    reason[..reason.floor_char_boundary(MAX_REASON_BYTES)].escape_debug().to_string()
}

/// Messages that no honest API server sends.
#[derive(Debug, displaydoc::Display)]
pub(crate) enum Lie {
    /// it sent {0}
    Garbage(Garbage),
    /// it spoke of session {0}, which is another API server's
    OthersSession(u64),
    /// it said that session {0} has started, for the second time
    StartedTwice(u64),
    /// it said that session {0} uses an API, whose name is none
    NoApi(u64),
    /// it spoke like a zygote
    LikeAZygote,
    /// it spoke of a move of session {0} that cannot be
    NoSuchMove(u64),
}

impl Core {
    /// Takes one message; more of them make the socket readable again.
    pub(crate) fn receive_events(&self, id: u64) {
        let mut state = self.state();
        let Some(server) = state.registry.heard(id) else { return };
        match receive(server.process.control.as_fd()) {
            Received::Message(message, descriptors) => {
                if let Err(lie) = self.apply_event(&mut state, id, message, descriptors) {
                    self.end_liar(&mut state, id, &lie);
                }
            }
            Received::Garbage(garbage) => self.end_liar(&mut state, id, &Lie::Garbage(garbage)),
            Received::Nothing => {}
            Received::Closed => {
                self.epoll.remove(server.process.control.as_fd());
                state.registry.retire(id);
                state.registry.change(id, ServerEvent::HungUp, Instant::now());
            }
        }
    }

    /// Applies the messages that an API server sent before it ended.
    pub(crate) fn receive_last_events(&self, id: u64) {
        loop {
            let mut state = self.state();
            let Some(server) = state.registry.heard(id) else { return };
            match receive(server.process.control.as_fd()) {
                Received::Message(message, descriptors) => {
                    if let Err(lie) = self.apply_event(&mut state, id, message, descriptors) {
                        return self.end_liar(&mut state, id, &lie);
                    }
                }
                Received::Garbage(garbage) => return self.end_liar(&mut state, id, &Lie::Garbage(garbage)),
                Received::Nothing | Received::Closed => return,
            }
        }
    }

    fn apply_event(
        &self,
        state: &mut CoreState,
        server: u64,
        message: FromServer,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Lie> {
        if let FromServer::Move { session, report } = message {
            return self.hear_move(state, server, session, report, fds);
        }
        if let FromServer::Ended { session, reason } = &message
            && (self.hear_failed_rebuild(state, server, reason)
                || self.hear_parked_end(state, server, *session, reason))
        {
            return Ok(());
        }
        let (FromServer::Started { session, .. }
        | FromServer::Ended { session, .. }
        | FromServer::Fetch { session, .. }
        | FromServer::Card { session, .. }
        | FromServer::Fetched { session, .. }) = message
        else {
            // Both the zygote and its copy say that the copy was born, or that it has a process 1.
            let repeated = matches!(message, FromServer::Born { .. } | FromServer::Init { .. });
            return if repeated { Ok(()) } else { Err(Lie::LikeAZygote) };
        };
        match state.registry.sessions.get(&session) {
            Some(known) if known.server != server => return Err(Lie::OthersSession(session)),
            Some(_) => {}
            None => {
                // It ended a moment ago, and somebody has just fetched what it offered.
                self.tell_of(state, server, Level::Debug, format_args!("news of session {session}, which is over"));
                return Ok(());
            }
        }
        match message {
            FromServer::Started { session, api, spec_hash } => self.begin(state, server, session, api, spec_hash),
            FromServer::Ended { session, reason } => {
                self.conclude(state, server, session, &reason);
                Ok(())
            }
            FromServer::Fetch { session: asker, request, name } => {
                self.ask_for(state, server, asker, request, name);
                Ok(())
            }
            FromServer::Card { session: asker, request } => {
                self.connect_to_card(state, asker, request);
                Ok(())
            }
            FromServer::Fetched { session: giver, asker, request, note } => {
                self.hand_over(state, server, (giver, asker), request, note, fds.first());
                Ok(())
            }
            FromServer::Init { .. }
            | FromServer::Born { .. }
            | FromServer::Ready
            | FromServer::Unfit { .. }
            | FromServer::Move { .. } => Err(Lie::LikeAZygote),
        }
    }

    fn begin(&self, state: &mut CoreState, server: u64, id: u64, api: String, spec_hash: u64) -> Result<(), Lie> {
        if !is_api_name(&api) {
            return Err(Lie::NoApi(id));
        }
        let CoreState { registry, tenants, .. } = &mut *state;
        let process = registry.servers.get(&server).map_or(0, |known| known.process.pid());
        let Some(session) = registry.sessions.get_mut(&id) else { return Ok(()) };
        if session.state.change(SessionNotice::Started) != Transition::Begins {
            return Err(Lie::StartedTwice(id));
        }
        (session.api, session.spec_hash) = (api.clone(), spec_hash);
        let devices = session.pages.as_mut().and_then(|pages| pages.devices.take());
        self.schedule(tenants, id, &session.tenant, process, devices);
        self.tell_of(state, server, Level::Info, format_args!("session {id}: {api} started"));
        Ok(())
    }

    /// The devices of a session are scheduled from now on; `process`: its API server. `None` where they are not.
    pub(crate) fn schedule(
        &self,
        tenants: &Tenants,
        session: u64,
        tenant: &str,
        process: u32,
        devices: Option<(GrantPage, OwnedFd)>,
    ) {
        if let (Some(scheduling), Some((page, bell))) = (&self.scheduling, devices) {
            scheduling.enter(session, tenant, tenants.called(tenant).share(), process, page, bell);
        }
    }

    fn conclude(&self, state: &mut CoreState, server: u64, id: u64, reason: &str) {
        let known = state.registry.sessions.get_mut(&id);
        if known.is_none_or(|session| session.state.change(SessionNotice::Ended) != Transition::IsOver) {
            return;
        }
        state.registry.sessions.remove(&id);
        self.unschedule(id);
        state.registry.look_for_sessions(server, Instant::now());
        let separator = if reason.is_empty() { "" } else { ": " };
        let reason = shown_reason(reason);
        self.tell_of(state, server, Level::Info, format_args!("session {id}: ended{separator}{reason}"));
    }

    /// One line in the log, and that is the last.
    fn end_liar(&self, state: &mut CoreState, id: u64, lie: &Lie) {
        let Some(server) = state.registry.servers.get(&id) else { return };
        self.epoll.remove(server.process.control.as_fd());
        let pid = server.process.pid();
        let tenant = server.seat.as_ref().map_or("", |seat| &seat.tenant).escape_debug();
        let lie = lie.to_string();
        self.log.warn(format_args!("API server {pid} of tenant {tenant} is ended: {}", lie.escape_debug()));
        server.process.signal(Signal::KILL);
        state.parks.by_server.remove(&id);
        state.registry.retire(id);
        state.registry.change(id, ServerEvent::Killed, Instant::now());
    }

    /// A line that an API server causes: not too many.
    pub(crate) fn tell_of(&self, state: &mut CoreState, server: u64, level: Level, line: fmt::Arguments<'_>) {
        let Some(server) = state.registry.servers.get_mut(&server).filter(|_| self.log.tells(level)) else { return };
        let now = Instant::now();
        let pid = server.process.pid();
        let (left_out, admitted) = (server.lines.settle(now), server.lines.admit(now));
        if let Some(left_out) = left_out {
            self.tell_suppressed(pid, left_out);
        }
        if !admitted {
            return;
        }
        self.log.at(level, line);
    }

    pub(crate) fn tell_suppressed(&self, pid: u32, suppressed: u64) {
        self.log.warn(format_args!("{suppressed} lines of API server {pid} were not logged"));
    }
}

impl Session {
    /// The node's copy of the guest's socket, until an API server has said that it serves the session.
    pub fn socket(&self) -> Option<&OwnedFd> {
        match &self.state {
            SessionState::Offered { socket, .. } => Some(socket),
            SessionState::Running => None,
        }
    }
}
