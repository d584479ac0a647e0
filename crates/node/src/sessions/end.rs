//! How sessions, API servers and the node end.

use crate::epoll::{KILL_PATIENCE, Token, ends_by};
use crate::error::NodeError;
use crate::node::{Core, CoreState};
use crate::relocation::send::order;
use crate::report;
use crate::report::{ServerReport, SessionReport};
use crate::scheduling::Overdue;
use crate::servers::api_server::ServerEnd;
use crate::servers::pool::REFILL_BACKOFF;
use crate::sessions::life::{EndReason, ServerEvent, ServerState, SessionState};
use crate::sessions::registry::{Registry, ServerRecord, Session};
use aviary_control::MoveOrder;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    fmt,
    os::fd::AsFd,
    time::{Duration, Instant},
};

/// How long API servers get to end when the node ends.
const SERVER_EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long gateways get to tell their relays that their sessions have ended: a connection that ends without a word is
/// searched for.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);

/// Which sessions an operator ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EndRequest {
    Sessions(Vec<u64>),
    /// All of a tenant.
    Tenant(String),
    /// All that would get something else if they attached now.
    Outdated,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EndReport {
    /// As they were, with those that end because their process's API server does.
    pub ended: Vec<SessionReport>,
    /// API servers of the tenant that had no session any more.
    #[serde(default)]
    pub servers: Vec<ServerReport>,
    /// Numbers that no session has.
    pub unknown: Vec<u64>,
}

impl Core {
    pub(crate) fn reap(&self, id: u64) {
        // Messages that it sent before it ended count.
        self.receive_last_events(id);
        let mut state = self.state();
        if !self.relocation_loses_server(&mut state, id) {
            self.reap_source(&mut state, id);
        }
    }

    /// The process has ended, and no move needs what it held.
    pub(crate) fn reap_source(&self, state: &mut CoreState, id: u64) {
        self.parked_lose_server(state, id);
        let orphans = state.registry.sessions_of(id);
        let Some(mut server) = state.registry.remove_server(id) else { return };
        let CoreState { swapping, registry, .. } = &mut *state;
        swapping.reaped(id, |session| registry.sessions.get(&session).is_some_and(|known| known.server != id));
        let (spare, seat) = (server.guest.is_none(), server.seat.take());
        let status = self.release(server);
        // Not earlier: as long as the process lives it holds what it was granted.
        // The same for what it has started, where that can outlive it.
        match (&self.groups, seat) {
            (Some(groups), Some(seat)) => {
                state.tenancy.emptying.insert(id, seat);
                groups.end(id);
            }
            // An operator has ended it, and it could not end.
            (Some(groups), None) => groups.end(id),
            (None, seat) => {
                seat.iter().for_each(|seat| self.settle_accounts(state, seat));
                state.relocations.left(id);
                state.swapping.emptied(id);
            }
        }
        if spare {
            self.log.error(format_args!("a spare API server ended: {status}"));
            state.spares.refill_at = Some(Instant::now() + REFILL_BACKOFF);
        }
        for session in orphans {
            self.settle(state, session, status);
        }
        // What it had is free for others.
        self.swap_step(state);
    }

    /// Nothing is left of some API servers: what they held is their tenants' again.
    pub(crate) fn settle_emptied(&self) {
        let Some(groups) = &self.groups else { return };
        let mut state = self.state();
        for server in groups.take_empty() {
            if let Some(seat) = state.tenancy.emptying.remove(&server) {
                self.settle_accounts(&mut state, &seat);
                state.relocations.left(server);
            }
            state.swapping.emptied(server);
        }
        // What they had is free for others.
        self.swap_step(&mut state);
    }

    pub(crate) fn unschedule(&self, session: u64) {
        if let Some(scheduling) = &self.scheduling {
            scheduling.leave(session);
        }
    }

