//! Where and how a lane's thread sleeps while others may run its context.

use std::arch::asm;
use std::ptr::NonNull;
use std::time::Duration;

const STACK_BYTES: usize = 64 << 10;
const GUARD_BYTES: usize = 4096;

/// The stack on which a lane's thread sleeps, below it a page that cannot be touched.
pub(crate) struct ParkStack(NonNull<u8>);

impl ParkStack {
    pub fn new() -> Option<ParkStack> {
        // SAFETY: a mapping at an address that the kernel chooses, and the protection of its first page, change no memory in use.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK;
            let at = libc::mmap(std::ptr::null_mut(), STACK_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            if at == libc::MAP_FAILED {
                return None;
            }
            let stack = NonNull::new(at.cast()).map(ParkStack);
            (libc::mprotect(at, GUARD_BYTES, libc::PROT_NONE) == 0).then_some(stack).flatten()
        }
    }

    /// Its end, a multiple of 16.
    pub fn top(&self) -> *mut u64 {
        // SAFETY: one past the mapping.
        unsafe { self.0.as_ptr().add(STACK_BYTES).cast() }
    }
}

impl Drop for ParkStack {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's; the thread that slept there runs on its own stack, or has ended.
        unsafe { libc::munmap(self.0.as_ptr().cast(), STACK_BYTES) };
    }
}

/// FUTEX_WAIT on a word of this process. Ends early for many reasons.
pub(crate) fn wait(word: *const u32, expected: u32, at_most: Option<Duration>) {
    let timeout = at_most.map(|t| libc::timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    futex(word, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, expected, timeout);
}

pub(crate) fn wake(word: *const u32) {
    futex(word, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1, std::ptr::null());
}

/// Without the C library, whose function writes `errno`: the thread-locals may be in use by another thread meanwhile.
fn futex(word: *const u32, operation: i32, value: u32, timeout: *const libc::timespec) {
    // SAFETY: the kernel reads the word, which lies in a berth, and the time, which lives in the caller; it writes nothing. A
    // system call loses RAX, RCX and R11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") libc::SYS_futex => _,
            in("rdi") word, in("rsi") i64::from(operation), in("rdx") u64::from(value), in("r10") timeout,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
}
