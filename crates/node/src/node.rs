//! The node's loop: every event of listener, API servers and guests, one after the other.

use crate::attach::accept::pending::spare_descriptor;
use crate::attach::attaching::Attaching;
use crate::attach::listener::Listener;
use crate::cards::Cards;
use crate::config::NodeConfig;
use crate::epoll::{Epoll, Token};
use crate::error::NodeError;
use crate::gateways::Gateways;
use crate::grants::store::GrantStore;
use crate::grants::table::Grants;
use crate::helpers::{HelperAccess, HelperDoor};
use crate::keeping::{folder::KeepFolder, progress::Keeping};
use crate::log::Log;
use crate::relays::Relays;
use crate::relocation::records::Relocations;
use crate::scheduling::{DeviceReport, Scheduling};
use crate::servers::api_server::ApiServerCommand;
use crate::servers::cgroups::Groups;
use crate::servers::late::late_lines;
use crate::servers::spares::Spares;
use crate::sessions::idle::IdleWatch;
use crate::sessions::registry::Registry;
use crate::swapping::Swapping;
use crate::tenants::shares::Shares;
use crate::tenants::tenancy::Tenancy;
use crate::upgrade::inheritance::Handover;
use crate::upgrade::users;
use crate::users::claims;
use crate::users::server_users::{ServerUsers, UserRange};
use crate::users::user_database::UserDatabase;
use crate::vms::{FpgaDevices, Vms};
use aviary_control::Aside;
use rustix::event::{EventfdFlags, eventfd};
use std::{
    mem::take,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::{Instant, SystemTime},
};

/// The state that the node works towards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
#[repr(u8)]
pub enum Goal {
    Serve,
    /// End when no guest is left.
    Drain,
    /// End once the sessions of other machines are kept for the next node.
    Keep,
    /// End now.
    Stop,
}

#[derive(Debug)]
pub struct Core {
    pub(crate) config: NodeConfig,
    pub(crate) log: Log,
    pub(crate) epoll: Epoll,
    wake: OwnedFd,
    /// Closes what peers may have put something into.
    pub(crate) aside: Aside,
    goal: AtomicU8,
    /// Rounds of the loop, for a watchdog.
    rounds: AtomicU64,
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
    /// The files of grants; whoever has it changes grants. Taken before `state`, except by the node's loop, which never waits for it.
    pub(crate) grant_store: Mutex<Option<GrantStore>>,
    /// Where sessions of other machines wait for the next node; `None`: they end with this one.
    pub(crate) keep: Option<KeepFolder>,
    state: Mutex<CoreState>,
}