    /// A device cannot be taken away from a session that does not give it back: its API server is ended.
    pub(crate) fn end_overdue(&self) {
        let Some(scheduling) = &self.scheduling else { return };
        let mut state = self.state();
        for Overdue { session: id, device, waiting } in scheduling.overdue() {
            let Some(session) = state.registry.sessions.get(&id) else { continue };
            let seconds = waiting.as_secs_f64();
            let why = format_args!(
                " device={device:?}: it kept the device while others waited for {seconds:.1} s (hold_limit)"
            );
            self.tell_end(id, session, why);
            let server = session.server;
            end_server(&mut state.registry, server);
        }
    }

    /// An operator ends sessions. Others of the same processes end with them.
    pub fn end_sessions(&self, request: &EndRequest) -> Result<EndReport, NodeError> {
        self.end_sessions_in(&mut self.state(), request)
    }

    pub(crate) fn end_sessions_in(&self, state: &mut CoreState, request: &EndRequest) -> Result<EndReport, NodeError> {
        let mut at_cards: BTreeSet<u64> = BTreeSet::new();
        let (chosen, unknown): (BTreeSet<u64>, BTreeSet<u64>) = match request {
            EndRequest::Sessions(ids) => {
                at_cards.extend(ids.iter().filter(|id| state.cards.has(**id)));
                let others = ids.iter().filter(|id| !at_cards.contains(id));
                others.partition(|id| state.registry.sessions.contains_key(id))
            }
            EndRequest::Tenant(name) => {
                state.check_known(name)?;
                at_cards.extend(state.cards.ids_of(name));
                let of_tenant = state.registry.sessions.iter().filter(|(_, session)| session.tenant == *name);
                (of_tenant.map(|(id, _)| *id).collect(), BTreeSet::new())
            }
            EndRequest::Outdated => (state.revoked_sessions(), BTreeSet::new()),
        };
        let mut servers: BTreeSet<u64> =
            chosen.iter().filter_map(|id| Some(state.registry.sessions.get(id)?.server)).collect();
        let mut alone = Vec::new();
        if let EndRequest::Tenant(name) = request {
            // A seat is taken for as long as the process lives, whatever it says of its sessions.
            let seated = |server: &ServerRecord| server.seat.as_ref().is_some_and(|seat| seat.tenant == *name);
            servers.extend(state.registry.servers.iter().filter(|(_, server)| seated(server)).map(|(id, _)| *id));
            for (_, server) in state.registry.without_sessions().filter(|(id, _)| servers.contains(id)) {
                self.log.warn(format_args!(
                    "ended: tenant={} API server {}: by an operator (aviary end)",
                    name.escape_debug(),
                    server.process.pid()
                ));
                alone.push(report::server(server));
            }
        }
        let mut ended = self.end_card_sessions(state, &at_cards);
        for (id, session) in &state.registry.sessions {
            if servers.contains(&session.server) {
                let with = if chosen.contains(id) { "" } else { ", with another one of its process" };
                self.tell_end(*id, session, format_args!(": by an operator (aviary end{with})"));
                ended.push(report::session(state, *id, session));
            }
        }
        for server in servers {
            self.end_by_operator(state, server);
            self.end_relocation_of(state, server, "it was ended by an operator");
        }
        Ok(EndReport { ended, servers: alone, unknown: unknown.into_iter().collect() })
    }

    fn tell_end(&self, id: u64, session: &Session, why: fmt::Arguments<'_>) {
        let (tenant, guest) = (session.tenant.escape_debug(), session.guest_pid());
        self.log.warn(format_args!("ended: tenant={tenant} session={id} pid={guest}{why}"));
    }

    /// A session whose API server is gone: one that it never took goes to another.
    /// Not after a crash, which the session's own first bytes may have caused.
    fn settle(&self, state: &mut CoreState, id: u64, status: ServerEnd) {
        let Some(mut session) = state.registry.sessions.remove(&id) else { return };
        self.unschedule(id);
        let clean = status == ServerEnd::Status(0);
        if let SessionState::Offered { moved: moved @ false, .. } = &mut session.state
            && clean
        {
            *moved = true;
            return self.place(state, id, session);
        }
        if clean {
            self.log.info(format_args!("session {id}: ended"));
        } else {
            self.log.error(format_args!("session {id}: its API server ended: {status}"));
        }
    }

