//! Messages to the server that are no calls of the application: they ask how far it is, or where printed text goes.

use std::time::{Duration, Instant};

use aviary_wire::{flag, kind};

use crate::connection::Connection;
use crate::lane::{self, ThreadLane};
use crate::memory::backpressure::MIN_TRANSFER_BYTES;

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

/// Has printed text come with replies if descriptor 1 or 2 leads elsewhere than when the process attached. Called before
/// calls in which the vendor's library may print, where it is known to.
pub(crate) fn follow_output(connection: &'static Connection) {
    if !connection.output.moved() {
        return;
    }
    let Ok(lane) = lane::current(connection) else { return };
    let mut sync = lane.take_frame();
    if let Ok(answer) = lane.exchange(kind::SYNC, flag::PRINT_WITH_REPLIES, 0, &mut sync) {
        lane.keep_deferred(answer.deferred);
        connection.output.set_followed();
    }
    lane.give_frame(sync);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stall_timeout_is_bounded() {
        assert!(stall_timeout(0) >= BASE_STALL_TIMEOUT);
        assert_eq!(stall_timeout(u64::MAX), MAX_STALL_TIMEOUT);
    }
}
