//! `aviary serve`: a node for many guests.

use crate::apis::{self, Api, ApiError};
use crate::config::amount::{LimitPlace, add_limits, parse_limit};
use crate::config::card::{card_at, parse_card};
use crate::config::sandbox::{self, Choice, Users};
use crate::config::values::parse_mode;
use crate::config::vendor;
use crate::config::vm::check_has_cards;
use crate::config::{CONFIG_HELP, FileConfig, Fixed, check_names, parse_device, parse_span, parse_vm};
use crate::daemons::descriptors::raise_descriptor_limit;
use crate::daemons::notify::{self, Watchdog, Word};
use crate::daemons::remote::{NodeAddress, ServeArgs};
use crate::daemons::signals::Signals;
use crate::devices;
use crate::fpga::own_libraries;
use anyhow::{Context, anyhow, bail};
use aviary_node::{
    ApiServerCommand, CardSettings, DeviceContext, DeviceSettings, GrantStep, Handover, KEYS, KeyMaker, Level,
    LoadedPolicy, Node, NodeConfig, PrivateDir, Reload, Rules, SandboxSettings, Scheduler, Settings, Tenants, TestKind,
    USUAL_GRANTS, USUAL_MOST_TENANTS, UnknownUsers, UpgradeCommand, UserRange, VmSettings, default_socket,
    runtime_directory, upgrade_versions,
};
use aviary_relay::write_key;
use aviary_sandbox::Mode;
use aviary_transport::RemoteAddress;
use clap::Args;
use signal_hook::consts::SIGHUP;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Start a node: it lets other processes use this machine's accelerators.
///
/// Programs attach with `aviary run --server ADDR`, or with AVIARY_SERVER set to the address. SIGTERM and SIGINT end all
/// sessions and the node. SIGHUP reads the configuration file again; without --config it ends the node.
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
    /// At the end keep sessions of other machines in this folder, from which the next node with the same DIR goes on with them
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Permissions of the socket in octal, which decide who may attach [default: 600]
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    mode: Option<u32>,
    /// API servers kept ready for new guests [default: 1]
    #[arg(long, value_name = "N")]
    spares: Option<usize>,
    /// The most sessions of one user at a time [default: 4096]
    #[arg(long, value_name = "N")]
    sessions_per_user: Option<usize>,
    /// Start every API server separately instead of forking it from a process that has all vendors' libraries loaded.
    #[arg(long)]
    no_zygote: bool,
    /// Let a virtual machine attach: its VMM connects to SOCKET (repeatable).
    #[arg(long, value_name = "NAME=SOCKET", value_parser = parse_vm)]
    vm: Vec<VmSettings>,
    /// Start a simulated FPGA card with this image; programs connect to fpga-NAME.sock in the folder of the node's socket
    /// (repeatable).
    #[arg(long, value_name = "NAME=IMAGE", value_parser = parse_card)]
    fpga: Vec<(String, String)>,
    /// Limit a resource that the API's specification declares, for every tenant without a limit of its own; with @DEVICE: on
    /// each device of that name, which may end with * (repeatable).
    #[arg(long, value_name = "RESOURCE[@DEVICE]=AMOUNT", value_parser = parse_limit)]
    limit: Vec<(LimitPlace, u64)>,
    /// Let tenants use only devices of this name, as the vendor's library reports it; it may end with * (repeatable).
    #[arg(long, value_name = "NAME", value_parser = parse_device)]
    only_device: Vec<String>,
    /// Schedule all devices: fair, wfq-poll, wfq-aimd, round-robin, slices, priority, or for comparison credit,
    /// strict-coscheduling [default: as the configuration file says, else none]
    #[arg(long, value_name = "NAME")]
    scheduler: Option<Scheduler>,
    /// Length of a tenant's turn on a scheduled device, such as 6ms [default: 6ms]
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    slice: Option<Duration>,
    /// Pass this environment variable to API servers, besides those that vendors' libraries use; the name may end with *
    /// (repeatable).
    #[arg(long, value_name = "NAME")]
    pass_environment: Vec<String>,
    /// Look for API builds in this folder first (repeatable).
    #[arg(long, value_name = "DIR")]
    api_dir: Vec<PathBuf>,
    /// Keep the tenants that `aviary grant` makes in this folder [default: as the configuration file says, else
    /// /var/lib/aviary/grants for a node of root on the usual socket, and none for others]
    #[arg(long, value_name = "DIR")]
    grants: Option<PathBuf>,
    /// Sandbox API servers: on, off, log (refuse nothing, log what would be refused), or auto (on if this machine and all
    /// APIs support it) [default: as the configuration file says, else auto]
    #[arg(long, value_name = "MODE")]
    sandbox: Option<Mode>,
    /// Log level; the log goes to standard error: error, warn, info or debug [default: info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<Level>,
    /// Only check whether this program can take over a node with these options and versions.
    #[arg(long, value_name = "VERSIONS", hide = true)]
    check: Option<String>,
    /// Take over the node whose state is in this file descriptor (`aviary upgrade`).
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
            "its versions are {own}, those of the running node {theirs}: restart the node instead, which ends its sessions"
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
    let known = before.as_ref().and_then(Handover::contexts);
    config.contexts = known.unwrap_or_else(|| contexts(&config));
    let arguments = own_arguments(std::env::args_os().skip(1));
    config.upgrade = Some(UpgradeCommand { arguments, check: "--check", handover: "--handover" });
    raise_descriptor_limit();
    let node = Node::start_after(config, before)?;
    notify::tell(Word::Ready);
    let mut watchdog = Watchdog::of_environment();
    let mut stopping = false;
    loop {
        match signals.take_noted() {
            // The log says the reason.
            Some(SIGHUP) if reloads => drop(node.reload()),
            // A second one does not wait for sessions that are being kept.
            Some(_) if !stopping => {
                notify::tell(Word::Stopping);
                stopping = node.keep();
                if !stopping {
                    return Ok(ExitCode::SUCCESS);
                }
            }
            Some(_) => return Ok(ExitCode::SUCCESS),
            None if stopping && node.is_finished() => return Ok(ExitCode::SUCCESS),
            None if node.is_finished() => bail!("the node ended unexpectedly"),
            None => {
                let next = watchdog.as_mut().map(|watchdog| watchdog.look(Instant::now(), || node.pulse()));
                signals.wait_for(node.ended(), next).context("cannot wait for signals")?;
            }
        }
    }
}

