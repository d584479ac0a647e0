//! The arena's allocator. Only the guest allocates; its lists are private memory.
//!
//! Blocks come in size classes, four per doubling, in whole pages. A freed block keeps its pages
//! for the next user up to a limit; beyond it the pages of other free blocks are returned and only
//! their addresses are kept: a program that moves large buffers repeatedly faults their pages in
//! once.
//!
//! Large blocks lie in the part of the arena that has huge pages, small ones below it; a full part
//! borrows from the other. In a VM the last quarter of the arena is for pinned memory of the
//! application.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aviary_transport::{Arena, HUGE_PAGE, huge_from};

use crate::memory::block::Block;
use crate::memory::pins::Pins;

const PAGE_BYTES: u64 = 4096;
const HUGE_PAGE_PAGES: u64 = HUGE_PAGE as u64 / PAGE_BYTES;
/// Pages from which a block is large.
const LARGE_BLOCK_PAGES: u64 = (512 << 10) / PAGE_BYTES;
/// Bytes of free memory that stay resident.
pub(crate) const MAX_RETAINED_BYTES: u64 = 512 << 20;
/// Classes for 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ... pages.
const SIZE_CLASSES: usize = 4 * 34;

struct FreeBlock {
    offset: u64,
    resident: bool,
}

/// A range of offsets in bytes, from `next` to `end`, that was never allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FreshRange {
    next: u64,
    end: u64,
}

impl FreshRange {
    fn take(&mut self, size: u64) -> Option<u64> {
        let align = if size >= HUGE_PAGE as u64 { HUGE_PAGE as u64 } else { PAGE_BYTES };
        let offset = self.next.checked_next_multiple_of(align)?;
        let next = offset.checked_add(size).filter(|next| *next <= self.end)?;
        self.next = next;
        Some(offset)
    }
}

struct BlockLists {
    /// The range for small blocks, and the one for large blocks.
    fresh: [FreshRange; 2],
    free: Vec<Vec<FreeBlock>>,
    retained: u64,
    in_use: u64,
}

impl BlockLists {
    fn take_fresh(&mut self, size: u64) -> Option<u64> {
        let [small, large] = &mut self.fresh;
        if size >= LARGE_BLOCK_PAGES * PAGE_BYTES {
            large.take(size).or_else(|| small.take(size))
        } else {
            small.take(size).or_else(|| large.take(size))
        }
    }

    fn put(&mut self, class: usize, free: FreeBlock) {
        if let Some(list) = self.free.get_mut(class) {
            list.push(free);
        }
    }

    /// Removes resident free blocks, large ones first, until `size` bytes fit under the limit.
    fn make_room(&mut self, size: u64) -> Vec<(usize, FreeBlock)> {
        let mut evicted = Vec::new();
        if self.retained + size <= MAX_RETAINED_BYTES {
            return evicted;
        }
        for class in (0..SIZE_CLASSES).rev() {
            while self.retained + size > MAX_RETAINED_BYTES {
                let Some(at) = self.free[class].iter().position(|f| f.resident) else { break };
                self.retained -= class_pages(class) * PAGE_BYTES;
                evicted.push((class, self.free[class].remove(at)));
            }
        }
        evicted
    }
}

/// Allocates blocks of one arena.
pub(crate) struct Blocks {
    arena: Arc<Arena>,
    lists: Mutex<BlockLists>,
    /// The application's pinned memory; present in a VM.
    pins: Option<Pins>,
}

/// Size of a class in pages.
fn class_pages(class: usize) -> u64 {
    if class < 4 {
        return class as u64 + 1;
    }
    // After the first four classes, each group of four spans one doubling.
    let (group, step) = ((class - 4) / 4, (class - 4) % 4);
    (5 + step as u64) << group
}

/// The smallest class of at least this many pages.
fn class_of(pages: u64) -> usize {
    if pages <= 4 {
        return pages.max(1) as usize - 1;
    }
    // 5..=8 is group 0: pages-1 in 4..=7 has its top bit at 2.
    let group = (pages - 1).ilog2() as usize - 2;
    let step = ((pages - 1) >> group) as usize - 4;
    4 + group * 4 + step
}

