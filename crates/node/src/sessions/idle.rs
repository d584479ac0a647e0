//! Sessions that have made no call for as long as their tenant's `idle_park` says. Plain bookkeeping on a clock that is handed
//! in; the counters that it compares are those that API servers write.
//!
//! An API server that lies about its calls is parked too early or never: both concern its own session only.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Looks within the time after which a session is idle: it is seen as idle at most this part too late.
const LOOKS: u32 = 4;
/// How often the time until the next attempt is doubled.
const MOST_DOUBLINGS: u32 = 6;
/// The least time between two looks.
const LEAST_INTERVAL: Duration = Duration::from_millis(10);

/// An API server as it was seen last.
#[derive(Debug)]
struct Seen {
    calls: u64,
    /// Since when the calls are these, or since the last attempt to park it.
    since: Instant,
    /// Attempts since the last call, of which each has failed: one that succeeds is not looked at any longer.
    attempts: u32,
}

/// All API servers with sessions that may be parked, by number.
#[derive(Debug, Default)]
pub struct IdleWatch {
    seen: BTreeMap<u64, Seen>,
    next_look: Option<Instant>,
}

impl IdleWatch {
    /// True once the next look at all of them is due.
    pub fn is_due(&self, now: Instant) -> bool {
        self.next_look.is_none_or(|at| at <= now)
    }

    /// Looks at an API server whose sessions have made so many calls. True: they are idle, and to be parked now; the next
    /// time is counted from here, however that ends, and is twice as long after each attempt.
    pub fn look(&mut self, server: u64, calls: u64, limit: Duration, now: Instant) -> bool {
        let seen = self.seen.entry(server).or_insert(Seen { calls, since: now, attempts: 0 });
        if seen.calls != calls {
            *seen = Seen { calls, since: now, attempts: 0 };
            return false;
        }
        let gap = limit.saturating_mul(1 << seen.attempts.min(MOST_DOUBLINGS));
        let idle = now.saturating_duration_since(seen.since) >= gap;
        if idle {
            seen.since = now;
            seen.attempts += 1;
        }
        idle
    }

    /// After a look at all of them. `least`: the shortest time after which any session is idle. Those that are not there are
    /// forgotten.
    pub fn looked(&mut self, least: Duration, now: Instant, there: impl Fn(u64) -> bool) {
        self.seen.retain(|server, _| there(*server));
        self.next_look = Some(now + (least / LOOKS).max(LEAST_INTERVAL));
    }

    /// `None`: there is nothing to look at, until a session begins.
    pub fn next_look(&self) -> Option<Instant> {
        self.next_look.filter(|_| !self.seen.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(600);

    #[test]
    fn session_is_idle_once_its_calls_stand_still_for_the_limit() {
        let (start, mut watch) = (Instant::now(), IdleWatch::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(watch.is_due(start));
        assert!(!watch.look(7, 5, LIMIT, start));
        watch.looked(LIMIT, start, |_| true);
        assert!(!watch.is_due(at(149)) && watch.is_due(at(150)));
        assert_eq!(watch.next_look(), Some(at(150)));
        // A call: the time begins again.
        assert!(!watch.look(7, 6, LIMIT, at(150)));
        assert!(!watch.look(7, 6, LIMIT, at(749)));
        assert!(watch.look(7, 6, LIMIT, at(750)));
    }

    #[test]
    fn attempt_that_was_given_up_is_made_again_in_growing_gaps_until_a_call() {
        let (start, mut watch) = (Instant::now(), IdleWatch::default());
        watch.look(7, 5, LIMIT, start);
        let mut last = start;
        for gap in [1, 2, 4, 8, 16, 32, 64, 64, 64] {
            assert!(!watch.look(7, 5, LIMIT, last + LIMIT * gap - Duration::from_secs(1)), "{gap}");
            last += LIMIT * gap;
            assert!(watch.look(7, 5, LIMIT, last), "{gap}");
        }
        assert!(!watch.look(7, 6, LIMIT, last));
        assert!(watch.look(7, 6, LIMIT, last + LIMIT));
    }

    #[test]
    fn node_whose_sessions_are_gone_or_parked_does_not_wake() {
        let (start, mut watch) = (Instant::now(), IdleWatch::default());
        watch.look(7, 5, LIMIT, start);
        watch.look(8, 5, LIMIT, start);
        watch.looked(Duration::ZERO, start, |server| server == 7);
        assert_eq!(watch.next_look(), Some(start + LEAST_INTERVAL));
        watch.looked(LIMIT, start, |_| false);
        assert_eq!((watch.next_look(), watch.is_due(start)), (None, false));
        // The next session is seen at the first event after that time.
        assert!(watch.is_due(start + LIMIT / LOOKS));
    }
}
