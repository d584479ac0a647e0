//! The system calls of an API server after it has met its tenant: an allow-list.
//!
//! Three answers are possible. A call of [`ALLOWED`] is made, in some cases only with harmless arguments. A call of
//! [`REFUSED`] fails with EPERM: vendors' libraries try it and go on without. Any other call raises SIGSYS, which ends the
//! process unless the tenant's code has taken that signal; the call is not made in either case.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// A system call by number and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

macro_rules! calls {
    ($($(#[$condition:meta])* $constant:ident),* $(,)?) => {
        &[$($(#[$condition])* Call { number: libc::$constant, name: stringify!($constant) }),*]
    };
}

/// Calls that the C library, the runtime and compilers of kernels make.
pub const ALLOWED: &[Call] = calls![
    // Files: names are those of the process's own root.
    SYS_read,
    SYS_write,
    SYS_readv,
    SYS_writev,
    SYS_pread64,
    SYS_pwrite64,
    SYS_lseek,
    SYS_close,
    SYS_openat,
    SYS_fstat,
    SYS_newfstatat,
    SYS_statx,
    SYS_statfs,
    SYS_fstatfs,
    SYS_faccessat2,
    SYS_getdents64,
    SYS_getcwd,
    SYS_fcntl,
    SYS_ioctl,
    SYS_dup,
    SYS_pipe2,
    SYS_umask,
    SYS_fchmod,
    SYS_ftruncate,
    SYS_fsync,
    SYS_fdatasync,
    SYS_flock,
    SYS_utimensat,
    #[cfg(target_arch = "x86_64")]
    SYS_open,
    #[cfg(target_arch = "x86_64")]
    SYS_access,
    #[cfg(target_arch = "x86_64")]
    SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    SYS_dup2,
    #[cfg(target_arch = "x86_64")]
    SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    SYS_rename,
    #[cfg(target_arch = "x86_64")]
    SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    SYS_poll,
    #[cfg(target_arch = "x86_64")]
    SYS_arch_prctl,
    #[cfg(not(target_arch = "x86_64"))]
    SYS_faccessat,
    #[cfg(not(target_arch = "x86_64"))]
    SYS_readlinkat,
    #[cfg(not(target_arch = "x86_64"))]
    SYS_dup3,
    #[cfg(not(target_arch = "x86_64"))]
    SYS_mkdirat,
    #[cfg(not(target_arch = "x86_64"))]
    SYS_unlinkat,
    #[cfg(not(target_arch = "x86_64"))]
    SYS_renameat2,
    #[cfg(not(target_arch = "x86_64"))]
    SYS_fchmodat,
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
    SYS_execve,
    SYS_exit,
    SYS_exit_group,
    SYS_wait4,
    SYS_futex,
    SYS_set_robust_list,
    SYS_set_tid_address,
    SYS_rseq,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_sched_setaffinity,
    SYS_sched_getscheduler,
    SYS_sched_setscheduler,
    SYS_sched_getattr,
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
    SYS_getrusage,
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
    SYS_getpid,
    SYS_gettid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_uname,
    SYS_sysinfo,
    SYS_getrandom,
];

/// Calls that are tried by libraries that work without them, and by attackers.
pub const REFUSED: &[Call] = calls![
    SYS_socket,
    SYS_socketpair,
    SYS_connect,
    SYS_bind,
    SYS_listen,
    SYS_accept4,
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
    SYS_pidfd_open,
    SYS_mbind,
    SYS_set_mempolicy,
    SYS_get_mempolicy,
    SYS_migrate_pages,
    SYS_move_pages,
    SYS_kcmp,
    SYS_name_to_handle_at,
    SYS_fanotify_init,
    SYS_inotify_init1,
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
    SYS_linkat,
    SYS_symlinkat,
    SYS_fchownat,
    SYS_setxattr,
    SYS_kill,
    SYS_tkill,
    SYS_setsid,
    SYS_shmget,
    SYS_shmat,
    SYS_semget,
    SYS_msgget,
    SYS_nanosleep,
    SYS_execveat,
];

/// the system call filter cannot be set up: {0}
#[derive(Debug, thiserror::Error)]
#[error("the system call filter cannot be set up: {0}")]
pub struct FilterError(String);

fn failed(error: impl std::fmt::Display) -> FilterError {
    FilterError(error.to_string())
}

/// Namespace flags of `clone`: a forked process gets none.
const NEW_NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;

/// Operations of `prctl`: names of threads and of memory, and what the C library asks.
const PRCTL: &[libc::c_int] = &[
    libc::PR_SET_NAME,
    libc::PR_GET_NAME,
    PR_SET_VMA,
    libc::PR_GET_DUMPABLE,
    libc::PR_CAPBSET_READ,
    libc::PR_SET_PDEATHSIG,
];
const PR_SET_VMA: libc::c_int = 0x5356_4d41;

/// Requests of `ioctl` that reach into a terminal.
const TERMINAL_INPUT: &[u64] = &[libc::TIOCSTI, libc::TIOCLINUX, libc::TIOCCONS];

fn condition(index: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompCondition, FilterError> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value).map_err(failed)
}

fn rule(conditions: Vec<SeccompCondition>) -> Result<SeccompRule, FilterError> {
    SeccompRule::new(conditions).map_err(failed)
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The program that raises SIGSYS for every call in neither list.
fn allow_list() -> Result<Rules, FilterError> {
    let known = ALLOWED.iter().chain(REFUSED).map(|call| (call.number, Vec::new()));
    Ok(known.chain([(libc::SYS_clone3, Vec::new())]).collect())
}

/// Calls that fail with EPERM even if the allow-list has them.
fn refusals() -> Result<Rules, FilterError> {
    let mut rules: Rules = REFUSED.iter().map(|call| (call.number, Vec::new())).collect();
    let mut namespaces = Vec::new();
    for bit in (0..32).map(|bit| 1u64 << bit).filter(|bit| NEW_NAMESPACES & bit != 0) {
        namespaces.push(rule(vec![condition(0, SeccompCmpOp::MaskedEq(bit), bit)?])?);
    }
    rules.insert(libc::SYS_clone, namespaces);
    let other = PRCTL.iter().map(|operation| condition(0, SeccompCmpOp::Ne, *operation as u64));
    rules.insert(libc::SYS_prctl, vec![rule(other.collect::<Result<_, _>>()?)?]);
    let terminal = TERMINAL_INPUT.iter().map(|request| rule(vec![condition(1, SeccompCmpOp::Eq, *request)?]));
    rules.insert(libc::SYS_ioctl, terminal.collect::<Result<_, _>>()?);
    Ok(rules)
}

fn apply(rules: Rules, otherwise: SeccompAction, then: SeccompAction) -> Result<(), FilterError> {
    let arch: TargetArch = std::env::consts::ARCH.try_into().map_err(failed)?;
    let filter = SeccompFilter::new(rules, otherwise, then, arch).map_err(failed)?;
    let program: BpfProgram = filter.try_into().map_err(failed)?;
    seccompiler::apply_filter(&program).map_err(failed)
}

/// Installs the filter for this thread and all that it starts, for good.
///
/// `report` is called in the signal's handler with the number of a call outside the lists, before the process ends; it may
/// only do what is safe there.
///
/// # Errors
/// The kernel has no filters, or the process has not set `no_new_privs` and is not privileged.
pub fn restrict(report: fn(libc::c_long)) -> Result<(), FilterError> {
    REPORT.set(report).map_err(|_| failed("it is installed already"))?;
    handle_violations().map_err(failed)?;
    // The refusals come last: they refuse to install filters, too.
    apply(allow_list()?, SeccompAction::Trap, SeccompAction::Allow)?;
    // `clone3` passes its flags by address, out of a filter's sight. The C library falls back to `clone`.
    let unknown = Rules::from([(libc::SYS_clone3, Vec::new())]);
    apply(unknown, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32))?;
    apply(refusals()?, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32))
}

static REPORT: std::sync::OnceLock<fn(libc::c_long)> = std::sync::OnceLock::new();

/// The name of a system call that the lists know, or `None`.
pub fn name_of(number: libc::c_long) -> Option<&'static str> {
    ALLOWED.iter().chain(REFUSED).find(|call| call.number == number).map(Call::name)
}

/// The part of `siginfo_t` that SIGSYS fills in.
#[repr(C)]
struct ViolationInfo {
    signal: libc::c_int,
    errno: libc::c_int,
    code: libc::c_int,
    _padding: libc::c_int,
    call_address: usize,
    number: libc::c_int,
    arch: libc::c_uint,
}

fn handle_violations() -> io::Result<()> {
    extern "C" fn end(_signal: libc::c_int, info: *const ViolationInfo, _context: *const libc::c_void) {
        // SAFETY: the kernel passes a `siginfo_t`, whose layout for SIGSYS is this one; tenant code that raises the signal
        // itself passes one, too, and can make this process report a wrong number only.
        let number = unsafe { (*info).number };
        if let Some(report) = REPORT.get() {
            report(libc::c_long::from(number));
        }
        // SAFETY: _exit is async-signal-safe. The status is that of a shell for SIGSYS.
        unsafe { libc::_exit(128 + libc::SIGSYS) };
    }
    let handler: extern "C" fn(libc::c_int, *const ViolationInfo, *const libc::c_void) = end;
    // SAFETY: all zeros is a valid `sigaction`: no handler, no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
    // SAFETY: a valid action that the kernel copies; the handler has the type that SA_SIGINFO asks for.
    match unsafe { libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// DESIGN: what a process that computes on the CPU may call stays a short list.
    #[test]
    fn list_is_short_and_says_nothing_twice() {
        let numbers: BTreeSet<_> = ALLOWED.iter().chain(REFUSED).map(|call| call.number).collect();
        assert_eq!(numbers.len(), ALLOWED.len() + REFUSED.len());
        assert!(ALLOWED.len() <= 90, "{}", ALLOWED.len());
        assert_eq!(name_of(libc::SYS_read), Some("read"));
    }

    /// The status of a process that installs the filter and makes one system call.
    fn status_of(call: impl FnOnce() -> bool) -> libc::c_int {
        // SAFETY: the child of a test with several threads makes system calls and allocates little, in memory that the C
        // library's fork handlers keep usable.
        match unsafe { libc::fork() } {
            0 => {
                let ready = restrict(|_| {}).is_ok();
                let status = if ready && call() { 0 } else { 1 };
                // SAFETY: ends the child.
                unsafe { libc::_exit(status) }
            }
            child => {
                let mut status = 0;
                // SAFETY: a child of this process and a place for its status.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                libc::WEXITSTATUS(status)
            }
        }
    }

    fn fails_with(errno: i32, number: libc::c_long, argument: libc::c_ulong) -> bool {
        // SAFETY: calls that the filter is to refuse before the kernel looks at their arguments.
        let result = unsafe { libc::syscall(number, argument, 0, 0, 0, 0, 0) };
        result == -1 && io::Error::last_os_error().raw_os_error() == Some(errno)
    }

    #[test]
    fn refused_calls_fail_and_unknown_calls_end_the_process() {
        assert_eq!(status_of(|| std::fs::read("/proc/self/stat").is_ok()), 0);
        for call in REFUSED {
            assert_eq!(status_of(|| fails_with(libc::EPERM, call.number, 0)), 0, "{}", call.name());
        }
        assert_eq!(status_of(|| fails_with(libc::EPERM, libc::SYS_clone, libc::CLONE_NEWUSER as u64)), 0);
        assert_eq!(status_of(|| fails_with(libc::EPERM, libc::SYS_prctl, libc::PR_SET_SECCOMP as u64)), 0);
        assert_eq!(status_of(|| fails_with(libc::ENOSYS, libc::SYS_clone3, 0)), 0);
        assert_eq!(status_of(|| fails_with(0, libc::SYS_quotactl, 0)), 128 + libc::SIGSYS);
        assert_eq!(status_of(|| std::thread::spawn(|| 7).join().is_ok_and(|n| n == 7)), 0);
    }
}
