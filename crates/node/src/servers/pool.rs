//! An API server for every guest: those that wait for one, and the zygote that they are copies of.

use crate::attach::accept::refuse;
use crate::attach::guest::Guest;
use crate::epoll::Token;
use crate::error::NodeError;
use crate::node::{Core, CoreState, Goal};
use crate::servers::api_server::{ApiServer, ApiServerCommand, ServerEnd};
use crate::servers::server_log;
use crate::servers::zygote::Zygote;
use crate::sessions::life::ServerEvent;
use crate::sessions::permissions::Permissions;
use crate::sessions::registry::{ServerRecord, Session};
use aviary_control::{Aside, FromServer, Heard, hear};
use rustix::io::Errno;
use rustix::process::Signal;
use std::{
    collections::BTreeMap,
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

/// A taken spare is replaced this much later: the session that took it starts undisturbed.
const REFILL_DELAY: Duration = Duration::from_millis(100);
/// After a spare that died on its own, which will probably happen again.
pub(crate) const REFILL_BACKOFF: Duration = Duration::from_secs(5);
/// A zygote that ended may do so again, and API servers start without one.
const ZYGOTE_BACKOFF: Duration = Duration::from_secs(1);

impl Core {
    /// Hands a session to its guest's API server, or to a new one.
    pub(crate) fn place(&self, state: &mut CoreState, id: u64, mut session: Session) {
        let guest = session.guest;
        session.permissions = Permissions::of(&state.tenants().called(&session.tenant));
        // A known API server may be about to end; then a fresh one takes the session.
        for _ in 0..2 {
            let server = match self.server_for(state, guest) {
                Ok(server) => server,
                Err(error) => {
                    self.log.error(format_args!("session {id} ({}) refused: {error}", session.owner()));
                    return session
                        .socket()
                        .into_iter()
                        .for_each(|socket| refuse(socket, "the node cannot start an API server"));
                }
            };
            session.server = server;
            match self.assign(state, id, &mut session) {
                Ok(pid) => {
                    state.registry.change(server, ServerEvent::SessionGiven, Instant::now());
                    let (whose, tenant) = (session.owner(), session.tenant.escape_debug());
                    self.log
                        .info(format_args!("session {id}: {whose}, tenant {tenant}, is assigned to API server {pid}"));
                    state.registry.sessions.insert(id, session);
                    self.unpark_for(state, server);
                    return;
                }
                Err(error) => {
                    self.log.warn(format_args!("session {id}: {error}"));
                    state.registry.retire(server);
                    state.registry.look_for_sessions(server, Instant::now());
                }
            }
        }
        session
            .socket()
            .into_iter()
            .for_each(|socket| refuse(socket, "the node has no API server that accepts the session"));
    }

    fn server_for(&self, state: &mut CoreState, guest: Guest) -> Result<u64, NodeError> {
        if let Some(id) = state.registry.server_of(&guest) {
            return Ok(id);
        }
        if state.registry.spares() == 0 {
            self.spawn_spare(state)?;
        }
        self.refill_soon(state);
        let Some(id) = state.registry.take_spare(guest) else {
            return Err(NodeError::Watch(std::io::ErrorKind::NotFound.into()));
        };
        let CoreState { registry, gateways, .. } = state;
        if let Some(server) = registry.servers.get_mut(&id)
            && server.guest_exit.is_none()
        {
            // The first gateway of a process may have ended before the others.
            server.guest_exit = gateways.living(&guest).and_then(Result::ok);
        }
        if let Some(ServerRecord { guest_exit: Some(exit), process, .. }) = state.registry.servers.get(&id)
            && let Err(error) = self.epoll.add(exit.as_fd(), Token::GuestExit(id))
        {
            // No event would ever end it.
            process.signal(Signal::KILL);
            state.registry.retire(id);
            state.registry.change(id, ServerEvent::Killed, Instant::now());
            return Err(error);
        }
        Ok(id)
    }

    /// A spare was taken.
    pub(crate) fn refill_soon(&self, state: &mut CoreState) {
        if !self.aims_at(Goal::Drain) && self.config.spares > 0 {
            state.spares.refill_at.get_or_insert(Instant::now() + REFILL_DELAY);
        }
    }

    pub(crate) fn refill(&self) {
        let mut state = self.state();
        if state.spares.refill_at.is_none_or(|at| at > Instant::now()) {
            return;
        }
        state.spares.refill_at = None;
        while state.registry.spares() < self.config.spares && !self.aims_at(Goal::Drain) {
            if let Err(error) = self.spawn_spare(&mut state) {
                self.log.error(error);
                state.spares.refill_at = Some(Instant::now() + REFILL_BACKOFF);
                return;
            }
        }
    }

    pub(crate) fn spawn_spare(&self, state: &mut CoreState) -> Result<(), NodeError> {
        let made = if self.config.private { server_log::direct() } else { server_log::pipe() };
        let (log, theirs) = made.map_err(NodeError::Watch)?;
        let process = self.new_api_server(state, theirs)?;
        self.log.debug(format_args!("API server {} is ready", process.pid()));
        let processes = process.processes();
        let id = state.registry.add_spare(process, log);
        if let Some(groups) = &self.groups {
            groups.start(id, processes);
        }
        let Some(server) = state.registry.servers.get(&id) else { return Ok(()) };
        let watched = self
            .epoll
            .add(server.process.control.as_fd(), Token::Control(id))
            .and_then(|()| self.epoll.add(server.process.exit.as_fd(), Token::ServerExit(id)))
            .and_then(|()| self.epoll.add(server.log.as_fd(), Token::Log(id)));
        if watched.is_err()
            && let Some(server) = state.registry.remove_server(id)
        {
            server.process.signal(Signal::KILL);
            self.release(server);
            self.groups.iter().for_each(|groups| groups.end(id));
        }
        watched
    }

    /// A copy of the zygote, or a process of its own. Its lines for the log go to `log`.
    fn new_api_server(&self, state: &mut CoreState, log: OwnedFd) -> Result<ApiServer, NodeError> {
        if let Some(zygote) = state.spares.zygote.as_ref().filter(|zygote| zygote.ready) {
            match zygote.copy(&log) {
                Ok(process) => return Ok(process),
                // Not the zygote's fault, and a process of its own would need more.
                Err(NodeError::Copy(error)) if is_exhausted(&error) => return Err(NodeError::Copy(error)),
                Err(error) => {
                    self.log.warn(error);
                    // Its end makes room for another one.
                    zygote.process.signal(Signal::KILL);
                    if let Some(zygote) = &mut state.spares.zygote {
                        zygote.ready = false;
                    }
                }
            }
        }
        match &self.sandboxed {
            Some(command) => sandboxed_alone(command, &log, &self.aside),
            None => ApiServer::spawn(&self.config.api_server, Some(log), &self.aside),
        }
    }

    pub(crate) fn start_zygote(&self) {
        let mut state = self.state();
        if state.spares.zygote_at.is_none_or(|at| at > Instant::now()) || self.aims_at(Goal::Drain) {
            return;
        }
        state.spares.zygote_at = None;
        let Some(command) = &self.config.zygote else { return };
        let started =
            Zygote::start(command, &self.config.modules, &self.config.vendors, &self.aside).and_then(|zygote| {
                self.epoll.add(zygote.process.control.as_fd(), Token::Zygote)?;
                self.epoll.add(zygote.process.exit.as_fd(), Token::ZygoteExit)?;
                Ok(zygote)
            });
        match started {
            Ok(zygote) => state.spares.zygote = Some(zygote),
            Err(error) => {
                self.log.error(error);
                state.spares.zygote_at = Some(Instant::now() + REFILL_BACKOFF);
            }
        }
    }

    pub(crate) fn hear_zygote(&self) {
        let mut state = self.state();
        let Some(zygote) = &mut state.spares.zygote else { return };
        match hear(zygote.process.control.as_fd()) {
            Heard::Message(FromServer::Ready) => {
                zygote.ready = true;
                self.log.debug(format_args!("zygote {} is ready", zygote.process.pid()));
            }
            Heard::Message(FromServer::Unfit { reason }) => {
                self.log.warn(format_args!("no zygote, so API servers start more slowly: {}", reason.escape_debug()));
                self.end_zygote(&mut state);
            }
            Heard::Garbage(garbage) => {
                self.log.warn(format_args!(
                    "no zygote, so API servers start more slowly: it sent {}",
                    garbage.to_string().escape_debug()
                ));
                self.end_zygote(&mut state);
            }
            Heard::Closed => self.epoll.remove(zygote.process.control.as_fd()),
            Heard::Message(_) | Heard::Nothing => {}
        }
    }

    /// Copies do not depend on it.
    pub(crate) fn reap_zygote(&self) {
        let mut state = self.state();
        if let Some(ending) = self.end_zygote(&mut state) {
            self.log.warn(format_args!("the zygote ended: {ending}"));
            state.spares.zygote_at = Some(Instant::now() + ZYGOTE_BACKOFF);
        }
    }

    pub(crate) fn end_zygote(&self, state: &mut CoreState) -> Option<ServerEnd> {
        let Zygote { process, .. } = state.spares.zygote.take()?;
        self.epoll.remove(process.control.as_fd());
        self.epoll.remove(process.exit.as_fd());
        process.signal(Signal::KILL);
        Some(process.wait())
    }
}

/// A sandboxed API server that loads its modules itself: the copy of a process that has loaded nothing and then ends.
fn sandboxed_alone(command: &ApiServerCommand, log: &OwnedFd, aside: &Aside) -> Result<ApiServer, NodeError> {
    let zygote = Zygote::start(command, &[], &BTreeMap::new(), aside)?;
    let copied = zygote.copy(log);
    zygote.process.discard();
    copied
}

/// This process has no descriptor left for another one.
fn is_exhausted(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}
