//! Nodes of other machines: addresses, options of both ends, keys, the gateway process.

use crate::config::amount::parse_amount;
use anyhow::{Context, bail};
use aviary_node::{Address, GatewayCommand};
use aviary_relay::{
    ClientSecurity, Compression, Days, GatewayOptions, NodeSecurity, Relay, RelayOptions, Standing, list, revoke,
    write_identities, write_key,
};
use aviary_server::process::sandboxing::confine_helper;
use aviary_transport::RemoteAddress;
use clap::{Args, Subcommand};
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use std::{
    fs::File,
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::ExitCode,
    str::FromStr,
    time::Duration,
};

/// Sessions of other machines survive a broken connection for so long, unless the configuration says otherwise.
const NETWORK_GRACE: Duration = Duration::from_secs(120);

/// A node of this machine or of another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeAddress {
    Local(Address),
    Remote(RemoteAddress),
}

impl FromStr for NodeAddress {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        if text.starts_with("unix:") {
            return Ok(NodeAddress::Local(text.parse()?));
        }
        let wrong = |_| anyhow::anyhow!("bad address `{text}`: expected unix:/PATH, HOST:PORT or vsock:CID:PORT");
        text.parse().map(NodeAddress::Remote).map_err(wrong)
    }
}

/// Options of `aviary run` for a node of another machine.
#[derive(Args)]
pub struct ClientArgs {
    /// For a node on another machine: folder with ca.pem and either tenant.pem or token, as `aviary tls init` writes it.
    #[arg(long, value_name = "DIR", env = "AVIARY_TLS_DIR")]
    tls_dir: Option<PathBuf>,
    /// Authenticate the node by the SHA-256 fingerprint of its certificate instead of a CA.
    #[arg(long, value_name = "SHA256")]
    tls_pin: Option<String>,
    /// Authenticate with this token instead of a certificate.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// No TLS; only for a loopback address or a vsock.
    #[arg(long, conflicts_with_all = ["tls_dir", "tls_pin", "token_file"])]
    plain_loopback: bool,
    /// Treat the connection as broken after this many seconds without data from the node.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = clap::value_parser!(u64).range(1..=3600))]
    keepalive: u64,
    /// Never compress data to the node.
    #[arg(long)]
    no_compression: bool,
    /// Connections of a session: bulk data is divided among them [default: 8 far from the node, otherwise a quarter of the
    /// processors, at most 4].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    strands: Option<u8>,
}

impl ClientArgs {
    /// Starts what stands in for the node on this machine.
    pub fn start(&self, node: &RemoteAddress, socket: &Path, verbose: bool) -> anyhow::Result<Relay> {
        let security = if self.plain_loopback {
            check_plain(node)?;
            ClientSecurity::plain()
        } else {
            let (pin, token) = (self.tls_pin.as_deref(), self.token_file.as_deref());
            ClientSecurity::load(self.tls_dir.as_deref(), pin, token)?
        };
        let options = RelayOptions {
            node: node.clone(),
            security,
            patience: Duration::from_secs(self.keepalive),
            compression: compression(self.no_compression),
            strands: self.strands.map(usize::from),
            verbose,
            dialer: None,
        };
        Relay::start(socket, options).context("cannot start the relay")
    }
}

fn compression(off: bool) -> Compression {
    if off { Compression::Off } else { Compression::Auto }
}

fn check_plain(address: &RemoteAddress) -> anyhow::Result<()> {
    // Data that crosses a vsock never leaves the machine.
    if address.is_loopback() || matches!(address, RemoteAddress::Vsock { .. }) {
        return Ok(());
    }
    bail!("--plain-loopback: {address} is not a loopback address; use --tls-dir")
}

/// Guests of a plain address show nothing and are served as the node's own user.
fn check_plain_node(root: bool) -> anyhow::Result<()> {
    anyhow::ensure!(
        !root,
        "--plain-loopback: this node runs as root, and every local process that connects would be served as root; use --tls-dir (`aviary tls init DIR` makes one) or run the node as another user"
    );
    Ok(())
}

