//! What this process and the API server both see of memory: the arena, its blocks, and the application's own heap.

pub(crate) mod backpressure;
pub(crate) mod block;
pub(crate) mod blocks;
pub(crate) mod crew;
pub(crate) mod deliveries;
pub(crate) mod early;
pub(crate) mod heap;
pub(crate) mod outputs;
pub(crate) mod overlaps;
pub(crate) mod pins;
pub(crate) mod zerocopy;

use std::sync::Arc;

use aviary_transport::Arena;

use crate::memory::blocks::Blocks;
use crate::memory::heap::Heap;
use crate::memory::zerocopy::Zerocopy;

pub(crate) struct Memory {
    pub arena: Arc<Arena>,
    pub blocks: Blocks,
    /// The application's large allocations, if the server maps them.
    pub heap: Option<Heap>,
    pub zerocopy: Zerocopy,
    /// True if the arena has one address on both sides, so that pointers into it are valid on the
    /// server.
    pub same_address: bool,
    /// True if parts of a long input leave ahead of its message.
    pub ahead: bool,
}

impl Memory {
    pub fn new(arena: Arc<Arena>, heap: Option<Heap>, same_address: bool, ahead: bool) -> Self {
        let blocks = Blocks::new(arena.clone(), heap.map_or(0, |heap| heap.size));
        Memory { arena, blocks, heap, zerocopy: Zerocopy::default(), same_address, ahead }
    }

    /// True if `p` points into zero-copy memory or into zero-copy mapped memory.
    pub fn is_zerocopy(&self, p: *const u8) -> bool {
        self.same_address && self.arena.offset_of(p).is_some()
    }

    /// True if the server can access these bytes of the application without a copy.
    pub fn is_shared(&self, p: *const u8, bytes: usize) -> bool {
        let in_heap = self.heap.is_some_and(|heap| heap.offset_of(p, bytes).is_some());
        in_heap || self.blocks.lends(bytes)
    }

    /// The address of an offset that the server names in the heap or the arena; NULL if there is none.
    pub fn pointer(&self, offset: u64) -> *mut u8 {
        let heap = self.heap.and_then(|heap| heap.pointer(offset));
        heap.unwrap_or_else(|| self.arena.pointer(offset, 1).unwrap_or(std::ptr::null_mut()))
    }
}