#[derive(Debug)]
pub(crate) struct CoreState {
    pub registry: Registry,
    pub relocations: Relocations,
    pub swapping: Swapping,
    pub idle: IdleWatch,
    pub tenancy: Tenancy,
    /// `None`: all API servers are the node's user, without sandboxes.
    pub server_users: Option<ServerUsers>,
    pub attaching: Attaching,
    pub spares: Spares,
    pub gateways: Gateways,
    pub vms: Vms,
    pub cards: Cards,
    pub fpga_devices: FpgaDevices,
    pub grants: Grants,
    pub keeping: Keeping,
    pub relays: Relays,
    /// How often the node's program was replaced.
    pub upgrades: u64,
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

/// Listeners for other machines, by their place in the configuration.
fn listen_remote(config: &NodeConfig, epoll: &Epoll) -> Result<Vec<OwnedFd>, NodeError> {
    let mut remote = Vec::new();
    for address in config.remote.iter().flat_map(|(addresses, _)| addresses) {
        let socket = address.listen().map_err(|error| NodeError::ListenRemote(address.clone(), error))?;
        epoll.add(socket.as_fd(), Token::Remote(remote.len() as u64))?;
        remote.push(socket);
    }
    Ok(remote)
}

/// Control groups of API servers: the same directories, if this program takes another one's place.
fn groups(config: &NodeConfig, before: Option<&Handover>, log: Log) -> Result<Option<Groups>, NodeError> {
    let (configured, before) = (config.groups.clone(), before.map(|before| &before.image));
    let made = match before.and_then(|image| Some((image, image.groups.clone()?))) {
        Some((image, groups)) => {
            let alive = image.servers.iter().map(|server| server.number).collect();
            Some(Groups::again(groups.settings(configured), groups, &alive, log))
        }
        None => configured.map(|settings| Groups::new(settings, log)),
    };
    Ok(made.transpose()?)
}

/// User ids of API servers: those that they have already, if this program takes another one's place.
fn server_users(
    config: &mut NodeConfig,
    before: Option<&mut Handover>,
    log: Log,
) -> Result<Option<ServerUsers>, NodeError> {
    let claims = Path::new(claims::FOLDER);
    if let Some(before) = &before {
        // Ids that API servers have.
        config.server_users = before.image.users.as_ref().and_then(|users| users.range).map(UserRange::between);
    }
    let inherited = before.and_then(|before| Some((before.image.users.as_ref()?, &mut before.inherited)));
    let inherited = inherited.map(|(image, descriptors)| users::users(image, descriptors));
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
    let unlimited = server_users.as_ref().is_none_or(|users| !users.limits_homes());
    if unlimited && (config.server_users.is_some() || config.tenants.says_home()) {
        log.warn("homes have no limit of size: the node cannot mount file systems (it needs CAP_SYS_ADMIN and CAP_SYS_CHROOT)");
    }
    Ok(server_users)
}

/// The socket for helper processes, if they have users of their own.
fn helper_door(
    config: &NodeConfig,
    serves_remote: bool,
    epoll: &Epoll,
    aside: &Aside,
) -> Result<Option<HelperDoor>, NodeError> {
    let helps = config.server_users.is_some() && (serves_remote || !config.vms.is_empty() || config.reload.is_some());
    let door = helps.then(|| HelperDoor::open(aside)).transpose()?;
    if let Some(door) = &door {
        epoll.add(door.listener.as_fd(), Token::Helpers)?;
    }
    Ok(door)
}

impl CoreState {
    /// `wake`: written where the user database has answered. `is_first`: there was no program before this one.
    fn new(
        config: &mut NodeConfig,
        listener: Listener,
        server_users: Option<ServerUsers>,
        (wake, is_first): (&OwnedFd, bool),
        (log, aside): (Log, &Aside),
    ) -> Result<CoreState, NodeError> {
        let vms = Vms::bind(&config.vms, aside)?;
        let mut notes = Vec::new();
        // Those of the program before are restored.
        let (cards, devices) =
            if is_first { (&config.cards[..], &config.fpga_devices[..]) } else { (&[][..], &[][..]) };
        let fpga_devices = FpgaDevices::bind(devices, aside)?;
        let cards = Cards::bind(cards, &config.devices, &mut notes, aside)?;
        notes.iter().for_each(|note| log.warn(note));
        let told = rustix::io::fcntl_dupfd_cloexec(wake, 3).map_err(|errno| NodeError::Watch(errno.into()))?;
        let users = UserDatabase::new(aviary_transport::has_user_entry, told);
        let shares = Shares::new(take(&mut config.tenants), take(&mut config.devices));
        Ok(CoreState {
            registry: Registry::default(),
            relocations: Relocations::default(),
            swapping: Swapping::default(),
            idle: IdleWatch::default(),
            tenancy: Tenancy::new(shares, config.resources.clone(), config.most_tenants, users),
            server_users,
            attaching: Attaching::new(listener, config.attach_rate, config.sessions_per_user),
            spares: Spares::new(config),
            gateways: Gateways::default(),
            vms,
            cards,
            fpga_devices,
            grants: Grants::default(),
            keeping: Keeping::default(),
            relays: Relays::default(),
            upgrades: 0,
        })
    }
}

impl Core {
    /// `before`: of the program whose place this one takes.
    pub fn new(
        mut config: NodeConfig,
        mut listener: Listener,
        log: Log,
        mut before: Option<&mut Handover>,
    ) -> Result<Self, NodeError> {
        let (epoll, aside) = (Epoll::new()?, Aside::default());
        let keep = config.keep.as_deref().map(KeepFolder::open).transpose()?;
        listener.guard(&aside);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| NodeError::Watch(errno.into()))?;
        epoll.add(listener.socket.as_fd(), Token::Listener)?;
        epoll.add(wake.as_fd(), Token::Wake)?;
        let remote = listen_remote(&config, &epoll)?;
        let may_schedule = config.may_schedule();
        let server_users = server_users(&mut config, before.as_deref_mut(), log)?;
        let sandboxed = sandboxed(&config, server_users.as_ref());
        let state = CoreState::new(&mut config, listener, server_users, (&wake, before.is_none()), (log, &aside))?;
        if let (Some(command), true) = (&sandboxed, config.zygote.is_some()) {
            config.zygote = Some(command.clone());
        }
        let scheduling = match may_schedule {
            true => Some(Scheduling::start(state.tenancy.shares.clone(), config.launch_slice, log)?),
            false => None,
        };
        if let Some(scheduling) = &scheduling {
            epoll.add(scheduling.overdue_event(), Token::Overdue)?;
        }
        let groups = groups(&config, before.as_deref(), log)?;
        if let Some(groups) = &groups {
            epoll.add(groups.bell(), Token::Groups)?;
        }
        let helper_door = helper_door(&config, !remote.is_empty(), &epoll, &aside)?;
        let grant_store = config.grants.clone().map(|folder| GrantStore::new(folder, config.test_end_at));
        let core = Self {
            config,
            log,
            epoll,
            wake,
            aside,
            goal: AtomicU8::new(Goal::Serve as u8),
            rounds: AtomicU64::new(0),
            reserve: Mutex::new(spare_descriptor()),
            sandboxed,
            groups,
            scheduling,
            helper_door,
            remote,
            grant_store: Mutex::new(grant_store),
            keep,
            state: Mutex::new(state),
        };
        core.begin_grants(before.as_deref_mut());
        if let Some(before) = before {
            core.restore(&before.image, &mut before.inherited).map_err(NodeError::Handover)?;
        }
        Ok(core)
    }

