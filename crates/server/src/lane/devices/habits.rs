//! A session's past use of a device: does it call often, and does it come back soon?

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aviary_ring::ablation::{Term, without};

/// Whether a session waits for the device so often that it pays to keep its threads awake while it has it: more than
/// ten synchronous calls in ten milliseconds (FairGV 3.2.3), of those in which it has the device.
#[derive(Default)]
pub(super) struct LatencySensitive {
    window: Mutex<CallRateWindow>,
    pub(super) is: AtomicBool,
}

#[derive(Default)]
struct CallRateWindow {
    /// But for the first.
    calls: u32,
    passed: Duration,
    /// The last call, if the session has had the device since.
    last: Option<Instant>,
}

const CALL_RATE_WINDOW: Duration = Duration::from_millis(10);
const LATENCY_SENSITIVE_CALLS: u32 = 10;

impl LatencySensitive {
    fn window(&self) -> MutexGuard<'_, CallRateWindow> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session had to wait for the device.
    pub(super) fn resume(&self) {
        self.window().last = None;
    }

    /// A synchronous call at `now`.
    pub(super) fn count(&self, now: Instant) -> bool {
        let mut window = self.window();
        // What was before the first call since it got the device says nothing of how often it calls.
        if let Some(last) = window.last.replace(now) {
            window.passed += now.saturating_duration_since(last);
            window.calls += 1;
        }
        if window.calls >= LATENCY_SENSITIVE_CALLS || window.passed >= CALL_RATE_WINDOW {
            self.is.store(window.passed < CALL_RATE_WINDOW, Ordering::Relaxed);
            *window = CallRateWindow { last: window.last, ..CallRateWindow::default() };
        }
        self.is.load(Ordering::Relaxed) || without(Term::LatencySensitive)
    }
}

/// Whether a program whose work is done comes back so soon that it pays to keep the device for it.
pub(super) struct ReuseHint {
    /// Grows with each return in time, shrinks with each that was not.
    pub(super) confidence: u8,
    /// When the device was given back at once.
    pub(super) left: Option<Instant>,
}

/// Keeping the device pays while a third of the returns or more are in time.
pub(super) const MAX_CONFIDENCE: u8 = 16;
const CONFIDENCE_GAIN: u8 = 2;

impl Default for ReuseHint {
    fn default() -> Self {
        ReuseHint { confidence: MAX_CONFIDENCE, left: None }
    }
}

impl ReuseHint {
    pub(super) fn learn(&mut self, in_time: bool) {
        if without(Term::ReuseHint) {
            return;
        }
        self.confidence = if in_time {
            (self.confidence + CONFIDENCE_GAIN).min(MAX_CONFIDENCE)
        } else {
            self.confidence.saturating_sub(1)
        };
    }

    /// There is work again.
    pub(super) fn back(&mut self, linger: Duration) {
        if let Some(left) = self.left.take() {
            self.learn(left.elapsed() < linger);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_synchronous_calls_are_latency_sensitive() {
        let (latency_sensitive, mut now) = (LatencySensitive::default(), Instant::now());
        let mut calls = |count: u32, every: Duration| {
            (0..count).fold(false, |_, _| {
                now += every;
                latency_sensitive.count(now)
            })
        };
        assert!(!calls(10, Duration::from_micros(200)));
        assert!(calls(1, Duration::from_micros(200)));
        // Five at a time, and long waits for the device between: as often as before.
        for _ in 0..20 {
            latency_sensitive.resume();
            assert!(calls(1, Duration::from_millis(50)) && calls(4, Duration::from_micros(200)));
        }
        assert!(!calls(30, Duration::from_millis(2)));
        for _ in 0..50 {
            latency_sensitive.resume();
            assert!(!calls(1, Duration::from_millis(5)), "one in each slice");
        }
        assert!(calls(22, Duration::from_micros(900)));
    }
}
