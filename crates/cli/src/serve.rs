//! `aviary serve`: a node for many guests.

use crate::{
    amount::{LimitPlace, add_limits, parse_limit},
    apis::{self, Api, ApiError},
    card_config::{card_at, parse_card},
    config::{FileConfig, Fixed, check_names, parse_device, parse_mode, parse_span, parse_vm},
    fpga::own_libraries,
    remote::{NodeAddress, ServeArgs},
    sandbox::{self, Choice, Users},
    signals::Signals,
};
use anyhow::{Context, anyhow, bail};
use aviary_node::{
    ApiServerCommand, CardSettings, DeviceSettings, Handover, Level, LoadedPolicy, Node, NodeConfig, PrivateDir,
    Reload, Rules, Scheduler, Settings, Tenants, UpgradeCommand, UserRange, VmSettings, default_socket,
    runtime_directory, upgrade_versions,
};
use aviary_sandbox::Mode;
use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::SIGHUP;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Mutex, PoisonError},
    time::Duration,
};

const CONFIG_HELP: &str = r##"Configuration file (TOML, everything optional):
  listen = "unix:/run/aviary/node.sock"
  mode = "660"
  spares = 2
  sessions_per_user = 64
  attach_rate = 20              # processes of one user or VM that attach in a second; 0: no limit [5 for each CPU]
  log_level = "info"
  api_server_users = "200000-265535"    # ids of the tenants' API servers, of a node that is root; or "none"
  api_dirs = ["/opt/aviary/apis"]
  pass_environment = ["ACME_*"] # variables that API servers get beside those that vendors' libraries usually look at
  movable = false               # sessions cannot be moved, and what that needs is not recorded [true]
  parked_memory = "16G"         # host memory that parked sessions may take [a quarter of the machine's]
  idle_park = "10m"             # sessions that make no call for so long are parked; "0s": none [none]
  network_grace = "2m"          # sessions of other machines survive a broken connection for so long; "0s": not at all [2m]
  only_devices = ["NVIDIA H100*"]   # devices that a tenant may use, by the names that the vendors' libraries give [all]
  [limits]                      # of each tenant, by the resources that the API's specification names
  device_memory = "2G"
  [tenants.research]            # users that are treated as one
  users = [1000, 1001]
  certificates = ["lab-7"]      # and names that certificates or tokens show (its own is one)
  limits = { device_memory = "8G" }   # of all its sessions together
  devices."NVIDIA H100*" = { limits = { device_memory = "2G" } }   # and on each such device
  sessions = 32                 # at a time
  threads = 64                  # of one session
  apis = ["opencl"]             # all others are refused
  functions = { deny = ["clCreatePipe"] }   # or allow = [...]: all others are refused
  only_devices = ["NVIDIA H100*", "pocl*"]  # in the place of the node's list
  weight = 2                    # share of a scheduled device [1]
  priority = 0
  idle_park = "1h"              # in the place of the node's; "0s": never
  cap = "30%"                   # never more of a scheduled device's time, even if it is idle
  [devices."NVIDIA H100*"]
  limits = { device_memory = "1G" }   # of each tenant that has none of its own there
  [devices."*"]                 # schedule these devices; without it nobody waits for anybody
  scheduler = "fair"            # or wfq-poll, wfq-aimd, round-robin, slices, priority, none
  slice = "6ms"
  linger = "200us"
  hold_limit = "10s"            # who keeps a device from others for so long beyond a slice is ended; "0s": nobody
  latency = "1ms"               # priority, ebpf: work that a tenant may have in flight that another can come before; "0s": a slice
  kind = "exclusive"            # or preemptive: does one tenant's work at a time, or gives each parts of its time [as its API says]
  awake = "300us"               # interactive programs spin that long while they have the device [300us; 0us with fewer than 8 CPUs]
  policy = "policies/token_bucket.c"   # for the scheduler "ebpf" [that of the API's specification]
  [sandbox]                     # of API servers (docs/security.md)
  mode = "auto"                 # the default: on where this machine can have sandboxes and all APIs say what they need in one;
                                # "on"; "off": a user of their own is then all that confines them; "log": nothing is refused,
                                # and the log tells what "on" would refuse
  read = ["/opt/vendor"]        # what they can read beside the usual libraries
  devices = ["/dev/xdma0*"]     # device nodes that they can use beside those of known accelerators
  system_calls = ["mincore"]    # calls that they can make beside the usual ones
  ioctls = ["F", "0x30000001", "1-80"]   # requests of ioctl: all of a type, one number, or a range of them
  share = ["ipc"]               # namespaces of the node, for a driver that does not work in one of its own: pid, net, ipc, uts, cgroup
  [cgroup]                      # control groups of API servers, one for each in one for each tenant
  mode = "auto"                 # the default: where a directory of cgroup v2 was delegated to the node; "on"; "off"
  path = "/sys/fs/cgroup/aviary"    # a delegated directory [the node's own]
  memory = "16G"                # of each tenant: bytes of host memory [no limit]
  processes = 4096              # processes and threads [16384]
  cpu_weight = 100              # share of CPU time where it is scarce, 1 to 10000 [100]
  session = { memory = "8G", processes = 1024 }    # of each guest process's API server [no limit]
  tenants.research = { memory = "64G" }            # of tenants that have others
  [vms.build]                   # a virtual machine may attach (docs/virtual-machines.md)
  socket = "/run/aviary/build.sock"    # where its VMM connects
  tenant = "research"           # whose all its processes are [the VM's name]
  mode = "600"                  # who may connect
  [fpga.card0]                  # a simulated FPGA card (docs/fpga.md)
  image = "all"                 # a name that fpga/build made, or a file
  socket = "/run/aviary/card0.sock"    # where programs connect [fpga-card0.sock beside the node's socket]
  mode = "666"                  # who may connect [the node's mode]

