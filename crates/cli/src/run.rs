//! `aviary run`: a program with guest libraries in place of the vendors'.

use crate::{
    apis,
    bypass::bypasses,
    dropin::find_library,
    fpga,
    launch::{self, Variables},
    remote::{ClientArgs, NodeAddress},
    signals::Signals,
};
use anyhow::Context;
use aviary_fpga::link::Limits;
use aviary_node::{ApiServerCommand, CardSettings, Level, Node, NodeConfig, PrivateDir};
use aviary_relay::Relay;
use clap::Args;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    io,
    os::fd::{AsRawFd, OwnedFd},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, ExitStatus},
    time::{Duration, Instant},
};

/// The exit status that shells use for a command that is not there, or that is no program.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
/// Permissions of the socket of a private node's card.
const CARD_MODE: u32 = 0o600;
/// After the program's end, before saying that its background processes are waited for.
const MAX_SILENT_WAIT: Duration = Duration::from_secs(3);

/// Run a program with accelerators that it does not own.
///
/// Without --server (or AVIARY_SERVER) a private node is started for the program,
/// which uses the vendors' libraries of this machine and ends with the program.
/// The exit status is the program's own, 128+N if signal N ended it, 127 if it does
/// not exist.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  aviary run -- clinfo\n  aviary run --api opencl --server unix:/run/aviary/node.sock -- python3 train.py"
)]
pub struct RunCommand {
    /// Virtualize this API only (repeatable; default: all that are built).
    #[arg(long, value_name = "NAME")]
    api: Vec<String>,
    /// Use the node at this address instead of a private one: unix:/PATH, HOST:PORT or vsock:CID:PORT.
    #[arg(long, value_name = "ADDR", env = "AVIARY_SERVER")]
    server: Option<NodeAddress>,
    #[command(flatten)]
    remote: ClientArgs,
    /// Carry all data over the socket instead of sharing memory with the API server.
    #[arg(long)]
    mirror: bool,
    /// Put the program's large allocations where the API server sees them: buffers that it passes are not copied on the
    /// way. Its server can read and write all of that memory. Not with a node of another machine.
    #[arg(long, conflicts_with = "mirror")]
    share_heap: bool,
    /// Let more calls go ahead without their answers, where the API's specification says so; a failure is then told by
    /// a later call. For slow links.
    #[arg(long)]
    relaxed: bool,
    /// Look for API builds in this folder first (repeatable).
    #[arg(long, value_name = "DIR")]
    api_dir: Vec<PathBuf>,
    /// Limit a resource of the private node's sessions, as the API's specification names it, with @DEVICE on each device
    /// of that name, which may end with * (repeatable).
    #[arg(long, value_name = "RESOURCE[@DEVICE]=AMOUNT", value_parser = crate::amount::parse_limit, conflicts_with = "server")]
    limit: Vec<(crate::amount::LimitPlace, u64)>,
    /// Let the program use the devices of this name only, as the vendor's library gives it; it may end with * (repeatable).
    #[arg(long, value_name = "NAME", value_parser = crate::config::parse_device, conflicts_with = "server")]
    only_device: Vec<String>,
    /// Give the program a simulated FPGA card of its own with this image: a name that `fpga/build` made, or a file.
    /// Without --api nothing else is virtualized.
    #[arg(long, value_name = "IMAGE")]
    fpga: Option<String>,
    /// Level of the private node's lines on standard error: error, warn, info or debug.
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    log_level: Level,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub fn run(command: RunCommand) -> anyhow::Result<ExitCode> {
    crate::serve::warn_of_runtime_directory();
    let search = apis::search_path(&command.api_dir)?;
    let only_card = command.fpga.is_some() && command.api.is_empty();
    let mut apis = if only_card { Vec::new() } else { apis::select(&search, &command.api)? };
    if command.api.is_empty() && command.server.is_none() {
        keep_those_of_this_machine(&mut apis);
    }
    let directory = PrivateDir::create()?;
    // The program may load libraries after it has changed its user.
    let links = PrivateDir::create_readable()?;
    let mut variables = launch::prepare(&apis, &links.path().join("lib"))?;
    if command.share_heap {
        anyhow::ensure!(
            !matches!(command.server, Some(NodeAddress::Remote(_))),
            "--share-heap: a node of another machine cannot see this program's memory; leave it out"
        );
        launch::share_heap(&mut variables)?;
    }
    warn_of_bypasses(&command.command[0], &apis);
    // Before the program starts, so that no signal is lost between the two.
    let signals = Signals::catch().context("cannot catch signals")?;
    // API servers reach the cards of their node only.
    let of_node = !only_card && command.server.is_none();
    let place = directory.path().join("card.sock");
    let (mut card, mut cards) = (None, Vec::new());
    match command.fpga.as_deref() {
        Some(image) if of_node => cards.push(card_of_node(image, &place, &mut variables)?),
        Some(image) => card = Some(give_card(image, &place, &mut variables)?),
        None => {}
    }
    let vendors = fpga::own_libraries(&apis);
    let (backend, address) = start_backend(&command, &directory, search, vendors, cards)?;
    let entry = entry(&backend, &address);
    if let Some(entry) = &entry {
        variables.insert(SERVER_DESCRIPTOR.into(), entry.as_raw_fd().to_string().into());
    }
    variables.insert("AVIARY_SERVER".into(), address.into());
    if command.mirror {
        variables.insert("AVIARY_TRANSPORT".into(), "stream".into());
    }
    if command.relaxed {
        variables.insert("AVIARY_RELAXED".into(), "1".into());
    }
    let mut child = match start(&command.command, &variables, entry.as_ref()) {
        Ok(child) => child,
        Err(error) => return Ok(explain(&command.command[0], &error)),
    };
    forward(&signals, &child);
    let status = child.wait().context("cannot wait for the program")?;
    signals.stop_forwarding();
    finish(&backend, &signals);
    drop(card);
    Ok(exit_code(status))
}

/// Says which vendors' libraries the program loads past their guest libraries.
fn warn_of_bypasses(program: &OsStr, apis: &[apis::Api]) {
    let steps = apis.iter().flat_map(|api| &api.launch);
    let sonames = steps.filter_map(|step| match step {
        apis::Launch::DropIn { soname, only_if_missing: false } => Some(soname.as_str()),
        _ => None,
    });
    for bypass in bypasses(program, &sonames.collect()) {
        eprintln!("aviary: warning: {bypass}");
    }
}

/// A private node serves what this machine has: programs that look for an accelerator which is not here should find
/// nothing, as without Aviary. Of nothing at all they are told.
fn keep_those_of_this_machine(apis: &mut Vec<apis::Api>) {
    let here = |api: &apis::Api| {
        // Somebody who names another library has it.
        aviary_server::vendor_place(&api.name, &api.soname) != api.soname || find_library(&api.soname).is_some()
    };
    if apis.iter().any(here) {
        apis.retain(here);
    }
}

/// A card for the program, and where it finds that and the library.
fn give_card(image: &str, socket: &Path, variables: &mut Variables) -> anyhow::Result<fpga::PrivateCard> {
    let card = fpga::PrivateCard::start(image, socket, Limits::default())?;
    launch::set(variables, "LD_LIBRARY_PATH", card.folder.as_os_str());
    variables.insert(fpga::CARD_VARIABLE.into(), format!("unix:{}", socket.display()).into());
    Ok(card)
}

/// A card of the private node, for API servers and for the program itself. Guest libraries go before the library beside
/// the image.
fn card_of_node(image: &str, socket: &Path, variables: &mut Variables) -> anyhow::Result<CardSettings> {
    let file = fpga::find_image(image)?;
    let folder = file.parent().unwrap_or(Path::new("."));
    launch::add_last(variables, "LD_LIBRARY_PATH", folder.as_os_str());
    variables.insert(fpga::CARD_VARIABLE.into(), format!("unix:{}", socket.display()).into());
    let image = file.to_str().context("the image's path is no text")?.to_owned();
    Ok(CardSettings { name: "card0".into(), image, socket: socket.to_owned(), mode: CARD_MODE })
}

/// The relay that the program's connections go through in this process.
enum Backend {
    /// Nothing: a node's own socket.
    Direct,
    Private(Node),
    Relay(Relay),
}

/// And the address where the program finds it.
fn start_backend(
    command: &RunCommand,
    directory: &PrivateDir,
    modules: Vec<PathBuf>,
    vendors: BTreeMap<String, String>,
    cards: Vec<CardSettings>,
) -> anyhow::Result<(Backend, String)> {
    match &command.server {
        Some(NodeAddress::Local(address)) => Ok((Backend::Direct, address.to_string())),
        Some(NodeAddress::Remote(address)) => {
            let socket = directory.path().join("relay.sock");
            let verbose = command.log_level > Level::Warn;
            let relay = command.remote.start(address, &socket, verbose)?;
            Ok((Backend::Relay(relay), format!("unix:{}", socket.display())))
        }
        None => {
            let node = start_node(command, directory, modules, vendors, cards)?;
            let address = node.address().to_string();
            Ok((Backend::Private(node), address))
        }
    }
}

impl Backend {
    fn drain(&self) {
        if let Backend::Private(node) = self {
            node.drain();
        }
    }

