//! `aviary vm-device`: the device of one virtual machine. Started by a node only.

use aviary_server::process::sandboxing::confine_helper;
use aviary_vm::DeviceOptions;
use clap::Args;
use rustix::process::{Resource, Rlimit, Signal};
use std::{
    fs::File,
    os::{fd::AsFd, unix::net::UnixListener},
    path::PathBuf,
    process::ExitCode,
};

/// Serves the virtual machine that connects to the socket on standard input, until it disconnects.
#[derive(Args)]
pub struct VmDeviceCommand {
    /// The node's socket.
    #[arg(long, value_name = "PATH")]
    node: PathBuf,
    /// The virtual machine's name, for the log.
    #[arg(long, value_name = "NAME")]
    name: String,
    /// Run as this user.
    #[arg(long, value_name = "UID")]
    user: Option<u32>,
}

pub fn run(command: VmDeviceCommand) -> anyhow::Result<ExitCode> {
    let VmDeviceCommand { node, name, user } = command;
    let shown = name.escape_debug().to_string();
    // A node that comes back knows nothing of this VM. The node's main thread may have ended before this is set;
    // then its sockets refuse, and the next session fails.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let listener = UnixListener::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    // No core dumps: they would contain the memory of a VM.
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    // The process reads input of an untrusted VM.
    confine_helper(user).map_err(|error| anyhow::anyhow!("VM {shown}: {error}"))?;
    // A change of the user takes this back.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    match aviary_vm::serve(DeviceOptions { name, listener, node }) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            eprintln!("aviary vm-device {shown}: the VM's service ended ({error}): its programs lose their devices");
            Ok(ExitCode::FAILURE)
        }
    }
}