SIGHUP and `aviary reload` read the file again: sessions_per_user, attach_rate, only_devices, [limits], [tenants], [vms], [fpga], [devices] (unless
--scheduler or --slice say otherwise) and the files of policies change at once."##;

/// Let other processes use this machine's accelerators.
///
/// A guest attaches with AVIARY_SERVER set to the address, or with
/// `aviary run --server ADDR`. SIGTERM or SIGINT ends all sessions and the node, and so does SIGHUP without --config.
#[derive(Args)]
#[command(after_long_help = CONFIG_HELP)]
pub struct ServeCommand {
    /// Read this configuration file; the options below take precedence.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address: unix:/PATH, or HOST:PORT or vsock:CID:PORT for other machines (repeatable)
    /// [default: $XDG_RUNTIME_DIR/aviary/node.sock, as root /run/aviary/node.sock]
    #[arg(long, value_name = "ADDR")]
    listen: Vec<NodeAddress>,
    #[command(flatten)]
    remote: ServeArgs,
    /// Permissions of the socket, in octal: who may attach [default: 600]
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    mode: Option<u32>,
    /// API servers kept ready for new guests [default: 1]
    #[arg(long, value_name = "N")]
    spares: Option<usize>,
    /// Sessions that one user may have at a time [default: 4096]
    #[arg(long, value_name = "N")]
    sessions_per_user: Option<usize>,
    /// Start every API server by itself instead of copying one that has all vendors' libraries loaded.
    #[arg(long)]
    no_zygote: bool,
    /// Let a virtual machine attach: its VMM connects to that socket (repeatable).
    #[arg(long, value_name = "NAME=SOCKET", value_parser = parse_vm)]
    vm: Vec<VmSettings>,
    /// Start a simulated FPGA card with this image; programs connect to fpga-NAME.sock beside the node's socket (repeatable).
    #[arg(long, value_name = "NAME=IMAGE", value_parser = parse_card)]
    fpga: Vec<(String, String)>,
    /// Limit a resource of every tenant, as the API's specification names it, with @DEVICE on each device of that name,
    /// which may end with * (repeatable).
    #[arg(long, value_name = "RESOURCE[@DEVICE]=AMOUNT", value_parser = parse_limit)]
    limit: Vec<(LimitPlace, u64)>,
    /// Let tenants use the devices of this name only, as the vendor's library gives it; it may end with * (repeatable).
    #[arg(long, value_name = "NAME", value_parser = parse_device)]
    only_device: Vec<String>,
    /// Schedule all devices: fair, wfq-poll, wfq-aimd, round-robin, slices, priority, or for comparison credit,
    /// strict-coscheduling [default: as the configuration file says, else none]
    #[arg(long, value_name = "NAME")]
    scheduler: Option<Scheduler>,
    /// How long a tenant has a scheduled device at a time, such as 6ms [default: 6ms]
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    slice: Option<Duration>,
    /// Pass these variables of the environment on to API servers, beside those that vendors' libraries usually look at; the
    /// name may end with * (repeatable).
    #[arg(long, value_name = "NAME")]
    pass_environment: Vec<String>,
    /// Look for API builds in this folder first (repeatable).
    #[arg(long, value_name = "DIR")]
    api_dir: Vec<PathBuf>,
    /// Confine API servers: auto (if this machine and all APIs can), on, off or log (refuse
    /// nothing, tell what would be) [default: as the configuration file says, else auto]
    #[arg(long, value_name = "MODE")]
    sandbox: Option<Mode>,
    /// Level of the lines on standard error: error, warn, info or debug [default: info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<Level>,
    /// Say whether this program could take over a node with these options whose program has these versions, and do nothing.
    #[arg(long, value_name = "VERSIONS", hide = true)]
    check: Option<String>,
    /// Take over the node whose state this descriptor has (`aviary upgrade`).
    #[arg(long, value_name = "FD", hide = true)]
    handover: Option<i32>,
}

