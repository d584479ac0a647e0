//! API server processes: how one is started.

use crate::NodeError;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
};

/// The command line of an API server; the number of its control descriptor is appended.
#[derive(Debug, Clone)]
pub struct ApiServerCommand {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
    /// Added to the node's own environment.
    pub environment: Vec<(OsString, OsString)>,
}

impl ApiServerCommand {
    /// This executable, as `aviary api-server --control-fd N`.
    pub fn own() -> Result<Self, NodeError> {
        // The link survives the replacement of the file, unlike the name that it had.
        let program = PathBuf::from("/proc/self/exe");
        let arguments = vec!["api-server".into(), "--control-fd".into()];
        Ok(Self { program, arguments, environment: Vec::new() })
    }
}

/// A running API server process. It is reaped by `wait`, which the node calls
/// once `exit` is readable.
#[derive(Debug)]
pub struct ApiServer {
    child: Child,
    pub control: OwnedFd,
    /// Readable when the process has ended.
    pub exit: OwnedFd,
}

impl ApiServer {
    pub fn spawn(command: &ApiServerCommand) -> Result<Self, NodeError> {
        Self::try_spawn(command).map_err(|error| NodeError::Spawn(command.program.clone(), error))
    }

    fn try_spawn(command: &ApiServerCommand) -> io::Result<Self> {
        let (control, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut process = Command::new(&command.program);
        process
            .arg0("aviary")
            .args(&command.arguments)
            .arg(theirs.as_raw_fd().to_string())
            // A vendor library that is itself an Aviary library must not find this node.
            .env_remove("AVIARY_SERVER")
            .envs(command.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        // Signals from the terminal are for the guest: its API server ends after it.
        aviary_server::process::prepare_to_spawn(&mut process, theirs);
        let mut child = process.spawn()?;
        match pidfd(&child) {
            Ok(exit) => Ok(Self { child, control, exit }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        // It may have ended just now; the descriptor never names another process.
        let _ = pidfd_send_signal(&self.exit, signal);
    }

    /// Blocks until the process has ended and reaps it.
    pub fn wait(mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }
}

/// The child is not reaped yet, so that its id is still its own.
fn pidfd(child: &Child) -> io::Result<OwnedFd> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}
