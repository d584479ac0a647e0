//! The kernel's notices of system calls (`SECCOMP_RET_USER_NOTIF`).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use seccompiler::{BpfProgram, sock_filter};

/// A system call that waits for an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    id: u64,
    /// The thread that makes the call, in this process's PID namespace.
    pub thread: u32,
    pub number: i32,
    pub arguments: [u64; 6],
}

/// Where the kernel tells of calls.
pub struct Listener {
    descriptor: OwnedFd,
}

/// As the kernel reads it: `struct sock_fprog`.
#[repr(C)]
struct Program {
    length: libc::c_ushort,
    instructions: *const sock_filter,
}

impl Listener {
    /// Installs a filter for this thread, and all that it starts.
    pub fn install(program: &BpfProgram) -> io::Result<Listener> {
        let length = program.len().try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
        let program = Program { length, instructions: program.as_ptr() };
        // SAFETY: takes effect on this process only and touches no memory.
        if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a program of this many instructions, which the kernel copies and checks.
        let descriptor = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
                &raw const program,
            )
        };
        let descriptor = RawFd::try_from(descriptor).map_err(|_| io::ErrorKind::InvalidData)?;
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel made this descriptor for us.
        Ok(Listener { descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) } })
    }

    /// The next call; `None` if there was none within `patience` (`None`: without end), or if it was taken back.
    ///
    /// # Errors
    /// No process with the filter is left.
    pub fn next(&self, patience: Option<Duration>) -> io::Result<Option<Notice>> {
        let timeout = patience.and_then(|patience| Timespec::try_from(patience).ok());
        let mut waiting = [PollFd::new(&self.descriptor, PollFlags::IN)];
        match poll(&mut waiting, timeout.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        if !waiting[0].revents().contains(PollFlags::IN) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        // SAFETY: numbers only: all zeros is a valid value, and what the kernel wants.
        let mut notice: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel fills in a structure of this type. A later kernel's may be longer, of which it writes what its
        // own size says: for sizes beyond this one it would refuse, as the request's number contains the size.
        if unsafe { libc::ioctl(self.descriptor.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notice) } != 0 {
            let error = io::Error::last_os_error();
            // A signal or the end of its thread took the call back.
            return match error.raw_os_error() {
                Some(libc::ENOENT | libc::EINTR) => Ok(None),
                _ => Err(error),
            };
        }
        let libc::seccomp_notif { id, pid: thread, data, .. } = notice;
        Ok(Some(Notice { id, thread, number: data.nr, arguments: data.args }))
    }

    /// Lets the call go on. One that was taken back needs no answer.
    pub fn permit(&self, notice: &Notice) {
        let go_on = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        let answer = libc::seccomp_notif_resp { id: notice.id, val: 0, error: 0, flags: go_on };
        // SAFETY: a valid answer that the kernel copies.
        unsafe { libc::ioctl(self.descriptor.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer) };
    }
}