pub fn run(command: ServeCommand) -> anyhow::Result<ExitCode> {
    // Before anything that starts a process, which would inherit the descriptors.
    let before = command.handover.map(Handover::take).transpose().context("cannot take over")?;
    let signals = Signals::catch().context("cannot catch signals")?;
    let checks = command.check.is_some();
    if let Some(theirs) = command.check.as_ref().filter(|theirs| **theirs != upgrade_versions()) {
        let own = upgrade_versions();
        bail!(
            "it has the versions {own} and the running node {theirs}: start the node again after its sessions have ended"
        );
    }
    warn_of_runtime_directory();
    // Holds the socket of a node that only other machines use.
    let directory = PrivateDir::create()?;
    let reloads = command.config.is_some();
    let mut config = configure(command, &directory)?;
    if checks {
        return Ok(ExitCode::SUCCESS);
    }
    let arguments = own_arguments(std::env::args_os().skip(1));
    config.upgrade = Some(UpgradeCommand { arguments, check: "--check", handover: "--handover" });
    raise_descriptor_limit();
    let node = Node::start_after(config, before)?;
    loop {
        match signals.take_noted() {
            // The log says the reason.
            Some(SIGHUP) if reloads => drop(node.reload()),
            Some(_) => return Ok(ExitCode::SUCCESS),
            None if node.is_finished() => bail!("the node ended unexpectedly"),
            None => signals.wait(node.ended()).context("cannot wait for signals")?,
        }
    }
}

/// The arguments of this process, without what an upgrade has added.
fn own_arguments(all: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let (mut all, mut own) = (all, Vec::new());
    while let Some(argument) = all.next() {
        match argument.to_str() {
            Some("--handover") => _ = all.next(),
            _ => own.push(argument),
        }
    }
    own
}

/// A file that lies elsewhere then would be looked for in vain.
pub fn warn_of_runtime_directory() {
    if let Err(error) = runtime_directory() {
        eprintln!("aviary: warning: {error}");
    }
}