    /// Stops watching an API server that has ended, and reaps it.
    pub(crate) fn release(&self, mut server: ServerRecord) -> ServerEnd {
        self.epoll.remove(server.process.control.as_fd());
        self.epoll.remove(server.process.exit.as_fd());
        if let Some(exit) = &server.guest_exit {
            self.epoll.remove(exit.as_fd());
        }
        let pid = server.process.pid();
        server.process.end_group();
        let status = server.process.wait();
        let suppressed = server.lines.finish();
        if let Some(suppressed) = suppressed {
            self.tell_suppressed(pid, suppressed);
        }
        self.hear_last_words(&mut server.log, pid);
        self.log.debug(format_args!("API server {pid} ended: {status}"));
        status
    }

    /// It was killed, and the kernel does not end it: a file of its own waits while it is closed. Its sessions are over. What it
    /// held stays its tenant's burden until it has ended, unless an operator has ended it.
    fn give_server_up(&self, state: &mut CoreState, id: u64) {
        self.relocation_loses_server(state, id);
        self.parked_lose_server(state, id);
        let Some(server) = state.registry.servers.get(&id) else { return };
        let pid = server.process.pid();
        server.process.kill_group();
        let tenant = server.seat.as_ref().map_or(String::new(), |seat| seat.tenant.escape_debug().to_string());
        self.log.error(format_args!(
            "API server {pid} of tenant {tenant} was killed and cannot end: it waits for a peer or a file system; its sessions \
             are over"
        ));
        state.registry.change(id, ServerEvent::GivenUp, Instant::now());
        if let Some(groups) = &self.groups {
            groups.end(id);
        }
        self.settle_unending(state, id);
        state.relocations.left(id);
        for session in state.registry.sessions_of(id) {
            self.settle(state, session, ServerEnd::Unknown);
        }
    }

    /// An operator ends an API server: its accounts are settled even if it cannot end.
    fn end_by_operator(&self, state: &mut CoreState, id: u64) {
        end_server(&mut state.registry, id);
        if let Some(server) = state.registry.servers.get_mut(&id) {
            server.by_operator = true;
        }
        self.settle_unending(state, id);
    }

    fn settle_unending(&self, state: &mut CoreState, id: u64) {
        let Some(server) = state.registry.servers.get_mut(&id) else { return };
        if server.by_operator && server.state == ServerState::Unending {
            let seat = server.seat.take();
            seat.iter().for_each(|seat| self.settle_accounts(state, seat));
        }
    }

    // Guests.

    pub(crate) fn guest_ended(&self, id: u64) {
        let mut state = self.state();
        let CoreState { registry, gateways, .. } = &mut *state;
        let Some(server) = registry.servers.get_mut(&id) else { return };
        if let Some(exit) = server.guest_exit.take() {
            self.epoll.remove(exit.as_fd());
        }
        // A process on another machine is there as long as one of its gateways is.
        if let Some(Ok(exit)) = server.guest.as_ref().and_then(|guest| gateways.living(guest))
            && self.epoll.add(exit.as_fd(), Token::GuestExit(id)).is_ok()
        {
            server.guest_exit = Some(exit);
            return;
        }
        registry.retire(id);
        registry.change(id, ServerEvent::GuestEnded, Instant::now());
        // The others see the hang-up.
        let parked = state.relocations.parked(id).map(|record| record.relocation.sessions().clone());
        parked.iter().flatten().for_each(|session| order(&state, id, *session, MoveOrder::End));
        self.end_relocation_of(&mut state, id, "the program has ended");
    }

