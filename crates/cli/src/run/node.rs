//! The process beside the program of `aviary run`: the private node, relay or card, as long as a process of the program may need it.
//!
//! `aviary run` starts this process, gets the program's variables from it by a channel, and becomes the program. This process is in a
//! session of its own and has been left by its parent, so that the program has no child that it does not know, and signals of the
//! terminal or to the program's group do not come here. The channel and the program's end say when it is over.
//!
//! The program can write to the channel or close it: it ends its own node earlier or later, nobody else's.

use crate::daemons::signals::Signals;
use crate::run::answer::{Answer, FAILED, READY};
use crate::run::marks::{ENDING, MARK};
use crate::run::options::RunCommand;
use crate::run::service::Service;
use anyhow::Context;
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit, setsid};
use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Read, Write},
    net::Shutdown,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    os::unix::{ffi::OsStrExt, net::UnixStream},
    path::Path,
    process::{Command, ExitCode, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// After the program's end, before saying that processes in the background still need the node.
const MAX_SILENT_WAIT: Duration = Duration::from_secs(3);
/// Time without a guest after the program's end, for which processes that could still attach keep the node.
const MAX_IDLE_BACKGROUND: Duration = Duration::from_secs(3600);
/// Longest time between two questions whether processes in the background are left.
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// Descriptors that a node needs for a program with few processes, each of which uses an API or two.
const DESCRIPTORS_OF_NODE: u64 = 64;
/// More are of no use for one program.
const MOST_DESCRIPTORS: u64 = 1 << 16;

/// The node of a program that `aviary run` started.
#[derive(Args)]
pub struct RunNodeCommand {
    /// The descriptor of the channel.
    #[arg(long)]
    channel: RawFd,
    /// The process that becomes the program.
    #[arg(long)]
    program: i32,
    /// This is the process that stays: the one that `aviary run` started has ended.
    #[arg(long)]
    detached: bool,
    #[command(flatten)]
    run: RunCommand,
}

/// Starts this process for the calling one, with the arguments of `aviary run`.
pub fn start(channel: UnixStream) -> anyhow::Result<()> {
    let channel = OwnedFd::from(channel);
    let mut command = again(&channel);
    command.arg("--program").arg(std::process::id().to_string()).args(env::args_os().skip(2));
    let status = command.status().context("cannot start the node's process")?;
    anyhow::ensure!(status.success(), "the node's process did not start ({status})");
    Ok(())
}

/// This executable as `aviary run-node`, with the channel.
fn again(channel: &OwnedFd) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("run-node").arg("--channel").arg(channel.as_raw_fd().to_string());
    aviary_transport::inherit(&mut command, channel);
    command
}

/// Waits for what the program gets.
///
/// # Errors
/// The node's process has none: its reason.
pub fn answer(channel: &OwnedFd) -> anyhow::Result<Answer> {
    let mut bytes = Vec::new();
    let mut stream = UnixStream::from(channel.try_clone()?);
    stream.read_to_end(&mut bytes).context("cannot read from the node's process")?;
    match bytes.split_first() {
        Some((&READY, rest)) => Answer::decode(rest).context("the node's process has ended"),
        Some((_, why)) => anyhow::bail!("{}", String::from_utf8_lossy(why)),
        None => anyhow::bail!("the node's process has ended before it was ready"),
    }
}

pub fn run(command: &RunNodeCommand) -> anyhow::Result<ExitCode> {
    let channel =
        aviary_control::inherited::adopt(command.channel).context("run-node is started by `aviary run` only")?;
    if !command.detached {
        // Fails for the leader of a process group only, which is in a session of its own then or should stay where it is.
        let _ = setsid();
        let mut detached = again(&channel);
        detached.arg("--detached").arg("--program").arg(command.program.to_string()).args(arguments_of_run());
        detached.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("cannot start the node's process")?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Err(too_few) = raise_descriptor_limit() {
        UnixStream::from(channel).write_all(&[&[FAILED], too_few.as_bytes()].concat())?;
        return Ok(ExitCode::FAILURE);
    }
    let errors = Errors::start().context("cannot make a pipe for standard error")?;
    // The program is this process's peer and has not ended yet, as it waits for the answer.
    let program = Pid::from_raw(command.program).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let mut stream = UnixStream::from(channel);
    match Service::start(&command.run) {
        Ok((mut service, answer)) => {
            watch_strays(&mut service, command.program)?;
            let signals = Signals::catch().context("cannot catch signals")?;
            service.open_entrances(&stream).context("cannot start a thread")?;
            stream.write_all(&answer.encode())?;
            stream.shutdown(Shutdown::Write)?;
            serve(&service, &signals, program.as_ref().map(AsFd::as_fd), &stream, &errors);
        }
        Err(error) => {
            let told = [&[FAILED], format!("{error:#}").as_bytes()].concat();
            // What was said before comes first.
            errors.end();
            stream.write_all(&told)?;
            return Ok(ExitCode::FAILURE);
        }
    }
    errors.end();
    Ok(ExitCode::SUCCESS)
}

/// Lets this process and its API servers have as many descriptors as they may; the program keeps its own limit.
fn raise_descriptor_limit() -> Result<(), String> {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX);
    if most < DESCRIPTORS_OF_NODE {
        return Err(format!(
            "no more than {most} files may be open at a time (ulimit -n), and the program's node needs {DESCRIPTORS_OF_NODE}: raise the limit, or use the node of another process (--server)"
        ));
    }
    let wanted = most.min(MOST_DESCRIPTORS);
    if limit.current.is_some_and(|current| current < wanted) {
        // Fails nowhere below the maximum; with less than was wanted the node says itself what it lacks.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum });
    }
    Ok(())
}

