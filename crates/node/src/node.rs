//! The node's loop: every event of listener, API servers and guests, one after the other.

use crate::{
    NodeConfig, NodeError, Tenants,
    accept::{PendingAttach, spare_descriptor},
    accounts::{Accounts, AssignedSlot},
    api_server::ApiServerCommand,
    cards::Cards,
    cgroups::Groups,
    claims,
    epoll::{Epoll, Token},
    gateways::Gateways,
    helpers::{HelperAccess, HelperDoor},
    line_limit::LineLimit,
    listener::Listener,
    log::Log,
    moving::Moves,
    parking::{IdleWatch, Parks},
    scheduling::{DeviceReport, Scheduling},
    server_users::{ServerUsers, UserRange},
    sessions::Registry,
    throttle::{Throttle, further_rate},
    upgrade::{self, Handover},
    vms::Vms,
    zygote::Zygote,
};
use aviary_control::ServerUser;
use rustix::event::{EventfdFlags, eventfd};
use std::{
    collections::HashMap,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    time::Instant,
};

/// The state that the node works towards.
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
    /// A descriptor to give up when there is no other: see `refuse_without_descriptors`.
    pub(crate) reserve: Mutex<Option<OwnedFd>>,
    /// Starts a process whose copies are sandboxed; `None`: API servers are not in sandboxes.
    pub(crate) sandboxed: Option<ApiServerCommand>,
    /// `None`: API servers are in the node's control group.
    pub(crate) groups: Option<Groups>,
    /// `None`: no device is ever scheduled.
    pub(crate) scheduling: Option<Scheduling>,
    /// Where helper processes with users of their own attach; `None`: they have none.
    pub(crate) helper_door: Option<HelperDoor>,
    /// Listeners for other machines.
    pub(crate) remote: Vec<OwnedFd>,
    state: Mutex<CoreState>,
}

#[derive(Debug)]
pub(crate) struct CoreState {
    pub registry: Registry,
    pub accounts: Accounts,
    pub moves: Moves,
    pub parks: Parks,
    pub idle: IdleWatch,
    pub tenants: Tenants,
    /// `None`: all API servers are the node's user, without sandboxes.
    pub server_users: Option<ServerUsers>,
    /// Connections that one user may have at a time.
    pub sessions_per_user: usize,
    /// Taken when the node ends, which removes the socket.
    pub listener: Option<Listener>,
    /// Places in tenants' pages of API servers that were reaped and whose control groups are not known to be empty.
    pub emptying: HashMap<u64, AssignedSlot>,
    pub gateways: Gateways,
    pub vms: Vms,
    pub cards: Cards,
    /// Of memory that is mapped for cards: pages that no API server gets.
    pub card_accounts: Accounts,
    /// Processes that attach, and further connections of processes that have an API server.
    pub throttle: Throttle<PendingAttach>,
    pub further: Throttle<PendingAttach>,
    /// Lines of the log about connections that were refused.
    pub refusals: LineLimit,
    pub refill_at: Option<Instant>,
    pub zygote: Option<Zygote>,
    /// When the next zygote is started.
    pub zygote_at: Option<Instant>,
    /// How often the node's program was replaced.
    pub upgrades: u64,
}

impl CoreState {
    /// The user of this tenant's API servers; `None`: the node's own.
    /// `own`: the kernel says that the guest is the node's own user.
    pub fn user_for(&mut self, tenant: &str, own: bool) -> Result<Option<ServerUser>, NodeError> {
        self.server_users.as_mut().map_or(Ok(None), |users| users.of(tenant, own))
    }
}

/// How an API server in a sandbox begins, if the node has sandboxes.
fn sandboxed(config: &NodeConfig, users: Option<&ServerUsers>) -> Option<ApiServerCommand> {
    let (settings, users) = (config.sandbox.as_ref()?, users?);
    let alone = || {
        let environment = config.api_server.environment.clone();
        let fixed_addresses = config.api_server.fixed_addresses;
        Some(ApiServerCommand { environment, fixed_addresses, ..ApiServerCommand::own_zygote().ok()? })
    };
    let command = config.zygote.clone().or_else(alone)?;
    // Libraries load their siblings.
    let folders = config.vendors.values().filter_map(|file| Path::new(file).parent()).map(Path::to_owned);
    let builds: Vec<PathBuf> = config.modules.iter().cloned().chain(folders).collect();
    Some(command.sandboxed(users.homes(), users.shared_memory(), &builds, settings))
}

