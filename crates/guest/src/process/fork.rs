//! `fork` in a guest library: the child starts without a connection. A child that no handler of `pthread_atfork` ran in
//! (`_Fork`, `clone`, a raw system call) is found by a word that the kernel clears in it.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// Number of forks that were noticed between the process that loaded the library and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// The word of a kernel without MADV_WIPEONFORK: there only handlers notice.
static PLAIN_WORD: AtomicU32 = AtomicU32::new(0);
/// [`FORKS`] + 1, in memory that is zero in a child.
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const PLAIN_WORD).cast_mut());

/// Anything of this library that a child of `fork` starts anew without.
pub(crate) trait Forked: Sync {
    /// Forgets the parent's state, in the child. Takes no lock and frees nothing.
    fn restart_in_child(&'static self);
}

struct Node {
    api: &'static dyn Forked,
    next: *mut Node,
}

/// The APIs of this library. Append-only, so that a forked child can walk the list at any state of
/// its parent's other threads; nodes are never freed.
static APIS: AtomicPtr<Node> = AtomicPtr::new(null_mut());

/// Distinguishes this process from those that it was forked from; 0: a child that nothing has noticed yet.
#[inline]
pub(crate) fn generation() -> u32 {
    // SAFETY: the pointer always refers to a word that is never freed.
    unsafe { &*WORD.load(Ordering::Relaxed) }.load(Ordering::Relaxed)
}

/// Puts the word into memory that the kernel clears in every child.
fn make_word() {
    const BYTES: usize = 4096;
    // SAFETY: a new private mapping has no other user. It is published only if the kernel promises to clear it, and
    // never unmapped.
    let word = unsafe {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let page = libc::mmap(null_mut(), BYTES, protection, flags, -1, 0);
        if page == libc::MAP_FAILED {
            return;
        }
        if libc::madvise(page, BYTES, libc::MADV_WIPEONFORK) != 0 {
            libc::munmap(page, BYTES);
            return;
        }
        page.cast::<AtomicU32>()
    };
    // SAFETY: as above; a page is zero at first, which is a valid word.
    unsafe { &*word }.store(FORKS.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    WORD.store(word, Ordering::Release);
}

/// In a child that no handler ran in: starts without the parent's connections. Afterwards, and in any other process,
/// this does nothing. Only the thread that called `fork` is there, so nothing else does the same meanwhile.
#[cold]
pub(crate) fn notice() {
    if !std::ptr::eq(WORD.load(Ordering::Acquire), &raw const PLAIN_WORD) && generation() == 0 {
        restart();
    }
}

/// Makes children of this process start without this API's connection. The caller holds the API's
/// attach lock.
pub(crate) fn watch_once(api: &'static dyn Forked) {
    let mut node = APIS.load(Ordering::Acquire);
    // SAFETY: nodes in the list are complete and never freed.
    while let Some(n) = unsafe { node.as_ref() } {
        if std::ptr::addr_eq(n.api, api) {
            return;
        }
        node = n.next;
    }
    watch(api);
}

fn watch(api: &'static dyn Forked) {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if !REGISTERED.swap(true, Ordering::AcqRel) {
        PLAIN_WORD.store(1, Ordering::Relaxed);
        make_word();
        // SAFETY: the handler is a function of this library, which attaching keeps loaded, and
        // calls only functions that are allowed in the child of a process with threads.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
    let node = Box::into_raw(Box::new(Node { api, next: APIS.load(Ordering::Acquire) }));
    loop {
        // SAFETY: the node has just been made and is not in the list yet.
        let next = unsafe { (*node).next };
        match APIS.compare_exchange(next, node, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            // SAFETY: the exchange failed, so the node is not in the list yet.
            Err(now) => unsafe { (*node).next = now },
        }
    }
}

unsafe extern "C" fn in_child() {
    restart();
}

fn restart() {
    let forks = FORKS.fetch_add(1, Ordering::Relaxed) + 1;
    // SAFETY: the pointer always refers to a word that is never freed.
    unsafe { &*WORD.load(Ordering::Relaxed) }.store(forks + 1, Ordering::Relaxed);
    let mut node = APIS.load(Ordering::Acquire);
    // SAFETY: nodes in the list are complete and never freed.
    while let Some(n) = unsafe { node.as_ref() } {
        n.api.restart_in_child();
        node = n.next;
    }
}

/// Keeps this library loaded until the process ends: lanes, the fork handler and the callback
/// thread refer to its code.
pub(crate) fn pin_library() {
    // SAFETY: `dladdr` only reads the loader's tables; the path it returns lives as long as the
    // library, which outlives this call. Opening a loaded library runs no code of it.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(pin_library as *const () as *const _, &mut info) != 0 && !info.dli_fname.is_null() {
            libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
        }
    }
}
