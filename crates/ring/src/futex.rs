//! Sleeping on a word of shared memory.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps until the word is woken, no longer holds `expected`, or `timeout` is over. May return
/// early; callers check their condition in a loop.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
    let timespec = timeout
        .map(|t| libc::timespec { tv_sec: t.as_secs() as libc::time_t, tv_nsec: t.subsec_nanos() as libc::c_long });
    let pointer = timespec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word is live and 4-byte aligned because it is a reference to an atomic; the kernel
    // only reads it. The timeout is NULL or points to `timespec`, which outlives the call. FUTEX_WAIT
    // without the private flag also matches a waker in another process that maps the same page. A peer
    // that writes the word meanwhile only makes the call return early.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, pointer);
    }
}

/// Wakes all threads that sleep on the word.
pub fn wake(word: &AtomicU32) {
    // SAFETY: the word is live and aligned because it is a reference to an atomic; FUTEX_WAKE does
    // not access its content.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
    }
}
