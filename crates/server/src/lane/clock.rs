//! A clock that is cheap enough to read twice per call.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The longer the trial, the better the rate; this gives an error far below a percent.
const TRIAL: Duration = Duration::from_millis(20);

static BASE: OnceLock<(Instant, u64)> = OnceLock::new();
/// Nanoseconds per tick, as the bits of an f64; 0: not known yet.
static RATE: AtomicU64 = AtomicU64::new(0);

/// Counts up at a constant rate. Differences between CPUs are possible, so only
/// statistics may depend on it.
#[cfg(target_arch = "x86_64")]
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 CPU has the instruction; it reads a counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
pub fn ticks() -> u64 {
    let (start, _) = BASE.get_or_init(|| (Instant::now(), 0));
    start.elapsed().as_nanos() as u64
}

/// Begins to learn how long a tick is.
pub fn start() {
    BASE.get_or_init(|| (Instant::now(), ticks()));
}

/// `None` until the clock has run for a while.
pub fn nanoseconds(ticks: u64) -> Option<u64> {
    let rate = match f64::from_bits(RATE.load(Ordering::Relaxed)) {
        0.0 => learn()?,
        known => known,
    };
    Some((ticks as f64 * rate) as u64)
}

#[cold]
fn learn() -> Option<f64> {
    let (since, first) = BASE.get()?;
    let elapsed = since.elapsed();
    let passed = ticks().saturating_sub(*first);
    if elapsed < TRIAL || passed == 0 {
        return None;
    }
    let rate = elapsed.as_nanos() as f64 / passed as f64;
    RATE.store(rate.to_bits(), Ordering::Relaxed);
    Some(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_agrees_with_the_systems_clock() {
        start();
        std::thread::sleep(TRIAL + TRIAL);
        let ratio = || {
            let (from, since) = (ticks(), Instant::now());
            std::thread::sleep(Duration::from_millis(30));
            nanoseconds(ticks() - from).unwrap() as f64 / since.elapsed().as_nanos() as f64
        };
        // A thread that is kept from its CPU between the readings of the two clocks has another ratio.
        let found: Vec<f64> = (0..20).map(|_| ratio()).collect();
        assert!(found.iter().any(|ratio| (ratio - 1.0).abs() < 0.05), "{found:?}");
    }
}
