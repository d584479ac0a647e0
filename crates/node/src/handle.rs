//! Starting and ending a node from outside.

use crate::{
    GatewayCommand, NodeError, NodeReport, PrivateDir, SessionReport,
    admin::{self, Request},
    api_server::ApiServerCommand,
    cards::{CardCommand, CardSettings},
    cgroups::GroupSettings,
    environment::{self, Passing},
    listener::{Address, Listener, listen_on},
    log::{Level, Log},
    node::{Core, CoreState, Goal},
    parking::{ParkedMemory, USUAL_PARKED_MEMORY},
    report,
    scheduling::Rules,
    server_users::UserRange,
    tenant::Tenants,
    throttle::usual_rate,
    upgrade::{Handover, UpgradeCommand},
    vms::{VmDeviceCommand, VmSettings},
};
use aviary_transport::RemoteAddress;
use rustix::net::{Shutdown, shutdown};
use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    io::{PipeReader, PipeWriter},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixListener,
    },
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

/// Settings that may change while a node runs.
#[derive(Debug, Clone)]
pub struct Settings {
    pub tenants: Tenants,
    pub sessions_per_user: usize,
    /// Processes of one user, VM or remote tenant that may attach in a second; 0: as many as it likes.
    pub attach_rate: u32,
    /// How devices are scheduled; `None`: as before.
    pub devices: Option<Rules>,
    /// The VMs that may attach. Of those that are not here any more the devices end.
    pub vms: Vec<VmSettings>,
    /// FPGA cards; those that are not here any more end.
    pub cards: Vec<CardSettings>,
    /// Notes for the caller of the change.
    pub notes: Vec<String>,
}

type ReadSettings = dyn Fn() -> Result<Settings, String> + Send + Sync;

/// Reads the configuration again.
#[derive(Clone)]
pub struct Reload(Arc<ReadSettings>);

impl Reload {
    pub fn new(read: impl Fn() -> Result<Settings, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    pub(crate) fn run(&self) -> Result<Settings, String> {
        (self.0)()
    }
}

impl std::fmt::Debug for Reload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reload")
    }
}

/// Paths of the host that sandboxed API servers see beside what every one of them needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SandboxSettings {
    /// Which walls this machine has, as `aviary api-server --sandbox-walls` reads it; empty: those of root.
    pub walls: String,
    /// Files and directories that they can read.
    pub read: Vec<PathBuf>,
    /// Device nodes beside those of known accelerators, and files that stand for devices; `*` may end a name.
    pub devices: Vec<PathBuf>,
    /// Names of system calls that they can make.
    pub system_calls: Vec<String>,
    /// Requests of `ioctl` that they can make: the letter of a type, a number or two.
    pub ioctls: Vec<String>,
    /// Namespaces that they share with the node: pid, net, ipc, uts, cgroup.
    pub share: Vec<String>,
    /// Nothing is refused, and what would be is told in the log.
    pub records: bool,
}

#[derive(Debug, Clone)]
pub struct NodeConfig {
    pub socket: PathBuf,
    /// Permissions of the socket: who may attach.
    pub mode: u32,
    pub api_server: ApiServerCommand,
    /// A process that loads all modules and the vendors' libraries once, to be copied for every guest.
    pub zygote: Option<ApiServerCommand>,
    /// Where API modules are searched, in order.
    pub modules: Vec<PathBuf>,
    /// Per API, the file of its vendor library; of an API that is missing here the dynamic linker finds it.
    pub vendors: BTreeMap<String, String>,
    /// API servers kept ready.
    pub spares: usize,
    /// Connections that one user may have at a time.
    pub sessions_per_user: usize,
    /// Processes of one user, VM or remote tenant that may attach in a second; 0: as many as it likes.
    pub attach_rate: u32,
    /// Variables of the node's environment that API servers get beside those that vendors' libraries look at; a name may
    /// end with `*`. Those of a private node get all.
    pub pass_environment: Vec<String>,
    /// It serves one program, whose terminal its log goes to.
    pub private: bool,
    pub tenants: Tenants,
    /// User ids of API servers, one for each tenant; `None`: they are who the node is.
    pub server_users: Option<UserRange>,
    /// API servers with users of their own are in sandboxes (crates/sandbox); `None`: they are not.
    pub sandbox: Option<SandboxSettings>,
    /// Control groups of API servers; `None`: they are in the node's.
    pub groups: Option<GroupSettings>,
    /// Devices that are scheduled; none: every session gives its devices work whenever it likes.
    pub devices: Rules,
    /// How long a part of an OpenCL kernel that runs in parts shall take (apis/opencl/README.md); zero: kernels run whole;
    /// `None`: as long as the shortest slice of a device.
    pub launch_slice: Option<Duration>,
    /// Sessions can be moved to other API servers: what their objects need for that is recorded.
    pub movable: bool,
    /// Bytes of host memory that the states of parked sessions may take.
    pub parked_memory: u64,
    /// For tests: each session moves after every so many calls.
    pub test_move_every: Option<u64>,
    /// For tests: instead of that it is parked, and its next call brings it back.
    pub test_parks: bool,
    /// How the configuration is read again; `None`: it is not.
    pub reload: Option<Reload>,
    /// How its program can be replaced while it runs; `None`: it is not.
    pub upgrade: Option<UpgradeCommand>,
    /// Where other machines connect, and what serves each of them.
    pub remote: Option<(Vec<RemoteAddress>, GatewayCommand)>,
    /// Virtual machines that may attach.
    pub vms: Vec<VmSettings>,
    /// The command of each VM's device.
    pub vm_device: VmDeviceCommand,
    /// FPGA cards that programs may use.
    pub cards: Vec<CardSettings>,
    /// The command of each card's process.
    pub card: CardCommand,
    pub log: Level,
}

