//! The zygote: an API server process with all libraries loaded, whose copies serve the guests.
//!
//! Copies start sooner and share what the libraries' relocations wrote. A node without a zygote, or whose zygote is
//! not ready, dies or cannot be copied, starts API servers one by one: that is slower, nothing else.

use crate::error::NodeError;
use crate::servers::api_server::{ApiServer, ApiServerCommand, Init};
use aviary_control::{Aside, FromServer, Heard, Patience, ToZygote, hear, send};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    time::{Duration, Instant},
};

/// How long a copy may take to say that it lives. Usually a millisecond.
const FORK_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Zygote {
    pub process: ApiServer,
    /// It has said that it loaded everything.
    pub ready: bool,
}

impl Zygote {
    /// Starts one; it is ready some time later.
    pub fn start(
        command: &ApiServerCommand,
        modules: &[PathBuf],
        vendors: &BTreeMap<String, String>,
        aside: &Aside,
    ) -> Result<Self, NodeError> {
        // It runs nothing of a guest's, so its messages need no pipe.
        let process = ApiServer::spawn(command, None, aside)?;
        let request = ToZygote::Preload { modules: modules.to_vec(), vendors: vendors.clone() };
        match send(process.control.as_fd(), &request, &[], Patience::None) {
            Ok(()) => Ok(Self { process, ready: false }),
            Err(error) => {
                process.discard();
                Err(NodeError::Spawn(command.program.clone(), error))
            }
        }
    }

    /// A new API server, whose lines for the node's log go to `log`.
    pub fn copy(&self, log: &OwnedFd) -> Result<ApiServer, NodeError> {
        self.try_copy(log).map_err(NodeError::Copy)
    }

    fn try_copy(&self, log: &OwnedFd) -> io::Result<ApiServer> {
        let (control, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let (status, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let descriptors = [theirs.as_fd(), log.as_fd(), write.as_fd()];
        send(self.process.control.as_fd(), &ToZygote::Copy, &descriptors, Patience::None)?;
        // The only copies left are the zygote's and the new process's: their deaths can be seen.
        drop((theirs, write));
        let mut init = None;
        let born = birth(&control, &mut init);
        let init = init.map(|pid| Init::adopt(pid, status)).transpose()?;
        match (born, init) {
            (Ok(pid), init) => ApiServer::adopt(pid, control, init),
            (Err(error), Some(init)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(io::Error::other(format!("the copy ended: {}", init.end())))
            }
            (Err(error), init) => {
                init.into_iter().for_each(Init::discard);
                Err(error)
            }
        }
    }
}

/// The process id that the new process tells, and before it that of its PID namespace's process 1, if it has one. An error is
/// what the zygote or the copy says.
fn birth(control: &OwnedFd, init: &mut Option<u32>) -> io::Result<u32> {
    let until = Instant::now() + FORK_TIMEOUT;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(control, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        match hear(control.as_fd()) {
            Heard::Message(FromServer::Init { pid }) => *init = Some(pid),
            Heard::Message(FromServer::Born { pid }) => return Ok(pid),
            Heard::Message(FromServer::Unfit { reason }) => return Err(io::Error::other(reason)),
            Heard::Message(_) => return Err(io::ErrorKind::InvalidData.into()),
            Heard::Garbage(garbage) => return Err(io::Error::new(io::ErrorKind::InvalidData, garbage)),
            Heard::Closed => return Err(io::ErrorKind::UnexpectedEof.into()),
            Heard::Nothing => {}
        }
    }
}
