//! A process in namespaces of its own.

use std::io;
use std::str::FromStr;

use rustix::io::Errno;

/// Flags of `clone` for the namespaces of an API server. A user namespace is not among them: a node that is root needs none,
/// and of another one the zygote is in one already ([`enter_user_namespace`]).
pub const NAMESPACES: libc::c_int = libc::CLONE_NEWPID
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// A kind of namespace that an API server can share with the node, for a driver that does not work in one of its own. Mounts
/// are never shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Namespace {
    Pid,
    Net,
    Ipc,
    Uts,
    Cgroup,
}

impl Namespace {
    /// As a flag of `clone`.
    pub fn flag(self) -> libc::c_int {
        match self {
            Namespace::Pid => libc::CLONE_NEWPID,
            Namespace::Net => libc::CLONE_NEWNET,
            Namespace::Ipc => libc::CLONE_NEWIPC,
            Namespace::Uts => libc::CLONE_NEWUTS,
            Namespace::Cgroup => libc::CLONE_NEWCGROUP,
        }
    }
}

impl FromStr for Namespace {
    type Err = String;

    /// As the files in `/proc/PID/ns` are called.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "pid" => Ok(Namespace::Pid),
            "net" => Ok(Namespace::Net),
            "ipc" => Ok(Namespace::Ipc),
            "uts" => Ok(Namespace::Uts),
            "cgroup" => Ok(Namespace::Cgroup),
            _ => Err(format!("`{text}` is not a namespace that can be shared: expected pid, net, ipc, uts or cgroup")),
        }
    }
}

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
/// With `CLONE_NEWPID` the child is process 1 of its namespace: when it ends, the kernel ends all processes in it
/// ([`crate::init`]).
///
/// # Errors
/// Those of `clone`: `EPERM` without CAP_SYS_ADMIN, `ENOSPC` beyond `user.max_*_namespaces`, `EINVAL` where the kernel
/// has no such namespace, `EAGAIN` and `ENOMEM`.
///
/// # Safety
/// The caller has one thread, so that no lock is held in the child that no thread of it releases. The C library's fork
/// handlers do not run.
pub unsafe fn fork_for_parent(namespaces: libc::c_int) -> Result<Forked, Errno> {
    // SAFETY: the requirements are the caller's.
    unsafe { fork_with(libc::CLONE_PARENT | namespaces) }
}

/// Forks a process with more flags of `clone`.
///
/// # Errors
/// As [`fork_for_parent`].
///
/// # Safety
/// As [`fork_for_parent`].
pub(crate) unsafe fn fork_with(flags: libc::c_int) -> Result<Forked, Errno> {
    let flags = flags | libc::SIGCHLD;
    // SAFETY: like fork; a stack of 0 means a copy of the caller's. The other requirements are the caller's.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
        0 => Ok(Forked::Child),
        pid => u32::try_from(pid).map(Forked::Parent).map_err(|_| last_error()),
    }
}

/// Puts this process into a user namespace in which it has all capabilities. It stays the user that it is, inside and outside.
///
/// # Errors
/// The kernel or its administrator allows no user namespaces (`EPERM`, `ENOSPC`), or the process has several threads
/// (`EINVAL`).
pub fn enter_user_namespace() -> io::Result<()> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // SAFETY: takes effect on this process only and touches no memory.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Otherwise the namespace could be used to leave a group that a file's mode refuses.
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

/// Forks a child whose id in the caller's PID namespace is `id`, with more flags of `clone`.
///
/// # Errors
/// As [`fork_for_parent`]; `EEXIST`: a process has that id; `EPERM`: the caller has neither CAP_SYS_ADMIN nor
/// CAP_CHECKPOINT_RESTORE in the namespace's user namespace; `EINVAL`, `E2BIG` or `ENOSYS` before Linux 5.5.
///
/// # Safety
/// As [`fork_for_parent`].
pub(crate) unsafe fn fork_as(id: u32, flags: libc::c_int) -> Result<Forked, Errno> {
    let ids = [libc::pid_t::try_from(id).map_err(|_| Errno::INVAL)?];
    // SAFETY: all zeros is valid: no flags, no addresses.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = u64::from(flags.cast_unsigned());
    arguments.exit_signal = libc::SIGCHLD as u64;
    arguments.set_tid = ids.as_ptr() as u64;
    arguments.set_tid_size = ids.len() as u64;
    // SAFETY: the arguments are valid, of the size that is said, and only read; a stack of 0 means a copy of the caller's.
    match unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<libc::clone_args>()) } {
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

fn last_error() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::INVAL, Errno::from_raw_os_error)
}
