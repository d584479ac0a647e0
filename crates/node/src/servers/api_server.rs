//! API server processes: how one is started.

use crate::epoll::is_readable;
use crate::error::NodeError;
use crate::servers::sandbox_settings::SandboxSettings;
use crate::tenants::vendor_set::VendorSet;
use aviary_control::{Aside, Foreign};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, pidfd_send_signal, waitid,
};
use std::{
    ffi::OsString,
    fmt, io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

/// The command line of an API server; the number of its control descriptor is appended.
#[derive(Debug, Clone)]
pub struct ApiServerCommand {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
    /// All of its environment. A node that starts puts before it what passes of its own.
    pub environment: Vec<(OsString, OsString)>,
    /// Without address space layout randomization, and with one arena of the C library's allocator, which lies in the heap: the
    /// arenas of threads would lie among the mappings, by the order in which threads come. A library that gets the same
    /// calls in the same order then chooses the same addresses, so that sessions whose programs know addresses can be moved.
    /// Randomization would not protect an API server from its tenant, which can ask it for its addresses. Where a container's filter refuses `personality`, addresses stay random.
    pub fixed_addresses: bool,
}

impl ApiServerCommand {
    /// This executable, as `aviary api-server --control-fd N`.
    pub fn own() -> Result<Self, NodeError> {
        // The link survives the replacement of the file, unlike the name that it had.
        let program = PathBuf::from("/proc/self/exe");
        let arguments = vec!["api-server".into(), "--control-fd".into()];
        Ok(Self { program, arguments, environment: Vec::new(), fixed_addresses: true })
    }

    /// The same command for a zygote whose copies are in sandboxes: `homes` is the directory of the tenants' homes,
    /// `shared_memory` that of their shared memory below `/dev/shm`, `builds` those of API builds and of vendors' libraries
    /// that the node names, all of them readable.
    pub fn sandboxed(
        &self,
        homes: &Path,
        shared_memory: Option<&Path>,
        builds: &[PathBuf],
        settings: &SandboxSettings,
    ) -> Self {
        let mut arguments: Vec<OsString> = vec!["--sandbox-homes".into(), homes.into()];
        arguments.extend(shared_memory.iter().flat_map(|path| ["--sandbox-shared-memory".into(), (*path).into()]));
        if !settings.walls.is_empty() {
            arguments.extend(["--sandbox-walls".into(), settings.walls.clone().into()]);
        }
        let options = |name: &'static str, paths: &[PathBuf]| -> Vec<OsString> {
            paths.iter().flat_map(|path| [name.into(), path.into()]).collect()
        };
        arguments.extend(options("--sandbox-read", builds));
        arguments.extend(options("--sandbox-read", &settings.read));
        arguments.extend(options("--sandbox-hide", &settings.hidden));
        arguments.extend(options("--sandbox-device", &settings.devices));
        let words = |name: &'static str, words: &[String]| -> Vec<OsString> {
            words.iter().flat_map(|word| [name.into(), word.into()]).collect()
        };
        arguments.extend(words("--sandbox-call", &settings.system_calls));
        arguments.extend(words("--sandbox-ioctl", &settings.ioctls));
        arguments.extend(words("--sandbox-share", &settings.share));
        arguments.extend(settings.records.then(|| "--sandbox-log".into()));
        let mut command = self.clone();
        // Behind the name of the subcommand.
        command.arguments.splice(1..1, arguments);
        command
    }

    /// The same command for API servers with the libraries of a vendor set, whose folders they read where they are in
    /// sandboxes.
    pub fn with_vendor(&self, set: &VendorSet, in_sandbox: bool) -> Self {
        let mut command = self.clone();
        let variables = set.environment.iter().map(|(name, value)| (name.into(), value.into()));
        command.environment.extend(variables);
        if in_sandbox {
            let read = set.read.iter().flat_map(|path| ["--sandbox-read".into(), path.into()]);
            // Behind the name of the subcommand.
            command.arguments.splice(1..1, read);
        }
        command
    }

    /// This executable as a zygote: `aviary api-server --zygote --control-fd N`.
    pub fn own_zygote() -> Result<Self, NodeError> {
        let mut command = Self::own()?;
        command.arguments.insert(1, "--zygote".into());
        Ok(command)
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerEnd {
    Status(i32),
    Signal(i32),
    Unknown,
}

impl fmt::Display for ServerEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerEnd::Status(code) => write!(f, "exit status {code}"),
            ServerEnd::Signal(signal) => write!(f, "signal {signal}"),
            ServerEnd::Unknown => f.write_str("status unknown"),
        }
    }
}

