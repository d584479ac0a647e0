//! Predicts the end of a long wait, so that a sleeper can wake up and spin just before it.
//!
//! A wake-up takes 50 us, and 200 us if the CPU itself entered an idle state. A program that waits
//! for one kernel, copy or training step of some milliseconds after the other pays it in each of
//! them; natively its thread spins all the time. Its waits have similar lengths, so it can sleep
//! through most of a wait and spin for the rest.

use std::time::Duration;

/// Time from a wake-up to the first instruction of the sleeper, in the slow case.
const WAKE_UP_TIME: Duration = Duration::from_micros(250);
/// Longest mean wait that is predicted: in a longer one the time of a wake-up does not matter.
const MAX_PREDICTED_WAIT: Duration = Duration::from_millis(100);
/// Longest spin at the end of a wait: waits that differ by more are not predictable.
const MAX_SPIN_AT_END: Duration = Duration::from_millis(2);
/// Similar waits in a row before a prediction is made.
const MIN_SIMILAR_WAITS: u8 = 2;

/// The schedule of one wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WaitPlan {
    /// Duration of the first sleep.
    pub sleep: Duration,
    /// Spin time after `sleep`, before the final, unbounded sleep.
    pub spin: Duration,
}

/// Learns from those waits of one ring end that were too long to spin.
#[derive(Debug, Default)]
pub(crate) struct WaitPredictor {
    mean: Duration,
    /// Mean distance of a wait from the mean.
    spread: Duration,
    /// Consecutive waits close to the mean, up to `MIN_SIMILAR_WAITS`.
    alike: u8,
}

impl WaitPredictor {
    pub fn learn(&mut self, took: Duration) {
        if took < self.mean / 2 || took > self.mean * 2 {
            *self = WaitPredictor { mean: took, spread: took / 16, alike: 0 };
            return;
        }
        self.alike = (self.alike + 1).min(MIN_SIMILAR_WAITS);
        self.spread = (self.spread * 3 + took.abs_diff(self.mean)) / 4;
        self.mean = (self.mean * 3 + took) / 4;
    }

    /// The plan for a wait that has lasted for `since`. `None`: no prediction is possible.
    pub fn plan(&self, since: Duration) -> Option<WaitPlan> {
        let margin = self.spread * 2 + WAKE_UP_TIME;
        if self.alike < MIN_SIMILAR_WAITS || self.mean > MAX_PREDICTED_WAIT || margin * 2 > MAX_SPIN_AT_END {
            return None;
        }
        let sleep = self.mean.checked_sub(since + margin)?;
        Some(WaitPlan { sleep, spin: margin * 2 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    fn after(waits: &[u64]) -> WaitPredictor {
        let mut predictor = WaitPredictor::default();
        waits.iter().for_each(|wait| predictor.learn(us(*wait)));
        predictor
    }

    #[test]
    fn similar_waits_are_mostly_slept() {
        let plan = after(&[5000, 5040, 4990, 5010, 5000, 5010, 5000, 5000]).plan(us(0)).unwrap();
        assert!(plan.sleep > us(4300) && plan.sleep + plan.spin > us(5100), "{plan:?}");
        assert!(plan.spin < us(900), "{plan:?}");
        let later = after(&[5000; 8]).plan(us(400)).unwrap();
        assert_eq!(later.sleep + us(400), after(&[5000; 8]).plan(us(0)).unwrap().sleep);
    }

    #[test]
    fn few_or_different_or_very_long_waits_are_not_predicted() {
        assert_eq!(after(&[]).plan(us(0)), None);
        assert_eq!(after(&[5000, 5000]).plan(us(0)), None);
        assert_eq!(after(&[1000, 9000, 1000, 9000, 1000, 9000]).plan(us(0)), None);
        assert_eq!(after(&[8000, 13000, 8000, 13000, 8000, 13000]).plan(us(0)), None);
        assert_eq!(after(&[200_000; 9]).plan(us(0)), None);
        // The predicted end is too near to sleep.
        assert_eq!(after(&[500; 9]).plan(us(400)), None);
    }

    #[test]
    fn wait_of_another_length_starts_a_new_prediction() {
        let mut predictor = after(&[5000; 9]);
        predictor.learn(us(50_000));
        assert_eq!(predictor.plan(us(0)), None);
        (0..9).for_each(|_| predictor.learn(us(50_000)));
        assert!(predictor.plan(us(0)).unwrap().sleep > us(49_000));
    }
}