/// The arguments behind `--program PID`.
fn arguments_of_run() -> impl Iterator<Item = OsString> {
    env::args_os().skip_while(|argument| argument != "--program").skip(2)
}

/// Until no process of the program is left that could need the node.
fn serve(service: &Service, signals: &Signals, program: Option<BorrowedFd<'_>>, channel: &UnixStream, errors: &Errors) {
    // Without a descriptor of the process (a kernel or a sandbox without pidfd) the channel alone tells.
    wait_for_end(signals, program.unwrap_or(channel.as_fd()));
    Background { service, channel, errors }.wait(signals);
    service.drain();
    while !service.is_finished() && signals.noted().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Signals are ignored meanwhile: a service manager sends them to the program as well, which may still use its device to end well.
fn wait_for_end(signals: &Signals, program: BorrowedFd<'_>) {
    while !is_over(program) {
        if signals.wait(program).is_err() {
            return;
        }
        signals.take_noted();
    }
}

/// Whether a process has ended, or a channel has been hung up.
fn is_over(file: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(file, PollFlags::IN | PollFlags::HUP)];
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    let polled = poll(&mut fds, Some(&none));
    // A channel into which the program has written is readable, and goes on.
    let ends = if is_socket(file) { PollFlags::HUP | PollFlags::ERR } else { PollFlags::IN };
    polled.is_err_and(|errno| errno != rustix::io::Errno::INTR) || fds[0].revents().intersects(ends)
}

fn is_socket(file: BorrowedFd<'_>) -> bool {
    rustix::net::sockopt::socket_type(file).is_ok()
}

/// What the program has left behind.
struct Background<'a> {
    service: &'a Service,
    channel: &'a UnixStream,
    errors: &'a Errors,
}

