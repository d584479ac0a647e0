//! `aviary serve`: a node for many guests.

use crate::{
    apis,
    config::{FileConfig, parse_limit, parse_mode, parse_span},
    remote::{NodeAddress, ServeArgs},
    signals::Signals,
};
use anyhow::{Context, anyhow, bail};
use aviary_node::{
    ApiServerCommand, Level, Node, NodeConfig, PrivateDir, Rules, Scheduler, Settings, Tenants, default_socket,
};
use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{path::PathBuf, process::ExitCode, time::Duration};

const CONFIG_HELP: &str = r##"Configuration file (TOML, everything optional):
  listen = "unix:/run/aviary/node.sock"
  mode = "660"
  spares = 2
  sessions_per_user = 64
  log_level = "info"
  api_dirs = ["/opt/aviary/apis"]
  [limits]                      # of each session, by the resources that the API's specification names
  device_memory = "2G"
  [tenants.research]            # users that are treated as one
  users = [1000, 1001]
  weight = 2                    # of scheduled devices, relative to the other tenants
  limits = { device_memory = "8G" }
  [devices."*"]                 # schedule these devices; without it nobody waits for anybody
  scheduler = "fair"            # or wfq-poll, wfq-aimd, round-robin, slices, priority, none
  slice = "6ms"
  linger = "200us""##;

/// Let other processes use this machine's accelerators.
///
/// A guest attaches with AVIARY_SERVER set to the address, or with
/// `aviary run --server ADDR`. SIGTERM or SIGINT ends all sessions and the node.
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
    /// Connections that one user may have at a time [default: 4096]
    #[arg(long, value_name = "N")]
    sessions_per_user: Option<usize>,
    /// Start every API server by itself instead of copying one that has all vendors' libraries loaded.
    #[arg(long)]
    no_zygote: bool,
    /// Limit a resource of every session, as the API's specification names it (repeatable).
    #[arg(long, value_name = "RESOURCE=AMOUNT", value_parser = parse_limit)]
    limit: Vec<(String, u64)>,
    /// Schedule all devices: fair, wfq-poll, wfq-aimd, round-robin, slices, priority, or for comparison credit,
    /// strict-coscheduling [default: as the configuration file says, else none]
    #[arg(long, value_name = "NAME")]
    scheduler: Option<Scheduler>,
    /// How long a tenant has a scheduled device at a time, such as 6ms [default: 6ms]
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    slice: Option<Duration>,
    /// Look for API builds in this folder first (repeatable).
    #[arg(long, value_name = "DIR")]
    api_dir: Vec<PathBuf>,
    /// What is told on standard error: error, warn, info or debug [default: info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<Level>,
}

pub fn run(command: ServeCommand) -> anyhow::Result<ExitCode> {
    // Holds the socket of a node that only other machines use.
    let directory = PrivateDir::create()?;
    let config = configure(command, &directory)?;
    apis::select(&config.modules, &[])?;
    raise_descriptor_limit();
    let signals = Signals::catch().context("cannot catch signals")?;
    let node = Node::start(config)?;
    while signals.noted().is_none() {
        if node.is_finished() {
            bail!("the node ended unexpectedly");
        }
        signals.wait(node.ended()).context("cannot wait for signals")?;
    }
    Ok(ExitCode::SUCCESS)
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
    config.zygote = if command.no_zygote { None } else { Some(ApiServerCommand::own_zygote()?) };
    if !others.is_empty() {
        let gateway = command.remote.gateway(&others)?;
        config.remote = Some((others, gateway));
    }
    let text_mode = file.mode.as_deref().map(parse_mode).transpose().map_err(|error| anyhow!("mode: {error}"))?;
    config.mode = command.mode.or(text_mode).unwrap_or(config.mode);
    config.spares = command.spares.or(file.spares).unwrap_or(config.spares);
    config.sessions_per_user = command.sessions_per_user.or(file.sessions_per_user).unwrap_or(config.sessions_per_user);
    let text_level =
        file.log_level.as_deref().map(str::parse).transpose().map_err(|error: String| anyhow!("log_level: {error}"))?;
    config.log = command.log_level.or(text_level).unwrap_or(config.log);
    let directories: Vec<PathBuf> = command.api_dir.into_iter().chain(file.api_dirs.iter().cloned()).collect();
    config.modules = apis::search_path(&directories)?;
    let mut limits = file.limits();
    limits.extend(command.limit);
    config.devices = file.devices();
    if command.scheduler.is_some() || command.slice.is_some() {
        let usual = Settings::default();
        let scheduler = command.scheduler.unwrap_or(usual.scheduler);
        let settings = Settings { scheduler, slice: command.slice.unwrap_or(usual.slice), ..usual };
        config.devices = Rules(vec![("*".into(), settings)]);
    }
    config.tenants = Tenants { list: file.tenants(), limits };
    Ok(config)
}

/// A session costs the node a few descriptors.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where it is refused, the node works with the limit that there is.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
