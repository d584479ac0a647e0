//! When a long wait will probably end, so that a sleeper can be awake just before.
//!
//! A sleeper is back only some time after it was woken: 50 us, 200 us where the CPU itself went to sleep. A program that
//! waits for one kernel, copy or training step of some milliseconds after the other feels that in each of them; natively
//! its thread spins all the time. Its waits resemble each other, so it can sleep for most of one and spin for the rest.

use std::time::Duration;

/// What a sleeper takes to be back, where that is long.
const WAKE_UP: Duration = Duration::from_micros(250);
/// Longer waits do not feel a wake-up.
const LONGEST: Duration = Duration::from_millis(100);
/// More is not spun at the end of one wait: where waits differ so much, nothing is known.
const MOST_ALERT: Duration = Duration::from_millis(2);
/// Waits like each other before anything is forecast.
const ENOUGH: u8 = 2;

/// How to spend a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Doze {
    /// Asleep for so long at first.
    pub sleep: Duration,
    /// Then awake for so long, before sleeping without an end.
    pub alert: Duration,
}

/// Learns from the waits of one ring end that were too long to spin.
#[derive(Debug, Default)]
pub(crate) struct Forecast {
    mean: Duration,
    /// Mean distance from the mean.
    spread: Duration,
    /// Waits like the mean in a row, up to `ENOUGH`.
    alike: u8,
}

impl Forecast {
    pub fn learn(&mut self, took: Duration) {
        if took < self.mean / 2 || took > self.mean * 2 {
            *self = Forecast { mean: took, spread: took / 16, alike: 0 };
            return;
        }
        self.alike = (self.alike + 1).min(ENOUGH);
        self.spread = (self.spread * 3 + took.abs_diff(self.mean)) / 4;
        self.mean = (self.mean * 3 + took) / 4;
    }

    /// For a wait that has lasted for `since`. `None`: nobody knows.
    pub fn doze(&self, since: Duration) -> Option<Doze> {
        let margin = self.spread * 2 + WAKE_UP;
        if self.alike < ENOUGH || self.mean > LONGEST || margin * 2 > MOST_ALERT {
            return None;
        }
        let sleep = self.mean.checked_sub(since + margin)?;
        Some(Doze { sleep, alert: margin * 2 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    fn after(waits: &[u64]) -> Forecast {
        let mut forecast = Forecast::default();
        waits.iter().for_each(|wait| forecast.learn(us(*wait)));
        forecast
    }

    #[test]
    fn waits_like_each_other_are_slept_for_the_most_part() {
        let doze = after(&[5000, 5040, 4990, 5010, 5000, 5010, 5000, 5000]).doze(us(0)).unwrap();
        assert!(doze.sleep > us(4300) && doze.sleep + doze.alert > us(5100), "{doze:?}");
        assert!(doze.alert < us(900), "{doze:?}");
        let later = after(&[5000; 8]).doze(us(400)).unwrap();
        assert_eq!(later.sleep + us(400), after(&[5000; 8]).doze(us(0)).unwrap().sleep);
    }

    #[test]
    fn nothing_is_known_of_few_or_different_or_very_long_waits() {
        assert_eq!(after(&[]).doze(us(0)), None);
        assert_eq!(after(&[5000, 5000]).doze(us(0)), None);
        assert_eq!(after(&[1000, 9000, 1000, 9000, 1000, 9000]).doze(us(0)), None);
        assert_eq!(after(&[8000, 13000, 8000, 13000, 8000, 13000]).doze(us(0)), None);
        assert_eq!(after(&[200_000; 9]).doze(us(0)), None);
        // The end is near already.
        assert_eq!(after(&[500; 9]).doze(us(400)), None);
    }

    #[test]
    fn another_kind_of_wait_begins_anew() {
        let mut forecast = after(&[5000; 9]);
        forecast.learn(us(50_000));
        assert_eq!(forecast.doze(us(0)), None);
        (0..9).for_each(|_| forecast.learn(us(50_000)));
        assert!(forecast.doze(us(0)).unwrap().sleep > us(49_000));
    }
}