/// Options of the command line that go before what the file says about tenants, whenever it is read.
struct Source {
    file: Option<PathBuf>,
    limits: Vec<(LimitPlace, u64)>,
    /// None: as the file says.
    only_devices: Option<Vec<String>>,
    sessions_per_user: Option<usize>,
    /// Of the command line.
    vms: Vec<VmSettings>,
    /// Names and images of the command line's cards.
    cards: Vec<(String, String)>,
    /// The node's socket and its permissions.
    socket: (PathBuf, u32),
    modules: Vec<PathBuf>,
    default_sessions: usize,
    default_attach_rate: u32,
    /// As they were read last; `None`: the command line says how devices are scheduled.
    devices: Option<Mutex<Rules>>,
}

impl Source {
    fn settings(&self, file: &FileConfig) -> anyhow::Result<Settings> {
        let only_devices = self.only_devices.clone().or_else(|| file.only_devices());
        let (limits, device_limits) = (file.limits(), file.device_limits());
        let idle_park = file.idle_park();
        let mut tenants = Tenants { list: file.tenants(), limits, device_limits, only_devices, idle_park };
        add_limits(&mut tenants, &self.limits);
        let notes = check_names(&tenants, &self.apis(file)?)?;
        let sessions_per_user = self.sessions_per_user.or(file.sessions_per_user).unwrap_or(self.default_sessions);
        let attach_rate = file.attach_rate.unwrap_or(self.default_attach_rate);
        let (vms, cards) = (self.vms(file), self.cards(file));
        Ok(Settings { tenants, sessions_per_user, attach_rate, devices: None, vms, cards, notes })
    }

    /// Command line before file.
    fn vms(&self, file: &FileConfig) -> Vec<VmSettings> {
        let named = |vm: &VmSettings| self.vms.iter().any(|other| other.name == vm.name);
        file.vms().into_iter().filter(|vm| !named(vm)).chain(self.vms.iter().cloned()).collect()
    }

    /// Command line before file.
    fn cards(&self, file: &FileConfig) -> Vec<CardSettings> {
        let (node, mode) = (&self.socket.0, self.socket.1);
        let named = |card: &CardSettings| self.cards.iter().any(|(name, _)| *name == card.name);
        let own = self.cards.iter().map(|(name, image)| card_at(name, image, node, mode));
        file.cards(node, mode).into_iter().filter(|card| !named(card)).chain(own).collect()
    }

    fn apis(&self, file: &FileConfig) -> anyhow::Result<Vec<Api>> {
        apis_beside(&self.modules, !self.cards(file).is_empty())
    }

    fn devices_again(&self, file: &FileConfig, notes: &mut Vec<String>) -> anyhow::Result<Option<Rules>> {
        let Some(present) = &self.devices else { return Ok(None) };
        let mut present = present.lock().unwrap_or_else(PoisonError::into_inner);
        let rules = file.devices(self.file.as_deref(), &present, &self.apis(file)?)?;
        if rules.shortest_slice() != present.shortest_slice() {
            let text = "long launches of sessions that run go on in parts as long as the slice was when they began";
            notes.push(text.into());
        }
        *present = rules.clone();
        Ok(Some(rules))
    }

    fn read_again(&self, path: &Path, before: &Fixed) -> anyhow::Result<Settings> {
        let file = FileConfig::read(path)?;
        let mut settings = self.settings(&file)?;
        settings.devices = self.devices_again(&file, &mut settings.notes)?;
        if file.fixed() != *before {
            let text = "listen, mode, spares, log_level, api_server_users, api_dirs, pass_environment, [sandbox] and [cgroup] take effect when the node is started again";
            settings.notes.push(text.into());
        }
        Ok(settings)
    }
}

/// `AVIARY_SLICE_MS`: the time that one submission of a sliced kernel shall take (apis/opencl/README.md). `None`:
/// nothing.
pub fn launch_slice() -> anyhow::Result<Option<Duration>> {
    let Ok(text) = std::env::var("AVIARY_SLICE_MS") else { return Ok(None) };
    let seconds = text.trim().parse::<f64>().ok().map(|milliseconds| milliseconds / 1000.0);
    let slice = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    slice
        .map(Some)
        .ok_or_else(|| anyhow!("AVIARY_SLICE_MS is {text:?}, expected milliseconds such as 6 or 0.5; 0: off"))
}

