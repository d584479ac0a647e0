//! Machine code for x86-64 from verified programs.
//!
//! | eBPF | here | |
//! |---|---|---|
//! | r0 | rax | |
//! | r1 to r5 | rdi, rsi, rdx, rcx, r8 | where C functions expect their arguments |
//! | r6 to r9 | rbx, r13, r14, r15 | kept by C functions |
//! | r10 | rbp | end of 512 bytes on the native stack |
//! | | r12 | the [`StackFrame`]; goes to helpers as their sixth argument, r9 |
//! | | r10, r11 | scratch |
//!
//! Maps are numbers, not addresses, in the code: it stays valid when maps move from one policy to its successor.

mod emit;
mod frame;
mod native;

use crate::context::Context;
use crate::execute::instruction::Instruction;
use crate::limits;
use crate::memory::Memory;
use emit::emit;
use frame::StackFrame;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::ffi::c_void;
use std::io;

type EntryPoint = unsafe extern "C" fn(context: *const Context, frame: *mut StackFrame) -> u64;

/// Pages with the code of one program; readable and executable, never written after their creation.
pub struct CompiledCode {
    pages: *mut c_void,
    length: usize,
    entry: EntryPoint,
}

// SAFETY: the pages are never written after `compile`, and unmapped only with their last owner.
unsafe impl Send for CompiledCode {}
// SAFETY: the pages are never written after `compile`; the code keeps its state in its caller's
// frame and the memory passed to `run`.
unsafe impl Sync for CompiledCode {}

impl Drop for CompiledCode {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `compile` made; `&mut self` proves that no `run` is in
        // progress. A failure would only leak the pages.
        let _ = unsafe { munmap(self.pages, self.length) };
    }
}

impl CompiledCode {
    /// Runs the program, which the creator of the code has verified for this kind of memory.
    #[inline]
    pub fn run(&self, memory: &mut Memory, context: &Context) -> u64 {
        let mut data = [std::ptr::null_mut(); limits::MAX_DATA_SECTIONS];
        for (to, section) in data.iter_mut().zip(&memory.data) {
            *to = section.bytes.as_ptr() as *mut u8;
        }
        let mut frame = StackFrame { data, memory, context };
        // SAFETY: the code was emitted from a program whose every path the verifier walked: it
        // touches only its own frame on the stack, the visible part of the context (read), and
        // values and variables within their bounds, which are `Cell`s and do not move while
        // `memory` is borrowed; and it returns within a bounded number of instructions. It follows
        // the C calling convention.
        unsafe { (self.entry)(context, &mut frame) }
    }
}

/// Emits the code of a program and makes it executable.
pub fn compile(program: &[Instruction]) -> io::Result<CompiledCode> {
    let code = emit(program);
    let length = code.len().next_multiple_of(4096);
    // SAFETY: a new anonymous mapping at an address that the kernel chooses touches no existing
    // memory.
    let pages =
        unsafe { mmap_anonymous(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)? };
    // SAFETY: the mapping is writable and has no other user, and `length` is at least the code's
    // length.
    unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), pages.cast::<u8>(), code.len()) };
    // SAFETY: the whole mapping made by `mmap_anonymous`, to which no Rust reference exists.
    if let Err(error) = unsafe { mprotect(pages, length, MprotectFlags::READ | MprotectFlags::EXEC) } {
        // SAFETY: exactly the mapping made by `mmap_anonymous`, whose address has not been given
        // away.
        let _ = unsafe { munmap(pages, length) };
        return Err(error.into());
    }
    // SAFETY: the code begins with a function of this signature, and the pages live as long as the
    // `CompiledCode`.
    let entry = unsafe { std::mem::transmute::<*mut c_void, EntryPoint>(pages) };
    Ok(CompiledCode { pages, length, entry })
}
