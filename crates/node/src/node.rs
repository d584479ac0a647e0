//! The node's loop: every event of listener, API servers and guests, one after the other.

use crate::{
    NodeConfig, NodeError, Tenants,
    accepting::{Newcomer, refuse, spare_descriptor},
    accounts::Accounts,
    api_server::{ApiServer, Ending},
    claims,
    control::{self, Event, Received},
    epoll::{Epoll, Token},
    gateways::Gateways,
    guest::Guest,
    listener::Listener,
    log::Log,
    scheduling::{DeviceReport, Overdue, Rules, Scheduling},
    server_users::ServerUsers,
    sessions::{Registry, Server, Session},
    throttle::Throttle,
    vms::Vms,
    zygote::Zygote,
};
use aviary_server::ServerUser;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::process::Signal;
use std::{
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};

/// How long an API server may go on after its guest process has ended.
const GRACE: Duration = Duration::from_millis(1600);
/// How long API servers get to end when the node ends.
const FAREWELL: Duration = Duration::from_secs(2);
/// A taken spare is replaced this much later: the session that took it starts undisturbed.
const REFILL_DELAY: Duration = Duration::from_millis(100);
/// After a spare that died on its own, which will probably happen again.
const REFILL_BACKOFF: Duration = Duration::from_secs(5);
/// A zygote that ended may do so again, and API servers start without one.
const ZYGOTE_BACKOFF: Duration = Duration::from_secs(1);
/// What the node works towards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
#[repr(u8)]
pub enum Goal {
    Serve,
    /// End when no guest is left.
    Drain,
    /// End now.
    Stop,
}

#[derive(Debug)]
pub struct Core {
    pub(crate) config: NodeConfig,
    pub(crate) log: Log,
    pub(crate) epoll: Epoll,
    wake: OwnedFd,
    goal: AtomicU8,
    /// A descriptor to give up when there is no other: see `turn_away`.
    pub(crate) reserve: Mutex<Option<OwnedFd>>,
    /// Not set: no device is scheduled.
    pub(crate) scheduling: OnceLock<Scheduling>,
    /// Listeners for other machines.
    pub(crate) remote: Vec<OwnedFd>,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub registry: Registry,
    pub accounts: Accounts,
    pub tenants: Tenants,
    /// `None`: all API servers are who the node is.
    pub server_users: Option<ServerUsers>,
    /// Connections that one user may have at a time.
    pub sessions_per_user: usize,
    /// Taken when the node ends, which removes the socket.
    pub listener: Option<Listener>,
    pub gateways: Gateways,
    pub vms: Vms,
    pub throttle: Throttle<Newcomer>,
    refill_at: Option<Instant>,
    zygote: Option<Zygote>,
    /// When the next zygote is started.
    zygote_at: Option<Instant>,
}

impl State {
    /// Who this tenant's API servers are; `None`: who the node is.
    pub fn user_for(&mut self, tenant: &str) -> Result<Option<ServerUser>, NodeError> {
        self.server_users.as_mut().map_or(Ok(None), |users| users.of(tenant))
    }
}

