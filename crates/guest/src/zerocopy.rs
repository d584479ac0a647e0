//! Memory that both sides see at the same address.

use std::collections::HashMap;
use std::fs;
use std::sync::{Mutex, PoisonError};

use crate::blocks::Block;
use crate::connection::Connection;

/// Smaller memory is not compared with what a VM has.
const CONSIDERABLE: usize = 16 << 20;

/// Blocks by offset.
type Books = Mutex<HashMap<u64, Block>>;

#[derive(Default)]
pub(crate) struct Zerocopy {
    /// What the application (or utility code) holds.
    held: Books,
    /// What the vendor library uses until the server gives it back.
    lent: Books,
}

fn put(books: &Books, block: Block) {
    books.lock().unwrap_or_else(PoisonError::into_inner).insert(block.offset, block);
}

fn take(books: &Books, offset: u64) -> Option<Block> {
    books.lock().unwrap_or_else(PoisonError::into_inner).remove(&offset)
}

/// Bytes that this machine can still give to programs.
fn available_memory() -> Option<usize> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

impl Connection {
    /// Memory for an object of the vendor library, with any content. NULL: there is too little of it.
    ///
    /// The host sees of a VM's memory only what is there, so that all of it is occupied at once; more than half of
    /// what is left would leave too little to the rest of the VM. Elsewhere only what is used is occupied.
    pub fn zerocopy_alloc_uninitialized(&self, bytes: usize) -> *mut u8 {
        let in_vm = self.arena.device().is_some();
        if in_vm && bytes >= CONSIDERABLE && available_memory().is_some_and(|available| bytes > available / 2) {
            return std::ptr::null_mut();
        }
        let Some(block) = self.blocks.allocate(bytes) else { return std::ptr::null_mut() };
        let Ok(p) = self.arena.pointer(block.offset, block.size as usize) else { return std::ptr::null_mut() };
        put(&self.zerocopy.held, block);
        p
    }

    pub fn zerocopy_alloc(&self, bytes: usize) -> *mut u8 {
        let p = self.zerocopy_alloc_uninitialized(bytes);
        // A recycled block holds old data of this process; hand out zeros, as the system's allocator for
        // large memory does.
        if let Some(offset) = self.arena.offset_of(p) {
            let size = bytes.max(1).next_multiple_of(4096);
            if self.arena.punch(offset, size).is_err() {
                // SAFETY: the block lies in the arena, has at least `size` bytes (whole pages) and was just allocated.
                unsafe { p.write_bytes(0, size) };
            }
            self.arena.populate(offset, size);
        }
        p
    }

    /// Frees what `zerocopy_alloc` returned; anything else is ignored.
    pub fn zerocopy_free(&self, p: *mut u8) {
        let Some(offset) = self.arena.offset_of(p) else { return };
        if let Some(block) = take(&self.zerocopy.held, offset) {
            self.blocks.free(block);
        }
    }

    /// The vendor library uses the memory until the server says that it no longer does.
    pub fn zerocopy_lend(&self, p: *mut u8) {
        let Some(offset) = self.arena.offset_of(p) else { return };
        if let Some(block) = take(&self.zerocopy.held, offset) {
            put(&self.zerocopy.lent, block);
        }
    }

    /// The server gave lent memory back. A server that lies makes the guest reuse it too early.
    pub fn zerocopy_returned(&self, offset: u64) {
        if let Some(block) = take(&self.zerocopy.lent, offset) {
            self.blocks.free(block);
        }
    }

    /// Whether `p` points into zero-copy memory or into zero-copy mapped memory.
    pub fn is_zerocopy(&self, p: *const u8) -> bool {
        self.same_address && self.arena.offset_of(p).is_some()
    }
}
