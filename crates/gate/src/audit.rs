//! How many refusals get a line of their own in the log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Lines of one tenant in one second of the clock: a hostile guest must not fill the log. In any second there are at most twice as
/// many, which is what the node logs of an API server: it leaves out none of them, and no number that one of them tells.
const MAX_LINES_PER_SECOND: u64 = 10;

/// The present second and the lines in it; in the tenant's page one for all its sessions.
#[derive(Debug, Default)]
#[repr(C)]
pub struct RefusalLogWindow {
    /// Seconds since 1970 in the upper 48 bits, lines in the lower 16.
    state: AtomicU64,
    suppressed: AtomicU64,
}

impl RefusalLogWindow {
    /// Decides if a refusal gets a line now; `Some` holds the number of refusals before it that got none.
    pub fn admit(&self) -> Option<u64> {
        let second = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        self.admit_at(second)
    }

    fn admit_at(&self, second: u64) -> Option<u64> {
        let counted = |state: u64| match (state >> 16 == second, state & 0xffff) {
            (false, _) => Some(second << 16 | 1),
            (true, lines) => (lines < MAX_LINES_PER_SECOND).then_some(state + 1),
        };
        match self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted) {
            Ok(_) => Some(self.take_untold()),
            Err(_) => {
                self.suppressed.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    pub fn take_untold(&self) -> u64 {
        self.suppressed.swap(0, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_lines_a_second_and_the_rest_is_counted() {
        let window = RefusalLogWindow::default();
        for _ in 0..MAX_LINES_PER_SECOND {
            assert_eq!(window.admit_at(7), Some(0));
        }
        assert_eq!((window.admit_at(7), window.admit_at(7)), (None, None));
        assert_eq!(window.admit_at(8), Some(2));
        assert_eq!(window.admit_at(8), Some(0));
        assert_eq!(window.take_untold(), 0);
    }
}
