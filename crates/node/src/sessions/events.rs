//! Messages of API servers.
//!
//! An API server speaks for its own sessions only, and each of them starts and ends once. One that says anything else was
//! taken over or is broken: it is ended.

use crate::log::Level;
use crate::node::{Core, CoreState};
use crate::sessions::life::{ServerEvent, SessionNotice, SessionState, Transition};
use crate::sessions::registry::Session;
use aviary_control::{Foreign, FromServer, Garbage, Heard, MoveReport, hear, is_api_name};
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
    /// it sent a message about session {0}, which belongs to another API server
    OthersSession(u64),
    /// it reported the start of session {0} a second time
    StartedTwice(u64),
    /// it reported an API for session {0} whose name is not valid
    NoApi(u64),
    /// it sent a message that only a zygote may send
    LikeAZygote,
    /// it sent an impossible report about a move of session {0}
    NoSuchMove(u64),
    /// it sent an impossible report about the device memory of session {0}
    NoSuchSwap(u64),
    /// session {0} names more devices than a host has
    InventsDevices(u64),
    /// it holds more {0} than the tenant's limit had room for
    TookWithoutRoom(String),
    /// it has locked the tenant's accounts and does not unlock them
    KeepsLock,
    /// an API server of the tenant keeps writing into the tenant's accounts ({0}), and nobody can tell which
    Rewrote(&'static str),
}

impl Core {
    /// Takes one message; more of them make the socket readable again.
    pub(crate) fn receive_events(&self, id: u64) {
        let mut state = self.state();
        let Some(server) = state.registry.heard(id) else { return };
        match hear(server.process.control.as_fd()) {
            Heard::Message(message) => {
                if let Err(lie) = self.apply_event(&mut state, id, message) {
                    self.end_liar(&mut state, id, &lie);
                }
            }
            Heard::Garbage(garbage) => self.end_liar(&mut state, id, &Lie::Garbage(garbage)),
            Heard::Nothing => {}
            Heard::Closed => {
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
            match hear(server.process.control.as_fd()) {
                Heard::Message(message) => {
                    if let Err(lie) = self.apply_event(&mut state, id, message) {
                        return self.end_liar(&mut state, id, &lie);
                    }
                }
                Heard::Garbage(garbage) => return self.end_liar(&mut state, id, &Lie::Garbage(garbage)),
                Heard::Nothing | Heard::Closed => return,
            }
        }
    }

    fn apply_event(&self, state: &mut CoreState, server: u64, message: FromServer) -> Result<(), Lie> {
        if let FromServer::Move { session, report } = message {
            return self.hear_move(state, server, session, report);
        }
        if let FromServer::Ended { session, reason } = &message
            && self.hear_failed_rebuild(state, server, *session, reason)
        {
            return Ok(());
        }
        let (FromServer::Greeted { session }
        | FromServer::Started { session, .. }
        | FromServer::Ended { session, .. }
        | FromServer::Fetch { session, .. }
        | FromServer::Card { session, .. }) = message
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
                self.tell_of(
                    state,
                    server,
                    Level::Debug,
                    format_args!("a message about session {session}, which has ended, is ignored"),
                );
                return Ok(());
            }
        }
        match message {
            FromServer::Greeted { session } => {
                state.registry.sessions.entry(session).and_modify(|session| session.greeted = true);
                Ok(())
            }
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
            FromServer::Init { .. }
            | FromServer::Born { .. }
            | FromServer::Ready
            | FromServer::Unfit { .. }
            | FromServer::Move { .. } => Err(Lie::LikeAZygote),
        }
    }

    fn hear_move(&self, state: &mut CoreState, server: u64, session: u64, report: MoveReport) -> Result<(), Lie> {
        match report {
            MoveReport::Swap(report) => self.hear_swap(state, server, session, report),
            report => self.hear_relocation(state, server, session, report),
        }
    }

    fn begin(&self, state: &mut CoreState, server: u64, id: u64, api: String, spec_hash: u64) -> Result<(), Lie> {
        if !is_api_name(&api) {
            return Err(Lie::NoApi(id));
        }
        let CoreState { registry, .. } = &mut *state;
        let process = registry.process_of(server);
        let Some(session) = registry.sessions.get_mut(&id) else { return Ok(()) };
        if session.state.change(SessionNotice::Started) != Transition::Begins {
            return Err(Lie::StartedTwice(id));
        }
        (session.api, session.spec_hash) = (api.clone(), spec_hash);
        let devices = session.pages.as_mut().and_then(|pages| pages.devices.take());
        self.schedule(id, &session.tenant, process, devices);
        self.tell_of(state, server, Level::Info, format_args!("session {id}: {api} started"));
        Ok(())
    }

    /// The devices of a session are scheduled from now on; `process`: its API server. `None` where they are not.
    pub(crate) fn schedule(&self, session: u64, tenant: &str, process: u32, devices: Option<(GrantPage, OwnedFd)>) {
        if let (Some(scheduling), Some((page, bell))) = (&self.scheduling, devices) {
            scheduling.enter(session, tenant, process, page, bell);
        }
    }

    fn conclude(&self, state: &mut CoreState, server: u64, id: u64, reason: &str) {
        let known = state.registry.sessions.get_mut(&id);
        if known.is_none_or(|session| session.state.change(SessionNotice::Ended) != Transition::IsOver) {
            return;
        }
        state.registry.sessions.remove(&id);
        self.unschedule(id);
        self.end_swap(state, server, id);
        state.registry.look_for_sessions(server, Instant::now());
        let separator = if reason.is_empty() { "" } else { ": " };
        let reason = shown_reason(reason);
        self.tell_of(state, server, Level::Info, format_args!("session {id}: ended{separator}{reason}"));
    }

    /// One line in the log, and that is the last.
    pub(crate) fn end_liar(&self, state: &mut CoreState, id: u64, lie: &Lie) {
        let Some(server) = state.registry.servers.get(&id) else { return };
        self.epoll.remove(server.process.control.as_fd());
        let pid = server.process.pid();
        let tenant = server.seat.as_ref().map_or("", |seat| &seat.tenant).escape_debug();
        let lie = lie.to_string();
        let lie = lie.escape_debug();
        self.log.warn(format_args!(
            "API server {pid} of tenant {tenant} does what no intact one does (its guest may control it) and is killed: {lie}"
        ));
        server.process.signal(Signal::KILL);
        state.registry.retire(id);
        state.registry.change(id, ServerEvent::Killed, Instant::now());
        if state.relocations.parked(id).is_some() {
            self.end_relocation_of(state, id, "its API server was ended");
        }
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
        self.log.warn(format_args!("{suppressed} lines of API server {pid} were not logged (rate limit)"));
    }
}

impl Session {
    /// The node's copy of the guest's socket, until an API server has said that it serves the session.
    pub fn socket(&self) -> Option<&Foreign> {
        match &self.state {
            SessionState::Offered { socket, .. } => Some(socket),
            SessionState::Running => None,
        }
    }
}
