//! Long inputs on their way to another machine: what is copied into the arena leaves while the rest is copied.

use aviary_transport::{AHEAD_BYTES, Region, Rows};

use super::Call;
use crate::memory::block::Block;
use crate::memory::crew::Copies;

impl Call {
    /// Copies an input into a block that belongs to the call.
    ///
    /// # Safety
    /// As for `copy_in`; of rows only what lies in them is read.
    pub(super) unsafe fn copy_ahead(&mut self, p: *const u8, n: usize, block: Block, rows: Option<Rows>) {
        let n = n.min(block.size as usize);
        let at = if self.lane.connection.memory.ahead && rows.is_none() {
            // SAFETY: the caller's promise.
            unsafe { self.copy_parts_ahead(p, n, block) }
        } else {
            0
        };
        let rest = Block { offset: block.offset + at as u64, size: block.size - at as u64 };
        // SAFETY: the caller's promise, for the rest.
        unsafe { self.copy_rows_in(p.add(at), n - at, rest, rows) };
    }

    /// Copies and sends what is not left for the message itself. Answers how many bytes were sent: fewer, if the call cannot be sent.
    ///
    /// # Safety
    /// `n` bytes at `p` are readable.
    unsafe fn copy_parts_ahead(&mut self, p: *const u8, n: usize, block: Block) -> usize {
        let Ok(to) = self.lane.connection.memory.arena.pointer(block.offset, n) else { return 0 };
        let (mut copies, mut begun, mut sent) = (Copies::default(), 0, 0);
        loop {
            // What is left is worth strands, too.
            while n - begun >= 2 * AHEAD_BYTES && copies.has_room() {
                // SAFETY: the caller's promise, for a part of the bytes; `to` is inside the arena. They end before this does.
                unsafe { copies.begin(p.add(begun), to.add(begun), AHEAD_BYTES) };
                begun += AHEAD_BYTES;
            }
            if sent == begun {
                return sent;
            }
            copies.finish_first();
            let region = Region { offset: block.offset + sent as u64, length: AHEAD_BYTES };
            let frame = self.frame();
            (frame.names_memory, frame.ahead) = (true, true);
            if self.lane.send_ahead(region).is_err() {
                return sent;
            }
            sent += AHEAD_BYTES;
        }
    }
}
