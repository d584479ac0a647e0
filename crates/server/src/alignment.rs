//! Buffers of which the vendor's library wants the address to be a multiple of a number.

use crate::api::Reject;
use crate::call::{Buffer, Call, Transfer};

impl Call {
    /// The same buffer at an address that is a multiple of `align`. One that the application itself has elsewhere in memory
    /// that the library writes is refused.
    pub fn aligned(&mut self, buffer: Buffer, align: usize) -> Result<Buffer, Reject> {
        if buffer.ptr.is_null() || buffer.ptr.addr() & (align - 1) == 0 {
            return Ok(buffer);
        }
        let output = self.outputs.iter().rposition(|output| output.buffer == buffer);
        if output.is_some_and(|at| self.outputs[at].place != Transfer::Inline) {
            return Err(Reject::Refused);
        }
        let room = buffer.len.checked_add(align).ok_or(Reject::Refused)?;
        let memory = self.scratch(room);
        // SAFETY: both lie within the `len + align` bytes of `memory`, which overlaps nothing.
        let ptr = unsafe { memory.add(memory.addr().wrapping_neg() & (align - 1)) };
        // SAFETY: as above; the buffer has `len` bytes.
        unsafe { std::ptr::copy_nonoverlapping(buffer.ptr, ptr, buffer.len) };
        let moved = Buffer { ptr, len: buffer.len };
        if let Some(at) = output {
            self.outputs[at].buffer = moved;
        }
        Ok(moved)
    }
}
