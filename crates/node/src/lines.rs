//! How many lines of the log one API server causes.

use std::time::{Duration, Instant};

/// Lines of one API server in [`WINDOW`]: one that was taken over must not fill the log.
const LINES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(1);

/// The lines that an API server caused lately.
#[derive(Debug, Default)]
pub struct Lines {
    /// When the present window began.
    since: Option<Instant>,
    told: u32,
    /// Since the last line that was told.
    untold: u64,
}

impl Lines {
    /// Whether a line at `now` is told, and how many before it were not.
    pub fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= WINDOW) {
            (self.since, self.told) = (Some(now), 0);
        }
        if self.told >= LINES {
            self.untold = self.untold.saturating_add(1);
            return None;
        }
        self.told += 1;
        Some(self.take_untold())
    }

    pub fn take_untold(&mut self) -> u64 {
        std::mem::take(&mut self.untold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_lines_a_second_and_then_how_many_there_were() {
        let (mut lines, start) = (Lines::default(), Instant::now());
        let told = |lines: &mut Lines, at: Instant| (0..20_000).filter_map(|_| lines.admit(at)).collect::<Vec<_>>();
        assert_eq!(told(&mut lines, start), [0; 10]);
        assert_eq!(lines.admit(start + WINDOW / 2), None);
        let next = told(&mut lines, start + WINDOW);
        assert_eq!((next.len(), next[0], next[1]), (10, 19_991, 0));
        assert_eq!(lines.take_untold(), 19_990);
    }
}