/// What contexts take of devices, where it is not said of all of them.
fn contexts(config: &NodeConfig) -> Vec<DeviceContext> {
    let is_told = config.devices.contexts().iter().any(|told| told.name == "*");
    let apis = if is_told { Ok(Vec::new()) } else { apis::select(&config.modules, &[]) };
    devices::contexts::measured(&apis.unwrap_or_default())
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
        let (idle_park, home) = (file.idle_park(), file.home());
        let unknown_users = file.unknown_users.unwrap_or(UnknownUsers::Share);
        let list = file.tenants();
        let vendors = vendor::sets(&file.vendors, self.file.as_deref().unwrap_or(Path::new("")))?;
        let mut tenants =
            Tenants { list, unknown_users, limits, device_limits, only_devices, idle_park, home, vendors };
        add_limits(&mut tenants, &self.limits);
        let apis = self.apis(file)?;
        let mut notes = check_names(&tenants, &apis)?;
        let names: Vec<&str> = apis.iter().map(|api| api.name.as_str()).collect();
        notes.extend(vendor::notes(&file.vendors, &tenants.list, &names));
        let sessions_per_user = self.sessions_per_user.or(file.sessions_per_user).unwrap_or(self.default_sessions);
        let attach_rate = file.attach_rate.unwrap_or(self.default_attach_rate);
        let (vms, cards) = (self.vms(file), self.cards(file));
        let fpga_devices = file.fpga_devices();
        check_has_cards(&fpga_devices, &cards)?;
        let most_tenants = file.most_tenants.unwrap_or(USUAL_MOST_TENANTS);
        Ok(Settings {
            tenants,
            most_tenants,
            sessions_per_user,
            attach_rate,
            devices: None,
            vms,
            cards,
            fpga_devices,
            notes,
        })
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
            let text =
                "sessions that are running keep the length of the parts of long launches: the slice when they began";
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
            let text = "listen, mode, spares, log_level, api_server_users, api_dirs, pass_environment, grants, [sandbox] and [cgroup] take effect when the node is restarted";
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
        .ok_or_else(|| anyhow!("AVIARY_SLICE_MS is {text:?}: expected milliseconds such as 6 or 0.5; 0 turns it off"))
}

/// `AVIARY_TEST_MOVE_EVERY`, for tests: each session moves to another API server after every so many calls.
pub fn test_move_every() -> anyhow::Result<Option<u64>> {
    let Ok(text) = std::env::var("AVIARY_TEST_MOVE_EVERY") else { return Ok(None) };
    let every = text.trim().parse().ok().filter(|every| *every > 0);
    every.map(Some).ok_or_else(|| anyhow!("AVIARY_TEST_MOVE_EVERY is {text:?}: expected a number of calls"))
}

