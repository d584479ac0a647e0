//! An API server for every guest: those that wait for one, and the zygote that they are copies of.

use crate::attach::accept::refuse;
use crate::attach::guest::Guest;
use crate::epoll::Token;
use crate::error::NodeError;
use crate::node::{Core, CoreState, Goal};
use crate::servers::api_server::{ApiServer, ApiServerCommand, ServerEnd};
use crate::servers::server_log;
use crate::servers::spares::{NODES_OWN, ZygotePlace};
use crate::servers::zygote::Zygote;
use crate::sessions::life::ServerEvent;
use crate::sessions::permissions::Permissions;
use crate::sessions::registry::{ServerRecord, Session};
use crate::tenants::vendor_set::VendorSet;
use aviary_control::{Aside, FromServer, Heard, hear};
use rustix::io::Errno;
use rustix::process::Signal;
use std::{
    borrow::Cow,
    collections::BTreeMap,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
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
        let tenants = state.tenants();
        let tenant = tenants.called(&session.tenant);
        session.permissions = Permissions::of(&tenant);
        let vendor = tenants.vendor_of(&tenant);
        // A known API server may be about to end; then a fresh one takes the session.
        for _ in 0..2 {
            let server = match self.server_for(state, guest, vendor) {
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

    /// `vendor`: the libraries of a new one.
    pub(crate) fn server_for(
        &self,
        state: &mut CoreState,
        guest: Guest,
        vendor: Option<&Arc<VendorSet>>,
    ) -> Result<u64, NodeError> {
        if let Some(id) = state.registry.server_of(&guest) {
            return Ok(id);
        }
        self.have_spare(state, vendor)?;
        let Some(id) = state.registry.take_spare(guest, vendor) else {
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

    /// There is a spare with these libraries, which the caller takes.
    pub(crate) fn have_spare(&self, state: &mut CoreState, vendor: Option<&Arc<VendorSet>>) -> Result<(), NodeError> {
        if state.registry.spares(vendor) == 0 {
            self.spawn_spare(state, vendor)?;
        }
        self.refill_soon(state);
        Ok(())
    }

    /// A spare was taken.
    fn refill_soon(&self, state: &mut CoreState) {
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
        for vendor in state.spares.kept() {
            while state.registry.spares(vendor.as_ref()) < self.config.spares && !self.aims_at(Goal::Drain) {
                if let Err(error) = self.spawn_spare(&mut state, vendor.as_ref()) {
                    self.log.error(error);
                    state.spares.refill_at = Some(Instant::now() + REFILL_BACKOFF);
                    return;
                }
            }
        }
    }

    fn spawn_spare(&self, state: &mut CoreState, vendor: Option<&Arc<VendorSet>>) -> Result<(), NodeError> {
        let made = if self.config.private { server_log::direct() } else { server_log::pipe() };
        let (log, theirs) = made.map_err(NodeError::Watch)?;
        let process = self.new_api_server(state, vendor, theirs)?;
        self.log.debug(format_args!("API server {} is ready", process.pid()));
        let processes = process.processes();
        let id = state.registry.add_spare(process, log, vendor.cloned());
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

    /// A copy of the zygote with these libraries, or a process of its own. Its lines for the log go to `log`.
    fn new_api_server(
        &self,
        state: &mut CoreState,
        vendor: Option<&Arc<VendorSet>>,
        log: OwnedFd,
    ) -> Result<ApiServer, NodeError> {
        match state.spares.place_of(vendor) {
            Some((_, ZygotePlace { zygote: Some(zygote), .. })) if zygote.ready => match zygote.copy(&log) {
                Ok(process) => return Ok(process),
                // Not the zygote's fault, and a process of its own would need more.
                Err(NodeError::Copy(error)) if is_exhausted(&error) => return Err(NodeError::Copy(error)),
                Err(error) => {
                    self.log.warn(error);
                    // Its end makes room for another one.
                    zygote.process.signal(Signal::KILL);
                    zygote.ready = false;
                }
            },
            Some(_) => {}
            None => {
                if let (Some(vendor), Some(_)) = (vendor, &self.config.zygote) {
                    state.spares.add_place(vendor.clone(), Instant::now());
                    self.wake();
                }
            }
        }
        match &self.sandboxed {
            Some(command) => sandboxed_alone(&self.command_for(command, vendor), &log, &self.aside),
            None => {
                let command = self.command_for(&self.config.api_server, vendor);
                ApiServer::spawn(&command, Some(log), &self.aside)
            }
        }
    }

    /// A command for API servers or their zygote, with these libraries.
    fn command_for<'a>(
        &self,
        command: &'a ApiServerCommand,
        vendor: Option<&Arc<VendorSet>>,
    ) -> Cow<'a, ApiServerCommand> {
        match vendor {
            Some(set) => Cow::Owned(command.with_vendor(set, self.sandboxed.is_some())),
            None => Cow::Borrowed(command),
        }
    }

    /// Those that are due.
    pub(crate) fn start_zygotes(&self) {
        let mut state = self.state();
        let now = Instant::now();
        if self.aims_at(Goal::Drain) {
            return;
        }
        for (id, place) in &mut state.spares.zygotes {
            if place.due.is_none_or(|at| at > now) {
                continue;
            }
            place.due = None;
            let Some(command) = &self.config.zygote else { continue };
            let command = self.command_for(command, place.vendor.as_ref());
            let started =
                Zygote::start(&command, &self.config.modules, &self.config.vendors, &self.aside).and_then(|zygote| {
                    self.epoll.add(zygote.process.control.as_fd(), Token::Zygote(*id))?;
                    self.epoll.add(zygote.process.exit.as_fd(), Token::ZygoteExit(*id))?;
                    Ok(zygote)
                });
            match started {
                Ok(zygote) => place.zygote = Some(zygote),
                Err(error) => {
                    self.log.error(error);
                    place.due = Some(now + REFILL_BACKOFF);
                }
            }
        }
    }

    pub(crate) fn hear_zygote(&self, id: u64) {
        let mut state = self.state();
        let Some(place) = state.spares.zygotes.get_mut(&id) else { return };
        let of = place.vendor.as_ref().map_or_else(String::new, |set| format!(" of vendor set {}", set.name));
        let Some(zygote) = &mut place.zygote else { return };
        let unfit = match hear(zygote.process.control.as_fd()) {
            Heard::Message(FromServer::Ready) => {
                zygote.ready = true;
                self.log.debug(format_args!("zygote {}{of} is ready", zygote.process.pid()));
                // Of a vendor set there are no spares before.
                return self.refill_soon(&mut state);
            }
            Heard::Message(FromServer::Unfit { reason }) => reason,
            Heard::Garbage(garbage) => format!("it sent {garbage}"),
            Heard::Closed => return self.epoll.remove(zygote.process.control.as_fd()),
            Heard::Message(_) | Heard::Nothing => return,
        };
        self.log.warn(format_args!("no zygote{of}, so API servers start more slowly: {}", unfit.escape_debug()));
        self.end_zygote(&mut state, id);
    }

    /// Copies do not depend on it.
    pub(crate) fn reap_zygote(&self, id: u64) {
        let mut state = self.state();
        if let Some(ending) = self.end_zygote(&mut state, id) {
            self.log.warn(format_args!("the zygote ended: {ending}"));
            if let Some(place) = state.spares.zygotes.get_mut(&id) {
                place.due = Some(Instant::now() + ZYGOTE_BACKOFF);
            }
        }
    }

    fn end_zygote(&self, state: &mut CoreState, id: u64) -> Option<ServerEnd> {
        let Zygote { process, .. } = state.spares.zygotes.get_mut(&id)?.zygote.take()?;
        self.epoll.remove(process.control.as_fd());
        self.epoll.remove(process.exit.as_fd());
        process.signal(Signal::KILL);
        Some(process.wait())
    }

    /// Of all sets; those that are used again get new ones.
    pub(crate) fn end_zygotes(&self, state: &mut CoreState) {
        let all: Vec<u64> = state.spares.zygotes.keys().copied().collect();
        for id in all {
            self.end_zygote(state, id);
        }
        state.spares.zygotes.retain(|id, _| *id == NODES_OWN);
    }

    /// Ends zygotes and spares of vendor sets that are not in the configuration any more, or have other files now. API servers
    /// with a guest do not depend on them.
    pub(crate) fn end_stale_zygotes(&self, state: &mut CoreState) {
        let tenants = state.tenants();
        let is_stale = |set: &Option<Arc<VendorSet>>| set.as_ref().is_some_and(|set| !tenants.has_vendor(set));
        let stale: Vec<u64> =
            state.spares.zygotes.iter().filter(|(_, place)| is_stale(&place.vendor)).map(|(id, _)| *id).collect();
        for id in stale {
            self.end_zygote(state, id);
            state.spares.zygotes.remove(&id);
        }
        self.end_spares(state, |spare| is_stale(&spare.vendor));
    }

    /// Ends the spares that are meant.
    pub(crate) fn end_spares(&self, state: &mut CoreState, meant: impl Fn(&ServerRecord) -> bool) {
        let all = state.registry.servers.iter().filter(|(_, server)| server.guest.is_none() && meant(server));
        let ids: Vec<u64> = all.map(|(id, _)| *id).collect();
        for id in ids {
            if let Some(server) = state.registry.remove_server(id) {
                server.process.signal(Signal::KILL);
                self.release(server);
                self.groups.iter().for_each(|groups| groups.end(id));
            }
        }
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