    /// The API server of a dead guest gives its resources back even if the vendor library hangs, or if a stray process
    /// still holds the guest's socket. One that says it has no session any more, and stays, would have the device unseen.
    pub(crate) fn kill_orphans(&self) {
        let now = Instant::now();
        let mut state = self.state();
        let is_due = |server: &ServerRecord| server.state.due_at().is_some_and(|at| at <= now);
        let due: Vec<u64> =
            state.registry.servers.iter().filter(|(_, server)| is_due(server)).map(|(id, _)| *id).collect();
        for id in due {
            let Some(server) = state.registry.servers.get(&id) else { continue };
            let pid = server.process.pid();
            match server.state {
                ServerState::Killed { .. } => {
                    self.give_server_up(&mut state, id);
                    continue;
                }
                ServerState::Doomed { why: EndReason::GuestEnded, .. } => {
                    self.log.warn(format_args!("API server {pid} did not end after its guest: killed"));
                }
                state => self.log.warn(format_args!("API server {pid} did not end although {}: killed", state.told())),
            }
            end_server(&mut state.registry, id);
        }
    }

    pub(crate) fn end_all(&self) {
        self.end_grants();
        let mut state = self.state();
        // First of all no new guests.
        if let Some(listener) = state.attaching.listener.take() {
            self.epoll.remove(listener.socket.as_fd());
        }
        let sessions = state.registry.sessions.len();
        if sessions > 0 {
            self.log.info(format_args!("ending {sessions} sessions"));
        }
        state.registry.sessions.clear();
        state.relocations.clear();
        self.end_zygotes(&mut state);
        self.end_vms(&mut state);
        self.end_fpga_devices(&mut state);
        self.end_cards(&mut state);
        let gateways = state.gateways.drain();
        gateways.iter().filter(|gateway| !gateway.serves()).for_each(|gateway| gateway.end());
        let deadline = Instant::now() + SERVER_EXIT_TIMEOUT;
        for server in state.registry.servers.values() {
            // A spare has nothing to finish.
            server.process.signal(if server.guest.is_some() { Signal::TERM } else { Signal::KILL });
        }
        let servers: Vec<u64> = state.registry.servers.keys().copied().collect();
        for id in servers {
            if let Some(server) = state.registry.remove_server(id) {
                self.part(server, deadline);
            }
        }
        let farewells = Instant::now() + FAREWELL_TIMEOUT;
        for gateway in gateways {
            self.epoll.remove(gateway.exit.as_fd());
            if !ends_by(&gateway.exit, farewells) {
                gateway.end();
            }
            if ends_by(&gateway.exit, Instant::now() + KILL_PATIENCE) {
                let _ = gateway.wait();
            } else {
                self.log.warn(format_args!("gateway {} does not end: it is left behind", gateway.pid()));
            }
        }
    }

    /// The node is about to end, and a process that cannot end does not keep it.
    fn part(&self, server: ServerRecord, deadline: Instant) {
        let pid = server.process.pid();
        let unending = server.state == ServerState::Unending;
        if !unending && !ends_by(&server.process.exit, deadline) {
            self.log.warn(format_args!(
                "the node is ending, and API server {pid} did not end within {SERVER_EXIT_TIMEOUT:?}: killed"
            ));
            server.process.signal(Signal::KILL);
        }
        if !ends_by(&server.process.exit, if unending { Instant::now() } else { deadline + KILL_PATIENCE }) {
            let tenant = server.seat.as_ref().map_or("", |seat| &seat.tenant);
            self.log.error(format_args!(
                "API server {pid} of tenant {} was killed and does not end: it waits for a peer or a file system, and is left \
                 behind",
                tenant.escape_debug()
            ));
            return server.process.kill_group();
        }
        self.release(server);
    }
}

/// The amounts of its sessions are returned when it is reaped; the guests are told that the device is lost. A guest
/// that attaches meanwhile gets another one.
pub(crate) fn end_server(registry: &mut Registry, id: u64) {
    registry.retire(id);
    if let Some(server) = registry.servers.get(&id) {
        server.process.signal(Signal::KILL);
    }
    registry.change(id, ServerEvent::Killed, Instant::now());
}
