//! Backpressure for transfers that the server ends later.
//!
//! A program that starts many large transfers and waits only at the end would take a new block for
//! each: gigabytes of pages to fault in and to return later. Beyond a budget the guest therefore
//! polls the server for final transfers and reuses their warm blocks. The wait is bounded, because
//! a transfer may depend on a later action of this thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aviary_wire::kind;

use crate::blocks::MAX_RETAINED_BYTES;
use crate::connection::Connection;
use crate::lane::ThreadLane;

/// Smallest transfer in bytes that waits: a smaller one costs less than the poll.
const MIN_TRANSFER_BYTES: u64 = 1 << 20;
/// Time between two polls, if no transfer has become final.
const POLL_INTERVAL: Duration = Duration::from_micros(100);
/// Time without a final transfer after which transfers count as stuck, beside the time for the
/// bytes of one transfer.
const BASE_STALL_TIMEOUT: Duration = Duration::from_millis(10);
/// Slowest rate in bytes per ns of a transfer that is not stuck.
const MIN_BYTES_PER_NS: u64 = 1;
const MAX_STALL_TIMEOUT: Duration = Duration::from_millis(250);
/// Longest wait, because other threads may take all freed blocks.
const MAX_WAIT: Duration = Duration::from_secs(1);

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
    fn exceeds_budget(&self, kept: u64, bytes: u64) -> bool {
        if kept < MAX_RETAINED_BYTES {
            self.tolerated.store(MAX_RETAINED_BYTES, Ordering::Relaxed);
        }
        kept > 0 && kept + bytes > self.tolerated.load(Ordering::Relaxed)
    }

    /// Excludes stuck transfers until they end: later transfers have a budget of their own.
    fn give_up(&self, kept: u64) {
        self.tolerated.store(kept.saturating_add(MAX_RETAINED_BYTES), Ordering::Relaxed);
    }
}

fn stall_timeout(bytes: u64) -> Duration {
    (BASE_STALL_TIMEOUT + Duration::from_nanos(bytes / MIN_BYTES_PER_NS)).min(MAX_STALL_TIMEOUT)
}

/// Waits a limited time until a block of `bytes` bytes, which the server will keep, is within the
/// budget.
#[inline]
pub(crate) fn wait_for_room(lane: &ThreadLane, bytes: usize) {
    let bytes = bytes as u64;
    if bytes >= MIN_TRANSFER_BYTES {
        wait(lane, bytes);
    }
}

fn wait(lane: &ThreadLane, bytes: u64) {
    let connection: &Connection = lane.connection;
    let (mut kept, mut largest) = connection.deliveries.kept();
    if !connection.backpressure.exceeds_budget(kept, bytes) {
        return;
    }
    let start = Instant::now();
    let mut progress = start;
    while connection.backpressure.exceeds_budget(kept, bytes) {
        let mut frame = lane.take_frame();
        let answer = lane.exchange(kind::SYNC, 0, 0, &mut frame);
        lane.give_frame(frame);
        // The call that needs the block will get the error as well.
        let Ok(answer) = answer else { return };
        lane.keep_deferred(answer.deferred);
        let (now_kept, now_largest) = connection.deliveries.kept();
        if now_kept < kept {
            progress = Instant::now();
        } else if progress.elapsed() > stall_timeout(largest) || start.elapsed() > MAX_WAIT {
            return connection.backpressure.give_up(now_kept);
        } else {
            std::thread::sleep(POLL_INTERVAL);
        }
        (kept, largest) = (now_kept, now_largest);
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

    #[test]
    fn stall_timeout_is_bounded() {
        assert!(stall_timeout(0) >= BASE_STALL_TIMEOUT);
        assert_eq!(stall_timeout(u64::MAX), MAX_STALL_TIMEOUT);
    }
}
