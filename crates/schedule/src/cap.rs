//! The limit of a job to a part of a device's time: a token bucket of device time.

/// Nanoseconds of device time that a job can have saved up: the most by which it exceeds its cap in any span of time.
/// One such piece of work is admitted at a time.
const BURST_NS: i64 = 2_000_000;

/// Device time that a capped job may use.
#[derive(Debug, Clone, Copy)]
pub struct Bucket {
    /// Thousandths of the device's time.
    rate: u32,
    /// Nanoseconds of device time; below zero after work that took longer than what was left.
    level: i64,
    /// When `level` was brought up to date.
    at: u64,
}

impl Bucket {
    pub fn new(rate: u32, now: u64) -> Bucket {
        Bucket { rate: rate.clamp(1, 1000), level: BURST_NS, at: now }
    }

    pub fn set_rate(&mut self, rate: u32, now: u64) {
        self.refill(now);
        self.rate = rate.clamp(1, 1000);
    }

    fn refill(&mut self, now: u64) {
        let passed = now.saturating_sub(self.at);
        let earned = i64::try_from(u128::from(passed) * u128::from(self.rate) / 1000).unwrap_or(i64::MAX);
        if earned > 0 {
            self.level = self.level.saturating_add(earned).min(BURST_NS);
            self.at = now;
        }
    }

    pub fn charge(&mut self, used: u64, now: u64) {
        // First this: it was used while the bucket was refilled.
        self.level = self.level.saturating_sub(i64::try_from(used).unwrap_or(i64::MAX));
        self.refill(now);
    }

    /// Nanoseconds of device time that may be used now; 0 until a whole piece can be.
    pub fn available(&mut self, now: u64) -> u64 {
        self.refill(now);
        if self.level >= BURST_NS / 2 { self.level.unsigned_abs() } else { 0 }
    }

    /// When something will be available, if nothing is used until then.
    pub fn available_at(&self) -> u64 {
        let missing = u128::from((BURST_NS / 2).saturating_sub(self.level).max(0).unsigned_abs());
        let wait = missing * 1000 / u128::from(self.rate) + 1;
        self.at.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX))
    }
}
