//! Exceptions that a callback of the application throws, and the end of its thread (`pthread_exit`, cancellation) inside
//! one. Natively they pass the vendor's library; here they wait until the call that runs the callback has its answer, and
//! go on behind its stub.
//!
//! Rust cannot catch what is not its own panic: it ends the process. The frame in which a callback is called is therefore
//! written in assembly, with a personality that stops everything but panics of Rust.

use std::ffi::{c_int, c_void};

/// The header of an exception of any language. Its owner is the runtime that threw it; here it is only passed on.
#[repr(C)]
struct Exception {
    class: u64,
    cleanup: usize,
    /// Of a forced unwinding (the end of a thread): the function that decides where it ends.
    private: [usize; 2],
}

/// An exception that is on its way out of the application's callback.
pub(crate) struct Foreign(*mut Exception);

// SAFETY: it travels as the payload of a panic, which never leaves the thread that threw it.
unsafe impl Send for Foreign {}

/// The class of Rust's own panics; its bytes in memory have been in both orders.
const RUST: [u64; 2] = [u64::from_ne_bytes(*b"MOZ\0RUST"), u64::from_be_bytes(*b"MOZ\0RUST")];

const SEARCH_PHASE: c_int = 1;
const HANDLER_FOUND: c_int = 6;
const INSTALL_CONTEXT: c_int = 7;
const CONTINUE_UNWIND: c_int = 8;

unsafe extern "C" {
    fn _Unwind_SetGR(context: *mut c_void, register: c_int, value: usize);
    fn _Unwind_SetIP(context: *mut c_void, address: usize);
    /// Not a function: the place in the frame where a stopped exception arrives.
    fn aviary_guest_stopped();
}

unsafe extern "C-unwind" {
    fn _Unwind_Resume_or_Rethrow(exception: *mut Exception) -> c_int;
    fn aviary_guest_stopping(run: unsafe extern "C-unwind" fn(*mut c_void), data: *mut c_void) -> *mut Exception;
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text.aviary_guest_stopping,\"ax\",@progbits",
    ".globl aviary_guest_stopping",
    ".hidden aviary_guest_stopping",
    ".globl aviary_guest_stopped",
    ".hidden aviary_guest_stopped",
    ".type aviary_guest_stopping,@function",
    "aviary_guest_stopping:",
    ".cfi_startproc",
    ".cfi_personality 0x1b, {personality}",
    "sub rsp, 8",
    ".cfi_def_cfa_offset 16",
    "mov rax, rdi",
    "mov rdi, rsi",
    "call rax",
    "xor eax, eax",
    "aviary_guest_stopped:",
    "add rsp, 8",
    ".cfi_def_cfa_offset 8",
    "ret",
    ".cfi_endproc",
    ".size aviary_guest_stopping, . - aviary_guest_stopping",
    ".popsection",
    personality = sym personality,
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".pushsection .text.aviary_guest_stopping,\"ax\",@progbits",
    ".globl aviary_guest_stopping",
    ".hidden aviary_guest_stopping",
    ".globl aviary_guest_stopped",
    ".hidden aviary_guest_stopped",
    ".type aviary_guest_stopping,@function",
    "aviary_guest_stopping:",
    ".cfi_startproc",
    ".cfi_personality 0x1b, {personality}",
    "stp x29, x30, [sp, -16]!",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset x29, -16",
    ".cfi_offset x30, -8",
    "mov x2, x0",
    "mov x0, x1",
    "blr x2",
    "mov x0, 0",
    "aviary_guest_stopped:",
    "ldp x29, x30, [sp], 16",
    ".cfi_def_cfa_offset 0",
    "ret",
    ".cfi_endproc",
    ".size aviary_guest_stopping, . - aviary_guest_stopping",
    ".popsection",
    personality = sym personality,
);

/// Asked by the unwinder about the frame of `aviary_guest_stopping`.
unsafe extern "C" fn personality(
    _version: c_int,
    actions: c_int,
    class: u64,
    exception: *mut Exception,
    context: *mut c_void,
) -> c_int {
    if RUST.contains(&class) {
        return CONTINUE_UNWIND;
    }
    if actions & SEARCH_PHASE != 0 {
        return HANDLER_FOUND;
    }
    // SAFETY: the unwinder's own context for the frame at hand; the result register of the frame's function takes the
    // exception, and the frame goes on behind its call, where its stack is as after a return.
    unsafe {
        _Unwind_SetGR(context, 0, exception as usize);
        _Unwind_SetIP(context, aviary_guest_stopped as *const () as usize);
    }
    INSTALL_CONTEXT
}

