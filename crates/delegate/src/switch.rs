//! The trampoline: leaves one context and continues in another, on the same kernel thread.
//!
//! A context keeps what a function keeps for its caller (six registers and the stack), the control
//! words of SSE and x87, the flags (with the direction and alignment flags), and FS, by which a
//! thread finds its thread-locals. WRFSBASE writes that without a system call.

use std::arch::global_asm;

/// A context that nobody runs: its stack, on which the rest lies, and its FS base.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Context {
    stack: usize,
    fs: usize,
}

unsafe extern "C" {
    /// Leaves the running context in `save` and continues in `load`.
    fn aviary_delegate_switch(save: *mut Context, load: *const Context);
    /// The same, and leaves nothing of the old context in registers; `vectors` says which there are.
    fn aviary_delegate_leave(save: *mut Context, load: *const Context, vectors: u32);
    fn aviary_delegate_begin();
}

global_asm!(
    ".macro aviary_delegate_exchange",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "pushfq",
    "sub rsp, 8",
    "stmxcsr [rsp]",
    "fnstcw [rsp + 4]",
    "rdfsbase rax",
    "mov [rdi + 8], rax",
    "mov [rdi], rsp",
    "mov rsp, [rsi]",
    "mov rax, [rsi + 8]",
    "wrfsbase rax",
    "fldcw [rsp + 4]",
    "ldmxcsr [rsp]",
    "add rsp, 8",
    "popfq",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    ".endm",
    // ---
    ".text",
    ".p2align 4",
    ".globl aviary_delegate_switch",
    ".hidden aviary_delegate_switch",
    "aviary_delegate_switch:",
    "aviary_delegate_exchange",
    "ret",
    // ---
    ".p2align 4",
    ".globl aviary_delegate_leave",
    ".hidden aviary_delegate_leave",
    "aviary_delegate_leave:",
    "aviary_delegate_exchange",
    "cmp edx, 1",
    "jb 2f",
    "je 1f",
    ".irp n, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31",
    "vpxord zmm\\n, zmm\\n, zmm\\n",
    ".endr",
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7",
    "kxorw k\\n, k\\n, k\\n",
    ".endr",
    "1: vzeroall",
    "jmp 3f",
    "2:",
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "pxor xmm\\n, xmm\\n",
    ".endr",
    "3: xor eax, eax",
    "xor ecx, ecx",
    "xor edx, edx",
    "xor esi, esi",
    "xor edi, edi",
    "xor r8d, r8d",
    "xor r9d, r9d",
    "xor r10d, r10d",
    "xor r11d, r11d",
    "ret",
    // --- The first entry of a new context: its function and argument are in r13 and r12.
    ".p2align 4",
    ".globl aviary_delegate_begin",
    ".hidden aviary_delegate_begin",
    "aviary_delegate_begin:",
    "mov rdi, r12",
    "xor ebp, ebp",
    "call r13",
    "ud2",
);

/// Which vector registers this CPU and kernel have: 0 up to XMM, 1 up to YMM, 2 up to ZMM.
pub(crate) fn vectors() -> u32 {
    match () {
        () if std::arch::is_x86_feature_detected!("avx512f") => 2,
        () if std::arch::is_x86_feature_detected!("avx") => 1,
        () => 0,
    }
}

/// Whether user code may read and write FS here.
pub(crate) fn may_write_fs() -> bool {
    const HWCAP2_FSGSBASE: u64 = 2;
    // SAFETY: reads a value that the kernel has passed to the process; 0 if it has none.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & HWCAP2_FSGSBASE != 0 }
}

/// Control words and flags of a new context: exceptions masked, direction forwards.
const CONTROL: u64 = 0x1f80 | 0x37f << 32;
const FLAGS: u64 = 0x202;

impl Context {
    /// A context that will begin `main(argument)` on the stack that ends at `top`, with the calling thread's FS.
    ///
    /// # Safety
    /// The 72 bytes below `top`, a multiple of 16, are writable and nobody else's.
    pub unsafe fn new(top: *mut u64, main: extern "C" fn(usize) -> !, argument: usize) -> Context {
        let frame = [
            CONTROL,
            FLAGS,
            0,
            0,
            main as *const () as u64,
            argument as u64,
            0,
            0,
            aviary_delegate_begin as *const () as u64,
        ];
        // SAFETY: the caller's promise: nine words. `switch` pops the first eight and returns to the ninth, which leaves the
        // stack aligned for a call.
        let stack = unsafe {
            let stack = top.sub(frame.len());
            stack.copy_from_nonoverlapping(frame.as_ptr(), frame.len());
            stack
        };
        let fs: usize;
        // SAFETY: reads a register; a caller has asked `may_write_fs`.
        unsafe { std::arch::asm!("rdfsbase {}", out(reg) fs, options(nomem, nostack, preserves_flags)) };
        Context { stack: stack.addr(), fs }
    }
}

/// # Safety
/// `load` holds a context that nobody runs and that nobody else loads, on a stack that is mapped; `save` is nobody else's until that
/// context is loaded.
#[inline]
pub(crate) unsafe fn switch(save: *mut Context, load: *const Context) {
    // SAFETY: the caller's promise; registers that the function does not keep are a call's to lose.
    unsafe { aviary_delegate_switch(save, load) }
}

/// As [`switch`], with registers cleared; `vectors` is what [`vectors`] says.
///
/// # Safety
/// As for [`switch`].
#[inline]
pub(crate) unsafe fn leave(save: *mut Context, load: *const Context, vectors: u32) {
    // SAFETY: the caller's promise.
    unsafe { aviary_delegate_leave(save, load, vectors) }
}
