//! Descriptors that a library keeps in a process that is not its own.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::FdFlags;
use rustix::process::{Resource, getrlimit};

/// Where the standard streams end: a program that closed one expects the next file that it opens there.
const FIRST: i32 = 3;
/// Where loops end that close "all" descriptors in programs that start in the background.
const COMMON: i32 = 1024;

/// The same file under a number that the application neither uses for a standard stream nor closes in the usual loops,
/// as far as the process may have such numbers. It is closed by `exec`.
pub fn out_of_the_way(file: OwnedFd) -> OwnedFd {
    let roomy = getrlimit(Resource::Nofile).current.is_none_or(|limit| limit >= 4 * COMMON as u64);
    let least = if roomy { COMMON } else { FIRST };
    if file.as_raw_fd() >= least {
        return file;
    }
    // A full table leaves the file where it is.
    let again = |least| rustix::io::fcntl_dupfd_cloexec(&file, least).ok();
    again(least).or_else(|| again(FIRST)).unwrap_or(file)
}

/// Lets the program that `command` starts have `file` under its number here, and no other program of this process.
pub fn inherit(command: &mut Command, file: &OwnedFd) {
    let number = file.as_raw_fd();
    let keep = move || {
        // SAFETY: the child has the descriptors that this process had when it was forked. If `file` is closed by then,
        // the call fails, and the program does not start.
        let kept = unsafe { BorrowedFd::borrow_raw(number) };
        Ok(rustix::io::fcntl_setfd(kept, FdFlags::empty())?)
    };
    // SAFETY: `keep` makes one system call, and allocates and locks nothing.
    unsafe { command.pre_exec(keep) };
}

/// True if this process may write a file of so many bytes: one that grows beyond its limit is killed by SIGXFSZ.
pub fn may_have_file(bytes: u64) -> bool {
    getrlimit(Resource::Fsize).current.is_none_or(|limit| limit >= bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_lie_behind_the_standard_streams() {
        let file = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
        let moved = out_of_the_way(file);
        assert!(moved.as_raw_fd() >= FIRST);
        assert!(rustix::io::fcntl_getfd(&moved).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    }
}
