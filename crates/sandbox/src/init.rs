//! Process 1 of the PID namespace of an API server ("init", as in pid_namespaces(7)).
//!
//! Its one child is the API server, whose id within the namespace is init's id on the host: drivers that tell processes by
//! their ids find different ones in all API servers of the host. Init takes over what the API server starts and leaves behind,
//! and ends with it or with the node; the kernel then ends every process of the namespace. No guest ever speaks to it: it reads
//! nothing, and its system calls are a list of its own.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::namespaces::{Forked, fork_as, fork_with};
use crate::privileges::drop_capabilities;
use crate::system_calls::restrict_to;

/// Bytes that init writes into its pipe before it ends with the API server: the API server's status, as `waitpid` gives it.
pub const STATUS_BYTES: usize = size_of::<libc::c_int>();

/// Calls of init from its child's start on.
const CALLS: &[libc::c_long] = &[
    libc::SYS_ppoll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_waitid,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigreturn,
    libc::SYS_exit_group,
];

/// Exit statuses of init itself, where there is no API server whose status it could tell.
const NOT_STARTED: libc::c_int = 1;

/// In process 1 of a new PID namespace: forks the API server with id `id` and `namespaces` of its own. Returns in the API server;
/// process 1 stays in here and ends the whole process, unless there is no API server.
///
/// `pipe`: the end to write of a pipe whose other end is the node's. The end of the last reader ends the namespace. If the
/// kernel does not give the id (CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE, Linux 5.5), the API server gets an ordinary one.
///
/// # Errors
/// In process 1: there is no API server, as `clone` says. The caller tells that and ends.
///
/// # Safety
/// The caller has one thread. All descriptors but `pipe` are closed in process 1 without their owners' knowledge: nothing of
/// the caller runs there any more.
pub unsafe fn start_server(pipe: OwnedFd, id: u32, namespaces: libc::c_int) -> Result<(), Errno> {
    // The process that this one is a copy of may end with its group of processes.
    let _ = rustix::process::setsid();
    // Before the fork: a SIGTERM for init is not lost from the moment on that its API server can be seen.
    let before = handle_sigterm(end as extern "C" fn(libc::c_int) as libc::sighandler_t);
    // SAFETY: one thread, as the caller says.
    let forked = unsafe { fork_as(id, namespaces) };
    // SAFETY: the same.
    match forked.or_else(|_| unsafe { fork_with(namespaces) }) {
        Ok(Forked::Child) => {
            handle_sigterm(before);
            Ok(())
        }
        Ok(Forked::Parent(server)) => attend(&pipe, server),
        Err(errno) => Err(errno),
    }
}

fn exit(status: libc::c_int) -> ! {
    // SAFETY: ends this process, without handlers that belong to the process that it is a copy of.
    unsafe { libc::_exit(status) }
}

/// Waits for the end of the API server or of the node.
fn attend(pipe: &OwnedFd, server: u32) -> ! {
    close_all_but(pipe);
    let Ok(children) = notices_of_children() else { exit(NOT_STARTED) };
    // An attacker who could change this process could keep its namespace alive. Each step is one more than needed.
    drop_capabilities();
    // SAFETY: takes effect on this process only and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
    let _ = restrict_to(CALLS);
    loop {
        if let Some(status) = bury(server) {
            // The node is gone if nothing can be written.
            let _ = rustix::io::write(pipe, &status.to_ne_bytes());
            exit(0);
        }
        // No event is asked for: the pipe's error comes in any case, when nothing reads it any more.
        let mut fds = [PollFd::new(&children, PollFlags::IN), PollFd::new(pipe, PollFlags::empty())];
        match poll(&mut fds, None) {
            Ok(_) if !fds[1].revents().is_empty() => exit(0),
            Ok(_) => {
                let mut notice = [0; size_of::<libc::signalfd_siginfo>()];
                let _ = rustix::io::read(&children, &mut notice);
            }
            Err(Errno::INTR) => {}
            Err(_) => exit(NOT_STARTED),
        }
    }
}

