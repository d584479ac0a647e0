//! How often one user may attach.
//!
//! An API server costs processor time to start and to end. Who starts programs without end would take the processors
//! from everybody: beyond a burst its connections wait for their turn, also those that are refused then.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

/// Between two attachments, on average.
const INTERVAL: Duration = Duration::from_millis(100);
/// As many at once cost no waiting.
const BURST: u32 = 64;
/// Users remembered at a time, before those are forgotten that have a whole burst again.
const MANY: usize = 1024;

/// Connections `T` that wait, and who may have the next one when.
#[derive(Debug)]
pub struct Throttle<T> {
    /// When all that a user has taken was due (the generic cell rate algorithm).
    taken_until: HashMap<String, Instant>,
    waiting: VecDeque<(Instant, String, T)>,
}

impl<T> Default for Throttle<T> {
    fn default() -> Self {
        Self { taken_until: HashMap::new(), waiting: VecDeque::new() }
    }
}

impl<T> Throttle<T> {
    /// One more connection of this user: back at once, or it waits.
    pub fn pass(&mut self, user: &str, connection: T, now: Instant) -> Option<T> {
        if self.taken_until.len() >= MANY {
            self.taken_until.retain(|_, until| *until > now);
        }
        let until = self.taken_until.entry(user.to_owned()).or_insert(now);
        let start = (*until).max(now);
        *until = start + INTERVAL;
        let due = start.checked_sub(INTERVAL * (BURST - 1)).unwrap_or(now);
        if due <= now {
            return Some(connection);
        }
        // Few users wait at a time, and of one user the later ones are due later.
        let at = self.waiting.partition_point(|(other, ..)| *other <= due);
        self.waiting.insert(at, (due, user.to_owned(), connection));
        None
    }

    /// Those whose turn it is.
    pub fn due(&mut self, now: Instant) -> Option<T> {
        self.waiting.pop_front_if(|(due, ..)| *due <= now).map(|(.., connection)| connection)
    }

    pub fn next_due(&self) -> Option<Instant> {
        self.waiting.front().map(|(due, ..)| *due)
    }

    /// Connections of this user that wait.
    pub fn waiting(&self, user: &str) -> usize {
        self.waiting.iter().filter(|(_, other, _)| other == user).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_the_rest_comes_one_by_one() {
        let (mut throttle, start) = (Throttle::default(), Instant::now());
        let passed = (0..BURST + 3).filter(|i| throttle.pass("a", *i, start).is_some()).count();
        assert_eq!((passed as u32, throttle.waiting("a")), (BURST, 3));
        assert_eq!(throttle.pass("b", 99, start), Some(99), "others do not wait");
        assert_eq!(throttle.next_due(), Some(start + INTERVAL));
        assert_eq!(throttle.due(start), None);
        assert_eq!(throttle.due(start + INTERVAL), Some(BURST), "the first of them first");
        assert_eq!(throttle.due(start + INTERVAL), None);
        assert_eq!(throttle.due(start + 3 * INTERVAL), Some(BURST + 1));
        assert_eq!(throttle.due(start + 3 * INTERVAL), Some(BURST + 2));
        assert_eq!((throttle.waiting("a"), throttle.next_due()), (0, None));
        let later = start + INTERVAL * (BURST + 4);
        let passed = (0..BURST + 3).filter(|i| throttle.pass("a", *i, later).is_some()).count();
        assert_eq!(passed as u32, BURST, "a burst is there again");
    }
}