impl Core {
    /// `before`: of the program whose place this one takes.
    pub fn new(
        mut config: NodeConfig,
        listener: Listener,
        log: Log,
        mut before: Option<&mut Handover>,
    ) -> Result<Self, NodeError> {
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
        let mut notes = Vec::new();
        let cards = Cards::bind(&config.cards, &config.devices, &mut notes)?;
        notes.iter().for_each(|note| log.warn(note));
        let refill_at = (config.spares > 0).then(Instant::now);
        let zygote_at = config.zygote.as_ref().map(|_| Instant::now());
        let (registry, gateways, listener) = (Registry::default(), Gateways::default(), Some(listener));
        let (accounts, tenants) = (Accounts::default(), config.tenants.clone());
        let claims = Path::new(claims::FOLDER);
        if let Some(before) = &before {
            // Ids that API servers have.
            config.server_users = before.image.users.as_ref().and_then(|users| users.range).map(UserRange::between);
        }
        let inherited = before.as_mut().and_then(|before| Some((before.image.users.as_ref()?, &mut before.inherited)));
        let inherited = inherited.map(|(image, descriptors)| upgrade::users(image, descriptors));
        let server_users = match (&config.server_users, &config.sandbox) {
            _ if inherited.is_some() => inherited.transpose().map_err(NodeError::Handover)?,
            (Some(range), _) => Some(ServerUsers::new(range.clone(), claims)?),
            (None, Some(_)) => Some(ServerUsers::shared()?),
            (None, None) => None,
        };
        if server_users.as_ref().is_some_and(|users| !users.are_claimed()) {
            let folder = claims.display();
            log.warn(format_args!(
                "{folder} cannot be made: another node of this machine must have other api_server_users"
            ));
        }
        let sandboxed = sandboxed(&config, server_users.as_ref());
        if let (Some(command), true) = (&sandboxed, config.zygote.is_some()) {
            config.zygote = Some(command.clone());
        }
        let sessions_per_user = config.sessions_per_user;
        let state = Mutex::new(CoreState {
            registry,
            accounts,
            moves: Moves::default(),
            parks: Parks::default(),
            idle: IdleWatch::default(),
            tenants,
            server_users,
            sessions_per_user,
            listener,
            emptying: HashMap::new(),
            gateways,
            vms,
            cards,
            card_accounts: Accounts::default(),
            throttle: Throttle::new(config.attach_rate),
            further: Throttle::new(further_rate(config.attach_rate)),
            refusals: LineLimit::default(),
            refill_at,
            zygote: None,
            zygote_at,
            upgrades: 0,
        });
        let (goal, reserve) = (AtomicU8::new(Goal::Serve as u8), Mutex::new(spare_descriptor()));
        let scheduling = match config.may_schedule() {
            true => Some(Scheduling::start(config.devices.clone(), config.launch_slice, log)?),
            false => None,
        };
        if let Some(scheduling) = &scheduling {
            epoll.add(scheduling.overdue_bell(), Token::Overdue)?;
        }
        let groups = config.groups.clone().map(|settings| Groups::new(settings, log)).transpose()?;
        if let Some(groups) = &groups {
            epoll.add(groups.bell(), Token::Groups)?;
        }
        let helps =
            config.server_users.is_some() && (!remote.is_empty() || !config.vms.is_empty() || config.reload.is_some());
        let helper_door = helps.then(HelperDoor::open).transpose()?;
        if let Some(door) = &helper_door {
            epoll.add(door.listener.as_fd(), Token::Helpers)?;
        }
        let core =
            Self { config, log, epoll, wake, goal, reserve, sandboxed, groups, scheduling, helper_door, remote, state };
        if let Some(before) = before {
            core.restore(&before.image, &mut before.inherited).map_err(NodeError::Handover)?;
        }
        Ok(core)
    }

