//! Privileges that an API server process gives up before it meets a guest.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

use aviary_sandbox::privileges;
use rustix::io::Errno;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

use aviary_control::ServerUser;
use aviary_control::cpu;

/// Only the standard descriptors and `keep` stay open; the process can gain no privileges
/// and leaves no core file with a tenant's data.
pub fn confine(keep: &[RawFd]) {
    close_others(keep);
    // SAFETY: takes effect on this process only and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `none` is a valid limit that is only read.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
    cpu::allow_nice_zero();
}

/// Descriptors that an API server may have at most once it runs a guest's work: libraries need some hundred, memory that a
/// guest shares with others one each.
const MOST_DESCRIPTORS: u64 = 8192;
/// And at least, where the node itself has few.
const LEAST_DESCRIPTORS: u64 = 1024;

/// As many descriptors as the administrator allows, until the guest is there: see [`bound_descriptors`].
pub fn allow_descriptors() {
    change_descriptors(|most| most);
}

/// From here on this process has its part of the descriptors, for good. Those in flight in sockets count, too, for all processes
/// of a user together, and a sender is refused by its own limit: where API servers are the node's user, none of them can keep so
/// many in flight that the node, whose limit is higher, or another API server before its guest's first call can send none.
pub fn bound_descriptors() {
    change_descriptors(part_of);
}

/// A quarter: the node's own are its alone.
fn part_of(most: u64) -> u64 {
    (most / 4).clamp(LEAST_DESCRIPTORS, MOST_DESCRIPTORS).min(most)
}

/// Both limits, computed from the higher one.
fn change_descriptors(wanted: impl FnOnce(u64) -> u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is written by the first call and read by the second.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            let both = wanted(limit.rlim_max);
            limit = libc::rlimit { rlim_cur: both, rlim_max: both };
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

fn close_others(keep: &[RawFd]) {
    let mut keep: Vec<u32> = keep.iter().filter_map(|fd| u32::try_from(*fd).ok()).filter(|fd| *fd > 2).collect();
    keep.sort_unstable();
    let mut from = 3;
    for fd in keep {
        if fd > from {
            close_range(from, fd - 1);
        }
        from = fd + 1;
    }
    close_range(from, u32::MAX);
}

fn close_range(first: u32, last: u32) {
    // SAFETY: called before any object of this process owns a descriptor other than the kept ones.
    // A kernel before 5.9 leaves them open, which the warm start already avoids by close-on-exec.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
}

/// The guest's standard output and error become this process's, so that what the vendor library
/// prints (`printf` in kernels) reaches the user, line by line.
pub fn adopt_output(stdout: Option<RawFd>, stderr: Option<RawFd>) {
    for (from, to) in [(stdout, 1), (stderr, 2)] {
        if let Some(from) = from {
            // SAFETY: both are descriptors; replacing 1 and 2 is the purpose, and nothing owns them.
            unsafe { libc::dup2(from, to) };
        }
    }
    line_buffered();
}

/// A copy of the zygote has the zygote's standard error twice, which is the node's log: from here on both are its own end
/// of a pipe that the node reads.
pub fn adopt_log(log: &OwnedFd, journal: RawFd) -> Result<(), Errno> {
    let done = |result: libc::c_int| if result >= 0 { Ok(()) } else { Err(last_error()) };
    // SAFETY: all are open descriptors of this process, which has one thread; replacing 2 and `journal` is the purpose,
    // and what refers to them by number writes into the pipe from now on.
    done(unsafe { libc::dup3(log.as_raw_fd(), journal, libc::O_CLOEXEC) })?;
    // SAFETY: the same.
    done(unsafe { libc::dup2(log.as_raw_fd(), 2) })
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn line_buffered() {
    unsafe extern "C" {
        static mut stdout: *mut libc::FILE;
    }
    // SAFETY: the C library's own stream, valid from start to end of the process. setvbuf with a NULL
    // buffer may be called at any time in glibc; it happens before any guest code could print.
    unsafe { libc::setvbuf(stdout, std::ptr::null_mut(), libc::_IOLBF, 4096) };
}

/// Writes out what vendor code left in the C library's buffers.
pub fn flush_output() {
    // SAFETY: NULL means all streams.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}

/// Where vendors' libraries look for a place to keep what they compile.
const CACHES: &[&str] = &["HOME", "XDG_CACHE_HOME", "POCL_CACHE_DIR", "CUDA_CACHE_PATH"];

/// Vendors' libraries find `directory` as their home, which is where this process is from here on. Called before a thread of
/// ours is there.
pub fn live_in(directory: &Path) -> io::Result<()> {
    for name in CACHES {
        // SAFETY: no thread of ours reads the environment now; those of a vendor's library that was loaded a moment ago
        // have not been given anything to do.
        unsafe { std::env::set_var(name, directory) };
    }
    std::env::set_current_dir(directory)
}

/// All of this process is this user from here on and cannot go back. Called before a thread of ours is there.
pub fn become_user(user: &ServerUser) -> io::Result<()> {
    if rustix::process::geteuid().as_raw() == user.id {
        return Ok(());
    }
    privileges::become_user(user.id, &user.groups)?;
    // A process that changed its user could not open its own files under /proc, which drivers do. Other processes of this
    // user belong to the same tenant.
    // SAFETY: takes effect on this process only and touches no memory.
    if unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// System calls that no vendor library needs and that would help somebody who took one over.
const DENIED: &[libc::c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_open_by_handle_at,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
];

/// the system call filter cannot be set up: {0}
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub struct FilterError(String);

/// Denies what [`DENIED`] lists and every socket but unix and netlink ones (drivers talk to the kernel
/// over the latter), in this thread and all that it starts. A denied call fails with EPERM: libraries
/// that try go on without.
pub fn filter_system_calls() -> Result<(), FilterError> {
    let failed = |e: &dyn std::fmt::Display| FilterError(e.to_string());
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = DENIED.iter().map(|call| (*call, Vec::new())).collect();
    let other_than = |family: libc::c_int| {
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, family as u64).map_err(|e| failed(&e))
    };
    let network =
        SeccompRule::new(vec![other_than(libc::AF_UNIX)?, other_than(libc::AF_NETLINK)?]).map_err(|e| failed(&e))?;
    rules.insert(libc::SYS_socket, vec![network]);
    let arch: TargetArch = std::env::consts::ARCH.try_into().map_err(|e| failed(&e))?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32), arch);
    let program: BpfProgram = filter.and_then(BpfProgram::try_from).map_err(|e| failed(&e))?;
    seccompiler::apply_filter(&program).map_err(|e| failed(&e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_of_descriptors_is_below_the_nodes() {
        for (most, part) in [(64, 64), (1024, 1024), (4096, 1024), (20_240, 5060), (1 << 20, 8192)] {
            assert_eq!(part_of(most), part, "{most}");
        }
    }

    #[test]
    fn network_sockets_are_denied_and_unix_sockets_are_not() {
        // The filter holds for this thread, which ends with the test.
        let check = || {
            // SAFETY: affects this thread only, and only what it may do.
            unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
            filter_system_calls().expect("a filter");
            assert!(std::os::unix::net::UnixDatagram::unbound().is_ok());
            let denied = std::net::UdpSocket::bind("127.0.0.1:0").expect_err("no network");
            assert_eq!(denied.raw_os_error(), Some(libc::EPERM));
            // SAFETY: a flag of 0 would do nothing even if it were allowed.
            assert_eq!(unsafe { libc::unshare(0) }, -1);
        };
        std::thread::spawn(check).join().expect("as expected");
    }
}