/// The class for a block of this many pages. Blocks of a huge page or more consist of whole huge
/// pages.
fn class_for(pages: u64) -> usize {
    class_of(if pages >= HUGE_PAGE_PAGES { pages.next_multiple_of(HUGE_PAGE_PAGES) } else { pages })
}

impl Blocks {
    /// The allocator of an arena. The first page holds the ticket word, the last `heap` bytes are
    /// reserved for the application's own memory.
    pub fn new(arena: Arc<Arena>, heap: usize) -> Self {
        let free = (0..SIZE_CLASSES).map(|_| Vec::new()).collect();
        let size = arena.size().saturating_sub(heap) as u64;
        let pins = arena.device().map(|device| Pins::new(device.clone(), size / 4 * 3..size));
        let end = if pins.is_some() { size / 4 * 3 } else { size };
        let middle = (huge_from(arena.size()) as u64).min(end);
        let large = FreshRange { next: middle, end };
        let fresh = [FreshRange { next: PAGE_BYTES, end: middle }, large];
        Blocks { arena, lists: Mutex::new(BlockLists { fresh, free, retained: 0, in_use: 0 }), pins }
    }

    fn lists(&self) -> MutexGuard<'_, BlockLists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates at least `bytes` bytes, page-aligned, with any content; `None`: the arena is full.
    pub fn allocate(&self, bytes: usize) -> Option<Block> {
        let pages = (bytes as u64).max(1).div_ceil(PAGE_BYTES);
        if pages > self.arena.size() as u64 / PAGE_BYTES {
            return None;
        }
        let class = class_for(pages);
        let size = class_pages(class) * PAGE_BYTES;
        let mut lists = self.lists();
        let (offset, resident) = match lists.free.get_mut(class)?.pop() {
            Some(free) => (free.offset, free.resident),
            None => (lists.take_fresh(size)?, false),
        };
        if resident {
            lists.retained -= size;
        }
        lists.in_use += size;
        drop(lists);
        if !resident && let Err(error) = self.arena.populate(offset, size as usize) {
            crate::process::log::line(&format!("{error}"));
            let mut lists = self.lists();
            lists.in_use -= size;
            lists.put(class, FreeBlock { offset, resident });
            return None;
        }
        Some(Block { offset, size })
    }

    /// True if a buffer of `n` bytes is pinned rather than copied.
    pub fn lends(&self, n: usize) -> bool {
        self.pins.as_ref().is_some_and(|pins| pins.worthwhile(n))
    }

    /// Shares `n` bytes of the application at `p` with the server without a copy, if this is
    /// possible and pays. Returns the block to free afterwards, and the offset of the bytes.
    ///
    /// # Safety
    /// The bytes stay mapped until the block is freed and, with `write`, may be changed until then.
    pub unsafe fn lend(&self, p: *const u8, n: usize, write: bool) -> Option<(Block, u64)> {
        // SAFETY: the caller's promise.
        self.pins.as_ref().and_then(|pins| unsafe { pins.lend(p, n, write) })
    }

    pub fn free(&self, block: Block) {
        if let Some(pins) = self.pins.as_ref().filter(|pins| pins.owns(block)) {
            return pins.give_back(block);
        }
        let class = class_of(block.size / PAGE_BYTES);
        let resident = block.size <= MAX_RETAINED_BYTES;
        let evicted = {
            let mut lists = self.lists();
            let evicted = if resident { lists.make_room(block.size) } else { Vec::new() };
            if resident {
                lists.retained += block.size;
                lists.put(class, FreeBlock { offset: block.offset, resident });
            }
            lists.in_use -= block.size;
            evicted
        };
        // The blocks are out of the lists while their pages are returned, so that no thread
        // allocates a block that is about to lose its pages.
        for (class, free) in evicted {
            self.discard(class, free.offset);
        }
        if !resident {
            self.discard(class, block.offset);
        }
    }

    fn discard(&self, class: usize, offset: u64) {
        if let Err(e) = self.arena.give_back(offset, (class_pages(class) * PAGE_BYTES) as usize) {
            crate::process::log::line(&format!("{e}"));
        }
        self.lists().put(class, FreeBlock { offset, resident: false });
    }

