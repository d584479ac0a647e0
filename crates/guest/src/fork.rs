//! `fork` in a guest library: the child starts without a connection.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use crate::Api;

static GENERATION: AtomicU32 = AtomicU32::new(0);

struct Node {
    api: &'static Api,
    next: *mut Node,
}

/// The APIs of this library. Append-only, so that a forked child can walk the list at any state of
/// its parent's other threads; nodes are never freed.
static APIS: AtomicPtr<Node> = AtomicPtr::new(null_mut());

/// Number of forks between the process that loaded the library and this one.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Makes children of this process start without this API's connection. The caller holds the API's
/// attach lock.
pub(crate) fn watch_once(api: &'static Api) {
    let mut node = APIS.load(Ordering::Acquire);
    // SAFETY: nodes in the list are complete and never freed.
    while let Some(n) = unsafe { node.as_ref() } {
        if std::ptr::eq(n.api, api) {
            return;
        }
        node = n.next;
    }
    watch(api);
}

fn watch(api: &'static Api) {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if !REGISTERED.swap(true, Ordering::AcqRel) {
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
    GENERATION.fetch_add(1, Ordering::Relaxed);
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