/// `AVIARY_TEST_MOVE_KIND`, for tests: what the variable above says is a `move`, a `park` or a `swap`.
pub fn test_move_kind() -> anyhow::Result<TestKind> {
    match std::env::var("AVIARY_TEST_MOVE_KIND").as_deref() {
        Err(_) | Ok("move") => Ok(TestKind::Move),
        Ok("park") => Ok(TestKind::Park),
        Ok("swap") => Ok(TestKind::Swap),
        Ok(text) => bail!("AVIARY_TEST_MOVE_KIND is {text:?}: expected `move`, `park` or `swap`"),
    }
}

/// `AVIARY_TEST_GRANT_STEP`, for tests: the step at which the node is ended when it makes or takes back a grant.
fn test_grant_step() -> anyhow::Result<Option<GrantStep>> {
    let Ok(text) = std::env::var("AVIARY_TEST_GRANT_STEP") else { return Ok(None) };
    let step = GrantStep::ALL.into_iter().find(|step| format!("{step:?}") == text);
    step.map(Some).ok_or_else(|| anyhow!("AVIARY_TEST_GRANT_STEP is {text:?}: expected one of {:?}", GrantStep::ALL))
}

/// The node's unix socket, and its addresses for other machines.
fn sockets(
    mut listen: Vec<NodeAddress>,
    file: &FileConfig,
    directory: &PrivateDir,
) -> anyhow::Result<(PathBuf, Vec<RemoteAddress>)> {
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
        (Some(_), _) if !sockets.is_empty() => bail!("--listen: a node has one unix socket, but several are given"),
        (Some(path), _) => path,
        (None, true) => default_socket(),
        (None, false) => directory.path().join("node.sock"),
    };
    Ok((socket, others))
}

/// What holds for the socket, for API servers and for their environment; the folder for sessions that outlive the node.
fn configure_processes(config: &mut NodeConfig, command: &ServeCommand, file: &FileConfig) -> anyhow::Result<()> {
    config.keep = command.keep.as_deref().map(std::path::absolute).transpose().context("the folder of --keep")?;
    let text_mode = file.mode.as_deref().map(parse_mode).transpose().map_err(|error| anyhow!("mode: {error}"))?;
    config.mode = command.mode.or(text_mode).unwrap_or(config.mode);
    config.spares = command.spares.or(file.spares).unwrap_or(config.spares);
    let text_level =
        file.log_level.as_deref().map(str::parse).transpose().map_err(|error: String| anyhow!("log_level: {error}"))?;
    config.log = command.log_level.or(text_level).unwrap_or(config.log);
    let directories: Vec<PathBuf> = command.api_dir.iter().cloned().chain(file.api_dirs.iter().cloned()).collect();
    config.modules = apis::search_path(&directories)?;
    config.device_lister = Some(devices::lister(config.modules.clone()));
    config.holder_lister = Some(devices::holders::lister(config.modules.clone()));
    config.pass_environment =
        command.pass_environment.iter().cloned().chain(file.pass_environment.iter().cloned()).collect();
    config.movable = file.movable.unwrap_or(config.movable);
    for servers in [Some(&mut config.api_server), config.zygote.as_mut()].into_iter().flatten() {
        servers.fixed_addresses = config.movable;
    }
    config.parked_memory = file.parked_memory.map_or_else(crate::daemons::remote::usual_memory, |amount| amount.0);
    Ok(())
}

/// The sandboxes of API servers, as far as this machine has them; a warning if they are less than they could be.
fn sandbox_settings(
    told: Option<Mode>,
    file: &FileConfig,
    own: Option<&UserRange>,
    apis: &[Api],
    hidden: Vec<PathBuf>,
) -> anyhow::Result<Option<SandboxSettings>> {
    let users = match own {
        Some(_) => Users::Own,
        None if rustix::process::geteuid().is_root() => Users::Root,
        None => Users::Shared,
    };
    Ok(match sandbox::choose(told, &file.sandbox, users, apis, sandbox::try_one)? {
        Choice::Sandboxes(settings) => {
            if let Some(warning) = sandbox::warning(&settings) {
                eprintln!("aviary: warning: {warning}");
            }
            Some(SandboxSettings { hidden, ..settings })
        }
        Choice::None(reason) => {
            if let Some(reason) = reason {
                eprintln!("aviary: warning: API servers are not sandboxed (--sandbox auto): {reason}");
            }
            None
        }
    })
}

/// Where grants are kept; `None`: there are none. Several nodes of a machine have different folders, so only the usual one has
/// a usual folder.
fn grants_folder(told: Option<&Path>, file: &FileConfig, socket: &Path) -> anyhow::Result<Option<PathBuf>> {
    let usual = rustix::process::geteuid().is_root() && socket == default_socket();
    let folder = told.or(file.grants.as_deref()).or(usual.then_some(Path::new(USUAL_GRANTS)));
    folder.map(std::path::absolute).transpose().context("the folder of grants")
}

