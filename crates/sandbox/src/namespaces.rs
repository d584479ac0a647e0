//! A process in namespaces of its own.

use rustix::io::Errno;

/// Flags of `clone` for the namespaces of an API server; a user namespace is not among them, because the node is root
/// and the mapping of ids would add nothing.
pub const NAMESPACES: libc::c_int = libc::CLONE_NEWPID
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// The two returns of [`fork_for_parent`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forked {
    /// In the new process.
    Child,
    /// In the caller: the new process's id in the caller's PID namespace.
    Parent(u32),
}

/// Forks a process that is a child of the caller's parent, in `namespaces` (flags of `clone`, 0 for none).
///
/// With `CLONE_NEWPID` the child is process 1 of its namespace: when it ends, the kernel ends all processes in it.
///
/// # Errors
/// Those of `clone`: `EPERM` without CAP_SYS_ADMIN, `ENOSPC` beyond `user.max_*_namespaces`, `EINVAL` where the kernel
/// has no such namespace, `EAGAIN` and `ENOMEM`.
///
/// # Safety
/// The caller has one thread, so that no lock is held in the child that no thread of it releases. The C library's fork
/// handlers do not run.
pub unsafe fn fork_for_parent(namespaces: libc::c_int) -> Result<Forked, Errno> {
    let flags = libc::CLONE_PARENT | libc::SIGCHLD | namespaces;
    // SAFETY: like fork; a stack of 0 means a copy of the caller's. The other requirements are the caller's.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
        0 => Ok(Forked::Child),
        pid => u32::try_from(pid).map(Forked::Parent).map_err(|_| last_error()),
    }
}

/// The caller's process id as the mounted `/proc` counts: in a new PID namespace, before [`crate::root::enter`], the id
/// that the host knows.
pub fn outer_pid() -> Option<u32> {
    let link = std::fs::read_link("/proc/self").ok()?;
    link.to_str()?.parse().ok()
}

/// Ends this process when SIGTERM arrives. Process 1 of a PID namespace ignores signals without a handler.
pub fn end_at_sigterm() {
    extern "C" fn end(_signal: libc::c_int) {
        // SAFETY: _exit is async-signal-safe.
        unsafe { libc::_exit(0) };
    }
    let handler: extern "C" fn(libc::c_int) = end;
    // SAFETY: installs a handler that calls an async-signal-safe function only.
    unsafe { libc::signal(libc::SIGTERM, handler as libc::sighandler_t) };
}

fn last_error() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::INVAL, Errno::from_raw_os_error)
}
