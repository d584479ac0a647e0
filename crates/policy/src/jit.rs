//! Machine code for x86-64 from verified programs.
//!
//! | eBPF | here | |
//! |---|---|---|
//! | r0 | rax | |
//! | r1 to r5 | rdi, rsi, rdx, rcx, r8 | where C functions expect their arguments |
//! | r6 to r9 | rbx, r13, r14, r15 | kept by C functions |
//! | r10 | rbp | end of 512 bytes on the native stack |
//! | | r12 | the [`Frame`]; goes to helpers as their sixth argument, r9 |
//! | | r10, r11 | scratch |
//!
//! Maps are numbers, not addresses, in the code: it stays valid when maps move from one policy to its successor.

mod emit;
mod native;

use crate::context::Context;
use crate::instruction::Instruction;
use crate::limits;
use crate::run::Memory;
use emit::emit;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::ffi::c_void;
use std::io;

/// What the code reaches besides its arguments; the data addresses come first, the code knows their offsets.
#[repr(C)]
pub struct Frame {
    data: [*mut u8; limits::DATA_SECTIONS],
    memory: *mut Memory,
    context: *const Context,
}

type Entry = unsafe extern "C" fn(context: *const Context, frame: *mut Frame) -> u64;

/// Pages with the code of one program; readable and executable, never written again.
pub struct Machine {
    pages: *mut c_void,
    length: usize,
    entry: Entry,
}

// SAFETY: the pages are never written after `compile`, and unmapped only when nobody has the machine any more.
unsafe impl Send for Machine {}
// SAFETY: as above; the code keeps its state in its caller's frame and the memory passed to `run`.
unsafe impl Sync for Machine {}

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `compile` made; `&mut self` says that no `run` is under way.
        // A failure would leak the pages, no more.
        let _ = unsafe { munmap(self.pages, self.length) };
    }
}

impl Machine {
    /// Runs the program; whoever made the machine from it has verified it for this kind of memory.
    #[inline]
    pub fn run(&self, memory: &mut Memory, context: &Context) -> u64 {
        let mut data = [std::ptr::null_mut(); limits::DATA_SECTIONS];
        for (to, section) in data.iter_mut().zip(&memory.data) {
            *to = section.bytes.as_ptr() as *mut u8;
        }
        let mut frame = Frame { data, memory, context };
        // SAFETY: the code was emitted from a program whose every path the verifier walked: it touches only its own
        // frame on the stack, the visible part of the context (read), and values and variables within their bounds,
        // which are `Cell`s and stay where they are while `memory` is borrowed; and it returns within a bounded number
        // of instructions. It follows the C calling convention.
        unsafe { (self.entry)(context, &mut frame) }
    }
}

/// Emits the code of a program and makes it executable.
pub fn compile(program: &[Instruction]) -> io::Result<Machine> {
    let code = emit(program);
    let length = code.len().next_multiple_of(4096);
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that exists.
    let pages =
        unsafe { mmap_anonymous(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)? };
    // SAFETY: the mapping is writable, ours alone, and `length` is at least the code's length.
    unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), pages.cast::<u8>(), code.len()) };
    // SAFETY: the whole mapping above, to which no Rust reference exists.
    if let Err(error) = unsafe { mprotect(pages, length, MprotectFlags::READ | MprotectFlags::EXEC) } {
        // SAFETY: as in `drop`; nothing has kept the address.
        let _ = unsafe { munmap(pages, length) };
        return Err(error.into());
    }
    // SAFETY: the code begins with a function of this signature, and the pages live as long as the machine.
    let entry = unsafe { std::mem::transmute::<*mut c_void, Entry>(pages) };
    Ok(Machine { pages, length, entry })
}
