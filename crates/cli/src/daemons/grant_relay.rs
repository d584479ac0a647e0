//! `aviary grant-relay`: the process that carries one guest of a grant to another node. Started by a node only.
//!
//! It has the grant's key and reads what the guest and the other node send. So it is confined like a gateway, after it has started
//! the only process that may make connections, and these to that node alone.

use crate::daemons::remote::keep_secrets;
use anyhow::{Context, bail};
use aviary_relay::{Carrying, ClientSecurity, Compression, Dialer, RelayOptions, dial};
use aviary_server::process::sandboxing::confine_helper;
use aviary_transport::{PeerCredentials, RemoteAddress, connections_through};
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::{
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

/// Without data from the node for so long its connection is broken.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// How often it is looked at whether sessions of a guest that has ended are over.
const LOOK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Carries one guest process. Standard input is a socket on which its connections come.
#[derive(Args)]
pub struct GrantRelayCommand {
    /// The other node.
    #[arg(long, value_name = "HOST:PORT")]
    via: RemoteAddress,
    /// SHA-256 of its certificate.
    #[arg(long, value_name = "SHA256")]
    pin: String,
    /// Folder with tenant.pem and tenant.key.
    #[arg(long, value_name = "DIR")]
    identity: PathBuf,
    /// Run as this user.
    #[arg(long, value_name = "UID")]
    user: Option<u32>,
}

/// Makes connections for a relay. Standard input is a socket to it.
#[derive(Args)]
pub struct DialCommand {
    #[arg(value_name = "HOST:PORT")]
    node: RemoteAddress,
}

pub fn run_dialer(command: &DialCommand) -> anyhow::Result<ExitCode> {
    let channel = std::io::stdin().as_fd().try_clone_to_owned()?;
    dial(&channel, &command.node).context("the relay")?;
    Ok(ExitCode::SUCCESS)
}

/// It ends when the relay does, whose end of the channel is the only one.
fn start_dialer(node: &RemoteAddress, user: Option<u32>) -> anyhow::Result<Dialer> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut process = Command::new("/proc/self/exe");
    process.arg0("aviary").arg("dial").arg(node.to_string()).env_clear();
    process.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    if let Some(user) = user {
        // No groups, and no capability outlives the change.
        process.uid(user).gid(user);
    }
    process.spawn().context("cannot start the process that makes connections")?;
    Ok(Dialer::new(ours))
}

/// `None`: the node has closed its end.
fn next(channel: BorrowedFd<'_>) -> anyhow::Result<Option<Vec<UnixStream>>> {
    let connections = connections_through(channel)?;
    Ok(connections.map(|all| all.into_iter().map(UnixStream::from).collect()))
}

/// Readable when the process has ended; `None`: it cannot be named here.
fn life_of(guest: &UnixStream) -> Option<OwnedFd> {
    let pid = Pid::from_raw(PeerCredentials::of(guest).ok()?.pid)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

pub fn run(command: &GrantRelayCommand) -> anyhow::Result<ExitCode> {
    keep_secrets()?;
    let channel = std::io::stdin().as_fd().try_clone_to_owned()?;
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    let security = ClientSecurity::load(Some(&command.identity), Some(&command.pin), None)?;
    let dialer = start_dialer(&command.via, command.user)?;
    let Some(first) = next(channel.as_fd())? else { return Ok(ExitCode::SUCCESS) };
    let life = first.first().and_then(life_of);
    let options = RelayOptions {
        node: command.via.clone(),
        security,
        patience: KEEPALIVE,
        compression: Compression::Auto,
        strands: Some(1),
        verbose: false,
        dialer: Some(dialer),
    };
    let carrying = Carrying::new(options)?;
    // What this process reads comes from strangers.
    if let Err(error) = confine_helper(command.user) {
        bail!("cannot confine the relay: {error}");
    }
    first.into_iter().for_each(|guest| carrying.carry(guest));
    carry_on(&carrying, &channel, life.as_ref())
}

/// Until the node goes, or the guest has and its sessions are over.
fn carry_on(carrying: &Carrying, channel: &OwnedFd, life: Option<&OwnedFd>) -> anyhow::Result<ExitCode> {
    loop {
        let mut fds = vec![PollFd::new(channel, PollFlags::IN)];
        // Without a name each connection has a relay of its own.
        let has_ended = life.is_none_or(|life| is_readable(life.as_fd()));
        if has_ended && carrying.busy() == 0 {
            return Ok(ExitCode::SUCCESS);
        }
        fds.extend(life.filter(|_| !has_ended).map(|life| PollFd::new(life, PollFlags::IN)));
        match poll(&mut fds, has_ended.then_some(&LOOK_INTERVAL)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            result => result?,
        };
        if !fds[0].revents().is_empty() {
            match next(channel.as_fd())? {
                Some(guests) => guests.into_iter().for_each(|guest| carrying.carry(guest)),
                None => return Ok(ExitCode::SUCCESS),
            }
        }
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}