/// A running API server process. It is reaped by `wait`, which the node calls
/// once `exit` is readable.
#[derive(Debug)]
pub struct ApiServer {
    pid: u32,
    pub control: Foreign,
    /// Readable when the process has ended, and with it all processes of its PID namespace, if it has one of its own.
    pub exit: OwnedFd,
    /// Of an API server that is the child of its PID namespace's process 1.
    pub(crate) init: Option<InitEnd>,
}

/// Descriptors of an API server and of the process 1 of its PID namespace.
#[derive(Debug)]
pub(crate) struct InitEnd {
    /// Of process 1.
    pub pid: u32,
    /// Where it tells the API server's status.
    pub status: OwnedFd,
    /// The API server itself: its guests see its end sooner than they would see that of process 1.
    pub server: OwnedFd,
}

/// How long process 1 may take to tell how the API server ended. Usually less than a millisecond.
const END_TIMEOUT: Duration = Duration::from_millis(200);

/// Process 1 of an API server's PID namespace: a child of the node that ends with the API server, and all of the namespace
/// with it.
#[derive(Debug)]
pub struct Init {
    pid: u32,
    /// Readable when it has ended.
    exit: OwnedFd,
    /// Where it tells the API server's status. It ends when nothing reads that.
    status: OwnedFd,
}

impl Init {
    /// A process that the zygote made.
    pub fn adopt(pid: u32, status: OwnedFd) -> io::Result<Self> {
        Ok(Self { pid, exit: child(pid)?, status })
    }

    /// Ends it, and what it has started.
    pub fn discard(self) {
        let _ = pidfd_send_signal(&self.exit, Signal::KILL);
        let _ = reap(&self.exit);
    }

    /// How its API server ended, which has closed its control socket; it has [`END_TIMEOUT`] for it.
    pub fn end(self) -> ServerEnd {
        let timeout = Timespec { tv_sec: 0, tv_nsec: END_TIMEOUT.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::new(&self.exit, PollFlags::IN)], Some(&timeout));
        let _ = pidfd_send_signal(&self.exit, Signal::KILL);
        let end = reap(&self.exit);
        told_status(&self.status).unwrap_or(end)
    }
}

impl ApiServer {
    /// `log`: its standard error; `None`: the node's.
    pub fn spawn(command: &ApiServerCommand, log: Option<OwnedFd>, aside: &Aside) -> Result<Self, NodeError> {
        Self::try_spawn(command, log, aside).map_err(|error| NodeError::Spawn(command.program.clone(), error))
    }

