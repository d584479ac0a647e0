//! Which system calls there are, and the lists that hold for every API server.

use std::str::FromStr;

use syscalls::Sysno;

/// A system call by number and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    pub number: libc::c_long,
    name: &'static str,
}

impl Call {
    /// As `strace` prints it.
    pub fn name(&self) -> &'static str {
        self.name.strip_prefix("SYS_").unwrap_or(self.name)
    }
}

/// Stands for the calls that take huge pages, which are scarce and belong to all: no call by itself.
pub const HUGE_PAGES: Call = Call { number: -1, name: "huge_pages" };

impl Call {
    /// The names of all system calls of this architecture.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Sysno::iter().map(|call| call.name())
    }

    /// True if a call of this name exists on an architecture that sandboxes are made for.
    pub fn is_known(name: &str) -> bool {
        name == HUGE_PAGES.name
            || syscalls::x86_64::Sysno::from_str(name).is_ok()
            || syscalls::aarch64::Sysno::from_str(name).is_ok()
    }

    /// True if it leads out of a sandbox: no API's list can have it.
    pub fn is_never_allowed(&self) -> bool {
        NEVER.iter().any(|call| call.number == self.number)
    }
}

/// The call that does what one of this name does, on architectures that never had the older one.
fn successor(name: &str) -> Option<&'static str> {
    match name {
        "mkdir" => Some("mkdirat"),
        "unlink" | "rmdir" => Some("unlinkat"),
        "rename" | "renameat" => Some("renameat2"),
        "chmod" => Some("fchmodat"),
        "link" => Some("linkat"),
        "symlink" => Some("symlinkat"),
        "readlink" => Some("readlinkat"),
        "pipe" => Some("pipe2"),
        "dup2" => Some("dup3"),
        "poll" => Some("ppoll"),
        _ => None,
    }
}

/// `{0}` is not a system call of this architecture
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub struct UnknownCall(pub String);

impl FromStr for Call {
    type Err = UnknownCall;

    fn from_str(name: &str) -> Result<Self, UnknownCall> {
        if name == HUGE_PAGES.name {
            return Ok(HUGE_PAGES);
        }
        let found = Sysno::from_str(name).or_else(|error| successor(name).map_or(Err(error), Sysno::from_str));
        let found = found.map_err(|_| UnknownCall(name.to_owned()))?;
        Ok(Call { number: libc::c_long::from(found.id()), name: found.name() })
    }
}

/// The name of a system call of this architecture.
pub fn name_of(number: libc::c_long) -> Option<&'static str> {
    usize::try_from(number).ok().and_then(Sysno::new).map(|found| found.name())
}

