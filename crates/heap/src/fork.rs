//! `fork`: the heap is a shared mapping, but what parent and child write must stay their own.
//!
//! The child copies what is in use into a file of its own before it runs, and the parent waits for that: afterwards its
//! own writing would change what the child copies. `vfork` and `posix_spawn` do not come here, and need not.

use std::cell::UnsafeCell;
use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, pipe_with};

use crate::heap::HEAP;

/// The ends of a pipe by which the child says that it is done: the one that is read, and the one that is written.
struct Ends(UnsafeCell<Option<(OwnedFd, OwnedFd)>>);

// SAFETY: only the thread that forks uses it, from `prepare` to `in_parent` or `in_child`, while it holds the heap's lock.
unsafe impl Sync for Ends {}

static ENDS: Ends = Ends(UnsafeCell::new(None));

/// When the library is loaded: a heap that is made while another thread forks is waited for.
#[used]
#[cfg(not(test))]
#[unsafe(link_section = ".init_array")]
static WATCH: extern "C" fn() = watch;

extern "C" fn watch() {
    // SAFETY: the handlers are functions of this library, which is never unloaded because it was preloaded, and keep to what
    // is allowed in the child of a process with threads.
    unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
}

unsafe extern "C" fn prepare() {
    HEAP.lock.acquire();
    // SAFETY: the lock is held, and both references end here.
    let (state, ends) = unsafe { (HEAP.state(), &mut *ENDS.0.get()) };
    *ends = None;
    if HEAP.in_use(state) {
        // Without descriptors the parent does not wait: a child that only starts another program sees no difference.
        *ends = pipe_with(PipeFlags::CLOEXEC).ok();
    }
}

unsafe extern "C" fn in_parent() {
    // SAFETY: this thread holds the lock since `prepare`.
    if let Some((done, written)) = unsafe { (*ENDS.0.get()).take() } {
        drop(written);
        // One byte, or the end when the child (if there is one at all) has died.
        while let Err(rustix::io::Errno::INTR) = rustix::io::read(&done, &mut [0u8]) {}
    }
    HEAP.lock.release();
}

unsafe extern "C" fn in_child() {
    // SAFETY: this thread, the only one here, holds the lock since `prepare`.
    let (state, ends) = unsafe { (HEAP.state(), (*ENDS.0.get()).take()) };
    HEAP.separate(state);
    if let Some((_, done)) = ends {
        let _ = rustix::io::write(&done, &[1]);
    }
    HEAP.lock.release_in_child();
}
