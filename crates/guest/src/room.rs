//! Backpressure for transfers that the server ends later.
//!
//! A program that starts many large transfers and waits only at the end would
//! take a fresh block for each: gigabytes of pages to fault in, and to give
//! back later. Beyond a budget the guest therefore asks for what has become
//! final and goes on with those warm blocks. It never insists: a transfer may
//! depend on something that this thread is going to do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aviary_wire::kind;

use crate::blocks::RETAINED;
use crate::connection::Connection;
use crate::lane::ThreadLane;

/// Free blocks of so many bytes keep their pages, so what is under way now will be warm again.
const BUDGET: u64 = RETAINED;
/// Below this a transfer costs less than asking.
const LARGE: u64 = 1 << 20;
/// Between two questions, if nothing has become final.
const PAUSE: Duration = Duration::from_micros(100);
/// How long nothing may become final, beside the time for the bytes of one transfer.
const PATIENCE: Duration = Duration::from_millis(10);
/// A transfer slower than this many bytes in a nanosecond counts as stuck.
const SLOWEST: u64 = 1;
const LONGEST: Duration = Duration::from_millis(250);
/// Other threads may take all the room that there is.
const IN_ALL: Duration = Duration::from_secs(1);

/// How many bytes may be under way before anybody is held up.
pub(crate) struct Room {
    tolerated: AtomicU64,
}

impl Default for Room {
    fn default() -> Self {
        Room { tolerated: AtomicU64::new(BUDGET) }
    }
}

impl Room {
    fn is_crowded(&self, kept: u64, bytes: u64) -> bool {
        if kept < BUDGET {
            self.tolerated.store(BUDGET, Ordering::Relaxed);
        }
        kept > 0 && kept + bytes > self.tolerated.load(Ordering::Relaxed)
    }

    /// What is stuck does not count until it ends: later transfers have a budget of their own.
    fn give_up(&self, kept: u64) {
        self.tolerated.store(kept.saturating_add(BUDGET), Ordering::Relaxed);
    }
}

fn patience(bytes: u64) -> Duration {
    (PATIENCE + Duration::from_nanos(bytes / SLOWEST)).min(LONGEST)
}

/// Waits a limited time until a block of `bytes` bytes, which the server will keep, is within the budget.
#[inline]
pub(crate) fn make(lane: &ThreadLane, bytes: usize) {
    let bytes = bytes as u64;
    if bytes >= LARGE {
        wait(lane, bytes);
    }
}

fn wait(lane: &ThreadLane, bytes: u64) {
    let connection: &Connection = lane.connection;
    let (mut kept, mut largest) = connection.deliveries.kept();
    if !connection.room.is_crowded(kept, bytes) {
        return;
    }
    let start = Instant::now();
    let mut progress = start;
    while connection.room.is_crowded(kept, bytes) {
        let mut frame = lane.take_frame();
        let answer = lane.exchange(kind::SYNC, 0, 0, &mut frame);
        lane.give_frame(frame);
        // The call that needs the room will find out as well.
        let Ok(answer) = answer else { return };
        lane.keep_deferred(answer.deferred);
        let (now_kept, now_largest) = connection.deliveries.kept();
        if now_kept < kept {
            progress = Instant::now();
        } else if progress.elapsed() > patience(largest) || start.elapsed() > IN_ALL {
            return connection.room.give_up(now_kept);
        } else {
            std::thread::sleep(PAUSE);
        }
        (kept, largest) = (now_kept, now_largest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_budget_it_is_crowded() {
        let room = Room::default();
        assert!(!room.is_crowded(0, 10 * BUDGET), "alone, any transfer may go");
        assert!(!room.is_crowded(BUDGET / 2, BUDGET / 2));
        assert!(room.is_crowded(BUDGET / 2, BUDGET / 2 + 1));
    }

    #[test]
    fn what_is_stuck_holds_nobody_up_twice() {
        let room = Room::default();
        assert!(room.is_crowded(BUDGET, LARGE));
        room.give_up(BUDGET);
        assert!(!room.is_crowded(BUDGET, LARGE));
        assert!(room.is_crowded(2 * BUDGET, LARGE), "the others have a budget, too");
        assert!(!room.is_crowded(0, LARGE));
        assert!(room.is_crowded(BUDGET, LARGE), "what was stuck has ended");
    }

    #[test]
    fn patience_has_an_end() {
        assert!(patience(0) >= PATIENCE);
        assert_eq!(patience(u64::MAX), LONGEST);
    }
}
