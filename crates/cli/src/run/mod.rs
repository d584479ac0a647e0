//! `aviary run`: a program with guest libraries in place of the vendors'. The process becomes the program; the node is in another one
//! (node.rs).

pub(crate) mod answer;
pub(crate) mod bypass;
pub(crate) mod entrances;
pub(crate) mod launch;
pub(crate) mod marks;
pub(crate) mod node;
pub(crate) mod options;
pub(crate) mod service;
pub(crate) mod strays;

use crate::run::answer::Answer;
use crate::run::launch::Variables;
use crate::run::options::RunCommand;
use anyhow::Context;
use rustix::fs::{Mode, OFlags};
use std::{
    ffi::OsString,
    io,
    os::fd::{AsRawFd, OwnedFd},
    os::unix::{net::UnixStream, process::CommandExt},
    path::Path,
    process::{Command, ExitCode},
};

/// The exit status that shells use for a command that is not there, or that is no program.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// Starts the node, the relay or the card that the program needs in a process of their own, and becomes the program. So the
/// program has the process id, the parent, the process group and the signals that it has without Aviary.
pub fn run(command: RunCommand) -> anyhow::Result<ExitCode> {
    crate::daemons::serve::warn_of_runtime_directory();
    let (ours, theirs) = UnixStream::pair().context("cannot make a channel to the node's process")?;
    node::start(theirs)?;
    let channel = aviary_transport::out_of_the_way(ours.into());
    let Answer { variables, entry } = node::answer(&channel)?;
    let entry = entry.as_deref().and_then(open_entry);
    let error = execute(&command.command, variables, [Some(&channel), entry.as_ref()]);
    Ok(explain(&command.command[0], &error))
}

/// The number of a descriptor of the socket, for guests that do not see its path any more.
const SERVER_DESCRIPTOR: &str = "AVIARY_SERVER_DESCRIPTOR";
/// Number and inode of a socket by which a program can hand a connection over (entrances.rs).
const CHANNEL: &str = "AVIARY_CHANNEL";

/// The socket of a node or relay of this program's own as a file, by which one connects as well as by its path: a program that
/// changes its user, or has a `/tmp` of its own, does not reach the path.
fn open_entry(path: &Path) -> Option<OwnedFd> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    Some(aviary_transport::out_of_the_way(file))
}

/// Executes the program in this process; only fails. `inherited`: the channel, whose last copy tells the node's process that no
/// process of the program is left that could still attach, and the entry.
fn execute(command: &[OsString], mut variables: Variables, inherited: [Option<&OwnedFd>; 2]) -> io::Error {
    let Some((program, arguments)) = command.split_first() else { return io::ErrorKind::InvalidInput.into() };
    if let Some(entry) = inherited[1] {
        variables.insert(SERVER_DESCRIPTOR.into(), entry.as_raw_fd().to_string().into());
    }
    if let Some(channel) = inherited[0]
        && let Ok(file) = rustix::fs::fstat(channel)
    {
        variables.insert(CHANNEL.into(), format!("{}:{}", channel.as_raw_fd(), file.st_ino).into());
    }
    let mut command = Command::new(program);
    command.args(arguments).envs(variables);
    for file in inherited.into_iter().flatten() {
        aviary_transport::inherit(&mut command, file);
    }
    command.exec()
}

fn explain(program: &OsString, error: &io::Error) -> ExitCode {
    eprintln!("aviary: {}: {error}", program.to_string_lossy());
    let missing = error.kind() == io::ErrorKind::NotFound;
    ExitCode::from(if missing { NOT_FOUND } else { NOT_EXECUTABLE })
}
