//! Signals on threads of this library.

/// Blocks all signals of this thread while a new thread inherits its mask: the application's
/// handlers must not run on a thread that the application does not know.
pub(crate) struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    pub fn new() -> Self {
        Self::but(&[])
    }

    /// For a thread that touches the application's memory: what the application does about a fault there it does on that thread.
    pub fn but_faults() -> Self {
        Self::but(&[libc::SIGSEGV, libc::SIGBUS])
    }

    fn but(signals: &[libc::c_int]) -> Self {
        // SAFETY: both sets are initialised by the calls before they are used.
        unsafe {
            let mut all = std::mem::zeroed();
            let mut before = std::mem::zeroed();
            libc::sigfillset(&mut all);
            for signal in signals {
                libc::sigdelset(&mut all, *signal);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            BlockedSignals(before)
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: restores the mask saved by `new`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}
