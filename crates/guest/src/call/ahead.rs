//! Long inputs on their way to another machine: what is copied into the arena leaves while the rest is copied.

use aviary_transport::{AHEAD_BYTES, Region, Rows};

use super::Call;
use crate::memory::block::Block;

impl Call {
    /// Copies an input into a block that belongs to the call.
    ///
    /// # Safety
    /// As for `copy_in`; of rows only what lies in them is read.
    pub(super) unsafe fn copy_ahead(&mut self, p: *const u8, n: usize, block: Block, rows: Option<Rows>) {
        let n = n.min(block.size as usize);
        let mut at = 0;
        if self.lane.connection.memory.ahead && rows.is_none() {
            // What is left for the message itself is worth strands, too.
            while n - at >= 2 * AHEAD_BYTES {
                let region = Region { offset: block.offset + at as u64, length: AHEAD_BYTES };
                // SAFETY: the caller's promise, for a part of the bytes.
                if !unsafe { self.send_ahead(p.add(at), region) } {
                    break;
                }
                at += AHEAD_BYTES;
            }
        }
        let rest = Block { offset: block.offset + at as u64, size: block.size - at as u64 };
        // SAFETY: the caller's promise, for the rest.
        unsafe { self.copy_rows_in(p.add(at), n - at, rest, rows) };
    }

    /// False: it cannot be sent; nor can the call, then.
    ///
    /// # Safety
    /// The region's length at `p` is readable.
    unsafe fn send_ahead(&mut self, p: *const u8, region: Region) -> bool {
        let Ok(to) = self.lane.connection.memory.arena.pointer(region.offset, region.length) else { return false };
        // SAFETY: the caller's promise; `to` is inside the arena. `copy`, as the application's buffer may be a part of it.
        unsafe { std::ptr::copy(p, to, region.length) };
        let frame = self.frame();
        (frame.names_memory, frame.ahead) = (true, true);
        self.lane.send_ahead(region).is_ok()
    }
}