impl NodeConfig {
    pub fn new(socket: PathBuf, api_server: ApiServerCommand) -> Self {
        Self {
            socket,
            mode: 0o600,
            api_server,
            zygote: None,
            modules: Vec::new(),
            vendors: BTreeMap::new(),
            spares: 1,
            sessions_per_user: 4096,
            attach_rate: usual_rate(),
            pass_environment: Vec::new(),
            private: false,
            tenants: Tenants::default(),
            server_users: None,
            sandbox: None,
            groups: None,
            devices: Rules::default(),
            launch_slice: None,
            movable: true,
            parked_memory: USUAL_PARKED_MEMORY,
            test_move_every: None,
            test_parks: false,
            reload: None,
            upgrade: None,
            remote: None,
            vms: Vec::new(),
            vm_device: VmDeviceCommand::own(),
            cards: Vec::new(),
            card: CardCommand::own(),
            log: Level::Info,
        }
    }
}

impl NodeConfig {
    /// True if devices are scheduled, or may be when the configuration is read again: sessions are prepared for it.
    pub(crate) fn may_schedule(&self) -> bool {
        !self.devices.0.is_empty() || self.reload.is_some()
    }

    /// API servers get what passes of this environment, and before it what their commands say themselves.
    fn pass_on(&mut self, environment: impl Iterator<Item = (OsString, OsString)>) {
        let passing = if self.private { Passing::Whole } else { Passing::Listed(&self.pass_environment) };
        let passed: Vec<_> = environment::passed(environment, passing).collect();
        for command in self.zygote.iter_mut().chain([&mut self.api_server]) {
            command.environment.splice(..0, passed.iter().cloned());
        }
    }
}

/// A running node. Dropping it ends all its sessions and removes its sockets.
#[derive(Debug)]
pub struct Node {
    address: Address,
    core: Arc<Core>,
    admin: Arc<UnixListener>,
    admin_path: PathBuf,
    threads: Vec<JoinHandle<()>>,
    /// Hangs up when the node has ended.
    ended: PipeReader,
}

impl Node {
    pub fn start(config: NodeConfig) -> Result<Self, NodeError> {
        Self::start_after(config, None)
    }

    /// `before`: of the program whose place this one takes, in the same process.
    pub fn start_after(mut config: NodeConfig, mut before: Option<Handover>) -> Result<Self, NodeError> {
        config.pass_on(std::env::vars_os());
        if let Some(before) = &before {
            config.socket = before.image.socket.clone();
        }
        let log = Log::new(config.log);
        let address = Address::Unix(config.socket.clone());
        let admin_path = admin::admin_path(&config.socket);
        let (listener, admin) = match &mut before {
            Some(before) => sockets_of(before, &config.socket).map_err(NodeError::Handover)?,
            None => (Listener::bind(&config.socket, config.mode)?, bind_admin(&admin_path)?),
        };
        let admin = Arc::new(admin);
        let remote = config.remote.as_ref().map_or(Vec::new(), |(addresses, _)| addresses.clone());
        let vms = config.vms.clone();
        let core = Arc::new(Core::new(config, listener, log, before.as_mut())?);
        let (ended, alive) = std::io::pipe().map_err(NodeError::Watch)?;
        let threads = vec![run_core(&core, alive, log), run_admin(&admin, &core, &address, log)];
        log.info(format_args!("listening on {address}"));
        remote.iter().for_each(|remote| log.info(format_args!("listening on {remote}")));
        for vm in vms {
            let (name, socket) = (vm.name.escape_debug(), vm.socket.display());
            log.info(format_args!("listening for VM {name} on {socket}"));
        }
        Ok(Self { address, core, admin, admin_path, threads, ended })
    }

