//! Blocks that handles of `boxed` types point to.
//!
//! Applications pass any pointer as a handle, also freed ones, and a dispatching
//! loader reads the first word of the block. All blocks therefore lie in one
//! reserved range, so that a pointer is judged by its address before it is
//! followed, and freed blocks rest a while before they are used again, so that a
//! stale handle is recognised and not taken for a new one.
//!
//! ```text
//! word 0  prefix (the API's dispatch table, or 0); survives the handle
//! word 1  id, 0: not live
//! word 2  references
//! word 3  metadata
//! ```

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

pub(crate) const BLOCK: usize = 64;
const LARGEST: usize = 16 << 30;
const SMALLEST: usize = 16 << 20;
const COMMIT: usize = 256 << 10;
/// Freed blocks that rest before the oldest is used again.
const RESTING: usize = 4096;

/// One block, shared by all threads.
#[repr(C, align(64))]
pub(crate) struct BoxBlock {
    prefix: AtomicUsize,
    pub id: AtomicU64,
    pub references: AtomicU64,
    pub metadata: AtomicPtr<u8>,
}

const _: () = assert!(size_of::<BoxBlock>() == BLOCK);

struct Stock {
    /// Bytes of the range ever used.
    used: usize,
    resting: VecDeque<usize>,
}

/// The range of one connection.
pub(crate) struct Boxes {
    /// 0 until the first box is needed.
    base: AtomicUsize,
    /// Bytes from the base that are readable and writable; only grows.
    committed: AtomicUsize,
    reserved: AtomicUsize,
    stock: Mutex<Stock>,
}

impl Boxes {
    pub const fn new() -> Self {
        Boxes {
            base: AtomicUsize::new(0),
            committed: AtomicUsize::new(0),
            reserved: AtomicUsize::new(0),
            stock: Mutex::new(Stock { used: 0, resting: VecDeque::new() }),
        }
    }

    /// The block that a handle value points to, if it is one of ours; live or not.
    #[inline]
    pub fn find(&self, value: u64) -> Option<&BoxBlock> {
        let base = self.base.load(Ordering::Acquire);
        let distance = (value as usize).wrapping_sub(base);
        if base == 0 || distance >= self.committed.load(Ordering::Acquire) || !distance.is_multiple_of(BLOCK) {
            return None;
        }
        // SAFETY: the address is a multiple of 64 bytes into the committed part of the range, which is
        // never unmapped, zeroed at first and only ever accessed as blocks of atomics.
        Some(unsafe { &*(value as *const BoxBlock) })
    }

    /// The id behind a live handle value.
    #[inline]
    pub fn id_of(&self, value: u64) -> Option<u64> {
        match self.find(value)?.id.load(Ordering::Acquire) {
            0 => None,
            id => Some(id),
        }
    }

    /// A block for `id` with one reference; `None`: out of addresses.
    pub fn allocate(&self, id: u64, prefix: usize) -> Option<NonNull<BoxBlock>> {
        let mut stock = self.stock.lock().unwrap_or_else(PoisonError::into_inner);
        let address = match stock.resting.len() > RESTING {
            true => stock.resting.pop_front()?,
            false => match self.fresh(&mut stock) {
                Some(address) => address,
                // Out of addresses: a handle used after its end may now be taken for a new one.
                None => stock.resting.pop_front()?,
            },
        };
        drop(stock);
        let block = self.find(address as u64)?;
        block.prefix.store(prefix, Ordering::Relaxed);
        block.references.store(1, Ordering::Relaxed);
        block.metadata.store(std::ptr::null_mut(), Ordering::Relaxed);
        // Last: whoever sees the id sees the rest.
        block.id.store(id, Ordering::Release);
        Some(NonNull::from(block))
    }

    /// Ends a block that the caller has made not live.
    pub fn retire(&self, block: &BoxBlock) {
        let mut stock = self.stock.lock().unwrap_or_else(PoisonError::into_inner);
        stock.resting.push_back(std::ptr::from_ref(block) as usize);
    }

    fn fresh(&self, stock: &mut Stock) -> Option<usize> {
        if self.base.load(Ordering::Relaxed) == 0 {
            self.reserve()?;
        }
        let base = self.base.load(Ordering::Relaxed);
        if stock.used + BLOCK > self.committed.load(Ordering::Relaxed) {
            self.commit(base)?;
        }
        let address = base + stock.used;
        stock.used += BLOCK;
        Some(address)
    }

    /// Inaccessible addresses cost nothing; less of them where the process has a limit.
    fn reserve(&self) -> Option<()> {
        let mut size = LARGEST;
        while size >= SMALLEST {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: a new mapping at a place that the kernel chooses.
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
        if committed + COMMIT > self.reserved.load(Ordering::Relaxed) {
            return None;
        }
        let at = (base + committed) as *mut _;
        // SAFETY: the next part of our own reservation, which nobody accesses before `committed` covers it.
        unsafe { rustix::mm::mprotect(at, COMMIT, MprotectFlags::READ | MprotectFlags::WRITE) }.ok()?;
        self.committed.store(committed + COMMIT, Ordering::Release);
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
        for other in [value + 8, value + 64, value - 64, value + (COMMIT as u64), 1, u64::MAX, 4096] {
            assert_eq!(boxes.id_of(other), None, "{other:#x}");
        }
        // SAFETY: a live block of ours; the loader's view of it.
        assert_eq!(unsafe { *(value as *const usize) }, 5);
        let found = boxes.find(value).unwrap();
        found.id.store(0, Ordering::Release);
        boxes.retire(found);
        assert_eq!(boxes.id_of(value), None);
    }

    #[test]
    fn freed_blocks_rest() {
        let boxes = Boxes::new();
        let first = boxes.allocate(1, 0).unwrap();
        let mut reused = 0;
        for n in 0..3 * RESTING as u64 {
            let block = boxes.allocate(n + 2, 0).unwrap();
            reused += usize::from(block == first);
            assert!(n > RESTING as u64 || block != first);
            let block = boxes.find(block.as_ptr() as u64).unwrap();
            block.id.store(0, Ordering::Release);
            boxes.retire(block);
            if n == 0 {
                boxes.retire(boxes.find(first.as_ptr() as u64).unwrap());
            }
        }
        assert!(reused > 0, "but they are used again");
    }
}
