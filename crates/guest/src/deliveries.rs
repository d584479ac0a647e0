//! Deferred outputs: blocks that the server finishes after the call that named them.
//!
//! The server numbers deliveries, and the guest applies them in that order, in the threads that
//! receive them. No call returns before every delivery that the server had assigned when it
//! answered is applied: the application then sees its memory as if the vendor's library had written
//! it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aviary_wire::REJECTED_CALL;

use crate::blocks::Block;
use crate::connection::Connection;

/// The block of a deferred output.
pub(crate) struct Pending {
    /// Address of the application's buffer; 0: the bytes stay in the block.
    pub to: usize,
    pub bytes: usize,
    /// The block to free after the delivery.
    pub block: Option<Block>,
    /// The ticket of the asynchronous call that named the block; 0: none.
    pub ticket: u64,
}

/// Bytes that are compared before they are written.
const COMPARED_BYTES: usize = 4096;

/// Copies what differs. Memory that stays as it is, is not written: it may be read-only memory of the application, as
/// behind a buffer that kernels only read.
///
/// # Safety
/// `bytes` bytes are readable at both places, and writable at `to` where they differ.
pub(crate) unsafe fn copy_changes(from: *const u8, to: *mut u8, bytes: usize) {
    for at in (0..bytes).step_by(COMPARED_BYTES) {
        let length = COMPARED_BYTES.min(bytes - at);
        // SAFETY: the caller's promise. `memcmp` and `copy` take memory that another thread changes meanwhile as they
        // find it, which slices would not.
        unsafe {
            let (from, to) = (from.add(at), to.add(at));
            if libc::memcmp(from.cast(), to.cast(), length) != 0 {
                std::ptr::copy(from, to, length);
            }
        }
    }
}

#[derive(Default)]
pub(crate) struct Deliveries {
    order: Order,
    pending: Mutex<HashMap<u64, Pending>>,
}

/// The thread that waits for deliveries of others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiter {
    /// Waits as long as a copy may take.
    Thread,
    /// A call of a signal handler: it may have interrupted the very thread that it would wait for.
    SignalHandler,
}

impl Waiter {
    /// A lying server may have counted deliveries that it never sent.
    fn patience(self) -> Duration {
        match self {
            Waiter::Thread => Duration::from_secs(10),
            Waiter::SignalHandler => Duration::from_millis(1),
        }
    }
}

/// Which deliveries are applied.
#[derive(Default)]
struct Order {
    /// All up to this number.
    applied: AtomicU64,
    /// True if there is anything in `ahead`.
    any_ahead: AtomicBool,
    /// Further ones: those behind the first number up to the second. Only calls of signal handlers get here, each once.
    ahead: Mutex<Vec<(u64, u64)>>,
}

impl Order {
    #[inline]
    fn settled(&self, count: u64) -> bool {
        self.applied.load(Ordering::Acquire) >= count
    }

    /// Waits for the threads that received the earlier deliveries and are copying; the wait takes no longer than a copy.
    /// False: they are not through, and will not be while this thread waits.
    fn wait(&self, count: u64, waiter: Waiter, alive: impl Fn() -> bool) -> bool {
        let start = Instant::now();
        let mut turns = 0u32;
        while !self.settled(count) {
            turns += 1;
            if turns < 100 {
                std::hint::spin_loop();
            } else if turns < 200 {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(50));
                if !alive() || start.elapsed() > waiter.patience() {
                    return self.settled(count);
                }
            }
        }
        true
    }

    /// The deliveries from `before` up to `delivered` are applied; `in_order`: all earlier ones are as well, or never will be.
    fn done(&self, before: u64, delivered: u64, in_order: bool) {
        if !in_order && before < delivered {
            let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
            ahead.push((before, delivered));
            self.any_ahead.store(true, Ordering::Release);
        } else if in_order {
            self.applied.fetch_max(delivered, Ordering::AcqRel);
        }
        if self.any_ahead.load(Ordering::Acquire) {
            self.catch_up();
        }
    }

    #[cold]
    fn catch_up(&self) {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(next) = ahead.iter().position(|(before, _)| self.settled(*before)) {
            let (_, delivered) = ahead.swap_remove(next);
            self.applied.fetch_max(delivered, Ordering::AcqRel);
        }
        self.any_ahead.store(!ahead.is_empty(), Ordering::Release);
    }
}

impl Deliveries {
    fn pending(&self) -> MutexGuard<'_, HashMap<u64, Pending>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces the block at `offset` before the message that names it is sent.
    pub fn expect(&self, offset: u64, pending: Pending) {
        self.pending().insert(offset, pending);
    }

    /// Assigns the expected blocks at these offsets to an asynchronous call that is about to be
    /// sent.
    pub fn belong(&self, offsets: &[Option<u64>], ticket: u64) {
        let mut pending = self.pending();
        for offset in offsets.iter().flatten() {
            if let Some(pending) = pending.get_mut(offset) {
                pending.ticket = ticket;
            }
        }
    }