    /// A node in a private directory: only this user's processes that are told the name find it.
    pub fn start_private(directory: &PrivateDir, mut config: NodeConfig) -> Result<Self, NodeError> {
        config.socket = directory.path().join("node.sock");
        // The directory keeps others out. A program that has changed its user comes by an inherited descriptor.
        config.mode = 0o666;
        config.private = true;
        Self::start(config)
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    pub fn report(&self) -> NodeReport {
        report_of(&self.core, &self.address)
    }

    /// Reads the configuration again; sessions go on. What is wrong is also told in the log.
    pub fn reload(&self) -> Result<Vec<String>, NodeError> {
        self.core.reload()
    }

    /// Guest processes that are served now.
    pub fn busy(&self) -> usize {
        self.core.busy()
    }

    /// Ends once no guest is left.
    pub fn drain(&self) {
        self.core.aim(Goal::Drain);
    }

    /// Readable (it hangs up) when the node has ended.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// True if the node has ended (after `drain`).
    pub fn is_finished(&self) -> bool {
        self.threads.first().is_none_or(|thread| thread.is_finished())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.core.aim(Goal::Stop);
        let _ = shutdown(&*self.admin, Shutdown::Both);
        for thread in self.threads.drain(..) {
            // A panic there was printed already, and there is nothing left to save.
            let _ = thread.join();
        }
        let _ = fs::remove_file(&self.admin_path);
    }
}

/// Called with the node's lock held, so that a socket found there is a dead node's.
fn bind_admin(path: &Path) -> Result<UnixListener, NodeError> {
    let failed = |error| NodeError::Listen(path.to_owned(), error);
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::from(listen_on(path, 0o600)?);
    listener.set_nonblocking(false).map_err(failed)?;
    Ok(listener)
}

/// Those of the program before: what connects meanwhile waits there.
fn sockets_of(before: &mut Handover, path: &Path) -> std::io::Result<(Listener, UnixListener)> {
    let Handover { image, inherited } = before;
    let (socket, lock) = (inherited.take(image.listener)?, inherited.take(image.lock)?);
    Ok((Listener::again(path, socket, lock.into()), inherited.take(image.admin)?.into()))
}

fn run_core(core: &Arc<Core>, alive: PipeWriter, log: Log) -> JoinHandle<()> {
    let core = Arc::clone(core);
    std::thread::spawn(move || {
        let _alive = alive;
        if let Err(error) = core.run() {
            log.error(format_args!("the node ends: {error}"));
        }
    })
}

fn run_admin(admin: &Arc<UnixListener>, core: &Arc<Core>, address: &Address, log: Log) -> JoinHandle<()> {
    let (admin, core, address) = (Arc::clone(admin), Arc::clone(core), address.clone());
    std::thread::spawn(move || {
        let answer = |request| answer(&core, &address, &admin, request);
        admin::serve(&admin, &answer, log);
    })
}

fn answer(core: &Core, address: &Address, admin: &UnixListener, request: Request) -> Result<serde_json::Value, String> {
    let json = |value: serde_json::Result<serde_json::Value>| value.map_err(|error| error.to_string());
    match request {
        Request::Ps => json(serde_json::to_value(report_of(core, address))),
        Request::Tenants => json(serde_json::to_value(core.tenants())),
        Request::Set(change) => {
            let report = core.change_tenant(&change).map_err(|error| error.to_string())?;
            json(serde_json::to_value(report))
        }
        Request::End(which) => {
            json(serde_json::to_value(core.end_sessions(&which).map_err(|error| error.to_string())?))
        }
        Request::Migrate(request) => {
            json(serde_json::to_value(core.begin_move(&request).map_err(|error| error.to_string())?))
        }
        Request::MoveStatus(number) => {
            json(serde_json::to_value(core.move_status(number).map_err(|error| error.to_string())?))
        }
        Request::Unpark(session) => {
            json(serde_json::to_value(core.unpark(session).map_err(|error| error.to_string())?))
        }
        Request::MoveAtCard(request) => {
            json(serde_json::to_value(core.begin_card_move(&request).map_err(|error| error.to_string())?))
        }
        Request::CardMoveStatus(session) => {
            json(serde_json::to_value(core.card_move(session).map_err(|error| error.to_string())?))
        }
        Request::Upgrade(request) => match core.upgrade(admin.as_fd(), &request) {
            Ok(never) => match never {},
            Err(error) => Err(error.to_string()),
        },
        Request::Proceed(number) => {
            json(serde_json::to_value(core.proceed_with_move(number).map_err(|error| error.to_string())?))
        }
        Request::Reload => json(serde_json::to_value(core.reload().map_err(|error| error.to_string())?)),
    }
}

fn report_of(core: &Core, address: &Address) -> NodeReport {
    let (zygote, devices) = (core.zygote(), core.devices());
    core.state().gateways.hear_all();
    core.with_state(|state| NodeReport {
        address: address.to_string(),
        pid: std::process::id(),
        upgrades: state.upgrades,
        spares: state.registry.spares(),
        zygote,
        parked: ParkedMemory { used: state.parks.bytes(), limit: core.config.parked_memory },
        sessions: sessions_of(state),
        servers: state.registry.without_sessions().map(|(_, server)| report::server(server)).collect(),
        devices,
        cards: state.cards.report(),
    })
}

fn sessions_of(state: &CoreState) -> Vec<SessionReport> {
    let of_servers = state.registry.sessions.iter().map(|(id, session)| report::session(state, *id, session));
    let mut all: Vec<SessionReport> = of_servers.chain(state.cards.report_sessions()).collect();
    all.sort_by_key(|session| session.session);
    all
}