/// `AVIARY_TEST_MOVE_EVERY`, for tests: each session moves to another API server after every so many calls.
pub fn test_move_every() -> anyhow::Result<Option<u64>> {
    let Ok(text) = std::env::var("AVIARY_TEST_MOVE_EVERY") else { return Ok(None) };
    let every = text.trim().parse().ok().filter(|every| *every > 0);
    every.map(Some).ok_or_else(|| anyhow!("AVIARY_TEST_MOVE_EVERY is {text:?}, expected a number of calls"))
}

/// `AVIARY_TEST_MOVE_KIND`, for tests: `park`, what the variable above says is a park, or `move`.
pub fn test_parks() -> anyhow::Result<bool> {
    match std::env::var("AVIARY_TEST_MOVE_KIND").as_deref() {
        Err(_) | Ok("move") => Ok(false),
        Ok("park") => Ok(true),
        Ok(text) => bail!("AVIARY_TEST_MOVE_KIND is {text:?}, expected `move` or `park`"),
    }
}

/// Command line before file before defaults.
fn configure(command: ServeCommand, directory: &PrivateDir) -> anyhow::Result<NodeConfig> {
    let file = command.config.as_deref().map(FileConfig::read).transpose()?.unwrap_or_default();
    let mut listen = command.listen;
    if let (true, Some(text)) = (listen.is_empty(), &file.listen) {
        listen.push(text.parse()?);
    }
    let (mut sockets, mut others) = (Vec::new(), Vec::new());
    for address in listen {
        match address {
            NodeAddress::Local(address) => sockets.push(address.path().to_owned()),
            NodeAddress::Remote(address) => others.push(address),
        }
    }
    let socket = match (sockets.pop(), others.is_empty()) {
        (Some(_), _) if !sockets.is_empty() => bail!("a node has one unix socket"),
        (Some(path), _) => path,
        (None, true) => default_socket(),
        (None, false) => directory.path().join("node.sock"),
    };
    let mut config = NodeConfig::new(socket, ApiServerCommand::own()?);
    config.launch_slice = launch_slice()?;
    (config.test_move_every, config.test_parks) = (test_move_every()?, test_parks()?);
    config.zygote = if command.no_zygote { None } else { Some(ApiServerCommand::own_zygote()?) };
    if !others.is_empty() {
        let gateway = command.remote.gateway(&others, file.network_grace())?;
        config.remote = Some((others, gateway));
    }
    let text_mode = file.mode.as_deref().map(parse_mode).transpose().map_err(|error| anyhow!("mode: {error}"))?;
    config.mode = command.mode.or(text_mode).unwrap_or(config.mode);
    config.spares = command.spares.or(file.spares).unwrap_or(config.spares);
    let text_level =
        file.log_level.as_deref().map(str::parse).transpose().map_err(|error: String| anyhow!("log_level: {error}"))?;
    config.log = command.log_level.or(text_level).unwrap_or(config.log);
    let directories: Vec<PathBuf> = command.api_dir.into_iter().chain(file.api_dirs.iter().cloned()).collect();
    config.modules = apis::search_path(&directories)?;
    config.pass_environment =
        command.pass_environment.into_iter().chain(file.pass_environment.iter().cloned()).collect();
    config.movable = file.movable.unwrap_or(config.movable);
    for servers in [Some(&mut config.api_server), config.zygote.as_mut()].into_iter().flatten() {
        servers.fixed_addresses = config.movable;
    }
    config.parked_memory = file.parked_memory.map_or_else(crate::remote::usual_memory, |amount| amount.0);
    config.server_users = server_users(file.api_server_users.as_deref())?;
    let path = command.config.as_deref().map(std::path::absolute).transpose().context("the folder of --config")?;
    let has_cards = !command.fpga.is_empty() || !file.cards(&config.socket, config.mode).is_empty();
    let apis = apis_beside(&config.modules, has_cards)?;
    config.vendors = own_libraries(&apis);
    if apis.is_empty() {
        // No guest comes for an API server that waits.
        (config.spares, config.zygote) = (0, None);
    }
    let users = match &config.server_users {
        Some(_) => Users::Own,
        None if rustix::process::geteuid().is_root() => Users::Root,
        None => Users::Shared,
    };
    config.sandbox = match sandbox::choose(command.sandbox, &file.sandbox, users, &apis, sandbox::try_one)? {
        Choice::Sandboxes(settings) => Some(settings),
        Choice::None(reason) => {
            if let Some(reason) = reason {
                eprintln!("aviary: warning: API servers are not sandboxed (--sandbox auto): {reason}");
            }
            None
        }
    };
    config.groups = file.cgroup.settings()?;
    config.devices = file.devices(path.as_deref(), &Rules::default(), &apis)?;
    let told = command.scheduler.is_some() || command.slice.is_some();
    if told {
        let usual = DeviceSettings::default();
        let scheduler = command.scheduler.unwrap_or(usual.scheduler);
        let policy = match scheduler {
            Scheduler::Ebpf => Some(LoadedPolicy::load(apis::policy(&apis)?)?),
            _ => None,
        };
        let settings = DeviceSettings { scheduler, policy, slice: command.slice.or(usual.slice), ..usual };
        config.devices = Rules(vec![("*".into(), settings)]);
    }
    let source = Source {
        file: path,
        limits: command.limit,
        only_devices: Some(command.only_device).filter(|names| !names.is_empty()),
        sessions_per_user: command.sessions_per_user,
        vms: command.vm,
        cards: command.fpga,
        socket: (config.socket.clone(), config.mode),
        modules: config.modules.clone(),
        default_sessions: config.sessions_per_user,
        default_attach_rate: config.attach_rate,
        devices: (!told).then(|| Mutex::new(config.devices.clone())),
    };
    let Settings { tenants, sessions_per_user, attach_rate, vms, cards, notes, .. } = source.settings(&file)?;
    notes.iter().for_each(|note| eprintln!("aviary: warning: {note}"));
    (config.tenants, config.sessions_per_user, config.vms) = (tenants, sessions_per_user, vms);
    (config.attach_rate, config.cards) = (attach_rate, cards);
    if let Some(path) = source.file.clone() {
        let before = file.fixed();
        let read = move || source.read_again(&path, &before).map_err(|error| format!("{error:#}"));
        config.reload = Some(Reload::new(read));
    }
    Ok(config)
}

