//! What an API server process gives up before it meets a guest.

use std::os::fd::RawFd;

/// Only the standard descriptors and `keep` stay open; the process can gain no privileges
/// and leaves no core file with a tenant's data.
pub fn confine(keep: &[RawFd]) {
    close_others(keep);
    // SAFETY: takes effect on this process only and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `none` is a valid limit that is only read.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
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
