//! How often one user may attach.
//!
//! An API server costs CPU time to start and to end. Who starts programs without end would take the CPUs
//! from everybody: beyond a burst its connections wait for their turn, also those that are refused then.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

/// Attachments a second for each CPU: at 10 to 30 ms each, a tenth of it.
const ATTACHES_PER_SECOND_PER_CPU: u32 = 5;
/// As many as are due in this time cost no waiting when they come at once.
const BURST_WINDOW: Duration = Duration::from_millis(6400);
/// Users remembered at a time, before those are forgotten that have a whole burst again.
const MAX_REMEMBERED_USERS: usize = 1024;

/// As many as leave the CPUs to others.
pub fn usual_rate() -> u32 {
    let cpus = std::thread::available_parallelism().map_or(1, |count| count.get());
    u32::try_from(cpus).unwrap_or(u32::MAX).saturating_mul(ATTACHES_PER_SECOND_PER_CPU)
}

/// Further connections of processes that have an API server already, in a second: none costs more than a thread there.
const FURTHER: u32 = 100;

/// Beside `rate` processes that attach. 0: as many as it likes.
pub fn further_rate(rate: u32) -> u32 {
    if rate == 0 { 0 } else { rate.max(FURTHER) }
}

/// Connections `T` that wait, and who may have the next one when.
#[derive(Debug)]
pub struct Throttle<T> {
    /// Between two attachments of one user, on average; zero: nobody waits.
    interval: Duration,
    /// When all that a user has taken was due (the generic cell rate algorithm).
    taken_until: HashMap<String, Instant>,
    waiting: VecDeque<(Instant, String, T)>,
}

impl<T> Throttle<T> {
    pub fn new(rate: u32) -> Self {
        Self { interval: interval_of(rate), taken_until: HashMap::new(), waiting: VecDeque::new() }
    }

    /// Attachments of one user in a second from now on; 0: as many as it likes. Who waits has its turn as it was.
    pub fn set_rate(&mut self, rate: u32) {
        let interval = interval_of(rate);
        if interval != self.interval {
            self.interval = interval;
            // A debt at the old rate would be a longer or shorter one at the new.
            self.taken_until.clear();
        }
    }

    /// One more connection of this user: back at once, or it waits.
    pub fn pass(&mut self, user: &str, connection: T, now: Instant) -> Option<T> {
        if self.interval.is_zero() {
            return Some(connection);
        }
        if self.taken_until.len() >= MAX_REMEMBERED_USERS {
            self.taken_until.retain(|_, until| *until > now);
        }
        let until = self.taken_until.entry(user.to_owned()).or_insert(now);
        let start = (*until).max(now);
        *until = start + self.interval;
        let due = start.checked_sub(BURST_WINDOW.saturating_sub(self.interval)).unwrap_or(now);
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

    /// All that wait; none of them does any more.
    pub fn take_all(&mut self) -> impl Iterator<Item = T> {
        std::mem::take(&mut self.waiting).into_iter().map(|(.., connection)| connection)
    }

    pub fn next_due(&self) -> Option<Instant> {
        self.waiting.front().map(|(due, ..)| *due)
    }

    /// Connections of this user that wait.
    pub fn waiting(&self, user: &str) -> usize {
        self.waiting.iter().filter(|(_, other, _)| other == user).count()
    }
}

fn interval_of(rate: u32) -> Duration {
    Duration::from_secs(1).checked_div(rate).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use crate::attach::throttle::*;

    const INTERVAL: Duration = Duration::from_millis(100);
    /// At ten a second.
    const AT_ONCE: u32 = 64;

    #[test]
    fn a_burst_passes_and_the_rest_comes_one_by_one() {
        let (mut throttle, start) = (Throttle::new(10), Instant::now());
        let passed = (0..AT_ONCE + 3).filter(|i| throttle.pass("a", *i, start).is_some()).count();
        assert_eq!((passed as u32, throttle.waiting("a")), (AT_ONCE, 3));
        assert_eq!(throttle.pass("b", 99, start), Some(99), "others do not wait");
        assert_eq!(throttle.next_due(), Some(start + INTERVAL));
        assert_eq!(throttle.due(start), None);
        assert_eq!(throttle.due(start + INTERVAL), Some(AT_ONCE), "the first of them first");
        assert_eq!(throttle.due(start + INTERVAL), None);
        assert_eq!(throttle.due(start + 3 * INTERVAL), Some(AT_ONCE + 1));
        assert_eq!(throttle.due(start + 3 * INTERVAL), Some(AT_ONCE + 2));
        assert_eq!((throttle.waiting("a"), throttle.next_due()), (0, None));
        let later = start + INTERVAL * (AT_ONCE + 4);
        let passed = (0..AT_ONCE + 3).filter(|i| throttle.pass("a", *i, later).is_some()).count();
        assert_eq!(passed as u32, AT_ONCE, "a burst is there again");
    }

    #[test]
    fn the_rate_can_be_anything_and_can_change() {
        let now = Instant::now();
        let at_once =
            |throttle: &mut Throttle<u32>| (0..1000).filter(|i| throttle.pass("a", *i, now).is_some()).count();
        // A rate below one in a burst's time lets one pass all the same.
        for (rate, passes) in [(0, 1000), (1, 6), (50, 320), (100, 640), (u32::MAX, 1000)] {
            assert_eq!(at_once(&mut Throttle::new(rate)), passes, "{rate}");
        }
        let mut throttle = Throttle::new(10);
        assert_eq!(at_once(&mut throttle), 64);
        throttle.set_rate(10);
        assert_eq!(at_once(&mut throttle), 0, "nothing has changed");
        throttle.set_rate(20);
        assert_eq!(at_once(&mut throttle), 128);
        throttle.set_rate(0);
        assert_eq!(at_once(&mut throttle), 1000);
        assert!(throttle.due(now + Duration::from_secs(1)).is_some(), "who waits keeps its turn");
        assert!(usual_rate() >= ATTACHES_PER_SECOND_PER_CPU);
        assert_eq!([0, 1, 500].map(further_rate), [0, 100, 500]);
    }
}
