//! `aviary api-server`: the process that holds the device for one guest. Started by a node only.

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
    /// Load all modules and their vendors' libraries, and be copied for every guest.
    #[arg(long)]
    zygote: bool,
    /// Confine each copy of the zygote in a sandbox; the tenants' homes are in this directory.
    #[arg(long, value_name = "DIR", requires = "zygote")]
    sandbox_homes: Option<PathBuf>,
    /// File or directory of the host that sandboxed API servers can read (repeatable).
    #[arg(long, value_name = "PATH", requires = "sandbox_homes")]
    sandbox_read: Vec<PathBuf>,
    /// Device node, or file that stands for a device, that sandboxed API servers can use (repeatable).
    #[arg(long, value_name = "PATH", requires = "sandbox_homes")]
    sandbox_device: Vec<PathBuf>,
}

pub fn run(command: &ApiServerCommand) -> anyhow::Result<ExitCode> {
    let sandbox = command.sandbox_homes.clone().map(|homes| SandboxOptions {
        homes,
        readable: command.sandbox_read.clone(),
        devices: command.sandbox_device.clone(),
    });
    let status = match command.zygote {
        true => aviary_server::process::zygote(command.control_fd, sandbox),
        false => aviary_server::process::main(command.control_fd),
    };
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(1)))
}