    /// Allocated bytes.
    #[cfg(test)]
    pub fn in_use(&self) -> u64 {
        self.lists().in_use
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_their_sizes() {
        for pages in 1..100_000u64 {
            let class = class_of(pages);
            assert!(class_pages(class) >= pages, "{pages}");
            assert!(class == 0 || class_pages(class - 1) < pages, "{pages}");
            assert_eq!(class_of(class_pages(class)), class);
        }
        assert!(class_of((1 << 40) / PAGE_BYTES) < SIZE_CLASSES);
    }

    #[test]
    fn blocks_do_not_overlap_and_come_back() {
        let blocks = Blocks::new(Arena::mirror(64 << 20).unwrap(), 0);
        let mut taken: Vec<Block> = (0..200).map(|n| blocks.allocate(n * 1000 + 1).unwrap()).collect();
        taken.sort_by_key(|b| b.offset);
        assert!(taken[0].offset >= PAGE_BYTES);
        assert!(taken.windows(2).all(|w| w[0].offset + w[0].size <= w[1].offset));
        let fresh = blocks.lists().fresh;
        for b in taken.drain(..) {
            blocks.free(b);
        }
        assert_eq!(blocks.in_use(), 0);
        for n in 0..200 {
            blocks.allocate(n * 1000 + 1).unwrap();
        }
        assert_eq!(blocks.lists().fresh, fresh, "freed blocks are used again");
    }

    #[test]
    fn full_arena_is_reported() {
        let blocks = Blocks::new(Arena::mirror(1 << 20).unwrap(), 0);
        assert_eq!(blocks.allocate(usize::MAX), None);
        assert_eq!(blocks.allocate(1 << 20), None, "the first page is taken");
        let half = blocks.allocate(1 << 19).unwrap();
        assert_eq!(blocks.allocate(1 << 19), None);
        blocks.free(half);
        assert!(blocks.allocate(1 << 19).is_some());
    }

    #[test]
    fn large_blocks_are_whole_huge_pages() {
        let blocks = Blocks::new(Arena::mirror(256 << 20).unwrap(), 0);
        let huge = HUGE_PAGE as u64;
        assert!(blocks.allocate(1 << 20).unwrap().offset >= 128 << 20);
        assert!(blocks.allocate(4096).unwrap().offset < 128 << 20);
        for bytes in (1..64).map(|n| n * (1 << 19) + 1).filter(|n| *n > HUGE_PAGE) {
            let block = blocks.allocate(bytes).unwrap();
            assert!(block.size >= bytes as u64);
            assert!(block.offset.is_multiple_of(huge) && block.size.is_multiple_of(huge), "{block:?}");
            blocks.free(block);
        }
    }

    #[test]
    fn one_part_borrows_from_the_other() {
        let blocks = Blocks::new(Arena::mirror(64 << 20).unwrap(), 0);
        assert!((0..15).all(|_| blocks.allocate(4 << 20).is_some()));
        let blocks = Blocks::new(Arena::mirror(64 << 20).unwrap(), 0);
        assert!((0..1000).all(|_| blocks.allocate(60 << 10).is_some()));
    }

    #[test]
    fn retention_is_bounded() {
        let blocks = Blocks::new(Arena::mirror(1 << 30).unwrap(), 0);
        let taken: Vec<Block> = (0..8).map(|_| blocks.allocate(64 << 20).unwrap()).collect();
        for b in taken {
            blocks.free(b);
        }
        assert!(blocks.lists().retained <= MAX_RETAINED_BYTES);
    }

    #[test]
    fn the_newest_block_keeps_its_pages() {
        let blocks = Blocks::new(Arena::mirror(2 << 30).unwrap(), 0);
        let taken: Vec<Block> = (0..9).map(|_| blocks.allocate(64 << 20).unwrap()).collect();
        let large = blocks.allocate(300 << 20).unwrap();
        for b in taken {
            blocks.free(b);
        }
        blocks.free(large);
        let lists = blocks.lists();
        assert!(lists.retained <= MAX_RETAINED_BYTES);
        assert!(lists.free[class_of(large.size / PAGE_BYTES)].iter().any(|f| f.resident), "the large block stays");
        let free: u64 = lists.free.iter().map(|list| list.len() as u64).sum();
        assert_eq!(free, 10, "no block is lost");
    }
}
