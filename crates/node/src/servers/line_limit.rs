//! How many lines of the log somebody else may cause.

use std::time::{Duration, Instant};

/// Lines in a second that one source may cause; more are counted. An API server writes as many about refusals in any second at
/// most (`aviary_gate::audit`): none of them is left out, and no number that one of them tells.
const MAX_LINES_PER_SECOND: u32 = 20;
const SECOND: Duration = Duration::from_secs(1);

/// Lines of one source: the first twenty of a second pass, the number of the others is told when the second is over.
#[derive(Debug, Default)]
pub struct LineLimit {
    /// When the present second began; `None`: with the next line.
    since: Option<Instant>,
    passed: u32,
    left_out: u64,
}

impl LineLimit {
    /// True if one more line may be logged.
    pub fn admit(&mut self, now: Instant) -> bool {
        if self.over(now) && self.left_out == 0 {
            *self = Self { since: Some(now), ..Self::default() };
        }
        let admitted = self.passed < MAX_LINES_PER_SECOND;
        self.passed += u32::from(admitted);
        self.left_out += u64::from(!admitted);
        admitted
    }

    /// How many lines were left out in a second that is over, once.
    pub fn settle(&mut self, now: Instant) -> Option<u64> {
        if !self.over(now) {
            return None;
        }
        self.finish()
    }

    /// How many were left out, whether or not the second is over.
    pub fn finish(&mut self) -> Option<u64> {
        let left_out = std::mem::take(self).left_out;
        (left_out > 0).then_some(left_out)
    }

    /// When there is something to tell.
    pub fn next_settle(&self) -> Option<Instant> {
        self.since.filter(|_| self.left_out > 0).map(|since| since + SECOND)
    }

    fn over(&self, now: Instant) -> bool {
        self.since.is_none_or(|since| now.saturating_duration_since(since) >= SECOND)
    }
}

#[cfg(test)]
mod tests {
    use crate::servers::line_limit::*;

    #[test]
    fn twenty_lines_of_a_second_pass_and_the_rest_is_counted() {
        let (mut limit, start) = (LineLimit::default(), Instant::now());
        assert_eq!((0..1000).filter(|_| limit.admit(start)).count(), 20);
        assert_eq!((limit.next_settle(), limit.settle(start)), (Some(start + SECOND), None));
        let later = start + SECOND;
        assert!(!limit.admit(later), "the number comes before the next line");
        assert_eq!((limit.settle(later), limit.settle(later), limit.next_settle()), (Some(981), None, None));
        assert_eq!((0..1000).filter(|_| limit.admit(later)).count(), 20);
        assert_eq!(limit.finish(), Some(980));
    }

    #[test]
    fn few_lines_pass_for_ever() {
        let (mut limit, start) = (LineLimit::default(), Instant::now());
        for second in 0..5 {
            assert_eq!((0..20).filter(|_| limit.admit(start + SECOND * second)).count(), 20);
        }
        assert_eq!((limit.next_settle(), limit.finish()), (None, None));
    }
}
