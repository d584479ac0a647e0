//! A session that floods its API server with calls yields the processors to others.
//!
//! Linux shares the processors by threads or by groups of processes, and a process that sleeps and wakes all the time
//! gets far more than its share. Other tenants' devices would stand still while their threads wait. So an API server
//! whose lanes want a lot goes after the others, for as long as that lasts. Where processors are idle it makes no
//! difference. What a session wants while it has a device does not count: that time is shared already.

use std::cell::Cell;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::processor;

/// How often a lane that is busy looks.
const LOOK: Duration = Duration::from_millis(50);
/// What is averaged.
const WINDOW: Duration = Duration::from_millis(100);
/// More than so much of one processor, for all lanes together, is a lot; less than the second is not.
const MUCH: f64 = 0.5;
const LITTLE: f64 = 0.25;

/// Of a session.
#[derive(Default)]
pub struct Demand {
    window: Mutex<Window>,
}

#[derive(Default)]
struct Window {
    since: Option<Instant>,
    wanted: Duration,
    yields: bool,
}

/// What a lane's thread had and wanted when it looked last.
#[derive(Default)]
pub struct LaneDemand {
    last: Cell<Option<(Instant, Duration)>>,
}

impl LaneDemand {
    /// Called by the lane's thread, between calls.
    pub fn look(&self, session: &Demand, holds_device: bool) {
        let now = Instant::now();
        let last = self.last.get();
        if last.is_some_and(|(at, _)| now - at < LOOK) {
            return;
        }
        // A kernel that does not tell cannot be helped.
        let Ok(wanted) = wanted_by_this_thread() else { return };
        self.last.set(Some((now, wanted)));
        if let Some((at, before)) = last
            && !holds_device
        {
            session.add(wanted.saturating_sub(before).min(now - at), now, processor::yield_to_others);
        }
    }
}

impl Demand {
    fn add(&self, wanted: Duration, now: Instant, apply: impl FnOnce(bool) -> io::Result<()>) {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let since = *window.since.get_or_insert(now);
        window.wanted += wanted;
        let passed = now.saturating_duration_since(since);
        if passed < WINDOW {
            return;
        }
        let share = window.wanted.as_secs_f64() / passed.as_secs_f64();
        (window.since, window.wanted) = (Some(now), Duration::ZERO);
        let yields = if window.yields { share > LITTLE } else { share > MUCH };
        // Linux lets ordinary users do this ten times a second, all together: the next window tries again.
        if yields != window.yields && apply(yields).is_ok() {
            window.yields = yields;
        }
    }
}

/// How long this thread has run or waited for a processor.
fn wanted_by_this_thread() -> io::Result<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let mut numbers = text.split_whitespace().map_while(|word| word.parse::<u64>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(ran), Some(waited)) => Ok(Duration::from_nanos(ran.saturating_add(waited))),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a session did about its demand, by the milliseconds wanted in each tenth of a second.
    fn yields(wanted: &[u64], allowed: bool) -> Vec<bool> {
        let (demand, start) = (Demand::default(), Instant::now());
        demand.add(Duration::ZERO, start, |_| Ok(()));
        let mut tried = Vec::new();
        for (i, ms) in wanted.iter().enumerate() {
            let now = start + WINDOW * (i as u32 + 1);
            demand.add(Duration::from_millis(*ms), now, |yields| {
                tried.push(yields);
                if allowed { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
            });
        }
        tried
    }

    #[test]
    fn who_wants_much_yields_until_it_wants_little() {
        assert_eq!(yields(&[40, 45, 30], true), [false; 0]);
        assert_eq!(yields(&[400, 30, 30, 20, 60], true), [true, false, true]);
        assert_eq!(yields(&[60, 60, 10], false), [true, true], "what was refused is tried again");
    }

    #[test]
    fn threads_know_what_they_want() {
        let before = wanted_by_this_thread().expect("a kernel with statistics");
        let since = Instant::now();
        while since.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        assert!(wanted_by_this_thread().unwrap() - before >= Duration::from_millis(10));
    }
}
