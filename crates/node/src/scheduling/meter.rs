//! What a seat's page says that its session did with the device, as far as that can be.
//!
//! The page is the API server's, which may write anything. Nobody occupies a device for longer than the time that passes, so
//! what is believed is bounded by the node's own clock. This is the only place where these words are read.

use aviary_gate::DeviceSeat;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Nanoseconds beyond the time that has passed: API servers estimate what they have not measured yet.
const SLACK: u64 = 100_000_000;
/// Nanoseconds that a call takes at least.
const CALL: u64 = 100;
/// No API server is believed to be at more than this, in nanoseconds.
pub const LONGEST_REST: u64 = 60_000_000_000;

/// The account of one seat.
#[derive(Debug)]
pub struct Meter {
    since: u64,
    /// `DeviceSeat::used` and `calls` as they were read last.
    seen: (u64, u64),
    /// Believed so far, since then: device time in nanoseconds, and calls.
    used: u64,
    calls: u64,
}

impl Meter {
    /// What was used before, while nobody scheduled the device, does not count. `now`: of the node's clock.
    pub fn new(seat: &DeviceSeat, now: u64) -> Meter {
        Meter { since: now, seen: read(seat), used: 0, calls: 0 }
    }

    /// Nanoseconds that it used so far. Never more than have passed, and some slack.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Nanoseconds and calls that are new since the last time; they count from now on. An API server that counts backwards
    /// harms its own tenant only.
    pub fn take(&mut self, seat: &DeviceSeat, now: u64) -> (u64, u64) {
        let seen = read(seat);
        let (used, calls) = self.bound(seen, now);
        self.seen = seen;
        (self.used, self.calls) = (self.used.saturating_add(used), self.calls.saturating_add(calls));
        (used, calls)
    }

    /// The same, without counting it.
    pub fn unread(&self, seat: &DeviceSeat, now: u64) -> (u64, u64) {
        self.bound(read(seat), now)
    }

    fn bound(&self, (used, calls): (u64, u64), now: u64) -> (u64, u64) {
        let most = now.saturating_sub(self.since).saturating_add(SLACK);
        let new_used = used.saturating_sub(self.seen.0).min(most.saturating_sub(self.used));
        let new_calls = calls.saturating_sub(self.seen.1).min((most / CALL).saturating_sub(self.calls));
        (new_used, new_calls)
    }
}

fn read(seat: &DeviceSeat) -> (u64, u64) {
    (seat.used.load(Relaxed), seat.calls.load(Relaxed))
}

/// With `LAST`: nanoseconds of work that `used` does not contain yet.
pub fn remaining(seat: &DeviceSeat) -> u64 {
    seat.remaining.load(Relaxed).min(LONGEST_REST)
}

/// With `LAST`: when the device will have done what it has.
pub fn ends_at(seat: &DeviceSeat, now: u64) -> u64 {
    seat.ends_at.load(Relaxed).min(now.saturating_add(LONGEST_REST))
}

/// When the device had done its last work: after the next session was granted it, and not in the future. Otherwise
/// that one would pay for what others did.
pub fn freed_at(seat: &DeviceSeat, next_since: u64, now: u64) -> u64 {
    seat.freed_at.load(SeqCst).min(now).max(next_since.min(now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn never_more_than_the_time_that_passed(
            steps in proptest::collection::vec((any::<u64>(), any::<u64>(), 0u64..1 << 40), 1..50),
            start in 0u64..1 << 60,
        ) {
            let seat = DeviceSeat::default();
            let (mut meter, mut now) = (Meter::new(&seat, start), start);
            let (mut used, mut calls) = (0u64, 0u64);
            for (claimed, calling, passed) in steps {
                now += passed;
                seat.used.store(claimed, Relaxed);
                seat.calls.store(calling, Relaxed);
                let (more, more_calls) = meter.take(&seat, now);
                used += more;
                calls += more_calls;
                prop_assert!(used <= now - start + SLACK && calls <= (now - start + SLACK) / CALL);
                prop_assert_eq!(used, meter.used());
            }
        }
    }

    #[test]
    fn what_is_true_is_believed() {
        let seat = DeviceSeat::default();
        seat.used.store(500, Relaxed);
        let mut meter = Meter::new(&seat, 1_000);
        // A kernel of a minute is told at its end, after many looks.
        assert_eq!(meter.take(&seat, 30_000_000_000), (0, 0));
        seat.used.store(60_000_000_500, Relaxed);
        seat.calls.store(1, Relaxed);
        assert_eq!(meter.unread(&seat, 60_000_001_000), (60_000_000_000, 1));
        assert_eq!(meter.take(&seat, 60_000_001_000), (60_000_000_000, 1));
        assert_eq!(meter.take(&seat, 60_000_001_000), (0, 0));
    }
}
