//! The system calls of an API server after it has met its tenant: an allow-list.
//!
//! Three answers are possible. A call of [`ALLOWED`], or of the APIs' lists, is made, in some cases only with harmless
//! arguments. A call of [`REFUSED`] or [`NEVER`] and a request of `ioctl` in no list fail with EPERM: vendors' libraries try them and go
//! on without. Any other call raises SIGSYS, which ends the process unless the tenant's code has taken that signal; the
//! call is not made in either case.

mod filter;
mod lists;
mod requests;

use std::io;
use std::mem::ManuallyDrop;

pub use filter::{Allowed, FilterError};
pub(crate) use filter::{failed, recording};
pub use lists::{ALLOWED, Call, HUGE_PAGES, NEVER, REFUSED, UnknownCall, name_of};
pub use requests::{Requests, USUAL, WrongRequests};

impl Allowed {
    /// The lists of every API server.
    pub fn usual() -> Allowed {
        Allowed { calls: ALLOWED.to_vec(), requests: USUAL.to_vec() }
    }

    /// Of both.
    pub fn join(&mut self, other: &Allowed) {
        self.calls.extend(&other.calls);
        self.calls.sort_unstable();
        self.calls.dedup();
        self.requests.extend(&other.requests);
        self.requests.sort_unstable();
        self.requests.dedup();
    }
}

/// Installs the filter for all threads of this process and all that they start, for good.
///
/// `report` is called in the signal's handler with the number of a call outside the lists, before the process ends; it may
/// only do what is safe there.
///
/// # Errors
/// The kernel has no filters, or the process has not set `no_new_privs` and is not privileged.
pub fn restrict(allowed: &Allowed, report: fn(libc::c_long)) -> Result<(), FilterError> {
    REPORT.set(report).map_err(|_| failed("the filter is installed already"))?;
    handle_violations().map_err(failed)?;
    seccompiler::apply_filter_all_threads(&filter::enforcing(allowed)?).map_err(failed)
}

/// Installs a filter for this thread and all that it starts: any call but these ends the process. The caller allocates and
/// frees no memory from here on: the C library may ask the system for more, or return some.
///
/// # Errors
/// As [`restrict`].
pub(crate) fn restrict_to(calls: &[libc::c_long]) -> Result<(), FilterError> {
    // Not freed, since that is after the filter is installed.
    let program = ManuallyDrop::new(filter::only(calls)?);
    seccompiler::apply_filter(&program).map_err(failed)
}

static REPORT: std::sync::OnceLock<fn(libc::c_long)> = std::sync::OnceLock::new();

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
        let numbers: BTreeSet<_> = ALLOWED.iter().chain(REFUSED).chain(NEVER).map(|call| call.number).collect();
        assert_eq!(numbers.len(), ALLOWED.len() + REFUSED.len() + NEVER.len());
        assert!(ALLOWED.len() <= 75, "{}", ALLOWED.len());
        assert_eq!(name_of(libc::SYS_read), Some("read"));
    }

    fn status_of(call: impl FnOnce() -> bool) -> libc::c_int {
        status_with(&Allowed::usual(), call)
    }

    /// The status of a process that installs the filter and makes one system call.
    fn status_with(allowed: &Allowed, call: impl FnOnce() -> bool) -> libc::c_int {
        // SAFETY: the child of a test with several threads makes system calls and allocates little, in memory that the C
        // library's fork handlers keep usable.
        match unsafe { libc::fork() } {
            0 => {
                let ready = restrict(allowed, |_| {}).is_ok();
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
    fn huge_pages_are_for_those_that_ask_for_them() {
        // EPERM of the filter; the kernel has other errors, if any.
        let denied = |number, arguments: [libc::c_ulong; 4]| {
            let [a, b, c, d] = arguments;
            // SAFETY: a mapping that nothing uses, or a file of memory.
            let result = unsafe { libc::syscall(number, a, b, c, d, -1, 0) };
            result == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
        };
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as libc::c_ulong;
        let huge = flags | libc::MAP_HUGETLB as libc::c_ulong;
        let map = |flags| denied(libc::SYS_mmap, [0, 2 << 20, libc::PROT_READ as libc::c_ulong, flags]);
        let file =
            |flags: libc::c_uint| denied(libc::SYS_memfd_create, [c"x".as_ptr() as libc::c_ulong, flags.into(), 0, 0]);
        assert_eq!(status_of(|| map(huge) && file(libc::MFD_HUGETLB) && !map(flags) && !file(libc::MFD_CLOEXEC)), 0);
        let mut asks = Allowed::usual();
        asks.calls.push("huge_pages".parse().unwrap());
        assert_eq!(status_with(&asks, || !map(huge) && !file(libc::MFD_HUGETLB)), 0);
        assert_eq!(status_with(&asks, || fails_with(libc::EPERM, libc::SYS_ptrace, 0)), 0);
    }

    #[test]
    fn refused_calls_fail_and_unknown_calls_end_the_process() {
        assert_eq!(status_of(|| std::fs::read("/proc/self/stat").is_ok()), 0);
        for call in NEVER.iter().chain(REFUSED).filter(|call| call.number != libc::SYS_clone3) {
            assert_eq!(status_of(|| fails_with(libc::EPERM, call.number, 0)), 0, "{}", call.name());
        }
        assert_eq!(status_of(|| fails_with(libc::EPERM, libc::SYS_clone, libc::CLONE_NEWUSER as u64)), 0);
        assert_eq!(status_of(|| fails_with(libc::EPERM, libc::SYS_prctl, libc::PR_SET_SECCOMP as u64)), 0);
        assert_eq!(status_of(|| fails_with(libc::ENOSYS, libc::SYS_clone3, 0)), 0);
        assert_eq!(status_of(|| fails_with(0, libc::SYS_quotactl, 0)), 128 + libc::SIGSYS);
        assert_eq!(status_of(|| std::thread::spawn(|| 7).join().is_ok_and(|n| n == 7)), 0);
    }
}
