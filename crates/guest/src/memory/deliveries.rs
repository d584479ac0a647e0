//! Deferred outputs: blocks that the server finishes after the call that named them.
//!
//! The server numbers deliveries, and the guest applies them in that order, in the threads that
//! receive them. No call returns before every delivery that the server had assigned when it
//! answered is applied: the application then sees its memory as if the vendor's library had written
//! it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aviary_transport::{Liveness, Rows};
use aviary_wire::REJECTED_CALL;

use crate::memory::Memory;
use crate::memory::block::Block;
use crate::memory::outputs::write_back;

/// The block of a deferred output.
pub(crate) struct Pending {
    /// Address of the application's buffer; 0: the bytes stay in the block.
    pub to: usize,
    pub bytes: usize,
    /// The bytes as they were; what is left as it was is not written. `None`: as they are when the delivery comes. Memory that
    /// stays as it is may be read-only memory of the application.
    pub before: Option<Box<[u8]>>,
    pub rows: Option<Rows>,
    /// The block to free after the delivery.
    pub block: Option<Block>,
    /// The ticket of the asynchronous call that named the block; 0: none.
    pub ticket: u64,
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

/// Which deliveries are applied.
#[derive(Default)]
struct Order {
    /// All up to this number.
    applied: AtomicU64,
    /// True if there is anything in `ahead`.
    any_ahead: AtomicBool,
    /// Further ones: those behind the first number up to the second. Only calls of signal handlers get here, each once.
    ahead: Mutex<Vec<(u64, u64)>>,
    /// Waits of signal handlers that were in vain since a delivery was applied.
    futile_waits: AtomicU32,
}

impl Order {
    /// The longest wait. A lying server may have counted deliveries that it never sent. Handlers of a fast timer that wait for the
    /// thread that they interrupt would leave it no time: each wait that was in vain halves the next one.
    fn patience(&self, waiter: Waiter) -> Duration {
        match waiter {
            Waiter::Thread => Duration::from_secs(10),
            Waiter::SignalHandler => {
                Duration::from_millis(1) / (1 << self.futile_waits.load(Ordering::Relaxed).min(20))
            }
        }
    }

    #[inline]
    fn settled(&self, count: u64) -> bool {
        self.applied.load(Ordering::Acquire) >= count
    }

    /// Waits for the threads that received the earlier deliveries and are copying; the wait takes no longer than a copy.
    /// False: they are not through, and will not be while this thread waits.
    fn wait(&self, count: u64, waiter: Waiter, alive: impl Fn() -> bool) -> bool {
        let start = Instant::now();
        let patience = self.patience(waiter);
        let mut turns = 0u32;
        while !self.settled(count) {
            turns += 1;
            // Giving way may take long where other threads want the CPU.
            if waiter == Waiter::SignalHandler && start.elapsed() > patience {
                self.futile_waits.fetch_add(1, Ordering::Relaxed);
                return self.settled(count);
            }
            if turns < 100 {
                std::hint::spin_loop();
            } else if turns < 200 {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(50));
                // A handler's time is looked at above, where a wait in vain is counted.
                if !alive() || (waiter == Waiter::Thread && start.elapsed() > patience) {
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
            self.futile_waits.store(0, Ordering::Relaxed);
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
    pub fn apply(&self, memory: &Memory, liveness: &Liveness, own: &[(u64, u64)], delivered: u64, waiter: Waiter) {
        let before = delivered.saturating_sub(own.len() as u64);
        let settled = self.order.wait(before, waiter, || liveness.check());
        for (offset, bytes) in own {
            match *offset {
                REJECTED_CALL => self.rejected(memory, *bytes),
                offset => self.finish(memory, offset, usize::try_from(*bytes).unwrap_or(usize::MAX)),
            }
        }
        // Other threads wait for exactly this number, so none raises it meanwhile, except after a
        // timeout.
        self.order.done(before, delivered, settled || waiter == Waiter::Thread);
    }

    /// Drops the blocks of a rejected asynchronous call: they will have no delivery, and the server
    /// may not know them.
    fn rejected(&self, memory: &Memory, ticket: u64) {
        let mut pending = self.pending();
        let of_call = |p: &Pending| ticket != 0 && p.ticket == ticket;
        let ended: Vec<_> = pending.extract_if(|_, p| of_call(p)).filter_map(|(_, p)| p.block).collect();
        drop(pending);
        for block in ended {
            memory.blocks.free(block);
        }
    }

    /// Copies the block's content to the application and frees the block.
    pub fn finish(&self, memory: &Memory, offset: u64, bytes: usize) {
        let Some(pending) = self.take(offset) else { return memory.zerocopy.returned(&memory.blocks, offset) };
        let bytes = bytes.min(pending.bytes);
        if pending.to != 0
            && bytes > 0
            && let Ok(from) = memory.arena.pointer(offset, bytes)
        {
            // SAFETY: `from` was checked. The application gave `to` with at least `pending.bytes`
            // bytes to a call whose specification says that they are written until their delivery;
            // it must own them as long, which the vendor's own library would require as well.
            unsafe {
                let to = pending.to as *mut u8;
                let before = pending.before.as_ref().map_or(to.cast_const(), |before| before.as_ptr());
                write_back(from, Some(before), to, bytes, pending.rows);
            }
        }
        if let Some(block) = pending.block {
            memory.blocks.free(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_that_wait_in_vain_leave_time_to_the_thread_that_they_interrupt() {
        let order = Order::default();
        let whole = order.patience(Waiter::SignalHandler);
        let mut spent = Duration::ZERO;
        for _ in 0..1000 {
            spent += order.patience(Waiter::SignalHandler);
            assert!(!order.wait(1, Waiter::SignalHandler, || true));
        }
        assert!(spent <= 2 * whole, "{spent:?}");
        assert!(order.patience(Waiter::SignalHandler) < Duration::from_micros(1));
        order.done(0, 1, true);
        assert_eq!(order.patience(Waiter::SignalHandler), whole, "from the next delivery on");
    }

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
}
