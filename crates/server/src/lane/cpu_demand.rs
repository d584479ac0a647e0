//! A session that floods its API server with calls yields the CPUs to others.
//!
//! Linux shares the CPUs by threads or by groups of processes, and a process that sleeps and wakes all the time
//! gets far more than its share. Other tenants' devices would stand still while their threads wait. So an API server
//! whose lanes want a lot goes after the others, for as long as that lasts. Where CPUs are idle it makes no
//! difference. What a session wants while it has a device does not count: that time is shared already.

use std::cell::{Cell, OnceCell};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use aviary_control::cpu;
use aviary_ring::ablation::{Term, without};

/// How often a lane that is busy looks.
const DEMAND_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The time over which demand is averaged.
const DEMAND_WINDOW: Duration = Duration::from_millis(100);
/// An API server whose lanes together used more than this part of one CPU yields.
const YIELD_ABOVE_CPUS: f64 = 0.4;
/// Until it wants less than this, had or not: who yields does not get what it wants. Beginning to yield is another
/// matter: on a busy machine everybody waits for longer than it runs.
const RESUME_BELOW_CPUS: f64 = 0.25;

/// Of a session.
#[derive(Default)]
pub struct CpuDemand {
    window: Mutex<CpuWindow>,
}

#[derive(Default)]
struct CpuWindow {
    since: Option<Instant>,
    taken: CpuTimes,
    yields: bool,
}

/// CPU time of threads.
#[derive(Debug, Default, Clone, Copy)]
struct CpuTimes {
    ran: Duration,
    waited: Duration,
}

/// The CPU time of a lane's thread at its last look.
#[derive(Default)]
pub struct LaneCpuDemand {
    last: Cell<Option<(Instant, CpuTimes)>>,
    statistics: OnceCell<Statistics>,
}

impl LaneCpuDemand {
    /// Called by the lane's thread, between calls.
    pub fn look(&self, session: &CpuDemand, holds_device: bool) {
        if without(Term::Yield) {
            return;
        }
        let now = Instant::now();
        let last = self.last.get();
        if last.is_some_and(|(at, _)| now - at < DEMAND_POLL_INTERVAL) {
            return;
        }
        if holds_device {
            // It has better things to do than to ask for what does not count.
            self.last.set(None);
            return;
        }
        // A kernel that does not tell cannot be helped.
        let Ok(had) = self.statistics().and_then(Statistics::read) else { return };
        self.last.set(Some((now, had)));
        if let Some((_, before)) = last {
            let (ran, waited) = (had.ran.saturating_sub(before.ran), had.waited.saturating_sub(before.waited));
            session.add(CpuTimes { ran, waited }, now, cpu::set_yielding);
        }
    }

    fn statistics(&self) -> io::Result<&Statistics> {
        if self.statistics.get().is_none() {
            let _ = self.statistics.set(Statistics::of_this_thread()?);
        }
        self.statistics.get().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl CpuDemand {
    fn add(&self, more: CpuTimes, now: Instant, apply: impl FnOnce(bool) -> io::Result<()>) {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let since = *window.since.get_or_insert(now);
        window.taken.ran += more.ran;
        window.taken.waited += more.waited;
        let passed = now.saturating_duration_since(since);
        if passed < DEMAND_WINDOW {
            return;
        }
        let CpuTimes { ran, waited } = std::mem::take(&mut window.taken);
        window.since = Some(now);
        let share = |time: Duration| time.as_secs_f64() / passed.as_secs_f64();
        let yields =
            if window.yields { share(ran + waited) > RESUME_BELOW_CPUS } else { share(ran) > YIELD_ABOVE_CPUS };
        // Linux lets ordinary users do this ten times a second, all together: the next window tries again.
        if yields != window.yields && apply(yields).is_ok() {
            window.yields = yields;
        }
    }
}

/// The kernel's file about one thread. It stays open: opening it takes several times as long as reading it.
struct Statistics(File);

impl Statistics {
    fn of_this_thread() -> io::Result<Statistics> {
        File::open("/proc/thread-self/schedstat").map(Statistics)
    }

    fn read(&self) -> io::Result<CpuTimes> {
        // Three numbers of 64 bits.
        let mut text = [0; 80];
        let length = self.0.read_at(&mut text, 0)?;
        let text = str::from_utf8(&text[..length]).map_err(|_| io::ErrorKind::InvalidData)?;
        let mut times = text.split_whitespace().map_while(|word| word.parse().ok().map(Duration::from_nanos));
        match (times.next(), times.next()) {
            (Some(ran), Some(waited)) => Ok(CpuTimes { ran, waited }),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The yields of a session, by the milliseconds that it ran and waited in each tenth of a second.
    fn yields(times: &[(u64, u64)], allowed: bool) -> Vec<bool> {
        let (demand, start) = (CpuDemand::default(), Instant::now());
        demand.add(CpuTimes::default(), start, |_| Ok(()));
        let mut tried = Vec::new();
        for (i, (ran, waited)) in times.iter().enumerate() {
            let now = start + DEMAND_WINDOW * (i as u32 + 1);
            let more = CpuTimes { ran: Duration::from_millis(*ran), waited: Duration::from_millis(*waited) };
            demand.add(more, now, |yields| {
                tried.push(yields);
                if allowed { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
            });
        }
        tried
    }

    #[test]
    fn api_server_yields_above_the_limit_until_demand_is_low() {
        assert_eq!(yields(&[(35, 0), (30, 10)], true), [false; 0]);
        assert_eq!(yields(&[(10, 90), (5, 95)], true), [false; 0], "the others make it wait");
        assert_eq!(yields(&[(200, 200), (3, 400), (3, 90), (20, 0), (60, 0)], true), [true, false, true]);
        assert_eq!(yields(&[(60, 0), (60, 0), (10, 0)], false), [true, true], "what was refused is tried again");
    }

    #[test]
    fn threads_know_what_they_had() {
        let statistics = Statistics::of_this_thread().expect("a kernel with statistics");
        let before = statistics.read().unwrap();
        let since = Instant::now();
        while since.elapsed() < Duration::from_millis(30) {
            std::hint::spin_loop();
        }
        let after = statistics.read().unwrap();
        let had = after.ran + after.waited - before.ran - before.waited;
        assert!(had >= Duration::from_millis(10), "{had:?}");
    }
}
