//! `aviary api-server`: the process that holds the device for one guest. Started by a node only.

use aviary_sandbox::{
    Walls,
    namespaces::Namespace,
    system_calls::{Allowed, Call, Requests},
};
use aviary_server::process::SandboxOptions;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// Serves the connections that arrive on a control socket.
#[derive(Args)]
pub struct ApiServerCommand {
    /// Descriptor of the control socket.
    #[arg(long, value_name = "N")]
    control_fd: i32,
    /// Load all modules and their vendors' libraries once, and fork a copy for every guest.
    #[arg(long)]
    zygote: bool,
    /// Confine each copy of the zygote in a sandbox; the tenants' homes are in this directory.
    #[arg(long, value_name = "DIR", requires = "zygote")]
    sandbox_homes: Option<PathBuf>,
    /// Directory below /dev/shm with the tenants' shared memory.
    #[arg(long, value_name = "DIR", requires = "sandbox_homes")]
    sandbox_shared_memory: Option<PathBuf>,
    /// Kind of the sandboxes: namespaces, user-namespace or landlock.
    #[arg(long, value_name = "WALLS", requires = "sandbox_homes", default_value = "namespaces")]
    sandbox_walls: Walls,
    /// File or directory of the host that sandboxed API servers can read (repeatable).
    #[arg(long, value_name = "PATH", requires = "sandbox_homes")]
    sandbox_read: Vec<PathBuf>,
    /// File of the node that no sandbox shows, nor a folder that holds it (repeatable).
    #[arg(long, value_name = "PATH", requires = "sandbox_homes")]
    sandbox_hide: Vec<PathBuf>,
    /// Device node, or file that stands for a device, that sandboxed API servers can use (repeatable).
    #[arg(long, value_name = "PATH", requires = "sandbox_homes")]
    sandbox_device: Vec<PathBuf>,
    /// System call that sandboxed API servers can make besides the usual ones (repeatable).
    #[arg(long, value_name = "NAME", requires = "sandbox_homes")]
    sandbox_call: Vec<Call>,
    /// Requests of ioctl that sandboxed API servers can make besides the usual ones (repeatable).
    #[arg(long, value_name = "TYPE or NUMBERS", requires = "sandbox_homes")]
    sandbox_ioctl: Vec<Requests>,
    /// Namespace that sandboxed API servers share with the node (repeatable).
    #[arg(long, value_name = "KIND", requires = "sandbox_homes")]
    sandbox_share: Vec<Namespace>,
    /// Refuse nothing; log what the sandbox would refuse.
    #[arg(long, requires = "sandbox_homes")]
    sandbox_log: bool,
}

pub fn run(command: &ApiServerCommand) -> anyhow::Result<ExitCode> {
    let sandbox = command.sandbox_homes.clone().map(|homes| SandboxOptions {
        walls: command.sandbox_walls,
        homes,
        shared_memory: command.sandbox_shared_memory.clone(),
        readable: command.sandbox_read.clone(),
        hidden: command.sandbox_hide.clone(),
        devices: command.sandbox_device.clone(),
        allowed: Allowed { calls: command.sandbox_call.clone(), requests: command.sandbox_ioctl.clone() },
        shared: command.sandbox_share.clone(),
        records: command.sandbox_log,
    });
    let status = match command.zygote {
        true => aviary_server::process::zygote(command.control_fd, sandbox),
        false => aviary_server::process::main(command.control_fd),
    };
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(1)))
}