/// Options of `aviary serve` for other machines.
#[derive(Args)]
pub struct ServeArgs {
    /// Folder with node.pem, node.key, ca.pem and tokens, as `aviary tls init` writes it (with HOST:PORT addresses).
    #[arg(long, value_name = "DIR")]
    tls_dir: Option<PathBuf>,
    /// No TLS; only for loopback addresses. Every local process may then attach as the node's own user, so not for root.
    #[arg(long, conflicts_with = "tls_dir")]
    plain_loopback: bool,
    /// Never compress data to guests on other machines.
    #[arg(long)]
    no_compression: bool,
    /// Treat a connection as broken after this many seconds without data, even if the peer's --keepalive is longer.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = clap::value_parser!(u64).range(1..=3600))]
    longest_keepalive: u64,
    /// The most memory for the data of one session from another machine, such as 8G. If its tenant has a limit of
    /// device_memory: at most four times that limit, but at least 1G [default: a quarter of this machine's memory]
    #[arg(long, value_name = "AMOUNT", value_parser = parse_size)]
    remote_memory: Option<u64>,
}

fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}`: expected an amount such as 8G");
    parse_amount(text).filter(|amount| *amount > 0).ok_or_else(wrong)
}

/// A quarter of the machine's memory; 1 GiB where the kernel does not say how much there is.
pub fn usual_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    memory_of(&text).map_or(1 << 30, |bytes| bytes / 4)
}

/// From what /proc/meminfo says, in bytes.
fn memory_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
}

impl ServeArgs {
    /// The folder with the node's key; `None`: it has none.
    pub fn tls_folder(&self) -> Option<&Path> {
        self.tls_dir.as_deref()
    }

    /// The command line of a gateway for one of these addresses. `grace`: how long sessions survive a broken connection.
    /// `keys`: the file with the keys that grants name.
    pub fn gateway(
        &self,
        addresses: &[RemoteAddress],
        grace: Option<Duration>,
        keys: Option<PathBuf>,
    ) -> anyhow::Result<GatewayCommand> {
        let mut arguments = vec!["gateway".into()];
        match (&self.tls_dir, self.plain_loopback) {
            (_, true) => {
                addresses.iter().try_for_each(check_plain)?;
                check_plain_node(rustix::process::geteuid().is_root())?;
                arguments.push("--plain-loopback".into());
            }
            (Some(folder), _) => {
                // A mistake is told now, not to the first guest.
                NodeSecurity::load(folder, None)?;
                let folder = std::path::absolute(folder).context("the folder of --tls-dir")?;
                arguments.extend(["--tls-dir".into(), folder.into_os_string()]);
            }
            (None, false) => bail!("--listen HOST:PORT needs --tls-dir; `aviary tls init DIR` makes one"),
        }
        if self.no_compression {
            arguments.push("--no-compression".into());
        }
        let memory = self.remote_memory.unwrap_or_else(usual_memory);
        arguments.extend(["--remote-memory".into(), memory.to_string().into()]);
        arguments.extend(["--longest-keepalive".into(), self.longest_keepalive.to_string().into()]);
        let grace = grace.unwrap_or(NETWORK_GRACE).as_millis();
        arguments.extend(["--network-grace".into(), grace.to_string().into()]);
        arguments.extend(keys.into_iter().flat_map(|keys| ["--grant-keys".into(), keys.into_os_string()]));
        Ok(GatewayCommand { program: "/proc/self/exe".into(), arguments })
    }
}

/// Serves one connection from another machine. Started by a node only.
#[derive(Args)]
pub struct GatewayCommandLine {
    /// The node's socket.
    #[arg(long, value_name = "PATH")]
    node: PathBuf,
    /// Run as this user.
    #[arg(long, value_name = "UID")]
    user: Option<u32>,
    /// How long the session survives without a connection.
    #[arg(long, value_name = "MILLISECONDS")]
    network_grace: u64,
    /// The file with the keys that grants name.
    #[arg(long, value_name = "FILE")]
    grant_keys: Option<PathBuf>,
    /// Go on with the session that an earlier gateway has left; standard input is its file.
    #[arg(long)]
    kept: bool,
    #[command(flatten)]
    options: ServeArgs,
}

/// A crash of this process must not write the node's key to a file, and no other process of its user reads its memory.
pub(super) fn keep_secrets() -> anyhow::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }).context("cannot turn off core files")?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).context("cannot make this process undumpable")
}

/// Standard input is the connection; standard output goes to the node, which answers there.
pub fn gateway(command: GatewayCommandLine) -> anyhow::Result<ExitCode> {
    keep_secrets()?;
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    let report = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    // Otherwise the connection would stay open after its copy is closed.
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    let peer = match command.kept {
        true => Err(std::io::ErrorKind::NotConnected.into()),
        false => std::net::TcpStream::from(socket.try_clone()?).peer_addr(),
    };
    let security = match &command.options.tls_dir {
        Some(folder) => NodeSecurity::load(folder, command.grant_keys.as_deref())?,
        None => NodeSecurity::plain(),
    };
    // The input of this process comes from strangers.
    confine_helper(command.user).map_err(|error| anyhow::anyhow!("cannot confine the gateway: {error}"))?;
    let compression = compression(command.options.no_compression);
    let memory = command.options.remote_memory.unwrap_or_else(usual_memory);
    let options = GatewayOptions {
        socket,
        node: command.node,
        report,
        security,
        compression,
        longest_patience: Duration::from_secs(command.options.longest_keepalive),
        memory: usize::try_from(memory).unwrap_or(usize::MAX),
        grace: Duration::from_millis(command.network_grace),
    };
    let serve = if command.kept { aviary_relay::gateway_again } else { aviary_relay::gateway };
    match serve(options) {
        Ok(_) => Ok(ExitCode::SUCCESS),
        Err(why) => {
            let peer = peer.map_or("another machine".into(), |address| address.to_string());
            eprintln!("aviary: connection from {peer} refused: {}", why.escape_debug());
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Keys and certificates for nodes that other machines use.
#[derive(Args)]
pub struct TlsCommand {
    #[command(subcommand)]
    command: TlsSubcommand,
}

#[derive(Subcommand)]
enum TlsSubcommand {
    /// Make a CA, a certificate for the node and one for a tenant. In an existing folder: what is missing, and a new tenant.
    Init {
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// A name or address by which guests reach the node (repeatable; localhost is always one).
        #[arg(long, value_name = "HOST")]
        name: Vec<String>,
        /// The tenant's name.
        #[arg(long, value_name = "NAME", default_value = "default")]
        tenant: String,
        /// Days for which the tenant's certificate is valid.
        #[arg(long, default_value = "30", allow_negative_numbers = true)]
        days: i64,
        /// Days for which the node's certificate is valid.
        #[arg(long, value_name = "DAYS", default_value = "365")]
        node_days: i64,
        /// Also make a token. Anybody who has read it can attach as the tenant.
        #[arg(long)]
        token: bool,
    },
    /// Take back all certificates that were ever made for a tenant, and its tokens. Sessions go on (`aviary end --tenant`);
    /// new ones are refused.
    Revoke {
        /// The folder that `aviary tls init` wrote.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// The tenant's name.
        #[arg(long, value_name = "NAME")]
        tenant: String,
        /// One more certificate of the tenant, which the index of DIR does not know.
        #[arg(long, value_name = "FILE")]
        certificate: Option<PathBuf>,
    },
    /// Make a key and a certificate that no CA has signed, in a folder for `aviary run --tls-dir`, and print its SHA-256, which
    /// `aviary grant --key` takes on the node. The key stays in the folder.
    Key {
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Show the certificates that were made for tenants, and tenants with tokens.
    List {
        /// The folder that `aviary tls init` wrote.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

pub fn tls(command: TlsCommand) -> anyhow::Result<ExitCode> {
    match command.command {
        TlsSubcommand::Init { directory, name, tenant, days, node_days, token } => {
            init(&directory, name, &tenant, Days { node: node_days, tenant: days }, token)?;
        }
        TlsSubcommand::Revoke { directory, tenant, certificate } => {
            let revoked = revoke(&directory, &tenant, certificate.as_deref())?;
            warn_of_adoption(&directory, revoked.adopted);
            let (certificates, tokens) = (revoked.certificates.len(), revoked.tokens);
            println!("revoked: {certificates} certificates and {tokens} tokens of {tenant}");
            revoked.certificates.iter().for_each(|fingerprint| println!("         {fingerprint}"));
        }
        TlsSubcommand::Key { directory } => println!("{}", write_key(&directory)?),
        TlsSubcommand::List { directory } => print_list(&directory)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// An older aviary kept no index.
fn warn_of_adoption(directory: &Path, adopted: Option<usize>) {
    if let Some(count) = adopted {
        eprintln!(
            "aviary: {} had no index of issued certificates: made one with the {count} that are in the folder. Revoke older \
             ones that are not there by their files (`aviary tls revoke --certificate FILE`), or make a new CA",
            directory.display()
        );
    }
}

fn print_list(directory: &Path) -> anyhow::Result<()> {
    let listing = list(directory, std::time::SystemTime::now().into())?;
    warn_of_adoption(directory, listing.adopted);
    for (certificate, standing) in &listing.certificates {
        let standing = match standing {
            Standing::Valid => "valid",
            Standing::Expired => "expired",
            Standing::Revoked => "revoked",
        };
        println!("{standing:<8} {certificate}");
    }
    listing.tokens.iter().for_each(|tenant| println!("token    {tenant}"));
    Ok(())
}

fn init(directory: &Path, mut name: Vec<String>, tenant: &str, days: Days, token: bool) -> anyhow::Result<()> {
    name.extend(["localhost", "127.0.0.1", "::1"].map(String::from));
    if let Ok(own) = std::fs::read_to_string("/proc/sys/kernel/hostname") {
        name.push(own.trim().to_owned());
    }
    name.sort();
    name.dedup();
    let written = write_identities(directory, &name, tenant, days, token)?;
    warn_of_adoption(directory, written.adopted);
    if let Some(node) = written.node {
        println!("node:   aviary serve --listen HOST:PORT --tls-dir {}", node.display());
        println!("        (its certificate is for {})", name.join(", "));
    }
    println!("tenant: copy {} to the tenant's machine, then", written.tenant.display());
    println!("        aviary run --server HOST:PORT --tls-dir {} -- CMD", written.tenant.display());
    println!(
        "        (valid for {} days; whoever has {} can make tenants: keep it elsewhere)",
        days.tenant,
        directory.join("ca").display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_root_has_no_plain_address() {
        assert!(check_plain_node(false).is_ok());
        let why = check_plain_node(true).unwrap_err().to_string();
        assert!(why.contains("root") && why.contains("--tls-dir"), "{why}");
    }

    #[test]
    fn the_machine_says_how_much_memory_it_has() {
        assert_eq!(memory_of("MemFree: 1 kB\nMemTotal:       16384 kB\n"), Some(16 << 20));
        for other in ["", "MemTotal: many kB", "MemTotal: 5", "MemTotal: 18446744073709551615 kB"] {
            assert_eq!(memory_of(other), None, "{other:?}");
        }
        assert!(usual_memory() > 1 << 20);
        assert_eq!(
            (parse_size("2G").is_ok(), parse_size("0").is_ok(), parse_size("much").is_ok()),
            (true, false, false)
        );
    }
}