/// For grants whose guests are carried to another node.
fn key_maker() -> KeyMaker {
    KeyMaker::new(|folder| write_key(folder).map_err(|error| error.to_string()))
}

/// What the command line says of all devices; `None`: nothing.
fn told_devices(scheduler: Option<Scheduler>, slice: Option<Duration>, apis: &[Api]) -> anyhow::Result<Option<Rules>> {
    if scheduler.is_none() && slice.is_none() {
        return Ok(None);
    }
    let usual = DeviceSettings::default();
    let scheduler = scheduler.unwrap_or(usual.scheduler);
    let policy = match scheduler {
        Scheduler::Ebpf => Some(LoadedPolicy::load(apis::policy(apis)?)?),
        _ => None,
    };
    let settings = DeviceSettings { scheduler, policy, slice: slice.or(usual.slice), ..usual };
    Ok(Some(Rules(vec![("*".into(), settings)])))
}

/// Command line before file before defaults.
fn configure(mut command: ServeCommand, directory: &PrivateDir) -> anyhow::Result<NodeConfig> {
    let file = command.config.as_deref().map(FileConfig::read).transpose()?.unwrap_or_default();
    let (socket, others) = sockets(std::mem::take(&mut command.listen), &file, directory)?;
    let mut config = NodeConfig::new(socket, ApiServerCommand::own()?);
    config.grants = grants_folder(command.grants.as_deref(), &file, &config.socket)?;
    (config.key_maker, config.test_end_at) = (Some(key_maker()), test_grant_step()?);
    config.launch_slice = launch_slice()?;
    (config.test_move_every, config.test_move_kind) = (test_move_every()?, test_move_kind()?);
    config.zygote = if command.no_zygote { None } else { Some(ApiServerCommand::own_zygote()?) };
    if !others.is_empty() {
        let keys = config.grants.as_ref().map(|folder| folder.join(KEYS));
        let gateway = command.remote.gateway(&others, file.network_grace(), keys)?;
        config.remote = Some((others, gateway));
    }
    configure_processes(&mut config, &command, &file)?;
    config.server_users = server_users(file.api_server_users.as_deref())?;
    let path = command.config.as_deref().map(std::path::absolute).transpose().context("the folder of --config")?;
    let has_cards = !command.fpga.is_empty() || !file.cards(&config.socket, config.mode).is_empty();
    let apis = apis_beside(&config.modules, has_cards)?;
    config.vendors = own_libraries(&apis);
    config.resources = apis::declared_resources(&apis);
    if apis.is_empty() {
        // No guest comes for an API server that waits.
        (config.spares, config.zygote) = (0, None);
    }
    let tls = command.remote.tls_folder().map(std::path::absolute).transpose().context("the folder of --tls-dir")?;
    let others = [path.as_deref(), tls.as_deref(), config.grants.as_deref(), config.keep.as_deref()];
    let hidden = sandbox::hidden(&config.socket, others);
    if sandbox::is_wanted(command.sandbox, &file.sandbox) {
        let shown = file.sandbox.read.iter().chain(vendor::read_by(&file.vendors)).chain(&config.modules);
        sandbox::check_shown(&hidden, shown.cloned())?;
    }
    config.sandbox = sandbox_settings(command.sandbox, &file, config.server_users.as_ref(), &apis, hidden)?;
    config.groups = file.cgroup.settings()?;
    // What the file says is checked in any case.
    let of_file = file.devices(path.as_deref(), &Rules::default(), &apis)?;
    let told = told_devices(command.scheduler, command.slice, &apis)?;
    let is_told = told.is_some();
    config.devices = told.unwrap_or(of_file);
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
        devices: (!is_told).then(|| Mutex::new(config.devices.clone())),
    };
    begin_with(&mut config, source.settings(&file)?);
    if let Some(path) = source.file.clone() {
        let before = file.fixed();
        let read = move || source.read_again(&path, &before).map_err(|error| format!("{error:#}"));
        config.reload = Some(Reload::new(read));
    }
    Ok(config)
}

/// What a reload would change later.
fn begin_with(config: &mut NodeConfig, settings: Settings) {
    let Settings { tenants, most_tenants, sessions_per_user, attach_rate, vms, cards, fpga_devices, notes, .. } =
        settings;
    notes.iter().for_each(|note| eprintln!("aviary: warning: {note}"));
    (config.tenants, config.sessions_per_user, config.vms) = (tenants, sessions_per_user, vms);
    (config.attach_rate, config.most_tenants) = (attach_rate, most_tenants);
    (config.cards, config.fpga_devices) = (cards, fpga_devices);
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
                eprintln!(
                    "aviary: warning: API servers of all tenants run as root, not as users of their own (api_server_users): {why}"
                );
                return Ok(None);
            }
            Ok(Some(usual))
        }
    }
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
