//! Memory that both sides see at the same address.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::blocks::Block;
use crate::connection::Connection;

/// Blocks that the application holds, by offset.
#[derive(Default)]
pub(crate) struct Zerocopy {
    held: Mutex<HashMap<u64, Block>>,
}

impl Connection {
    pub fn zerocopy_alloc(&self, bytes: usize) -> *mut u8 {
        let Some(block) = self.blocks.allocate(bytes) else { return std::ptr::null_mut() };
        let Ok(p) = self.arena.pointer(block.offset, block.size as usize) else { return std::ptr::null_mut() };
        // A recycled block holds old data of this process; hand out zeros, as the system's allocator for
        // large memory does.
        if self.arena.punch(block.offset, block.size as usize).is_err() {
            // SAFETY: the block lies in the arena and was just allocated.
            unsafe { p.write_bytes(0, block.size as usize) };
        }
        self.zerocopy.held.lock().unwrap_or_else(PoisonError::into_inner).insert(block.offset, block);
        p
    }

    /// Frees what `zerocopy_alloc` returned; anything else is ignored.
    pub fn zerocopy_free(&self, p: *mut u8) {
        let Some(offset) = self.arena.offset_of(p) else { return };
        let block = self.zerocopy.held.lock().unwrap_or_else(PoisonError::into_inner).remove(&offset);
        if let Some(block) = block {
            self.blocks.free(block);
        }
    }

    /// Whether `p` points into zero-copy memory or into zero-copy mapped memory.
    pub fn is_zerocopy(&self, p: *const u8) -> bool {
        self.same_address && self.arena.offset_of(p).is_some()
    }
}
