//! `fork`: the heap is a shared mapping, but writes of parent and child must stay private to each.
//!
//! The child copies the used extents into a file of its own before it runs, and the parent waits
//! for the copy: earlier writes of the parent would change the content that the child copies.
//! `vfork` and `posix_spawn` do not call these handlers, and need not.

use std::cell::UnsafeCell;
use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, pipe_with};

use crate::heap::HEAP;

/// The ends of a pipe by which the child reports that its copy is complete: the read end, then the
/// write end.
struct Ends(UnsafeCell<Option<(OwnedFd, OwnedFd)>>);

// SAFETY: only the forking thread uses it, from `prepare` to `in_parent` or `in_child`, while it
// holds the heap's lock.
unsafe impl Sync for Ends {}

static ENDS: Ends = Ends(UnsafeCell::new(None));

/// Registers the handlers when the library is loaded, so a heap that is created while another
/// thread forks is waited for.
#[used]
#[cfg(not(test))]
#[unsafe(link_section = ".init_array")]
static WATCH: extern "C" fn() = watch;

extern "C" fn watch() {
    // SAFETY: the handlers are functions of this library, which is preloaded and so never unloaded,
    // and they call only functions that are allowed in the child of a process with threads.
    unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
}

unsafe extern "C" fn prepare() {
    HEAP.lock.acquire();
    // SAFETY: the lock is held, and both references end here.
    let (state, ends) = unsafe { (HEAP.state(), &mut *ENDS.0.get()) };
    *ends = None;
    if HEAP.in_use(state) {
        // Without free descriptors the parent does not wait: a child that only executes another
        // program is not affected.
        *ends = pipe_with(PipeFlags::CLOEXEC).ok();
    }
}

unsafe extern "C" fn in_parent() {
    // SAFETY: this thread has held the lock since `prepare`.
    if let Some((done, written)) = unsafe { (*ENDS.0.get()).take() } {
        drop(written);
        // Returns with one byte, or with the end of the pipe if the child has died or was never
        // created.
        while let Err(rustix::io::Errno::INTR) = rustix::io::read(&done, &mut [0u8]) {}
    }
    HEAP.lock.release();
}

unsafe extern "C" fn in_child() {
    // SAFETY: this thread, the only one of the child, has held the lock since `prepare`.
    let (state, ends) = unsafe { (HEAP.state(), (*ENDS.0.get()).take()) };
    HEAP.separate(state);
    if let Some((_, done)) = ends {
        let _ = rustix::io::write(&done, &[1]);
    }
    HEAP.lock.release_in_child();
}
