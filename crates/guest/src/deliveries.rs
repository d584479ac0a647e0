//! Blocks that the server finishes some time after the call that named them.
//!
//! Deliveries are numbered by the server and applied here in that order, by
//! whichever thread receives them. No call returns before every delivery that
//! the server had assigned when it answered is applied: then the application
//! sees its memory as if the vendor's library had written it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aviary_wire::REJECTED_CALL;

use crate::blocks::Block;
use crate::connection::Connection;

/// What a delivery does.
pub(crate) struct Pending {
    /// Where the bytes go; 0: nowhere, they stay in the block.
    pub to: usize,
    pub bytes: usize,
    /// Freed after the delivery.
    pub block: Option<Block>,
    /// The asynchronous call that named the block; 0: none.
    pub ticket: u64,
}

#[derive(Default)]
pub(crate) struct Deliveries {
    applied: AtomicU64,
    pending: Mutex<HashMap<u64, Pending>>,
}

impl Deliveries {
    fn pending(&self) -> MutexGuard<'_, HashMap<u64, Pending>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces the block at `offset` before the message that names it is sent.
    pub fn expect(&self, offset: u64, pending: Pending) {
        self.pending().insert(offset, pending);
    }

    /// The blocks at these offsets, which are expected, belong to an asynchronous call that is about to be sent.
    pub fn belong(&self, offsets: &[Option<u64>], ticket: u64) {
        let mut pending = self.pending();
        for offset in offsets.iter().flatten() {
            if let Some(pending) = pending.get_mut(offset) {
                pending.ticket = ticket;
            }
        }
    }

    /// Ends the waiting for a block; `None` if its delivery came already.
    pub fn take(&self, offset: u64) -> Option<Pending> {
        self.pending().remove(&offset)
    }

    /// Bytes of all blocks that are waited for, and of the largest one.
    pub fn kept(&self) -> (u64, u64) {
        let pending = self.pending();
        let sizes = pending.values().filter_map(|p| p.block).map(|b| b.size);
        sizes.fold((0, 0), |(sum, largest), size| (sum + size, largest.max(size)))
    }

    /// True if nothing is to be applied or waited for.
    #[inline]
    pub fn settled(&self, delivered: u64) -> bool {
        self.applied.load(Ordering::Acquire) >= delivered
    }

    /// Applies a message's own deliveries after all earlier ones; `delivered` is the count after them.
    #[cold]
    pub fn apply(&self, connection: &Connection, own: &[(u64, u64)], delivered: u64) {
        let before = delivered.saturating_sub(own.len() as u64);
        self.await_applied(connection, before);
        for (offset, bytes) in own {
            match *offset {
                REJECTED_CALL => self.rejected(connection, *bytes),
                offset => self.finish(connection, offset, usize::try_from(*bytes).unwrap_or(usize::MAX)),
            }
        }
        // Others wait for exactly this number, so nobody raises it meanwhile, except after a timeout.
        self.applied.fetch_max(delivered, Ordering::AcqRel);
    }

    /// The threads that received the earlier deliveries are copying; that takes no longer than a copy. An
    /// interrupted thread (a call from its signal handler) cannot go on, and a lying server may have counted
    /// what it never sent: hence the limit.
    fn await_applied(&self, connection: &Connection, count: u64) {
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
                if !connection.liveness.check() || start.elapsed() > Duration::from_secs(10) {
                    return;
                }
            }
        }
    }

    /// An asynchronous call was rejected: nothing will come for its blocks, which the server may not even know.
    fn rejected(&self, connection: &Connection, ticket: u64) {
        let mut pending = self.pending();
        let of_call = |p: &Pending| ticket != 0 && p.ticket == ticket;
        let ended: Vec<_> = pending.extract_if(|_, p| of_call(p)).filter_map(|(_, p)| p.block).collect();
        drop(pending);
        for block in ended {
            connection.blocks.free(block);
        }
    }

    /// Copies the block's content to the application and frees it.
    pub fn finish(&self, connection: &Connection, offset: u64, bytes: usize) {
        let Some(pending) = self.take(offset) else { return connection.zerocopy_returned(offset) };
        let bytes = bytes.min(pending.bytes);
        if pending.to != 0
            && bytes > 0
            && let Ok(from) = connection.arena.pointer(offset, bytes)
        {
            // SAFETY: `from` was checked. The application gave `to` with at least `pending.bytes` bytes to a call
            // whose specification says that they are written until now; that it still owns them is what the
            // vendor's own library would require as well.
            unsafe { std::ptr::copy(from, pending.to as *mut u8, bytes) };
        }
        if let Some(block) = pending.block {
            connection.blocks.free(block);
        }
    }
}
