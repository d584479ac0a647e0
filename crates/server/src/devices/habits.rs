//! What a session's past says of how it will use a device: whether it calls often, and whether it comes back soon.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Whether a session waits for the device so often that it pays to keep its threads awake while it has it: more than
/// ten synchronous calls in ten milliseconds (FairGV 3.2.3).
#[derive(Default)]
pub(super) struct Interactive {
    began: Mutex<Option<(Instant, u32)>>,
    pub(super) is: AtomicBool,
}

const WINDOW: Duration = Duration::from_millis(10);
const MANY: u32 = 10;

impl Interactive {
    /// The session had to wait for the device: what it did before says how it is, but not how often it calls now.
    pub(super) fn resume(&self) {
        *self.began.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(super) fn count(&self) -> bool {
        let mut began = self.began.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, calls) = began.get_or_insert_with(|| (Instant::now(), 0));
        *calls += 1;
        let is =
            if since.elapsed() < WINDOW { *calls > MANY || self.is.load(Ordering::Relaxed) } else { *calls > MANY };
        if since.elapsed() >= WINDOW {
            *began = None;
        }
        self.is.store(is, Ordering::Relaxed);
        is
    }
}

/// Whether a program whose work is done comes back so soon that it pays to keep the device for it.
pub(super) struct Lingering {
    /// Grows with each return in time, shrinks with each that was not.
    pub(super) confidence: u8,
    /// When the device was given back at once.
    pub(super) left: Option<Instant>,
}

/// Lingering pays while a third of the returns or more are in time.
const FULL: u8 = 16;
const GAIN: u8 = 2;

impl Default for Lingering {
    fn default() -> Self {
        Lingering { confidence: FULL, left: None }
    }
}

impl Lingering {
    pub(super) fn learn(&mut self, in_time: bool) {
        self.confidence = if in_time { (self.confidence + GAIN).min(FULL) } else { self.confidence.saturating_sub(1) };
    }

    /// There is work again.
    pub(super) fn back(&mut self, linger: Duration) {
        if let Some(left) = self.left.take() {
            self.learn(left.elapsed() < linger);
        }
    }
}
