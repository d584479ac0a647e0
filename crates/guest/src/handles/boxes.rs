//! Blocks to which handles of `boxed` types point.
//!
//! Applications pass any pointer as a handle, also freed ones, and a dispatching loader reads the
//! first word of the block. All blocks therefore lie in one reserved range, so that a pointer is
//! checked by its address before it is dereferenced, and freed blocks are kept unused for a while,
//! so that a stale handle is recognised and not taken for a new one.
//!
//! ```text
//! word 0  prefix (the API's dispatch table, or 0); survives the handle
//! word 1  id, 0: not live
//! word 2  references
//! word 3  metadata
//! ```

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use crate::memory::block::lock;

pub(crate) const BOX_BYTES: usize = 64;
const MAX_RANGE_BYTES: usize = 16 << 30;
const MIN_RANGE_BYTES: usize = 16 << 20;
const COMMIT_BYTES: usize = 256 << 10;
/// Freed blocks that are kept before the oldest is reused.
const MIN_FREED_BEFORE_REUSE: usize = 4096;

/// One block, shared by all threads.
#[repr(C, align(64))]
pub(crate) struct BoxBlock {
    prefix: AtomicUsize,
    pub id: AtomicU64,
    pub references: AtomicU64,
    pub metadata: AtomicPtr<u8>,
}

const _: () = assert!(size_of::<BoxBlock>() == BOX_BYTES);

struct Stock {
    /// Bytes of the range that were ever used.
    used: usize,
    resting: VecDeque<usize>,
}

/// The range of one connection.
pub(crate) struct Boxes {
    /// Address of the range; 0 until the first box is needed.
    base: AtomicUsize,
    /// Bytes from the base that are readable and writable; only grows.
    committed: AtomicUsize,
    reserved: AtomicUsize,
    stock: Mutex<Stock>,
    /// Blocks outside the range, of the process that this one was forked from; null: none. A list that was published is never freed.
    adopted: AtomicPtr<Vec<usize>>,
}