    /// The loop looks at its deadlines again.
    pub(crate) fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Goals only advance: `Stop` is never taken back.
    pub fn aim(&self, goal: Goal) {
        self.goal.fetch_max(goal as u8, Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn aims_at(&self, goal: Goal) -> bool {
        self.goal.load(Ordering::SeqCst) >= goal as u8
    }

    /// How helper processes of this name reach the node.
    pub(crate) fn helper_access(&self, users: Option<&mut ServerUsers>, name: &str) -> Result<HelperAccess, NodeError> {
        let user = users.map_or(Ok(None), |users| users.helper(name))?;
        Ok(match self.helper_door.as_ref().zip(user) {
            Some((door, user)) => HelperAccess::through(door, user),
            None => HelperAccess::own(&self.config.socket),
        })
    }

    pub fn devices(&self) -> Vec<DeviceReport> {
        let mut all = self.scheduling.as_ref().map_or(Vec::new(), Scheduling::report);
        all.extend(self.state().cards.report_ports());
        all
    }

    pub fn busy(&self) -> usize {
        let state = self.state();
        state.registry.busy() + state.cards.sessions()
    }

    /// Process id of a zygote that is ready, or 0.
    pub fn zygote(&self) -> u32 {
        self.state().zygote.as_ref().filter(|zygote| zygote.ready).map_or(0, |zygote| zygote.process.pid())
    }

    pub(crate) fn with_state<T>(&self, look: impl FnOnce(&CoreState) -> T) -> T {
        look(&self.state())
    }

    /// Every change under the lock is complete before anything can panic, so that
    /// a poisoned lock still guards a usable state.
    pub(crate) fn state(&self) -> MutexGuard<'_, CoreState> {
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
            self.start_cards();
            self.connect_those_that_wait();
            let timeout = self.next_deadline().map(|at| at.saturating_duration_since(Instant::now()));
            for token in self.epoll.wait(timeout)? {
                self.handle(token);
            }
            self.accept_due();
            self.tell_refusals_left_out();
            self.resume_logs();
            self.kill_orphans();
            self.give_up_overdue_moves(Instant::now());
            self.look_at_parked(Instant::now());
            self.park_idle(Instant::now());
            self.turn_out_overdue(Instant::now());
            if self.aims_at(Goal::Stop) || (self.aims_at(Goal::Drain) && self.busy() == 0) {
                return Ok(());
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let state = self.state();
        let of_servers = state.refill_at.into_iter().chain(state.zygote_at).chain(state.registry.next_kill());
        of_servers
            .chain(state.moves.next_deadline())
            .chain(state.parks.next_look())
            .chain(state.idle.next_look())
            .chain(state.vms.next_listen())
            .chain(state.cards.next_start())
            .chain(state.gateways.next_deadline())
            .chain(state.throttle.next_due())
            .chain(state.further.next_due())
            .chain(state.refusals.next_settle())
            .chain(state.next_log_event())
            .min()
    }

    fn handle(&self, token: Token) {
        match token {
            Token::Listener => self.accept_some(),
            Token::Wake => {
                let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
            }
            Token::Control(id) => self.receive_events(id),
            Token::Log(id) => self.hear_log(id),
            Token::ServerExit(id) => self.reap(id),
            Token::GuestExit(id) => self.guest_ended(id),
            Token::Zygote => self.hear_zygote(),
            Token::ZygoteExit => self.reap_zygote(),
            Token::Remote(place) => self.accept_remote(place),
            Token::GatewayExit(id) => self.reap_gateway(id),
            Token::Overdue => self.end_overdue(),
            Token::Groups => self.settle_emptied(),
            Token::Helpers => self.accept_helper(),
            Token::Vm(place) => self.start_device(place),
            Token::DeviceExit(place) => self.reap_device(place),
            Token::Stranger(id) => self.hear_stranger(id),
            Token::Card(place) => self.accept_card_clients(place),
            Token::CardControl(place) => self.hear_card(place),
            Token::CardExit(place) => self.reap_card(place),
        }
    }
}
