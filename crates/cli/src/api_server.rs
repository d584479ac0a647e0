//! `aviary api-server`: the process that holds the device for one guest. Started by a node only.

use clap::Args;
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
}

pub fn run(command: &ApiServerCommand) -> anyhow::Result<ExitCode> {
    let live = if command.zygote { aviary_server::process::zygote } else { aviary_server::process::main };
    let status = live(command.control_fd);
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(1)))
}
