//! The next allocator: the one that would serve the program without this library.

use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute_copy;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

/// A function of the next allocator, looked up at its first use.
pub struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

/// Id of the thread that is looking a function up; 0: none. Its allocations meanwhile come from
/// `early`.
static LOOKING: AtomicI32 = AtomicI32::new(0);

impl Next {
    pub const fn new(name: &'static CStr) -> Self {
        Next { name, found: AtomicPtr::new(null_mut()) }
    }

    /// The function. `None`: it does not exist, or the calling thread is looking it up.
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
        // The system call itself: the C library's function came with glibc 2.30.
        let me = rustix::thread::gettid().as_raw_nonzero().get();
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

/// Memory for allocations of the dynamic linker during a lookup. Never reused.
pub mod early {
    use super::*;

    const BOOTSTRAP_BYTES: usize = 64 << 10;
    const BOOTSTRAP_ALIGN: usize = 16;

    #[repr(C, align(16))]
    struct BootstrapBuffer(std::cell::UnsafeCell<[u8; BOOTSTRAP_BYTES]>);

    // SAFETY: only the addresses of disjoint parts are handed out.
    unsafe impl Sync for BootstrapBuffer {}

    static BOOTSTRAP: BootstrapBuffer = BootstrapBuffer(std::cell::UnsafeCell::new([0; BOOTSTRAP_BYTES]));
    static USED: AtomicUsize = AtomicUsize::new(0);

    /// Allocates zeros, with their length stored before them. NULL: the buffer is exhausted.
    pub fn allocate(bytes: usize) -> *mut c_void {
        let whole = bytes.saturating_add(2 * BOOTSTRAP_ALIGN - 1) & !(BOOTSTRAP_ALIGN - 1);
        let at = USED.fetch_add(whole.min(BOOTSTRAP_BYTES), Ordering::Relaxed);
        if at.saturating_add(whole) > BOOTSTRAP_BYTES {
            return null_mut();
        }
        // SAFETY: the range lies in the buffer, and no other call gets it.
        unsafe {
            let place = BOOTSTRAP.0.get().cast::<u8>().add(at);
            place.cast::<usize>().write(bytes);
            place.add(BOOTSTRAP_ALIGN).cast()
        }
    }

    pub fn contains(p: *const c_void) -> bool {
        p.addr().wrapping_sub(BOOTSTRAP.0.get().addr()) < BOOTSTRAP_BYTES
    }

    /// # Safety
    /// `allocate` returned `p`.
    pub unsafe fn usable(p: *const c_void) -> usize {
        // SAFETY: `allocate` stored the length there.
        unsafe { p.byte_sub(BOOTSTRAP_ALIGN).cast::<usize>().read() }
    }
}
