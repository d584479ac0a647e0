//! What a module's namespace needs of its own although the process has only one: an environment, and the handler of SIGSYS.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::NonNull;

/// `setenv` of the namespace's C library, whose environment is a list of its own as soon as it has changed.
pub type SetVariable = unsafe extern "C" fn(*const c_char, *const c_char, c_int) -> c_int;

/// Sets what `AVIARY_TWIN_VARIABLES` says, `NAME=VALUE` each, one a line: a program and a vendor's library may read one variable, as
/// OpenCL's loaders do.
pub fn set_variables(set: SetVariable) {
    let variables = std::env::var("AVIARY_TWIN_VARIABLES").unwrap_or_default();
    for (name, value) in variables.lines().filter_map(|line| line.split_once('=')) {
        let (Ok(name), Ok(value)) = (CString::new(name), CString::new(value)) else { continue };
        // SAFETY: NUL-terminated texts, which are copied; no other thread of the namespace runs yet.
        unsafe { set(name.as_ptr(), value.as_ptr(), 1) };
    }
}

/// `mov rax, ADDRESS; jmp rax`.
pub fn jump(address: usize) -> [u8; 12] {
    let mut code = [0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0];
    code[2..10].copy_from_slice(&address.to_ne_bytes());
    code
}

/// Has whoever calls `function` call what is at `address` instead. `false`: the memory cannot be written.
///
/// # Safety
/// `function` is one of a C library, at least as long as [`jump`], and no other thread of its namespace runs yet.
pub unsafe fn redirect(function: NonNull<c_void>, address: usize) -> bool {
    let mut jump = jump(address);
    let page = function.as_ptr().addr() & !0xfff;
    let length = function.as_ptr().addr() + jump.len() - page;
    // SAFETY: the pages of the function, which the loader has mapped privately and which stay. The caller's promise: nobody is in it.
    unsafe {
        let pages = page as *mut c_void;
        if libc::mprotect(pages, length, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) != 0 {
            return false;
        }
        function.cast::<u8>().copy_from_nonoverlapping(NonNull::from(&mut jump).cast(), jump.len());
        libc::mprotect(pages, length, libc::PROT_READ | libc::PROT_EXEC) == 0
    }
}

/// Has the namespace's `sigaction` leave SIGSYS alone: LLVM sets handlers for whatever ends a process. `false`: the memory cannot be
/// written.
///
/// # Safety
/// `function` is `sigaction`; else as [`redirect`].
pub unsafe fn keep_handler(function: NonNull<c_void>) -> bool {
    // SAFETY: the caller's promise.
    unsafe { redirect(function, set_other_action as *const () as usize) }
}

extern "C" fn set_other_action(signal: c_int, action: *const libc::sigaction, before: *mut libc::sigaction) -> c_int {
    let action = if signal == libc::SIGSYS { std::ptr::null() } else { action };
    // SAFETY: the caller's arguments, for the same function of the program's C library.
    unsafe { libc::sigaction(signal, action, before) }
}