    fn try_spawn(command: &ApiServerCommand, log: Option<OwnedFd>, aside: &Aside) -> io::Result<Self> {
        let (control, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut process = Command::new(&command.program);
        process
            .arg0("aviary")
            .args(&command.arguments)
            .arg(theirs.as_raw_fd().to_string())
            .env_clear()
            .envs(command.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.map_or_else(Stdio::inherit, Stdio::from));
        if command.fixed_addresses {
            process.env("MALLOC_ARENA_MAX", "1");
            aviary_control::fix_addresses(&mut process);
        }
        // Signals from the terminal are for the guest: its API server ends after it.
        aviary_control::prepare_to_spawn(&mut process, theirs);
        let mut child = aside.while_spawning(|| process.spawn())?;
        // No tenant's yet.
        let control = Foreign::own(control);
        match pidfd(child.id()) {
            Ok(exit) => Ok(Self { pid: child.id(), control, exit, init: None }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// A process that the zygote made: it is this node's child, too, or that of `init`. The id stays its own until `exit` is
    /// readable, because `init` does not reap it.
    pub fn adopt(pid: u32, control: OwnedFd, init: Option<Init>) -> io::Result<Self> {
        let control = Foreign::own(control);
        Ok(match init {
            Some(init) => match pidfd(pid) {
                Ok(server) => {
                    let Init { pid: first, exit, status } = init;
                    Self { pid, control, exit, init: Some(InitEnd { pid: first, status, server }) }
                }
                Err(error) => {
                    init.discard();
                    return Err(error);
                }
            },
            None => Self { pid, control, exit: child(pid)?, init: None },
        })
    }

    /// One that this process has had since before its program was replaced.
    pub(crate) fn of(pid: u32, control: Foreign, exit: OwnedFd, init: Option<InitEnd>) -> Self {
        Self { pid, control, exit, init }
    }

    /// Process 1 of its PID namespace, if it has one of its own.
    pub fn init_pid(&self) -> Option<u32> {
        self.init.as_ref().map(|init| init.pid)
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Before it serves anything: the API server, and the process 1 of its PID namespace.
    pub fn processes(&self) -> Vec<u32> {
        [self.pid].into_iter().chain(self.init.as_ref().map(|init| init.pid)).collect()
    }

    /// True if it has ended, whether or not the node's loop has seen that, and whether or not the process 1 of its namespace
    /// has seen it.
    pub fn has_ended(&self) -> bool {
        is_readable(&self.exit) || self.init.as_ref().is_some_and(|init| is_readable(&init.server))
    }

    pub fn signal(&self, signal: Signal) {
        // They may have ended just now; the descriptors never name other processes.
        if let Some(init) = self.init.as_ref().filter(|_| signal == Signal::KILL) {
            let _ = pidfd_send_signal(&init.server, signal);
        }
        let _ = pidfd_send_signal(&self.exit, signal);
    }

    /// Blocks until the process has ended, and ends what it has started: its group of processes, which it cannot leave in a
    /// sandbox. With a PID namespace of its own all of that has ended already.
    pub fn end_group(&self) {
        if self.init.is_some() {
            return;
        }
        let _ = waitid(WaitId::PidFd(self.exit.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        self.kill_group();
    }

    /// Ends what it has started. It is not reaped yet, so that the group is its own.
    pub fn kill_group(&self) {
        if self.init.is_some() {
            return;
        }
        if let Some(leader) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }

    /// Blocks until the process has ended and reaps it.
    pub fn wait(self) -> ServerEnd {
        let end = reap(&self.exit);
        self.init.and_then(|init| told_status(&init.status)).unwrap_or(end)
    }

    /// Ends it at once.
    pub fn discard(self) {
        self.signal(Signal::KILL);
        self.wait();
    }
}

/// Blocks until a child has ended and reaps it.
pub(crate) fn reap(exit: &OwnedFd) -> ServerEnd {
    loop {
        match waitid(WaitId::PidFd(exit.as_fd()), WaitIdOptions::EXITED) {
            Err(rustix::io::Errno::INTR) => {}
            Err(_) | Ok(None) => return ServerEnd::Unknown,
            Ok(Some(status)) => {
                let signal = status.terminating_signal().map(ServerEnd::Signal);
                return status.exit_status().map(ServerEnd::Status).or(signal).unwrap_or(ServerEnd::Unknown);
            }
        }
    }
}

/// The status that process 1 of a PID namespace has told before it ended.
fn told_status(pipe: &OwnedFd) -> Option<ServerEnd> {
    let mut bytes = [0; size_of::<i32>()];
    // The pipe does not block, and a status is written whole.
    let read = rustix::io::read(pipe, &mut bytes).ok()?;
    (read == bytes.len()).then(|| {
        let status = ExitStatus::from_raw(i32::from_ne_bytes(bytes));
        status.code().map(ServerEnd::Status).or(status.signal().map(ServerEnd::Signal)).unwrap_or(ServerEnd::Unknown)
    })
}

/// A descriptor of a child of this process.
fn child(pid: u32) -> io::Result<OwnedFd> {
    let exit = pidfd(pid)?;
    // Fails if it is nobody's child here: then the id may mean any process.
    waitid(WaitId::PidFd(exit.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT)?;
    Ok(exit)
}

/// The process is not reaped yet, so that its id is still its own.
pub(crate) fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use crate::servers::api_server::*;

    /// The flag of `personality` in hexadecimal, as the kernel shows it of a process.
    fn has_fixed_addresses(fixed_addresses: bool) -> bool {
        let command = ApiServerCommand {
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), "sleep 60".into()],
            environment: vec![("SHOWN".into(), "1".into())],
            fixed_addresses,
        };
        let server = ApiServer::spawn(&command, None, &Aside::default()).unwrap();
        // The kernel shows no environment before the end of execve, of which a spawn sees the begin.
        let environment = loop {
            match std::fs::read(format!("/proc/{}/environ", server.pid())).unwrap() {
                none if none.is_empty() => std::thread::yield_now(),
                environment => break environment,
            }
        };
        let personality = std::fs::read_to_string(format!("/proc/{}/personality", server.pid()));
        server.discard();
        let arena: &[u8] = b"MALLOC_ARENA_MAX=1";
        assert_eq!(environment.split(|byte| *byte == 0).any(|pair| pair == arena), fixed_addresses);
        let flags = u32::from_str_radix(personality.unwrap().trim(), 16).unwrap();
        flags & ADDR_NO_RANDOMIZE != 0
    }

    const ADDR_NO_RANDOMIZE: u32 = 0x0004_0000;

    #[test]
    fn addresses_are_fixed_where_sessions_can_move() {
        let of_this_process = std::fs::read_to_string("/proc/self/personality").unwrap();
        if u32::from_str_radix(of_this_process.trim(), 16).unwrap() & ADDR_NO_RANDOMIZE == 0 {
            assert!(!has_fixed_addresses(false));
        }
        // A container's filter may refuse the call.
        let allowed = Command::new("setarch").args(["-R", "true"]).status().is_ok_and(|status| status.success());
        assert_eq!(has_fixed_addresses(true), allowed);
    }
}
