//! What a node is told at its start, and what of it may change while it runs.

use crate::attach::throttle::usual_rate;
use crate::cards::{CardCommand, CardSettings};
use crate::devices::{DeviceLister, HolderLister};
use crate::gateways::GatewayCommand;
use crate::grants::request::GrantStep;
use crate::log::Level;
use crate::relays::RelayCommand;
use crate::relocation::request::USUAL_PARKED_MEMORY;
use crate::scheduling::rules::Rules;
use crate::servers::api_server::ApiServerCommand;
use crate::servers::cgroups::GroupSettings;
use crate::servers::environment::{self, Passing};
use crate::servers::sandbox_settings::SandboxSettings;
use crate::tenants::tenant::Tenants;
use crate::upgrade::command::UpgradeCommand;
use crate::users::server_users::UserRange;
use crate::vms::{FpgaDeviceCommand, FpgaDeviceSettings, VmDeviceCommand, VmSettings};
use aviary_control::DeviceContext;
use aviary_transport::RemoteAddress;
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Tenants without an entry of their own that a node knows at a time.
pub const USUAL_MOST_TENANTS: usize = 1024;

/// Settings that may change while a node runs.
#[derive(Debug, Clone)]
pub struct Settings {
    pub tenants: Tenants,
    /// Tenants without an entry of their own that the node knows at a time.
    pub most_tenants: usize,
    pub sessions_per_user: usize,
    /// Processes of one user, VM or remote tenant that may attach in a second; 0: as many as it likes.
    pub attach_rate: u32,
    /// How devices are scheduled; `None`: as before.
    pub devices: Option<Rules>,
    /// The VMs that may attach. Of those that are not here any more the devices end.
    pub vms: Vec<VmSettings>,
    /// FPGA cards; those that are not here any more end.
    pub cards: Vec<CardSettings>,
    /// Accelerators of VMs; those that are not here any more end, and stay in their VMs.
    pub fpga_devices: Vec<FpgaDeviceSettings>,
    /// Notes for the caller of the change.
    pub notes: Vec<String>,
}

/// For tests: what happens to a session after every so many calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TestKind {
    Move,
    /// Its next call brings it back.
    Park,
    /// Its next call brings its memory back.
    Swap,
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

type MakeKey = dyn Fn(&Path) -> Result<String, String> + Send + Sync;

/// Makes a key and its certificate in a folder, and answers the SHA-256 of the certificate.
#[derive(Clone)]
pub struct KeyMaker(Arc<MakeKey>);

impl KeyMaker {
    pub fn new(make: impl Fn(&Path) -> Result<String, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(make))
    }

    pub(crate) fn make(&self, folder: &Path) -> Result<String, String> {
        (self.0)(folder)
    }
}

impl std::fmt::Debug for KeyMaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyMaker")
    }
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
    /// The resources that the specifications of its APIs declare; `None`: not known.
    pub resources: Option<BTreeSet<String>>,
    pub tenants: Tenants,
    /// Tenants without an entry of their own that the node knows at a time.
    pub most_tenants: usize,
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
    /// For tests: what happens to it then.
    pub test_move_kind: TestKind,
    /// How the configuration is read again; `None`: it is not.
    pub reload: Option<Reload>,
    /// How its program can be replaced while it runs; `None`: it is not.
    pub upgrade: Option<UpgradeCommand>,
    /// Where other machines connect, and what serves each of them.
    pub remote: Option<(Vec<RemoteAddress>, GatewayCommand)>,
    /// Where sessions of other machines are kept from the node's end to its next start; `None`: they end with it.
    pub keep: Option<PathBuf>,
    /// Virtual machines that may attach.
    pub vms: Vec<VmSettings>,
    /// The command of each VM's device.
    pub vm_device: VmDeviceCommand,
    /// FPGA cards that programs may use.
    pub cards: Vec<CardSettings>,
    /// The command of each card's process.
    pub card: CardCommand,
    /// Accelerators of VMs.
    pub fpga_devices: Vec<FpgaDeviceSettings>,
    /// The command of each one's process.
    pub fpga_device: FpgaDeviceCommand,
    /// Where grants are kept; `None`: there are none.
    pub grants: Option<PathBuf>,
    /// The command of each process that carries a guest of a grant to another node.
    pub relay: RelayCommand,
    /// Makes the keys of grants whose guests are carried; `None`: there are no such grants.
    pub key_maker: Option<KeyMaker>,
    /// Lists the devices of the machine; `None`: the node does not say which there are.
    pub device_lister: Option<DeviceLister>,
    /// Lists which processes have memory of devices; `None`: what API servers say about that is not checked.
    pub holder_lister: Option<HolderLister>,
    /// What contexts were measured to take of devices, for those of which `devices` does not say it.
    pub contexts: Vec<DeviceContext>,
    /// For tests: where the node ends when it makes or takes back a grant.
    pub test_end_at: Option<GrantStep>,
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
            resources: None,
            tenants: Tenants::default(),
            most_tenants: USUAL_MOST_TENANTS,
            server_users: None,
            sandbox: None,
            groups: None,
            devices: Rules::default(),
            launch_slice: None,
            movable: true,
            parked_memory: USUAL_PARKED_MEMORY,
            test_move_every: None,
            test_move_kind: TestKind::Move,
            reload: None,
            upgrade: None,
            remote: None,
            keep: None,
            vms: Vec::new(),
            vm_device: VmDeviceCommand::own(),
            cards: Vec::new(),
            card: CardCommand::own(),
            fpga_devices: Vec::new(),
            fpga_device: FpgaDeviceCommand::own(),
            grants: None,
            relay: RelayCommand::own(),
            key_maker: None,
            device_lister: None,
            holder_lister: None,
            contexts: Vec::new(),
            test_end_at: None,
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
    pub(crate) fn pass_on(&mut self, environment: impl Iterator<Item = (OsString, OsString)>) {
        let passing = if self.private { Passing::Whole } else { Passing::Listed(&self.pass_environment) };
        let passed: Vec<_> = environment::passed(environment, passing).collect();
        for command in self.zygote.iter_mut().chain([&mut self.api_server]) {
            command.environment.splice(..0, passed.iter().cloned());
        }
    }
}