impl Background<'_> {
    /// Waits until nothing is left, a signal says so, or nothing has attached for [`MAX_IDLE_BACKGROUND`].
    fn wait(&self, signals: &Signals) {
        let started = Instant::now();
        let (mut told, mut pause, mut used) = (false, Duration::from_micros(200), started);
        while signals.noted().is_none() && self.is_left() {
            if self.service.busy() > 0 {
                used = Instant::now();
            }
            if used.elapsed() > MAX_IDLE_BACKGROUND {
                let idle = MAX_IDLE_BACKGROUND.as_secs();
                say(format_args!("no process has used a device for {idle} s after the program's end: its node ends"));
                return;
            }
            if !told && started.elapsed() > MAX_SILENT_WAIT {
                told = true;
                let node = std::process::id();
                say(format_args!(
                    "the program has ended; its node (process {node}) serves what runs in the background"
                ));
                self.errors.release();
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    fn is_left(&self) -> bool {
        // Holders of the channel, or processes with this run's mark in their environment.
        if !is_over(self.channel.as_fd()) || has_process_with(self.service.mark()) {
            return true;
        }
        let _ = fs::write(Path::new(self.service.mark()).join(ENDING), []);
        self.service.busy() > 0
    }
}

/// Warns once of each vendor's library that the program's processes have loaded past the guest library.
fn watch_strays(service: &mut Service, program: i32) -> anyhow::Result<()> {
    let (strays, mark) = (service.take_strays(), service.mark().to_owned());
    // The program has its mark when it is executed, perhaps by a command that drops its environment (`env -i`).
    let all = move || {
        let first = u32::try_from(program).ok();
        first.into_iter().chain(processes_with(&mark).filter(|process| Some(*process) != first)).collect()
    };
    let tell = |process: u32, library: &Path| {
        say(format_args!(
            "warning: process {process} of the program has loaded {} by itself: calls of that library bypass Aviary (docs/user-guide.md, Libraries that bypass Aviary)",
            library.display()
        ));
    };
    std::thread::Builder::new()
        .name("strays".into())
        .spawn(move || strays.watch(all, tell))
        .context("cannot start a thread")?;
    Ok(())
}

/// Whether a process, which may have closed all its descriptors, was started with this mark. One that is being executed right now
/// counts until its environment can be read.
fn has_process_with(mark: &OsStr) -> bool {
    let wanted = variable(mark);
    others().any(|process| match environment(process) {
        ShownEnvironment::Of(variables) => contains(&variables, &wanted),
        ShownEnvironment::NotYet => true,
    })
}

/// The processes that were started with this mark.
fn processes_with(mark: &OsStr) -> impl Iterator<Item = u32> {
    let wanted = variable(mark);
    others().filter(
        move |process| matches!(environment(*process), ShownEnvironment::Of(variables) if contains(&variables, &wanted)),
    )
}

/// The environment variable that marks a program's processes.
fn variable(mark: &OsStr) -> Vec<u8> {
    [MARK.as_bytes(), b"=", mark.as_bytes()].concat()
}

fn contains(variables: &[u8], wanted: &[u8]) -> bool {
    variables.split(|byte| *byte == 0).any(|variable| variable == wanted)
}

/// All processes but this one.
fn others() -> impl Iterator<Item = u32> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(move |entry| entry.file_name().to_str()?.parse().ok().filter(|process| *process != own))
}

/// What the kernel says about the environment that a process was started with.
enum ShownEnvironment {
    /// Its variables, each ended by a zero byte. None for a process of another user, unless this one is root, and for one that has
    /// ended.
    Of(Vec<u8>),
    /// The process is within execve: its old memory is gone, the new one has no environment yet.
    NotYet,
}

fn environment(process: u32) -> ShownEnvironment {
    match fs::read(format!("/proc/{process}/environ")) {
        Ok(variables) if variables.is_empty() && is_being_executed(process) => ShownEnvironment::NotYet,
        variables => ShownEnvironment::Of(variables.unwrap_or_default()),
    }
}

/// Whether a process has memory, but no place of its environment (proc_pid_stat(5): fields 23, vsize, and 51, env_end).
fn is_being_executed(process: u32) -> bool {
    let stat = fs::read(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields = String::from_utf8_lossy(&stat);
    // The name in brackets may have spaces and brackets of its own; the state, field 3, is behind it.
    let field = |number: usize| {
        let behind = fields.rsplit_once(')')?.1;
        behind.split_ascii_whitespace().nth(number - 3)?.parse::<u64>().ok()
    };
    field(23).is_some_and(|size| size > 0) && field(51) == Some(0)
}

/// Standard error may have gone by now.
fn say(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "aviary: {text}");
}

/// Standard error of this process and of its API servers: a pipe, whose content a thread passes on to the program's standard error. So
/// that can be let go while they live: a reader of the program's output waits for its end.
struct Errors {
    /// None: what is written is dropped.
    to: Arc<Mutex<Option<File>>>,
    relay: JoinHandle<()>,
}

/// Longest wait at the end for lines of API servers that are ending.
const MAX_WAIT_FOR_LINES: Duration = Duration::from_secs(1);

impl Errors {
    fn start() -> io::Result<Errors> {
        let to = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3).ok().map(File::from);
        let (mut from, pipe) = io::pipe()?;
        rustix::stdio::dup2_stderr(&pipe)?;
        drop(pipe);
        let to = Arc::new(Mutex::new(to));
        let target = to.clone();
        let relay = std::thread::Builder::new().name("errors".into()).spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                if let Some(file) = &mut *target.lock().unwrap_or_else(PoisonError::into_inner) {
                    let _ = file.write_all(&buffer[..count]);
                }
            }
        })?;
        Ok(Errors { to, relay })
    }

    /// Lets go of a pipe or socket; a file or a terminal has no reader that waits.
    fn release(&self) {
        let mut to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        let kind = to.as_ref().and_then(|file| Some(FileType::from_raw_mode(rustix::fs::fstat(file).ok()?.st_mode)));
        if matches!(kind, Some(FileType::Fifo | FileType::Socket)) {
            *to = None;
        }
    }

    /// Passes on what is left. Nothing is written afterwards.
    fn end(self) {
        if let Ok(null) = File::options().write(true).open("/dev/null") {
            let _ = rustix::stdio::dup2_stderr(&null);
        }
        let until = Instant::now() + MAX_WAIT_FOR_LINES;
        while !self.relay.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channel_is_over_when_its_last_copy_is_closed() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let copy = theirs.try_clone().unwrap();
        (&theirs).write_all(b"noise").unwrap();
        drop(theirs);
        assert!(!is_over(ours.as_fd()));
        drop(copy);
        assert!(is_over(ours.as_fd()));
    }

    #[test]
    fn processes_are_known_by_their_environment() {
        let mark = format!("/nowhere/{}", std::process::id());
        assert_eq!(processes_with(OsStr::new(&mark)).next(), None);
        // A spawn returns while the child is within execve: it counts from the first look on.
        for _ in 0..100 {
            let mut child = Command::new("sleep").arg("60").env(MARK, &mark).spawn().unwrap();
            let (found, id) = (has_process_with(OsStr::new(&mark)), child.id());
            while processes_with(OsStr::new(&mark)).next() != Some(id) && child.try_wait().unwrap().is_none() {
                std::thread::yield_now();
            }
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(found);
        }
    }

    #[test]
    fn only_what_has_memory_is_being_executed() {
        let mut ended = Command::new("true").spawn().unwrap();
        while !fs::read_to_string(format!("/proc/{}/stat", ended.id())).unwrap().contains(") Z ") {
            std::thread::yield_now();
        }
        for process in [std::process::id(), ended.id(), 2] {
            assert!(!is_being_executed(process));
        }
        ended.wait().unwrap();
    }
}