macro_rules! calls {
    ($($(#[$condition:meta])* $constant:ident),* $(,)?) => {
        &[$($(#[$condition])* Call { number: libc::$constant, name: stringify!($constant) }),*]
    };
}

/// Calls that the C library and the runtime make in every API server. An API's specification names what its vendor's library
/// and compilers need beyond these.
pub const ALLOWED: &[Call] = calls![
    // Files: names are those of the process's own root.
    SYS_read,
    SYS_write,
    SYS_writev,
    SYS_pread64,
    SYS_lseek,
    SYS_close,
    SYS_openat,
    SYS_fstat,
    SYS_newfstatat,
    SYS_statx,
    SYS_fstatfs,
    SYS_getdents64,
    SYS_fcntl,
    SYS_ioctl,
    SYS_dup,
    SYS_ftruncate,
    #[cfg(target_arch = "x86_64")]
    SYS_open,
    #[cfg(target_arch = "x86_64")]
    SYS_stat,
    #[cfg(target_arch = "x86_64")]
    SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    SYS_access,
    #[cfg(target_arch = "x86_64")]
    SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    SYS_dup2,
    #[cfg(target_arch = "x86_64")]
    SYS_poll,
    #[cfg(not(target_arch = "x86_64"))]
    SYS_faccessat,
    #[cfg(not(target_arch = "x86_64"))]
    SYS_readlinkat,
    #[cfg(not(target_arch = "x86_64"))]
    SYS_dup3,
    // Memory.
    SYS_mmap,
    SYS_munmap,
    SYS_mprotect,
    SYS_mremap,
    SYS_madvise,
    SYS_brk,
    SYS_memfd_create,
    // Threads, processes of its own PID namespace, signals.
    SYS_clone,
    SYS_exit,
    SYS_exit_group,
    SYS_futex,
    SYS_set_robust_list,
    SYS_rseq,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_sched_setaffinity,
    SYS_sched_setscheduler,
    SYS_sched_setattr,
    SYS_setpriority,
    SYS_getpriority,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sigaltstack,
    SYS_tgkill,
    SYS_prctl,
    SYS_prlimit64,
    SYS_restart_syscall,
    // Descriptors that came over a socket, waiting, events.
    SYS_recvmsg,
    SYS_recvfrom,
    SYS_sendmsg,
    SYS_sendto,
    SYS_shutdown,
    SYS_ppoll,
    SYS_eventfd2,
    // Time and identity.
    SYS_clock_nanosleep,
    SYS_clock_gettime,
    SYS_gettimeofday,
    SYS_getpid,
    SYS_gettid,
    SYS_getuid,
    SYS_geteuid,
    SYS_uname,
    SYS_sysinfo,
    SYS_getrandom,
];

/// Calls that are tried by libraries that work without them, and by attackers. An API's list can allow them.
pub const REFUSED: &[Call] = calls![
    SYS_socket,
    SYS_socketpair,
    SYS_connect,
    SYS_bind,
    SYS_listen,
    SYS_accept4,
    SYS_mbind,
    SYS_set_mempolicy,
    SYS_get_mempolicy,
    SYS_migrate_pages,
    SYS_move_pages,
    SYS_inotify_init1,
    SYS_linkat,
    SYS_symlinkat,
    SYS_fchownat,
    SYS_setxattr,
    SYS_kill,
    SYS_tkill,
    SYS_setsid,
    SYS_nanosleep,
    SYS_execve,
    SYS_pidfd_open,
    SYS_setsockopt,
    SYS_getsockopt,
    SYS_getsockname,
    SYS_getpeername,
    SYS_accept,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_timerfd_create,
    SYS_timerfd_settime,
    SYS_timer_create,
    SYS_renameat,
    SYS_renameat2,
    SYS_mkdirat,
    SYS_unlinkat,
    SYS_flock,
    SYS_fsync,
    SYS_fdatasync,
    SYS_sync_file_range,
    SYS_fallocate,
    SYS_fchmod,
    SYS_fchmodat,
    SYS_fchown,
    SYS_utimensat,
    SYS_pipe2,
    SYS_mincore,
    SYS_mlock,
    SYS_munlock,
    SYS_mlock2,
    SYS_msync,
    SYS_membarrier,
    SYS_sched_get_priority_max,
    SYS_sched_get_priority_min,
    SYS_sched_getparam,
    SYS_sched_setparam,
    SYS_sched_getscheduler,
    SYS_sched_getattr,
    SYS_getppid,
    SYS_getpgid,
    SYS_getsid,
    SYS_setpgid,
    SYS_getresuid,
    SYS_getresgid,
    SYS_getgroups,
    SYS_capget,
    SYS_getrusage,
    SYS_times,
    SYS_clock_getres,
    SYS_getgid,
    SYS_getegid,
    SYS_getcpu,
    SYS_getcwd,
    SYS_chdir,
    SYS_fchdir,
    SYS_statfs,
    SYS_umask,
    SYS_readv,
    SYS_preadv,
    SYS_pwrite64,
    SYS_pwritev,
    SYS_faccessat2,
    SYS_wait4,
    SYS_waitid,
    SYS_copy_file_range,
    SYS_sendfile,
    SYS_splice,
    #[cfg(target_arch = "x86_64")]
    SYS_symlink,
    #[cfg(target_arch = "x86_64")]
    SYS_link,
    #[cfg(target_arch = "x86_64")]
    SYS_rename,
    #[cfg(target_arch = "x86_64")]
    SYS_rmdir,
    #[cfg(target_arch = "x86_64")]
    SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    SYS_getdents,
    #[cfg(target_arch = "x86_64")]
    SYS_epoll_create,
    #[cfg(target_arch = "x86_64")]
    SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    SYS_inotify_init,
    #[cfg(target_arch = "x86_64")]
    SYS_eventfd,
    #[cfg(target_arch = "x86_64")]
    SYS_signalfd,
    #[cfg(target_arch = "x86_64")]
    SYS_pipe,
    #[cfg(target_arch = "x86_64")]
    SYS_creat,
    #[cfg(target_arch = "x86_64")]
    SYS_mknod,
    #[cfg(target_arch = "x86_64")]
    SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    SYS_chown,
    #[cfg(target_arch = "x86_64")]
    SYS_getpgrp,
    #[cfg(target_arch = "x86_64")]
    SYS_time,
    #[cfg(target_arch = "x86_64")]
    SYS_getrlimit,
];

/// Calls that lead out of a sandbox, or into parts of the kernel that no library needs.
pub const NEVER: &[Call] = calls![
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_setns,
    SYS_unshare,
    SYS_open_by_handle_at,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_io_uring_setup,
    SYS_add_key,
    SYS_request_key,
    SYS_keyctl,
    SYS_fsopen,
    SYS_fsmount,
    SYS_fsconfig,
    SYS_fspick,
    SYS_move_mount,
    SYS_open_tree,
    SYS_mount_setattr,
    SYS_pidfd_getfd,
    SYS_kcmp,
    SYS_name_to_handle_at,
    SYS_fanotify_init,
    SYS_personality,
    SYS_seccomp,
    SYS_setuid,
    SYS_setgid,
    SYS_setreuid,
    SYS_setregid,
    SYS_setresuid,
    SYS_setresgid,
    SYS_setgroups,
    SYS_capset,
    SYS_mknodat,
    SYS_shmget,
    SYS_shmat,
    SYS_semget,
    SYS_msgget,
    SYS_execveat,
    SYS_clone3,
];