    /// Ends the wait for a block; `None` if its delivery has arrived already.
    pub fn take(&self, offset: u64) -> Option<Pending> {
        self.pending().remove(&offset)
    }

    /// True if the content of the block has not come yet.
    pub fn is_expected(&self, offset: u64) -> bool {
        self.pending().contains_key(&offset)
    }

    /// The application does not want the content of this block any more. Returns the block if it is free; otherwise the
    /// delivery, which the server still owes, frees it.
    pub fn abandon(&self, block: Block) -> Option<Block> {
        match self.pending().get_mut(&block.offset) {
            Some(pending) => {
                pending.to = 0;
                pending.block = Some(block);
                None
            }
            None => Some(block),
        }
    }

    /// Bytes of all expected blocks, and of the largest one.
    pub fn kept(&self) -> (u64, u64) {
        let pending = self.pending();
        let sizes = pending.values().filter_map(|p| p.block).map(|b| b.size);
        sizes.fold((0, 0), |(sum, largest), size| (sum + size, largest.max(size)))
    }

    /// True if there is no delivery to apply or to wait for.
    #[inline]
    pub fn settled(&self, delivered: u64) -> bool {
        self.order.settled(delivered)
    }

    /// Applies a message's own deliveries after all earlier ones; `delivered` is the count after
    /// them.
    #[cold]
    pub fn apply(&self, connection: &Connection, own: &[(u64, u64)], delivered: u64, waiter: Waiter) {
        let before = delivered.saturating_sub(own.len() as u64);
        let settled = self.order.wait(before, waiter, || connection.liveness.check());
        for (offset, bytes) in own {
            match *offset {
                REJECTED_CALL => self.rejected(connection, *bytes),
                offset => self.finish(connection, offset, usize::try_from(*bytes).unwrap_or(usize::MAX)),
            }
        }
        // Other threads wait for exactly this number, so none raises it meanwhile, except after a
        // timeout.
        self.order.done(before, delivered, settled || waiter == Waiter::Thread);
    }

    /// Drops the blocks of a rejected asynchronous call: they will have no delivery, and the server
    /// may not know them.
    fn rejected(&self, connection: &Connection, ticket: u64) {
        let mut pending = self.pending();
        let of_call = |p: &Pending| ticket != 0 && p.ticket == ticket;
        let ended: Vec<_> = pending.extract_if(|_, p| of_call(p)).filter_map(|(_, p)| p.block).collect();
        drop(pending);
        for block in ended {
            connection.blocks.free(block);
        }
    }

    /// Copies the block's content to the application and frees the block.
    pub fn finish(&self, connection: &Connection, offset: u64, bytes: usize) {
        let Some(pending) = self.take(offset) else { return connection.zerocopy_returned(offset) };
        let bytes = bytes.min(pending.bytes);
        if pending.to != 0
            && bytes > 0
            && let Ok(from) = connection.arena.pointer(offset, bytes)
        {
            // SAFETY: `from` was checked. The application gave `to` with at least `pending.bytes`
            // bytes to a call whose specification says that they are written until their delivery;
            // it must own them as long, which the vendor's own library would require as well.
            unsafe { copy_changes(from, pending.to as *mut u8, bytes) };
        }
        if let Some(block) = pending.block {
            connection.blocks.free(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_handler_does_not_wait_for_the_thread_that_it_interrupted() {
        let order = Order::default();
        // The second and third delivery arrive in the handler, while the first waits in the interrupted thread.
        assert!(!order.wait(1, Waiter::SignalHandler, || true));
        order.done(1, 3, false);
        assert!(!order.settled(1));
        assert!(!order.wait(3, Waiter::SignalHandler, || true));
        order.done(3, 3, false);
        assert!(order.wait(0, Waiter::Thread, || true));
        order.done(0, 1, true);
        assert!(order.settled(3) && !order.settled(4));
        assert!(order.wait(3, Waiter::Thread, || true));
        order.done(3, 4, true);
        assert!(order.settled(4) && !order.any_ahead.load(Ordering::Relaxed));
    }

    #[test]
    fn unchanged_memory_is_not_written() {
        let size = 3 * COMPARED_BYTES;
        let flags = rustix::mm::MapFlags::PRIVATE;
        let readable = rustix::mm::ProtFlags::READ;
        // SAFETY: a new mapping, of which only the first page stays writable.
        let to: *mut u8 = unsafe {
            let both = readable | rustix::mm::ProtFlags::WRITE;
            let to = rustix::mm::mmap_anonymous(std::ptr::null_mut(), size, both, flags).unwrap();
            let rest = to.byte_add(COMPARED_BYTES);
            rustix::mm::mprotect(rest, size - COMPARED_BYTES, rustix::mm::MprotectFlags::READ).unwrap();
            to.cast()
        };
        let mut from = vec![0u8; size];
        from[5] = 7;
        // SAFETY: `from` differs in the first page alone; a write to the others would end this test.
        unsafe { copy_changes(from.as_ptr(), to, size) };
        // SAFETY: mapped above.
        assert_eq!(unsafe { std::slice::from_raw_parts(to, size) }, from);
    }
}