/// Reaps children that have ended. `Some`: the API server has, with this status; it is not reaped, so that its id on the host
/// stays its own until this process has ended.
fn bury(server: u32) -> Option<libc::c_int> {
    loop {
        // SAFETY: all zeros is a valid `siginfo_t`.
        let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: `found` is valid for writing.
        if unsafe { libc::waitid(libc::P_ALL, 0, &mut found, flags) } != 0 {
            return None;
        }
        // SAFETY: waitid has filled in the part of a child, or left zeros.
        let (child, code) = unsafe { (found.si_pid(), found.si_status()) };
        match u32::try_from(child) {
            Ok(0) | Err(_) => return None,
            Ok(child) if child == server => return Some(status_word(found.si_code, code)),
            Ok(child) => {
                // SAFETY: a child of this process that has ended, and no place for more information.
                unsafe { libc::waitid(libc::P_PID, child, &mut found, libc::WEXITED | libc::WNOHANG) };
            }
        }
    }
}

/// As `waitpid` tells it.
fn status_word(how: libc::c_int, code: libc::c_int) -> libc::c_int {
    match how {
        libc::CLD_EXITED => (code & 0xff) << 8,
        libc::CLD_DUMPED => code & 0x7f | 0x80,
        _ => code & 0x7f,
    }
}

