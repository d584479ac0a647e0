//! Cancellation of threads (`pthread_cancel`) in a call.
//!
//! Natively a thread that waits in the vendor's library can be cancelled there. Here it can be while it waits for a reply,
//! and nowhere else: the thread acts on a request at the check of the peer that each long wait makes, also if it asked to
//! be cancelled at any instruction. The library has no other cancellation point; its system calls are the kernel's own
//! and not the C library's.

use std::ffi::c_int;

use crate::process::unwind::{Foreign, stopping};

const PTHREAD_CANCEL_DEFERRED: c_int = 0;
const PTHREAD_CANCEL_ASYNCHRONOUS: c_int = 1;

unsafe extern "C-unwind" {
    fn pthread_testcancel();
    fn pthread_setcanceltype(ty: c_int, old: *mut c_int) -> c_int;
}

/// How the application wants this thread to be cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CancelType {
    Deferred,
    Asynchronous,
}

/// Lets a request of cancellation wait until [`requested`] or [`restore`]. Returns what to restore.
#[inline]
pub(crate) fn defer() -> CancelType {
    let mut old = PTHREAD_CANCEL_DEFERRED;
    // SAFETY: `old` outlives the call, which acts on no request when it sets this type.
    unsafe { pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &mut old) };
    if old == PTHREAD_CANCEL_ASYNCHRONOUS { CancelType::Asynchronous } else { CancelType::Deferred }
}

/// The end of this thread if another one has cancelled it and it does not refuse to be.
#[cold]
pub(crate) fn requested() -> Option<Foreign> {
    // SAFETY: without arguments; what it unwinds with is stopped.
    stopping(|| unsafe { pthread_testcancel() })
}

/// Undoes [`defer`]; the end of this thread if it was cancelled meanwhile.
#[inline]
pub(crate) fn restore(ty: CancelType) -> Option<Foreign> {
    match ty {
        CancelType::Deferred => None,
        // SAFETY: the old type is not asked for; what the call unwinds with is stopped.
        CancelType::Asynchronous => stopping(|| unsafe {
            pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, std::ptr::null_mut());
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::c_void;

    unsafe extern "C-unwind" {
        fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    }

    /// Runs `f` on a thread that Rust did not start; what the thread returns.
    fn on_a_thread(f: extern "C-unwind" fn(*mut c_void) -> *mut c_void) -> usize {
        let mut result = std::ptr::null_mut();
        // SAFETY: a thread of C with a function of C, joined here.
        unsafe {
            let mut thread = std::mem::zeroed();
            let f: extern "C" fn(*mut c_void) -> *mut c_void =
                std::mem::transmute(f as extern "C-unwind" fn(*mut c_void) -> *mut c_void);
            assert_eq!(libc::pthread_create(&mut thread, std::ptr::null(), f, std::ptr::null_mut()), 0);
            assert_eq!(libc::pthread_join(thread, &mut result), 0);
        }
        result.addr()
    }

    const PTHREAD_CANCELED: usize = usize::MAX;

    fn cancel_this_thread() {
        // SAFETY: a live thread, this one.
        assert_eq!(unsafe { pthread_cancel(libc::pthread_self()) }, 0);
    }

    #[test]
    fn a_request_waits_until_it_is_asked_for() {
        extern "C-unwind" fn thread(_: *mut c_void) -> *mut c_void {
            assert!(requested().is_none());
            cancel_this_thread();
            requested().expect("a request").resume()
        }
        assert_eq!(on_a_thread(thread), PTHREAD_CANCELED);
    }

    #[test]
    fn an_asynchronous_request_waits_while_it_is_deferred() {
        extern "C-unwind" fn thread(_: *mut c_void) -> *mut c_void {
            assert!(restore(CancelType::Asynchronous).is_none());
            let ty = defer();
            assert_eq!(ty, CancelType::Asynchronous);
            cancel_this_thread();
            restore(ty).expect("a request").resume()
        }
        assert_eq!(on_a_thread(thread), PTHREAD_CANCELED);
    }
}