impl Core {
    pub fn new(config: NodeConfig, listener: Listener, log: Log) -> Result<Self, NodeError> {
        let epoll = Epoll::new()?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| NodeError::Watch(errno.into()))?;
        epoll.add(listener.socket.as_fd(), Token::Listener)?;
        epoll.add(wake.as_fd(), Token::Wake)?;
        let mut remote = Vec::new();
        for address in config.remote.iter().flat_map(|(addresses, _)| addresses) {
            let socket = address.listen().map_err(|error| NodeError::ListenRemote(address.clone(), error))?;
            epoll.add(socket.as_fd(), Token::Remote(remote.len() as u64))?;
            remote.push(socket);
        }
        let vms = Vms::bind(&config.vms)?;
        let refill_at = (config.spares > 0).then(Instant::now);
        let zygote_at = config.zygote.as_ref().map(|_| Instant::now());
        let (registry, gateways, listener) = (Registry::default(), Gateways::default(), Some(listener));
        let (accounts, tenants) = (Accounts::default(), config.tenants.clone());
        let claims = Path::new(claims::FOLDER);
        let server_users = config.server_users.clone().map(|range| ServerUsers::new(range, claims)).transpose()?;
        if server_users.as_ref().is_some_and(|users| !users.are_claimed()) {
            let folder = claims.display();
            log.warn(format_args!(
                "{folder} cannot be made: another node of this machine must have other api_server_users"
            ));
        }
        let sessions_per_user = config.sessions_per_user;
        let state = Mutex::new(State {
            registry,
            accounts,
            tenants,
            server_users,
            sessions_per_user,
            listener,
            gateways,
            vms,
            throttle: Throttle::new(config.attach_rate),
            refill_at,
            zygote: None,
            zygote_at,
        });
        let (goal, reserve) = (AtomicU8::new(Goal::Serve as u8), Mutex::new(spare_descriptor()));
        let devices = config.devices.clone();
        let core = Self { config, log, epoll, wake, goal, reserve, scheduling: OnceLock::new(), remote, state };
        core.schedule(devices)?;
        Ok(core)
    }

    /// Schedules devices by these rules from now on. Once there were rules, sessions are prepared for others.
    pub(crate) fn schedule(&self, rules: Rules) -> Result<(), NodeError> {
        if let Some(scheduling) = self.scheduling.get() {
            scheduling.set_rules(rules);
        } else if !rules.0.is_empty() {
            let scheduling = Scheduling::start(rules, self.log)?;
            self.epoll.add(scheduling.overdue_bell(), Token::Overdue)?;
            let _ = self.scheduling.set(scheduling);
        }
        Ok(())
    }

    /// Goals only advance: `Stop` is never taken back.
    pub fn aim(&self, goal: Goal) {
        self.goal.fetch_max(goal as u8, Ordering::SeqCst);
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub(crate) fn aims_at(&self, goal: Goal) -> bool {
        self.goal.load(Ordering::SeqCst) >= goal as u8
    }

    pub fn devices(&self) -> Vec<DeviceReport> {
        self.scheduling.get().map_or(Vec::new(), Scheduling::report)
    }

    pub fn busy(&self) -> usize {
        self.state().registry.busy()
    }

    /// Process id of a zygote that is ready, or 0.
    pub fn zygote(&self) -> u32 {
        self.state().zygote.as_ref().filter(|zygote| zygote.ready).map_or(0, |zygote| zygote.process.pid())
    }

    pub fn with_registry<T>(&self, look: impl FnOnce(&Registry) -> T) -> T {
        look(&self.state().registry)
    }

    /// Every change under the lock is complete before anything can panic, so that
    /// a poisoned lock still guards a usable state.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn run(&self) -> Result<(), NodeError> {
        let result = self.serve();
        self.end_all();
        result
    }

    fn serve(&self) -> Result<(), NodeError> {
        loop {
            self.start_zygote();
            self.refill();
            self.listen_for_vms();
            let timeout = self.next_deadline().map(|at| at.saturating_duration_since(Instant::now()));
            for token in self.epoll.wait(timeout)? {
                self.handle(token);
            }
            self.welcome_due();
            self.kill_orphans();
            if self.aims_at(Goal::Stop) || (self.aims_at(Goal::Drain) && self.busy() == 0) {
                return Ok(());
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let state = self.state();
        let of_servers = state.refill_at.into_iter().chain(state.zygote_at).chain(state.registry.next_kill());
        of_servers.chain(state.vms.next_listen()).chain(state.throttle.next_due()).min()
    }

    fn handle(&self, token: Token) {
        match token {
            Token::Listener => self.accept_some(),
            Token::Wake => {
                let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
            }
            Token::Control(id) => self.hear(id),
            Token::ServerExit(id) => self.reap(id),
            Token::GuestExit(id) => self.guest_ended(id),
            Token::Zygote => self.hear_zygote(),
            Token::ZygoteExit => self.reap_zygote(),
            Token::Remote(place) => self.accept_remote(place),
            Token::GatewayExit(id) => self.reap_gateway(id),
            Token::Overdue => self.end_overdue(),
            Token::Vm(place) => self.start_device(place),
            Token::DeviceExit(place) => self.reap_device(place),
        }
    }

    // Sessions.

    /// Hands a session to its guest's API server, or to a new one.
    pub(crate) fn place(&self, state: &mut State, id: u64, mut session: Session) {
        let guest = session.guest;
        // A known API server may be about to end; then a fresh one takes the session.
        for _ in 0..2 {
            let server = match self.server_for(state, guest) {
                Ok(server) => server,
                Err(error) => {
                    self.log.error(format_args!("session {id}, {}, refused: {error}", session.whose()));
                    return session
                        .pending
                        .iter()
                        .for_each(|socket| refuse(socket, "the node cannot start an API server"));
                }
            };
            session.server = server;
            match self.assign(state, id, &session) {
                Ok(pid) => {
                    let (whose, tenant) = (session.whose(), session.tenant.escape_debug());
                    self.log.info(format_args!("session {id}: {whose}, tenant {tenant}, goes to API server {pid}"));
                    state.registry.sessions.insert(id, session);
                    return;
                }
                Err(error) => {
                    self.log.warn(format_args!("session {id}: {error}"));
                    state.registry.retire(server);
                }
            }
        }
        session.pending.iter().for_each(|socket| refuse(socket, "the node found no API server that takes the session"));
    }

    fn server_for(&self, state: &mut State, guest: Guest) -> Result<u64, NodeError> {
        if let Some(id) = state.registry.server_of(&guest) {
            return Ok(id);
        }
        if state.registry.spares() == 0 {
            self.spawn_spare(state)?;
        }
        if !self.aims_at(Goal::Drain) && self.config.spares > 0 {
            state.refill_at.get_or_insert(Instant::now() + REFILL_DELAY);
        }
        let Some(id) = state.registry.take_spare(guest) else {
            return Err(NodeError::Watch(std::io::ErrorKind::NotFound.into()));
        };
        let State { registry, gateways, .. } = state;
        if let Some(server) = registry.servers.get_mut(&id)
            && server.guest_exit.is_none()
        {
            // The first gateway of a process may have ended before the others.
            server.guest_exit = gateways.living(&guest).and_then(Result::ok);
        }
        if let Some(Server { guest_exit: Some(exit), process, .. }) = state.registry.servers.get(&id)
            && let Err(error) = self.epoll.add(exit.as_fd(), Token::GuestExit(id))
        {
            // Nobody would ever end it.
            process.signal(Signal::KILL);
            state.registry.retire(id);
            return Err(error);
        }
        Ok(id)
    }

    // API servers.

    fn refill(&self) {
        let mut state = self.state();
        if state.refill_at.is_none_or(|at| at > Instant::now()) {
            return;
        }
        state.refill_at = None;
        while state.registry.spares() < self.config.spares && !self.aims_at(Goal::Drain) {
            if let Err(error) = self.spawn_spare(&mut state) {
                self.log.error(error);
                state.refill_at = Some(Instant::now() + REFILL_BACKOFF);
                return;
            }
        }
    }

    fn spawn_spare(&self, state: &mut State) -> Result<(), NodeError> {
        let process = self.new_api_server(state)?;
        self.log.debug(format_args!("API server {} is ready", process.pid()));
        let id = state.registry.add_spare(process);
        let Some(server) = state.registry.servers.get(&id) else { return Ok(()) };
        let watched = self
            .epoll
            .add(server.process.control.as_fd(), Token::Control(id))
            .and_then(|()| self.epoll.add(server.process.exit.as_fd(), Token::ServerExit(id)));
        if watched.is_err()
            && let Some(server) = state.registry.remove_server(id)
        {
            server.process.signal(Signal::KILL);
            self.release(server);
        }
        watched
    }

    /// A copy of the zygote, or a process of its own.
    fn new_api_server(&self, state: &mut State) -> Result<ApiServer, NodeError> {
        if let Some(zygote) = state.zygote.as_ref().filter(|zygote| zygote.ready) {
            match zygote.copy() {
                Ok(process) => return Ok(process),
                // Not the zygote's fault, and a process of its own would need more.
                Err(NodeError::Copy(error)) if is_exhausted(&error) => return Err(NodeError::Copy(error)),
                Err(error) => {
                    self.log.warn(error);
                    // Its end makes room for another one.
                    zygote.process.signal(Signal::KILL);
                    if let Some(zygote) = &mut state.zygote {
                        zygote.ready = false;
                    }
                }
            }
        }
        ApiServer::spawn(&self.config.api_server)
    }

    // The zygote.

    fn start_zygote(&self) {
        let mut state = self.state();
        if state.zygote_at.is_none_or(|at| at > Instant::now()) || self.aims_at(Goal::Drain) {
            return;
        }
        state.zygote_at = None;
        let Some(command) = &self.config.zygote else { return };
        let started = Zygote::start(command, &self.config.modules).and_then(|zygote| {
            self.epoll.add(zygote.process.control.as_fd(), Token::Zygote)?;
            self.epoll.add(zygote.process.exit.as_fd(), Token::ZygoteExit)?;
            Ok(zygote)
        });
        match started {
            Ok(zygote) => state.zygote = Some(zygote),
            Err(error) => {
                self.log.error(error);
                state.zygote_at = Some(Instant::now() + REFILL_BACKOFF);
            }
        }
    }

    fn hear_zygote(&self) {
        let mut state = self.state();
        let Some(zygote) = &mut state.zygote else { return };
        match control::receive(zygote.process.control.as_fd()) {
            Received::Event(Event::Ready, _) => {
                zygote.ready = true;
                self.log.debug(format_args!("zygote {} is ready", zygote.process.pid()));
            }
            Received::Event(Event::Unfit { reason }, _) => {
                self.log.warn(format_args!("no zygote: {}", reason.escape_debug()));
                self.end_zygote(&mut state);
            }
            Received::Closed => self.epoll.remove(zygote.process.control.as_fd()),
            Received::Event(..) | Received::Garbage(_) | Received::Nothing => {}
        }
    }

    /// Copies do not depend on it.
    fn reap_zygote(&self) {
        let mut state = self.state();
        if let Some(ending) = self.end_zygote(&mut state) {
            self.log.warn(format_args!("the zygote ended: {ending}"));
            state.zygote_at = Some(Instant::now() + ZYGOTE_BACKOFF);
        }
    }

    fn end_zygote(&self, state: &mut State) -> Option<Ending> {
        let Zygote { process, .. } = state.zygote.take()?;
        self.epoll.remove(process.control.as_fd());
        self.epoll.remove(process.exit.as_fd());
        process.signal(Signal::KILL);
        Some(process.wait())
    }

    // What API servers say.

    /// Takes one message; more of them make the socket readable again.
    fn hear(&self, id: u64) {
        let mut state = self.state();
        let Some(server) = state.registry.servers.get(&id) else { return };
        match control::receive(server.process.control.as_fd()) {
            Received::Event(event, descriptors) => self.note(&mut state, id, event, descriptors),
            Received::Garbage(why) => {
                let pid = server.process.pid();
                self.log.warn(format_args!("API server {pid} sent a message that is not understood: {why}"));
            }
            Received::Nothing => {}
            Received::Closed => {
                self.epoll.remove(server.process.control.as_fd());
                state.registry.retire(id);
            }
        }
    }

    /// An API server speaks for its own sessions only.
    fn note(&self, state: &mut State, server: u64, event: Event, descriptors: Vec<OwnedFd>) {
        let (Event::Started { session: id, .. }
        | Event::Ended { session: id, .. }
        | Event::Fetch { session: id, .. }
        | Event::Fetched { session: id, .. }) = &event
        else {
            return;
        };
        let Some(session) = state.registry.sessions.get_mut(id).filter(|session| session.server == server) else {
            return self.log.debug(format_args!("news of session {id}, which is not known"));
        };
        match event {
            Event::Started { session: id, api } => {
                self.log.info(format_args!("session {id}: {api} started"));
                session.pending = None;
                session.api = api;
                // The statistics, and page and bell of the devices.
                let mut descriptors = descriptors.into_iter();
                session.stats = descriptors.next();
                if let (Some(scheduling), Some(page), Some(bell)) =
                    (self.scheduling.get(), descriptors.next(), descriptors.next())
                {
                    let share = state.tenants.called(&session.tenant).share();
                    let process = state.registry.servers.get(&server).map_or(0, |known| known.process.pid());
                    scheduling.enter(id, &session.tenant, share, process, &page, bell);
                }
            }
            Event::Ended { session: id, reason } => {
                let separator = if reason.is_empty() { "" } else { ": " };
                self.log.info(format_args!("session {id}: ended{separator}{}", reason.escape_debug()));
                state.registry.sessions.remove(&id);
                self.unschedule(id);
            }
            Event::Fetch { session: asker, request, name } => self.ask_for(state, asker, request, &name),
            Event::Fetched { session: giver, asker, request, note } => {
                self.hand_over(state, giver, asker, request, note, descriptors.first());
            }
            Event::Born { .. } | Event::Ready | Event::Unfit { .. } | Event::Unknown => {}
        }
    }

    fn reap(&self, id: u64) {
        // What it said before it ended counts.
        self.hear_rest(id);
        let mut state = self.state();
        let orphans = state.registry.sessions_of(id);
        let Some(mut server) = state.registry.remove_server(id) else { return };
        let (spare, seat) = (server.guest.is_none(), server.seat.take());
        let status = self.release(server);
        // Not earlier: as long as the process lives it holds what it was granted.
        seat.iter().for_each(|seat| self.settle_accounts(&mut state, seat));
        if spare {
            self.log.error(format_args!("a spare API server ended: {status}"));
            state.refill_at = Some(Instant::now() + REFILL_BACKOFF);
        }
        for session in orphans {
            self.settle(&mut state, session, status);
        }
    }

    fn unschedule(&self, session: u64) {
        if let Some(scheduling) = self.scheduling.get() {
            scheduling.leave(session);
        }
    }

    /// A device cannot be taken away from a session that does not give it back: its API server is ended, which returns
    /// everything. The guest is told that the device is lost.
    fn end_overdue(&self) {
        let Some(scheduling) = self.scheduling.get() else { return };
        let state = self.state();
        for Overdue { session: id, device, waiting } in scheduling.overdue() {
            let Some(session) = state.registry.sessions.get(&id) else { continue };
            let Some(server) = state.registry.servers.get(&session.server) else { continue };
            let (tenant, guest, seconds) = (session.tenant.escape_debug(), session.guest_pid(), waiting.as_secs_f64());
            self.log.warn(format_args!(
                "ended: tenant={tenant} session={id} pid={guest} device={device:?}: others wait for it for {seconds:.1} s \
                 and it is not given back (hold_limit)"
            ));
            server.process.signal(Signal::KILL);
        }
    }

    fn hear_rest(&self, id: u64) {
        loop {
            let mut state = self.state();
            let Some(server) = state.registry.servers.get(&id) else { return };
            match control::receive(server.process.control.as_fd()) {
                Received::Event(event, descriptors) => self.note(&mut state, id, event, descriptors),
                Received::Garbage(_) => {}
                Received::Nothing | Received::Closed => return,
            }
        }
    }

    /// A session whose API server is gone: one that it never took goes to another.
    /// Not after a crash, which the session's own first bytes may have caused.
    fn settle(&self, state: &mut State, id: u64, status: Ending) {
        let Some(mut session) = state.registry.sessions.remove(&id) else { return };
        self.unschedule(id);
        let clean = status == Ending::Status(0);
        if clean && session.pending.is_some() && !session.moved {
            session.moved = true;
            return self.place(state, id, session);
        }
        if clean {
            self.log.info(format_args!("session {id}: ended"));
        } else {
            self.log.error(format_args!("session {id}: its API server ended: {status}"));
        }
    }

    /// Stops watching an API server that has ended, and reaps it.
    fn release(&self, server: Server) -> Ending {
        self.epoll.remove(server.process.control.as_fd());
        self.epoll.remove(server.process.exit.as_fd());
        if let Some(exit) = &server.guest_exit {
            self.epoll.remove(exit.as_fd());
        }
        let pid = server.process.pid();
        let status = server.process.wait();
        self.log.debug(format_args!("API server {pid} ended: {status}"));
        status
    }

    // Guests.

    fn guest_ended(&self, id: u64) {
        let mut state = self.state();
        let State { registry, gateways, .. } = &mut *state;
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
        let Some(server) = registry.servers.get_mut(&id) else { return };
        server.kill_at = Some(Instant::now() + GRACE);
    }

    /// The API server of a dead guest gives its resources back even if the vendor
    /// library hangs, or if a stray process still holds the guest's socket.
    fn kill_orphans(&self) {
        let now = Instant::now();
        for server in self.state().registry.servers.values_mut() {
            if server.kill_at.is_some_and(|at| at <= now) {
                server.kill_at = None;
                self.log.warn(format_args!("API server {} goes on without its guest: killed", server.process.pid()));
                server.process.signal(Signal::KILL);
            }
        }
    }

    // The end.

    fn end_all(&self) {
        let mut state = self.state();
        // First of all no new guests.
        if let Some(listener) = state.listener.take() {
            self.epoll.remove(listener.socket.as_fd());
        }
        let sessions = state.registry.sessions.len();
        if sessions > 0 {
            self.log.info(format_args!("ending {sessions} sessions"));
        }
        state.registry.sessions.clear();
        self.end_zygote(&mut state);
        self.end_vms(&mut state);
        let gateways = state.gateways.drain();
        gateways.iter().for_each(|gateway| gateway.end());
        let deadline = Instant::now() + FAREWELL;
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
        for gateway in gateways {
            self.epoll.remove(gateway.exit.as_fd());
            let _ = gateway.wait();
        }
    }

    fn part(&self, server: Server, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        if !ends_within(&server, left) {
            self.log.warn(format_args!("API server {} does not end: killed", server.process.pid()));
            server.process.signal(Signal::KILL);
        }
        self.release(server);
    }
}

/// This process has no descriptor left for another one.
fn is_exhausted(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

fn ends_within(server: &Server, time: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&server.process.exit, PollFlags::IN)], Some(&timeout)) {
            Err(Errno::INTR) => {}
            other => return other.is_ok_and(|ready| ready > 0),
        }
    }
}
