//! Backpressure for transfers that the server ends later.
//!
//! A program that starts many large transfers and waits only at the end would take a new block for
//! each: gigabytes of pages to fault in and to return later. Beyond a budget the guest therefore
//! polls the server for final transfers and reuses their warm blocks. The wait is bounded, because
//! a transfer may depend on a later action of this thread.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::blocks::MAX_RETAINED_BYTES;

/// Smallest transfer in bytes that waits: a smaller one costs less than the poll.
pub(crate) const MIN_TRANSFER_BYTES: u64 = 1 << 20;
/// Bounds the bytes in flight. Free blocks of up to `MAX_RETAINED_BYTES` keep their pages, so
/// blocks within the bound stay warm.
pub(crate) struct TransferBackpressure {
    tolerated: AtomicU64,
}

impl Default for TransferBackpressure {
    fn default() -> Self {
        TransferBackpressure { tolerated: AtomicU64::new(MAX_RETAINED_BYTES) }
    }
}

impl TransferBackpressure {
    pub fn exceeds_budget(&self, kept: u64, bytes: u64) -> bool {
        if kept < MAX_RETAINED_BYTES {
            self.tolerated.store(MAX_RETAINED_BYTES, Ordering::Relaxed);
        }
        kept > 0 && kept + bytes > self.tolerated.load(Ordering::Relaxed)
    }

    /// Excludes stuck transfers until they end: later transfers have a budget of their own.
    pub fn give_up(&self, kept: u64) {
        self.tolerated.store(kept.saturating_add(MAX_RETAINED_BYTES), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backpressure_begins_beyond_the_budget() {
        let backpressure = TransferBackpressure::default();
        assert!(!backpressure.exceeds_budget(0, 10 * MAX_RETAINED_BYTES), "a transfer without others never waits");
        assert!(!backpressure.exceeds_budget(MAX_RETAINED_BYTES / 2, MAX_RETAINED_BYTES / 2));
        assert!(backpressure.exceeds_budget(MAX_RETAINED_BYTES / 2, MAX_RETAINED_BYTES / 2 + 1));
    }

    #[test]
    fn stuck_transfer_delays_only_once() {
        let backpressure = TransferBackpressure::default();
        assert!(backpressure.exceeds_budget(MAX_RETAINED_BYTES, MIN_TRANSFER_BYTES));
        backpressure.give_up(MAX_RETAINED_BYTES);
        assert!(!backpressure.exceeds_budget(MAX_RETAINED_BYTES, MIN_TRANSFER_BYTES));
        assert!(
            backpressure.exceeds_budget(2 * MAX_RETAINED_BYTES, MIN_TRANSFER_BYTES),
            "the others have a budget, too"
        );
        assert!(!backpressure.exceeds_budget(0, MIN_TRANSFER_BYTES));
        assert!(backpressure.exceeds_budget(MAX_RETAINED_BYTES, MIN_TRANSFER_BYTES), "the stuck transfer has ended");
    }
}