    fn is_finished(&self) -> bool {
        match self {
            Backend::Direct => true,
            Backend::Private(node) => node.is_finished(),
            Backend::Relay(relay) => relay.busy() == 0,
        }
    }

    /// Guests that are served now.
    fn busy(&self) -> usize {
        match self {
            Backend::Direct => 0,
            Backend::Private(node) => node.busy(),
            Backend::Relay(relay) => relay.busy(),
        }
    }
}

fn start_node(
    command: &RunCommand,
    directory: &PrivateDir,
    modules: Vec<PathBuf>,
    vendors: BTreeMap<String, String>,
    cards: Vec<CardSettings>,
) -> anyhow::Result<Node> {
    let servers = ApiServerCommand::own()?;
    let mut config = NodeConfig::new(PathBuf::new(), servers);
    config.launch_slice = crate::serve::launch_slice()?;
    config.test_move_every = crate::serve::test_move_every()?;
    config.test_parks = crate::serve::test_parks()?;
    config.parked_memory = crate::remote::usual_memory();
    (config.modules, config.vendors) = (modules, vendors);
    config.cards = cards;
    config.log = command.log_level;
    crate::amount::add_limits(&mut config.tenants, &command.limit);
    config.tenants.only_devices = Some(command.only_device.clone()).filter(|names| !names.is_empty());
    Ok(Node::start_private(directory, config)?)
}

/// The number of a descriptor of the socket, for guests that do not see its path any more.
const SERVER_DESCRIPTOR: &str = "AVIARY_SERVER_DESCRIPTOR";

/// The socket of a node or relay of this process as a file, by which one connects as well as by its path: a program that
/// changes its user, or has a `/tmp` of its own, does not reach the path. None: it is somebody else's, and lies where
/// its users reach it.
fn entry(backend: &Backend, address: &str) -> Option<OwnedFd> {
    let path = address.strip_prefix("unix:").filter(|_| !matches!(backend, Backend::Direct))?;
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    Some(aviary_transport::out_of_the_way(file))
}

/// API servers are started from this process's own environment: only the program sees `variables`, and has `entry`.
fn start(command: &[OsString], variables: &Variables, entry: Option<&OwnedFd>) -> io::Result<Child> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments).envs(variables);
    if let Some(entry) = entry {
        aviary_transport::inherit(&mut command, entry);
    }
    command.spawn()
}

fn explain(program: &OsString, error: &io::Error) -> ExitCode {
    eprintln!("aviary: {}: {error}", program.to_string_lossy());
    let missing = error.kind() == io::ErrorKind::NotFound;
    ExitCode::from(if missing { NOT_FOUND } else { NOT_EXECUTABLE })
}

fn forward(signals: &Signals, child: &Child) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    // The child is not reaped yet, so that its id is its own. Without a descriptor
    // (no pidfd in a sandbox) signals reach the program from the terminal only.
    if let Some(Ok(process)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
        signals.forward_to(process);
    }
}

/// The program has ended; what it started in the background may go on using its devices.
fn finish(backend: &Backend, signals: &Signals) {
    backend.drain();
    let started = Instant::now();
    let mut pause = Duration::from_micros(200);
    let mut told = false;
    while !backend.is_finished() && signals.noted().is_none() {
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
        if !told && started.elapsed() > MAX_SILENT_WAIT {
            told = true;
            eprintln!(
                "aviary: waiting for {} background process(es) that still use an accelerator (Ctrl-C ends them)",
                backend.busy()
            );
        }
    }
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1))
}