/// A descriptor that becomes readable when a child ends.
fn notices_of_children() -> io::Result<OwnedFd> {
    // SAFETY: all zeros is a valid set of signals, made empty again.
    let mut signals: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is valid, and only this process's mask changes.
    let made = unsafe {
        libc::sigemptyset(&mut signals);
        libc::sigaddset(&mut signals, libc::SIGCHLD);
        libc::sigprocmask(libc::SIG_SETMASK, &signals, std::ptr::null_mut());
        libc::signalfd(-1, &signals, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// Sets the handler of SIGTERM and returns the one before. Process 1 of a PID namespace ignores signals without a handler.
fn handle_sigterm(handler: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: the handler is this file's [`end`], or one that this process had before.
    match unsafe { libc::signal(libc::SIGTERM, handler) } {
        libc::SIG_ERR => libc::SIG_DFL,
        before => before,
    }
}

/// Handler of SIGTERM in init.
extern "C" fn end(_signal: libc::c_int) {
    // SAFETY: _exit is async-signal-safe.
    unsafe { libc::_exit(0) };
}

/// Closes what belongs to the process that this one is a copy of: the sockets of others would not hang up otherwise.
fn close_all_but(kept: &OwnedFd) {
    let kept = kept.as_fd().as_raw_fd().unsigned_abs();
    for (first, last) in [(0, kept.checked_sub(1)), (kept + 1, Some(u32::MAX))] {
        if let Some(last) = last {
            // SAFETY: nothing of the original runs in this copy that would use a closed descriptor.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::pipe;
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::fs::File;
    use std::io::{Read, Write};
    use std::time::{Duration, Instant};

    /// The C library's, which may ask the kernel (`brk`, `madvise`) whenever memory is allocated or freed. This one always does.
    struct AsksKernel;

    #[global_allocator]
    static ALLOCATOR: AsksKernel = AsksKernel;

    fn ask_kernel() {
        // SAFETY: a break of 0 is refused, so that nothing changes.
        unsafe { libc::syscall(libc::SYS_brk, 0) };
    }

    // SAFETY: the system's allocator does all of it.
    unsafe impl GlobalAlloc for AsksKernel {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            ask_kernel();
            // SAFETY: as the caller says.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
            ask_kernel();
            // SAFETY: as the caller says.
            unsafe { System.dealloc(memory, layout) }
        }
    }

    /// Bounds a hang.
    const HANG: Duration = Duration::from_secs(60);

    /// An init whose API server runs `server` and gets a pipe's end to write. `None`: only root may make namespaces here.
    struct Made {
        init: libc::pid_t,
        status: File,
        told: File,
    }

    fn made(server: impl FnOnce(&mut File) + Send) -> Option<Made> {
        let (status, status_end) = pipe().unwrap();
        let (told, told_end) = pipe().unwrap();
        let ends_of_reader = [status.as_raw_fd(), told.as_raw_fd()];
        let fork = move || {
            // SAFETY: takes effect on the children of this thread only and touches no memory.
            if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: the C library's fork handlers keep its allocator usable in the child of a process with several threads.
            // A bare `clone` does not: such a child can wait for a lock that a thread of its parent held.
            match unsafe { libc::fork() } {
                0 => {
                    // SAFETY: the copies of the parent's descriptors in the child, which nothing uses here.
                    let _ = ends_of_reader.map(|end| unsafe { libc::close(end) });
                    let id = crate::namespaces::outer_pid().unwrap_or(0);
                    // SAFETY: the child has one thread.
                    unsafe { start_server(status_end, id, 0) }.unwrap();
                    server(&mut File::from(told_end));
                    exit(7)
                }
                init => Ok(init),
            }
        };
        // The namespace of a thread's children stays with the thread, which ends after its one child.
        match std::thread::scope(|scope| scope.spawn(fork).join().expect("a thread that forks")) {
            Ok(init) => Some(Made { init, status: status.into(), told: told.into() }),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EPERM));
                None
            }
        }
    }

    impl Made {
        fn end(&mut self) -> (libc::c_int, Vec<u8>) {
            let mut status = 0;
            // SAFETY: a child of this process and a place for its status.
            assert_eq!(unsafe { libc::waitpid(self.init, &mut status, 0) }, self.init);
            let mut told = Vec::new();
            self.status.read_to_end(&mut told).unwrap();
            (status, told)
        }

        fn number(&mut self) -> u32 {
            let mut bytes = [0; 4];
            self.told.read_exact(&mut bytes).unwrap();
            u32::from_ne_bytes(bytes)
        }
    }

    fn tell_pid(to: &mut File) {
        let _ = to.write_all(&std::process::id().to_ne_bytes());
    }

    #[test]
    fn api_servers_have_ids_that_differ_on_the_host() {
        let wait = |to: &mut File| {
            tell_pid(to);
            loop {
                std::thread::park();
            }
        };
        let (Some(mut one), Some(mut other)) = (made(wait), made(wait)) else { return };
        let ids = (one.number(), other.number());
        assert_eq!(ids, (one.init as u32, other.init as u32));
        assert_ne!(ids.0, ids.1);
        for init in [one.init, other.init] {
            // SAFETY: children of this process that are not reaped yet.
            unsafe { libc::kill(init, libc::SIGTERM) };
        }
        assert_eq!((one.end().0, other.end().0), (0, 0), "a handler of SIGTERM");
    }

    #[test]
    fn status_is_told_and_what_the_api_server_started_ends_with_it() {
        let leave_behind = |to: &mut File| {
            tell_pid(to);
            for _ in 0..3 {
                // SAFETY: a process with one thread, that is at most this test's.
                if unsafe { libc::fork() } == 0 {
                    loop {
                        // SAFETY: waits for a signal.
                        unsafe { libc::pause() };
                    }
                }
            }
        };
        let Some(mut made) = made(leave_behind) else { return };
        let (status, told) = made.end();
        assert_eq!(status, 0);
        assert_eq!(told, (7_i32 << 8).to_ne_bytes(), "exit status 7");
        made.number();
        // The pipe's other ends were those of the processes that it left behind.
        let mut rest = Vec::new();
        made.told.read_to_end(&mut rest).unwrap();
    }

    #[test]
    fn all_end_with_the_last_reader_of_the_pipe() {
        let stay = |to: &mut File| {
            tell_pid(to);
            loop {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            }
        };
        let Some(mut made) = made(stay) else { return };
        made.number();
        made.status = File::open("/dev/null").unwrap();
        let begin = Instant::now();
        let mut rest = Vec::new();
        made.told.read_to_end(&mut rest).unwrap();
        assert!(begin.elapsed() < HANG);
        made.end();
    }
}
