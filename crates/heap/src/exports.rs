//! The functions that replace the C library's allocator.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use rustix::io::Errno;

use crate::extents::UNIT_BYTES;
use crate::heap::{HEAP, SharedHeap};
use crate::next::{self, early};

/// Size in bytes from which the C library, too, gives every allocation pages of its own.
const LARGE: usize = 128 << 10;

#[cold]
fn fail() -> *mut c_void {
    // SAFETY: the calling thread's own errno.
    unsafe { *libc::__errno_location() = libc::ENOMEM };
    null_mut()
}

fn large(bytes: usize, align: usize) -> Option<(*mut c_void, bool)> {
    if bytes < LARGE { None } else { HEAP.allocate(bytes, align).map(|(p, zeros)| (p.cast(), zeros)) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(bytes: usize) -> *mut c_void {
    if let Some((p, _)) = large(bytes, 1) {
        return p;
    }
    // SAFETY: the type of `malloc`, called as the program called this one.
    unsafe {
        match next::MALLOC.get::<next::Malloc>() {
            Some(malloc) => malloc(bytes),
            None => early::allocate(bytes),
        }
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let bytes = count.checked_mul(size);
    if let Some((p, zeros)) = bytes.and_then(|bytes| large(bytes, 1)) {
        if !zeros {
            // SAFETY: `malloc` has just allocated at least `count * size` bytes.
            unsafe { p.write_bytes(0, count * size) };
        }
        return p;
    }
    // SAFETY: the type of `calloc`, called as the program called this one. `calloc` refuses an
    // overflowing product.
    unsafe {
        match (next::CALLOC.get::<next::Calloc>(), bytes) {
            (Some(calloc), _) => calloc(count, size),
            (None, Some(bytes)) => early::allocate(bytes),
            (None, None) => fail(),
        }
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(p: *mut c_void) {
    if HEAP.contains(p.cast()) {
        // A pointer without an allocation was freed twice; its extent is free already and cannot be
        // corrupted.
        HEAP.free(p.cast());
    } else if !p.is_null() && !early::contains(p) {
        // SAFETY: the type of `free`; the memory belongs to the next allocator.
        unsafe {
            if let Some(free) = next::FREE.get::<next::Free>() {
                free(p);
            }
        }
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(p: *mut c_void, bytes: usize) -> *mut c_void {
    if p.is_null() {
        // SAFETY: the caller's promise.
        return unsafe { malloc(bytes) };
    }
    if HEAP.contains(p.cast()) {
        // SAFETY: the caller's promise.
        return unsafe { realloc_ours(p, bytes) };
    }
    if early::contains(p) {
        // SAFETY: `early` allocated it.
        return unsafe { moved(p, early::usable(p), bytes) };
    }
    // An allocation that becomes large moves into this heap.
    if let Some((new, _)) = large(bytes, 1) {
        // SAFETY: both have at least the bytes that are copied; `p` belongs to the next allocator
        // and is not used after its `free`.
        unsafe {
            new.cast::<u8>().copy_from_nonoverlapping(p.cast(), malloc_usable_size(p).min(bytes));
            free(p);
        }
        return new;
    }
    // SAFETY: the type of `realloc`; the memory belongs to the next allocator.
    unsafe {
        match next::REALLOC.get::<next::Realloc>() {
            Some(realloc) => realloc(p, bytes),
            None => fail(),
        }
    }
}

/// # Safety
/// `p` lies in the heap; as `realloc`.
unsafe fn realloc_ours(p: *mut c_void, bytes: usize) -> *mut c_void {
    if bytes == 0 {
        HEAP.free(p.cast());
        return null_mut();
    }
    let Some(now) = HEAP.usable(p.cast()) else { return fail() };
    // An allocation that becomes small moves out, so that the heap has room for large ones.
    if bytes >= LARGE && HEAP.resize(p.cast(), bytes) {
        return p;
    }
    // SAFETY: `p` has `now` bytes and is freed by `moved`.
    unsafe { moved(p, now, bytes) }
}

/// # Safety
/// `p` is an allocation of `now` bytes, not used any more unless this fails.
unsafe fn moved(p: *mut c_void, now: usize, bytes: usize) -> *mut c_void {
    // SAFETY: the new memory has at least `bytes` bytes, the old one `now`.
    unsafe {
        let new = malloc(bytes);
        if !new.is_null() {
            new.cast::<u8>().copy_from_nonoverlapping(p.cast(), now.min(bytes));
            free(p);
        }
        new
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(to: *mut *mut c_void, align: usize, bytes: usize) -> c_int {
    if align.is_power_of_two()
        && align >= size_of::<usize>()
        && let Some((p, _)) = large(bytes, align)
    {
        // SAFETY: the caller's promise.
        unsafe { to.write(p) };
        return 0;
    }
    // SAFETY: the type of `posix_memalign`, called as the program called this one. `posix_memalign`
    // checks the alignment.
    unsafe {
        match next::POSIX_MEMALIGN.get::<next::PosixMemalign>() {
            Some(posix_memalign) => posix_memalign(to, align, bytes),
            None => Errno::NOMEM.raw_os_error(),
        }
    }
}

/// # Safety
/// `next` is a function of this type; as the C library's.
unsafe fn aligned(next: &next::Next, align: usize, bytes: usize) -> *mut c_void {
    if align.is_power_of_two()
        && let Some((p, _)) = large(bytes, align)
    {
        return p;
    }
    // SAFETY: the caller's promise.
    unsafe {
        match next.get::<next::Memalign>() {
            Some(next) => next(align, bytes),
            None => fail(),
        }
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(align: usize, bytes: usize) -> *mut c_void {
    // SAFETY: both functions have this type; the caller's promise.
    unsafe { aligned(&next::ALIGNED_ALLOC, align, bytes) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(align: usize, bytes: usize) -> *mut c_void {
    // SAFETY: both functions have this type; the caller's promise.
    unsafe { aligned(&next::MEMALIGN, align, bytes) }
}

/// # Safety
/// `next` is a function of this type; as the C library's.
unsafe fn pages(next: &next::Next, bytes: usize) -> *mut c_void {
    if let Some((p, _)) = large(bytes, UNIT_BYTES) {
        return p;
    }
    // SAFETY: the caller's promise.
    unsafe {
        match next.get::<next::Malloc>() {
            Some(next) => next(bytes),
            None => fail(),
        }
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(bytes: usize) -> *mut c_void {
    // SAFETY: both functions have this type; the caller's promise.
    unsafe { pages(&next::VALLOC, bytes) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(bytes: usize) -> *mut c_void {
    // SAFETY: both functions have this type; the caller's promise. Allocations of this heap are
    // whole pages anyway.
    unsafe { pages(&next::PVALLOC, bytes) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(p: *mut c_void) -> usize {
    if p.is_null() {
        return 0;
    }
    if HEAP.contains(p.cast()) {
        return HEAP.usable(p.cast()).unwrap_or(0);
    }
    // SAFETY: `early` allocated `p`, or else the next allocator, whose function has this type.
    unsafe {
        if early::contains(p) {
            return early::usable(p);
        }
        next::USABLE.get::<next::Usable>().map_or(0, |usable| usable(p))
    }
}

/// Tells guest libraries of the heap: 1 if there is one that an API server can map.
///
/// # Safety
/// `to` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aviary_shared_heap(to: *mut SharedHeap) -> c_int {
    match HEAP.share() {
        Some(shared) => {
            // SAFETY: the caller's promise.
            unsafe { to.write(shared) };
            1
        }
        None => 0,
    }
}
