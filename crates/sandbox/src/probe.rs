//! A trial of sandboxes on this machine: one is made.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::namespaces::{Forked, NAMESPACES, fork_with};
use crate::root::{self, Outline};
use crate::system_calls::{Allowed, restrict};

/// Bytes of a reason that are read.
const MAX_REASON_BYTES: u64 = 4096;

/// {0}
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoSandbox(String);

/// Makes a process in a sandbox that shows `homes`, and waits for its end.
///
/// # Errors
/// A step that failed, or a caller with more than one thread.
pub fn try_here(homes: &Path) -> Result<(), NoSandbox> {
    let failed = |what: &str, error: &dyn std::fmt::Display| NoSandbox(format!("{what}: {error}"));
    if std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count) != 1 {
        return Err(NoSandbox("a process with several threads cannot try it".into()));
    }
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed("pipe", &error))?;
    // SAFETY: this process has one thread, as was just seen; only it could start others.
    match unsafe { fork_with(NAMESPACES) } {
        Ok(Forked::Child) => {
            drop(read);
            let reason = inside(homes).err().unwrap_or_default();
            let _ = File::from(write).write_all(reason.as_bytes());
            // SAFETY: ends the copy without handlers that belong to the original.
            unsafe { libc::_exit(i32::from(!reason.is_empty())) }
        }
        Ok(Forked::Parent(child)) => {
            drop(write);
            judge(read, child)
        }
        Err(Errno::PERM) => Err(NoSandbox("namespaces need CAP_SYS_ADMIN, which this process does not have".into())),
        Err(error) => Err(failed("namespaces", &error)),
    }
}

fn inside(homes: &Path) -> Result<(), String> {
    let outline = Outline { read: Vec::new(), devices: Vec::new(), homes: homes.to_owned(), scratch_bytes: 1 << 20 };
    root::enter(&outline).map_err(|error| error.to_string())?;
    restrict(&Allowed::usual(), |_| {}).map_err(|error| error.to_string())
}

fn judge(read: OwnedFd, child: u32) -> Result<(), NoSandbox> {
    let mut reason = String::new();
    let _ = File::from(read).take(MAX_REASON_BYTES).read_to_string(&mut reason);
    let mut status = 0;
    // SAFETY: a child of this process and a place for its status.
    let reaped = unsafe { libc::waitpid(child as libc::pid_t, &mut status, 0) };
    match reaped == child as libc::pid_t && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 {
        true => Ok(()),
        false if reason.is_empty() => Err(NoSandbox(format!("a process in a sandbox ended with status {status:#x}"))),
        false => Err(NoSandbox(reason)),
    }
}