/// Runs `f`; an exception that is no panic of Rust, and the end of the thread, is stopped and returned.
pub(crate) fn stopping<F: FnOnce()>(f: F) -> Option<Foreign> {
    unsafe extern "C-unwind" fn run<F: FnOnce()>(data: *mut c_void) {
        // SAFETY: `data` is the `Option` below, which outlives the call and has no other user meanwhile.
        if let Some(f) = unsafe { (*data.cast::<Option<F>>()).take() } {
            f();
        }
    }
    let mut f = Some(f);
    // SAFETY: `run` gets what it expects. What `f` unwinds with is either a panic, which passes the frame, or stopped in
    // it, and then no destructor of this frame has been skipped: there are none between.
    let exception = unsafe { aviary_guest_stopping(run::<F>, (&raw mut f).cast()) };
    (!exception.is_null()).then_some(Foreign(exception))
}

impl Foreign {
    /// Goes on with the exception. Does not return; where nothing catches it the process ends, as it does natively.
    pub fn resume(self) -> ! {
        // SAFETY: the exception was stopped before it was caught or finished, and is passed on once. No frame of Rust
        // between here and the application has anything left to do but to return.
        unsafe { _Unwind_Resume_or_Rethrow(self.0) };
        crate::process::log::line("an exception left a callback, and nothing catches it");
        std::process::abort()
    }

    /// True for the end of a thread, false for an exception.
    pub fn ends_thread(&self) -> bool {
        // SAFETY: an exception that has been stopped is not freed before it goes on.
        unsafe { (*self.0).private[0] != 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    struct Thrown {
        header: Exception,
        value: u64,
    }

    unsafe extern "C-unwind" {
        fn _Unwind_RaiseException(exception: *mut Exception) -> c_int;
        fn pthread_exit(value: *mut c_void) -> !;
    }

    /// Throws as another language does.
    fn throw(value: u64) {
        let thrown = Box::new(Thrown { header: Exception { class: 7, cleanup: 0, private: [0; 2] }, value });
        // SAFETY: a complete header, which lives on.
        unsafe { _Unwind_RaiseException(Box::into_raw(thrown).cast()) };
    }

    #[test]
    fn exceptions_of_other_languages_are_stopped_and_go_on() {
        assert!(stopping(|| ()).is_none());
        let dropped = std::cell::Cell::new(false);
        struct Note<'a>(&'a std::cell::Cell<bool>);
        impl Drop for Note<'_> {
            fn drop(&mut self) {
                self.0.set(true);
            }
        }
        let outer = stopping(|| {
            let inner = stopping(|| {
                let _note = Note(&dropped);
                throw(42);
            });
            inner.unwrap().resume();
        });
        let Foreign(exception) = outer.unwrap();
        assert!(dropped.get());
        // SAFETY: what `throw` made.
        let thrown = unsafe { Box::from_raw(exception.cast::<Thrown>()) };
        assert_eq!((thrown.header.class, thrown.value), (7, 42));
    }

    #[test]
    fn panics_pass() {
        let caught = std::panic::catch_unwind(|| stopping(|| std::panic::resume_unwind(Box::new(5u8))).is_some());
        assert_eq!(caught.unwrap_err().downcast_ref::<u8>(), Some(&5));
    }

    #[test]
    fn the_end_of_a_thread_waits() {
        extern "C-unwind" fn start(noted: *mut c_void) -> *mut c_void {
            let end = stopping(|| {
                // SAFETY: ends this thread, which Rust did not start.
                unsafe { pthread_exit(std::ptr::without_provenance_mut(9)) }
            });
            let end = end.unwrap();
            // SAFETY: the test's own flag, which outlives the thread.
            unsafe { *noted.cast::<bool>() = end.ends_thread() };
            end.resume()
        }
        let (mut noted, mut result) = (false, std::ptr::null_mut());
        // SAFETY: a thread of C with a function of C, joined before its argument goes.
        unsafe {
            let mut thread = std::mem::zeroed();
            let start: extern "C" fn(*mut c_void) -> *mut c_void =
                std::mem::transmute(start as extern "C-unwind" fn(*mut c_void) -> *mut c_void);
            assert_eq!(libc::pthread_create(&mut thread, std::ptr::null(), start, (&raw mut noted).cast()), 0);
            assert_eq!(libc::pthread_join(thread, &mut result), 0);
        }
        assert!(noted && result.addr() == 9);
    }
}
