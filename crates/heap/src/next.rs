//! The allocator that the program would have had: the next one behind this library.

use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute_copy;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

/// A function that is looked up when it is first used.
pub struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

/// The thread that is looking something up; 0: none. What that thread allocates meanwhile comes from `early`.
static LOOKING: AtomicI32 = AtomicI32::new(0);

impl Next {
    pub const fn new(name: &'static CStr) -> Self {
        Next { name, found: AtomicPtr::new(null_mut()) }
    }

    /// `None`: there is no such function, or this very thread is looking it up.
    ///
    /// # Safety
    /// `F` is the type of pointers to functions of this name.
    #[inline]
    pub unsafe fn get<F: Copy>(&self) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let mut found = self.found.load(Ordering::Acquire);
        if found.is_null() {
            found = self.look();
        }
        // SAFETY: the caller's promise; pointers to functions have the size of other pointers.
        (!found.is_null()).then(|| unsafe { transmute_copy(&found) })
    }

    #[cold]
    fn look(&self) -> *mut c_void {
        // SAFETY: no arguments, no effects.
        let me = unsafe { libc::gettid() };
        while let Err(other) = LOOKING.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
            if other == me {
                return null_mut();
            }
            rustix::thread::sched_yield();
        }
        // SAFETY: a NUL-terminated name; the answer is a function of a library behind this one, or NULL.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Release);
        LOOKING.store(0, Ordering::Release);
        found
    }
}

pub type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
pub type Calloc = unsafe extern "C" fn(usize, usize) -> *mut c_void;
pub type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
pub type Free = unsafe extern "C" fn(*mut c_void);
pub type PosixMemalign = unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int;
pub type Memalign = unsafe extern "C" fn(usize, usize) -> *mut c_void;
pub type Usable = unsafe extern "C" fn(*mut c_void) -> usize;

pub static MALLOC: Next = Next::new(c"malloc");
pub static CALLOC: Next = Next::new(c"calloc");
pub static REALLOC: Next = Next::new(c"realloc");
pub static FREE: Next = Next::new(c"free");
pub static POSIX_MEMALIGN: Next = Next::new(c"posix_memalign");
pub static ALIGNED_ALLOC: Next = Next::new(c"aligned_alloc");
pub static MEMALIGN: Next = Next::new(c"memalign");
pub static VALLOC: Next = Next::new(c"valloc");
pub static PVALLOC: Next = Next::new(c"pvalloc");
pub static USABLE: Next = Next::new(c"malloc_usable_size");

/// What the dynamic linker allocates while a function is looked up. Never used again.
pub mod early {
    use super::*;

    const SIZE: usize = 64 << 10;
    const ALIGN: usize = 16;

    #[repr(C, align(16))]
    struct Room(std::cell::UnsafeCell<[u8; SIZE]>);

    // SAFETY: only the addresses of disjoint parts are handed out.
    unsafe impl Sync for Room {}

    static ROOM: Room = Room(std::cell::UnsafeCell::new([0; SIZE]));
    static USED: AtomicUsize = AtomicUsize::new(0);

    /// Zeros, with their length before them. NULL: there is no more.
    pub fn allocate(bytes: usize) -> *mut c_void {
        let whole = bytes.saturating_add(2 * ALIGN - 1) & !(ALIGN - 1);
        let at = USED.fetch_add(whole.min(SIZE), Ordering::Relaxed);
        if at.saturating_add(whole) > SIZE {
            return null_mut();
        }
        // SAFETY: the range lies in the room, and no other call gets it.
        unsafe {
            let place = ROOM.0.get().cast::<u8>().add(at);
            place.cast::<usize>().write(bytes);
            place.add(ALIGN).cast()
        }
    }

    pub fn contains(p: *const c_void) -> bool {
        p.addr().wrapping_sub(ROOM.0.get().addr()) < SIZE
    }

    /// # Safety
    /// `allocate` returned `p`.
    pub unsafe fn usable(p: *const c_void) -> usize {
        // SAFETY: the length is where `allocate` put it.
        unsafe { p.byte_sub(ALIGN).cast::<usize>().read() }
    }
}
