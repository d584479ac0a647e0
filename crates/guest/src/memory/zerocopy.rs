//! Memory that both sides map at one address.

use std::collections::HashMap;
use std::fs;
use std::sync::Mutex;

use aviary_transport::Arena;

use crate::memory::block::{Block, lock};
use crate::memory::blocks::Blocks;

/// Smallest allocation in bytes that is compared with the free memory of a VM.
const MIN_CHECKED_BYTES: usize = 16 << 20;

/// Blocks by offset.
#[derive(Default)]
pub(crate) struct Zerocopy {
    /// Those that the application (or utility code) holds.
    held: Mutex<HashMap<u64, Block>>,
    /// Those that the vendor library uses until the server returns them.
    lent: Mutex<HashMap<u64, Block>>,
}

/// Bytes that this machine can still give to programs; `None`: unknown.
fn available_memory() -> Option<usize> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

impl Zerocopy {
    /// Allocates memory for an object of the vendor library, with any content. NULL: there is not
    /// enough.
    ///
    /// The host maps only present pages of a VM's memory, so in a VM the whole block is occupied at
    /// once; more than half of the free memory would leave too little for the rest of the VM.
    /// Elsewhere only touched pages are occupied.
    pub fn allocate_uninitialized(&self, blocks: &Blocks, arena: &Arena, bytes: usize) -> *mut u8 {
        let in_vm = arena.device().is_some();
        if in_vm && bytes >= MIN_CHECKED_BYTES && available_memory().is_some_and(|available| bytes > available / 2) {
            return std::ptr::null_mut();
        }
        let Some(block) = blocks.allocate(bytes) else { return std::ptr::null_mut() };
        let Ok(p) = arena.pointer(block.offset, block.size as usize) else {
            blocks.free(block);
            return std::ptr::null_mut();
        };
        lock(&self.held).insert(block.offset, block);
        p
    }

    pub fn allocate(&self, blocks: &Blocks, arena: &Arena, bytes: usize) -> *mut u8 {
        let p = self.allocate_uninitialized(blocks, arena, bytes);
        // A recycled block holds old data of this process; it is zeroed, as the system's allocator
        // does for large memory.
        if let Some(offset) = arena.offset_of(p) {
            let size = bytes.max(1).next_multiple_of(4096);
            if arena.punch(offset, size).is_err() {
                // SAFETY: the block lies in the arena, has at least `size` bytes (whole pages) and
                // has just been allocated.
                unsafe { p.write_bytes(0, size) };
            }
            if arena.populate(offset, size).is_err() {
                self.free(blocks, arena, p);
                return std::ptr::null_mut();
            }
        }
        p
    }

    /// Frees memory of `allocate`; other pointers are ignored.
    pub fn free(&self, blocks: &Blocks, arena: &Arena, p: *mut u8) {
        let Some(offset) = arena.offset_of(p) else { return };
        let block = lock(&self.held).remove(&offset);
        block.into_iter().for_each(|block| blocks.free(block));
    }

    /// Lends the memory to the vendor library until the server returns it.
    pub fn lend(&self, arena: &Arena, p: *mut u8) {
        let Some(offset) = arena.offset_of(p) else { return };
        let block = lock(&self.held).remove(&offset);
        lock(&self.lent).extend(block.map(|block| (block.offset, block)));
    }

    /// Takes lent memory back from the server. A lying server makes the guest reuse it too early,
    /// which harms only this guest.
    pub fn returned(&self, blocks: &Blocks, offset: u64) {
        let block = lock(&self.lent).remove(&offset);
        block.into_iter().for_each(|block| blocks.free(block));
    }
}