    /// The loop looks at its deadlines again.
    pub(crate) fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// How often the loop has looked at everything; asks for once more.
    pub fn round(&self) -> u64 {
        self.wake();
        self.rounds.load(Ordering::Relaxed)
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
        self.state().spares.ready(None).map_or(0, |zygote| zygote.process.pid())
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
        self.bring_back();
        let result = self.serve();
        self.write_kept();
        self.end_all();
        result
    }

    fn serve(&self) -> Result<(), NodeError> {
        loop {
            self.start_zygotes();
            self.refill();
            self.listen_for_vms();
            self.start_cards();
            self.listen_for_fpga_devices();
            self.connect_those_that_wait();
            let timeout = self.next_deadline().map(|at| at.saturating_duration_since(Instant::now()));
            for token in self.epoll.wait(timeout)? {
                self.handle(token);
            }
            self.accept_identified();
            self.accept_due();
            self.tell_refusals_left_out();
            self.resume_logs();
            self.kill_orphans();
            self.look_at_relocations(Instant::now());
            self.park_idle(Instant::now());
            self.look_at_swaps();
            self.keep_sessions(Instant::now());
            self.turn_out_overdue(Instant::now());
            late_lines(&self.aside, Instant::now()).for_each(|line| self.log.warn(line));
            self.watch_accounts(Instant::now());
            self.expire_grants(SystemTime::now());
            self.settle_grants();
            self.rounds.fetch_add(1, Ordering::Relaxed);
            if self.aims_at(Goal::Stop) || (self.aims_at(Goal::Drain) && self.busy() == 0) {
                return Ok(());
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let (state, now) = (self.state(), Instant::now());
        let of_servers =
            state.spares.refill_at.into_iter().chain(state.spares.next_zygote()).chain(state.registry.next_kill());
        of_servers
            .chain(state.relocations.next_deadline())
            .chain(state.idle.next_look())
            .chain(state.swapping.next_look())
            .chain(state.vms.next_listen())
            .chain(state.cards.next_start())
            .chain(state.fpga_devices.next_listen())
            .chain(state.gateways.next_deadline())
            .chain(state.attaching.throttle.next_due())
            .chain(state.attaching.further.next_due())
            .chain(state.tenancy.users.next_deadline())
            .chain(state.tenancy.accounts.next_look(now))
            .chain(state.tenancy.card_accounts.next_look(now))
            .chain(state.attaching.refusals.next_settle())
            .chain(state.next_log_event())
            .chain(state.grants.next_look(now, SystemTime::now()))
            .chain(state.keeping.next_look(now))
            .chain(self.aside.next_look(now))
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
            Token::Zygote(id) => self.hear_zygote(id),
            Token::ZygoteExit(id) => self.reap_zygote(id),
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
            Token::FpgaDevice(place) => self.start_fpga_device(place),
            Token::FpgaDeviceExit(place) => self.reap_fpga_device(place),
            Token::Grant(place) => self.accept_at_grant(place),
            Token::RelayExit(id) => self.reap_relay(id),
        }
    }
}
