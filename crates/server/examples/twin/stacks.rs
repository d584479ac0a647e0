//! Stacks of the threads that a module's namespace makes. A C library keeps the stacks of threads that have ended, for new ones, with
//! what the dynamic linker has allocated for them; the list is the dynamic linker's, of which a process has one, but a namespace's
//! C library frees such memory by its own `free`, which knows nothing of it. So each thread of a namespace gets a stack that its C
//! library does not keep. It is never given back: a process is a twin for one test.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use crate::namespace::{jump, redirect};

/// Bytes of a stack for which nobody has asked for a size.
const USUAL: usize = 8 << 20;
const PAGE: usize = 4096;
/// The attributes that `thrd_create` passes.
const OF_C11: usize = usize::MAX;

type Start = extern "C" fn(*mut c_void) -> *mut c_void;
type Attributes = libc::pthread_attr_t;
type Create = unsafe extern "C" fn(*mut libc::pthread_t, *const Attributes, Start, *mut c_void) -> c_int;

/// Has the namespace's `pthread_create` use such stacks. `None`: it begins with instructions that are not known, or memory cannot be
/// had.
///
/// # Safety
/// `function` is `pthread_create` of a C library, and no other thread of its namespace runs yet.
pub unsafe fn keep_no_stacks(function: NonNull<c_void>) -> Option<()> {
    // SAFETY: the caller's promise; it is longer than this.
    let code = unsafe { std::slice::from_raw_parts(function.cast::<u8>().as_ptr(), 32) };
    let own = &code[..beginning(code, jump(0).len())?];
    let page = executable_page()?;
    // The function as it was: its own beginning, then the rest of it where that is.
    let rest = jump(function.as_ptr().addr() + own.len());
    let original: Vec<u8> = own.iter().chain(&rest).copied().collect();
    // What is called in its place: `mov r8, ORIGINAL`, the fifth argument of `create`.
    let mut entry = vec![0x49, 0xb8];
    entry.extend((page.addr() + PAGE / 2).to_ne_bytes());
    entry.extend(jump(create as *const () as usize));
    // SAFETY: a page of ours of which nobody knows yet; both parts are shorter than its halves.
    unsafe {
        page.copy_from_nonoverlapping(entry.as_ptr(), entry.len());
        page.add(PAGE / 2).copy_from_nonoverlapping(original.as_ptr(), original.len());
        if libc::mprotect(page.cast(), PAGE, libc::PROT_READ | libc::PROT_EXEC) != 0 {
            return None;
        }
        redirect(function, page.addr()).then_some(())
    }
}

/// How many bytes of whole instructions, at least `least`, the code begins with, of those that compilers begin functions with and
/// that do the same at another address.
fn beginning(code: &[u8], least: usize) -> Option<usize> {
    let mut at = 0;
    while at < least {
        at += match code.get(at..)? {
            // endbr64
            [0xf3, 0x0f, 0x1e, 0xfa, ..] => 4,
            // push
            [0x50..=0x57, ..] => 1,
            [0x41, 0x50..=0x57, ..] => 2,
            // mov rbp, rsp
            [0x48, 0x89, 0xe5, ..] => 3,
            // sub rsp, NUMBER
            [0x48, 0x83, 0xec, _, ..] => 4,
            [0x48, 0x81, 0xec, _, _, _, _, ..] => 7,
            _ => return None,
        };
    }
    Some(at)
}

fn executable_page() -> Option<*mut u8> {
    memory(PAGE).map(|page| page.cast().as_ptr())
}

fn memory(bytes: usize) -> Option<NonNull<c_void>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new memory, somewhere.
    let found = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    NonNull::new(found).filter(|found| found.as_ptr() != libc::MAP_FAILED)
}

/// `pthread_create` of the namespace; `original` is that of its C library.
unsafe extern "C" fn create(
    thread: *mut libc::pthread_t,
    given: *const Attributes,
    start: Start,
    argument: *mut c_void,
    original: Create,
) -> c_int {
    let mut size = 0;
    // SAFETY: `given` is NULL, a mark, or attributes, of which a copy of the same lifetime is used; the program's C library has the
    // same form of them, being the same file. The stack is new memory that stays.
    unsafe {
        let mut attributes: Attributes = std::mem::zeroed();
        if given.is_null() || given.addr() == OF_C11 {
            libc::pthread_attr_init(&raw mut attributes);
            size = USUAL;
        } else {
            attributes = given.read();
            libc::pthread_attr_getstacksize(given, &raw mut size);
        }
        let Some(stack) = memory(size.next_multiple_of(PAGE)) else { return libc::EAGAIN };
        libc::pthread_attr_setstack(&raw mut attributes, stack.as_ptr(), size.next_multiple_of(PAGE));
        original(thread, &raw const attributes, start, argument)
    }
}
