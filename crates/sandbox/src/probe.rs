//! A trial of sandboxes on this machine: one is made.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::files::{self, Reach};
use crate::init;
use crate::namespaces::{Forked, NAMESPACES, Namespace, enter_user_namespace, fork_with, outer_pid};
use crate::root::{self, Outline};
use crate::system_calls::{Allowed, restrict};
use crate::walls::Walls;

/// Bytes of a report that are read.
const MAX_REPORT_BYTES: u64 = 4096;
/// The last line of the report of a process that is in a sandbox.
const DONE: &str = "done";
/// How often each kind of walls is tried, and the time between: the kernel counts namespaces that have ended for a moment longer.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(50);

/// {0}
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub struct NoSandbox(String);

/// The strongest walls that this machine gives this process, and what they lack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub walls: Walls,
    /// In words.
    pub weaknesses: Vec<String>,
}

/// Makes a process in a sandbox that shows `homes`, and waits for its end.
///
/// # Errors
/// No walls can be made: why the strongest could not. Or the caller has more than one thread.
pub fn try_here(homes: &Path) -> Result<Found, NoSandbox> {
    if std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count) != 1 {
        return Err(NoSandbox("cannot be tried in a process with several threads".into()));
    }
    let mut reasons = Vec::new();
    let is_root = rustix::process::geteuid().is_root();
    let namespaces = if is_root { Walls::Namespaces } else { Walls::UserNamespace };
    for walls in [namespaces, Walls::Landlock] {
        match try_repeatedly(|| try_walls(walls, homes), std::thread::sleep) {
            Ok(mut weaknesses) => {
                weaknesses.extend(reasons);
                return Ok(Found { walls, weaknesses });
            }
            Err(NoSandbox(reason)) => reasons.push(reason),
        }
    }
    Err(NoSandbox(reasons.join("; ")))
}

/// The first success of some attempts, or the last failure: for want of something that passes, namespaces of other processes for
/// instance, a node would go without them for its whole life.
fn try_repeatedly<T>(
    mut attempt: impl FnMut() -> Result<T, NoSandbox>,
    pause: impl Fn(Duration),
) -> Result<T, NoSandbox> {
    for _ in 1..ATTEMPTS {
        if let Ok(found) = attempt() {
            return Ok(found);
        }
        pause(PAUSE);
    }
    attempt()
}

fn try_walls(walls: Walls, homes: &Path) -> Result<Vec<String>, NoSandbox> {
    let failed = |what: &str, error: &dyn std::fmt::Display| NoSandbox(format!("{what}: {error}"));
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed("pipe", &error))?;
    // SAFETY: this process has one thread, as the caller has seen; only it could start others.
    match unsafe { fork_with(0) } {
        Ok(Forked::Child) => {
            drop(read);
            let mut report = File::from(write);
            let outcome = match inside(walls, homes) {
                Ok(weaknesses) => weaknesses + DONE,
                Err(reason) => reason,
            };
            let _ = report.write_all(outcome.as_bytes());
            // SAFETY: ends the copy without handlers that belong to the original.
            unsafe { libc::_exit(0) }
        }
        Ok(Forked::Parent(child)) => {
            drop(write);
            judge(read, child)
        }
        Err(error) => Err(failed("fork", &error)),
    }
}

/// In a process of its own, which becomes others. Lines of what is weaker than it could be.
fn inside(walls: Walls, homes: &Path) -> Result<String, String> {
    let mut weaknesses = String::new();
    let (read, devices, homes) = (Vec::new(), Vec::new(), homes.to_owned());
    let outline = Outline { read, devices, homes, shared_memory: None, scratch_bytes: 1 << 20 };
    let reach = match walls {
        Walls::Landlock => Reach::inside_host(&outline, &outline.homes),
        Walls::Namespaces | Walls::UserNamespace => {
            if walls == Walls::UserNamespace {
                enter_user_namespace().map_err(|error| format!("cannot create a user namespace: {error}"))?;
            }
            let id = become_server()?;
            if std::process::id() != id {
                weaknesses += "the kernel cannot choose process ids (needs Linux 5.5): all API servers have the same id, so \
                               events that processes share (CUDA IPC) fail\n";
            }
            root::enter(&outline).map_err(|error| error.to_string())?;
            Reach::inside_own_root(&outline.homes)
        }
    };
    // Landlock and a filter of system calls need it without CAP_SYS_ADMIN.
    // SAFETY: takes effect on this process only and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    match files::confine(&reach) {
        Err(error) if walls == Walls::Landlock => return Err(error.to_string()),
        Err(error) => weaknesses += &format!("{error}\n"),
        Ok(()) => {}
    }
    restrict(&Allowed::usual(), |_| {}).map_err(|error| error.to_string())?;
    Ok(weaknesses)
}

/// Goes on as the child of a process 1 of a PID namespace, which ends with it. The parent waits for that and ends.
fn become_server() -> Result<u32, String> {
    let (status, status_end) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| format!("pipe: {error}"))?;
    // SAFETY: a process with one thread, which was forked from one with one thread.
    match unsafe { fork_with(Namespace::Pid.flag()) } {
        Ok(Forked::Child) => {
            drop(status);
            let id = outer_pid().unwrap_or_default();
            // SAFETY: the child has one thread, and nothing of it runs in process 1.
            unsafe { init::start_server(status_end, id, NAMESPACES & !Namespace::Pid.flag()) }
                .map_err(|errno| format!("clone in process 1 of a PID namespace: {errno}"))?;
            Ok(id)
        }
        Ok(Forked::Parent(init)) => {
            drop(status_end);
            let mut end = 0;
            // SAFETY: a child of this process and a place for its status.
            unsafe { libc::waitpid(init as libc::pid_t, &mut end, 0) };
            // SAFETY: ends the copy without handlers that belong to the original.
            unsafe { libc::_exit(end) }
        }
        Err(Errno::PERM) => Err("cannot create namespaces: this process does not have CAP_SYS_ADMIN".into()),
        Err(error) => Err(format!("cannot create namespaces: {error}")),
    }
}

fn judge(read: OwnedFd, child: u32) -> Result<Vec<String>, NoSandbox> {
    let mut report = String::new();
    let _ = File::from(read).take(MAX_REPORT_BYTES).read_to_string(&mut report);
    let mut status = 0;
    // SAFETY: a child of this process and a place for its status.
    unsafe { libc::waitpid(child as libc::pid_t, &mut status, 0) };
    match report.strip_suffix(DONE) {
        Some(weaknesses) => Ok(weaknesses.lines().map(str::to_owned).collect()),
        None if report.is_empty() => {
            Err(NoSandbox(format!("a process in a sandbox ended with status {status:#x} before it reported success")))
        }
        None => Err(NoSandbox(report)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walls_that_fail_once_are_tried_again() {
        let after = |failures: u32| {
            let mut tried = 0;
            let attempt = || {
                tried += 1;
                if tried > failures { Ok(tried) } else { Err(NoSandbox(format!("failure {tried}"))) }
            };
            try_repeatedly(attempt, |_| {}).map_err(|error| error.to_string())
        };
        assert_eq!((after(0), after(2)), (Ok(1), Ok(3)));
        assert_eq!(after(3), Err("failure 3".into()));
    }
}