/// All API builds. A node with cards may have none.
fn apis_beside(modules: &[PathBuf], has_cards: bool) -> anyhow::Result<Vec<Api>> {
    match apis::select(modules, &[]) {
        Err(ApiError::NoneFound(_)) if has_cards => Ok(Vec::new()),
        found => Ok(found?),
    }
}

/// Which user ids API servers get: as the file says, otherwise usual ones where that is possible.
fn server_users(text: Option<&str>) -> anyhow::Result<Option<UserRange>> {
    match text {
        Some("none") => Ok(None),
        Some(text) => {
            let failed = |error| anyhow!("api_server_users: {error}");
            let range: UserRange = text.parse().map_err(failed)?;
            range.check().map_err(failed)?;
            Ok(Some(range))
        }
        None if !rustix::process::geteuid().is_root() => Ok(None),
        None => {
            let usual = UserRange::default();
            if let Err(why) = usual.check() {
                eprintln!("aviary: warning: all tenants' API servers run as root (api_server_users): {why}");
                return Ok(None);
            }
            Ok(Some(usual))
        }
    }
}

/// A session costs the node a few descriptors.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where it is refused, the node works with the limit that there is.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_an_upgrade_are_not_passed_on() {
        let all = ["serve", "--spares", "2", "--handover", "9"].map(OsString::from);
        assert_eq!(own_arguments(all.into_iter()), ["serve", "--spares", "2"]);
    }
}
