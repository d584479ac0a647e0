//! What machine code is given.

use crate::context::Context;
use crate::limits;
use crate::memory::Memory;

/// The memory that the code reaches besides its arguments. The data addresses come first, because
/// the code knows their offsets.
#[repr(C)]
pub struct StackFrame {
    pub data: [*mut u8; limits::MAX_DATA_SECTIONS],
    pub memory: *mut Memory,
    pub context: *const Context,
}