impl Boxes {
    pub const fn new() -> Self {
        Boxes {
            base: AtomicUsize::new(0),
            committed: AtomicUsize::new(0),
            reserved: AtomicUsize::new(0),
            stock: Mutex::new(Stock { used: 0, resting: VecDeque::new() }),
            adopted: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// The block to which a handle value points, live or not; `None` if the value is no block's
    /// address.
    #[inline]
    pub fn find(&self, value: u64) -> Option<&BoxBlock> {
        let base = self.base.load(Ordering::Acquire);
        let distance = (value as usize).wrapping_sub(base);
        if base == 0 || distance >= self.committed.load(Ordering::Acquire) || !distance.is_multiple_of(BOX_BYTES) {
            return self.find_adopted(value);
        }
        // SAFETY: the address is a multiple of 64 bytes into the committed part of the range, which is
        // never unmapped, zeroed at first and only ever accessed as blocks of atomics.
        Some(unsafe { &*(value as *const BoxBlock) })
    }

    #[cold]
    fn find_adopted(&self, value: u64) -> Option<&BoxBlock> {
        // SAFETY: the pointer is null or was published by `adopt`, after which the list does not change.
        let adopted = unsafe { self.adopted.load(Ordering::Acquire).as_ref() }?;
        let at = adopted.binary_search(&(value as usize)).ok()?;
        // SAFETY: `adopt` takes addresses of blocks only, whose memory is never unmapped.
        Some(unsafe { &*(*adopted.get(at)? as *const BoxBlock) })
    }

    /// Takes a block of the process that this one was forked from, and makes it one of this range for `id`, with one reference. Blocks
    /// are few: answers that every process gets. Not called by two threads at a time.
    pub fn adopt(&self, block: &'static BoxBlock, id: u64) {
        let address = std::ptr::from_ref(block) as usize;
        block.references.store(1, Ordering::Relaxed);
        // Of the other process's connection: its content may mean nothing here.
        block.metadata.store(std::ptr::null_mut(), Ordering::Relaxed);
        block.id.store(id, Ordering::Release);
        // SAFETY: as in `find_adopted`.
        let mut all = unsafe { self.adopted.load(Ordering::Acquire).as_ref() }.cloned().unwrap_or_default();
        if let Err(at) = all.binary_search(&address) {
            all.insert(at, address);
            self.adopted.store(Box::into_raw(Box::new(all)), Ordering::Release);
        }
    }

    /// The id behind a live handle value.
    #[inline]
    pub fn id_of(&self, value: u64) -> Option<u64> {
        Some(self.find(value)?.id.load(Ordering::Acquire)).filter(|id| *id != 0)
    }

    /// Allocates a block for `id` with one reference; `None`: no addresses are left.
    pub fn allocate(&self, id: u64, prefix: usize) -> Option<NonNull<BoxBlock>> {
        let mut stock = lock(&self.stock);
        let address = match stock.resting.len() > MIN_FREED_BEFORE_REUSE {
            true => stock.resting.pop_front()?,
            false => match self.fresh(&mut stock) {
                Some(address) => address,
                // No addresses are left: a handle used after its end may be taken for a new one.
                None => stock.resting.pop_front()?,
            },
        };
        drop(stock);
        let block = self.find(address as u64)?;
        block.prefix.store(prefix, Ordering::Relaxed);
        block.references.store(1, Ordering::Relaxed);
        block.metadata.store(std::ptr::null_mut(), Ordering::Relaxed);
        // Stored last: a thread that reads the id also sees the other words.
        block.id.store(id, Ordering::Release);
        Some(NonNull::from(block))
    }

    /// Ends a block after the caller has cleared its id.
    pub fn retire(&self, block: &BoxBlock) {
        let mut stock = lock(&self.stock);
        stock.resting.push_back(std::ptr::from_ref(block) as usize);
    }

    fn fresh(&self, stock: &mut Stock) -> Option<usize> {
        if self.base.load(Ordering::Relaxed) == 0 {
            self.reserve()?;
        }
        let base = self.base.load(Ordering::Relaxed);
        if stock.used + BOX_BYTES > self.committed.load(Ordering::Relaxed) {
            self.commit(base)?;
        }
        let address = base + stock.used;
        stock.used += BOX_BYTES;
        Some(address)
    }

    /// Reserves inaccessible addresses, which cost nothing; fewer if the process has a limit.
    fn reserve(&self) -> Option<()> {
        let mut size = MAX_RANGE_BYTES;
        while size >= MIN_RANGE_BYTES {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: a new mapping at an address that the kernel chooses.
            let range = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), size, ProtFlags::empty(), flags) };
            if let Ok(p) = range {
                self.reserved.store(size, Ordering::Relaxed);
                self.base.store(p as usize, Ordering::Release);
                return Some(());
            }
            size /= 2;
        }
        None
    }

    fn commit(&self, base: usize) -> Option<()> {
        let committed = self.committed.load(Ordering::Relaxed);
        if committed + COMMIT_BYTES > self.reserved.load(Ordering::Relaxed) {
            return None;
        }
        let at = (base + committed) as *mut _;
        // SAFETY: the next part of this object's reservation, which is not accessed before
        // `committed` covers it.
        unsafe { rustix::mm::mprotect(at, COMMIT_BYTES, MprotectFlags::READ | MprotectFlags::WRITE) }.ok()?;
        self.committed.store(committed + COMMIT_BYTES, Ordering::Release);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_live_blocks_are_handles() {
        let boxes = Boxes::new();
        assert_eq!(boxes.id_of(0), None);
        let block = boxes.allocate(77, 5).unwrap();
        let value = block.as_ptr() as u64;
        assert_eq!(boxes.id_of(value), Some(77));
        for other in [value + 8, value + 64, value - 64, value + (COMMIT_BYTES as u64), 1, u64::MAX, 4096] {
            assert_eq!(boxes.id_of(other), None, "{other:#x}");
        }
        // SAFETY: a live block; a loader reads it in this way.
        assert_eq!(unsafe { *(value as *const usize) }, 5);
        let found = boxes.find(value).unwrap();
        found.id.store(0, Ordering::Release);
        boxes.retire(found);
        assert_eq!(boxes.id_of(value), None);
    }

    #[test]
    fn adopted_blocks_are_handles_of_the_child() {
        let parent: &'static Boxes = Box::leak(Box::new(Boxes::new()));
        let (first, other) = (parent.allocate(77, 5).unwrap(), parent.allocate(78, 5).unwrap());
        let value = first.as_ptr() as u64;
        let child = Boxes::new();
        assert_eq!(child.id_of(value), None);
        child.adopt(parent.find(value).unwrap(), 3);
        assert_eq!(child.id_of(value), Some(3));
        assert_eq!(child.id_of(other.as_ptr() as u64), None, "only those");
        assert_eq!(child.id_of(value + 8), None);
        let own = child.allocate(4, 5).unwrap();
        assert_eq!((child.id_of(own.as_ptr() as u64), child.id_of(value)), (Some(4), Some(3)));
    }

    #[test]
    fn freed_blocks_are_not_reused_at_once() {
        let boxes = Boxes::new();
        let first = boxes.allocate(1, 0).unwrap();
        let mut reused = 0;
        for n in 0..3 * MIN_FREED_BEFORE_REUSE as u64 {
            let block = boxes.allocate(n + 2, 0).unwrap();
            reused += usize::from(block == first);
            assert!(n > MIN_FREED_BEFORE_REUSE as u64 || block != first);
            let block = boxes.find(block.as_ptr() as u64).unwrap();
            block.id.store(0, Ordering::Release);
            boxes.retire(block);
            if n == 0 {
                boxes.retire(boxes.find(first.as_ptr() as u64).unwrap());
            }
        }
        assert!(reused > 0, "no block was reused");
    }
}
