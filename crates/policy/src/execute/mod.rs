//! Verified programs as they run: the interpreter, machine code, and the helpers that both call.

pub(crate) mod disassemble;
pub(crate) mod helpers;
pub(crate) mod instruction;
pub(crate) mod interpret;
#[cfg(target_arch = "x86_64")]
pub(crate) mod jit;
pub(crate) mod run;
