//! Counts of one lane, added to the session's statistics when no caller waits for it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lane::clock;
use aviary_control::stats::Stats;

/// A busy lane reports at least this often.
const CALLS_BETWEEN_REPORTS: u64 = 64;

#[derive(Default)]
pub struct Counters {
    pub calls: Cell<u64>,
    pub async_calls: Cell<u64>,
    pub bytes_in: Cell<u64>,
    pub bytes_out: Cell<u64>,
    pub vendor_ticks: Cell<u64>,
}

pub fn add(counter: &Cell<u64>, amount: u64) {
    counter.set(counter.get().wrapping_add(amount));
}

impl Counters {
    pub fn due(&self) -> bool {
        self.calls.get() + self.async_calls.get() >= CALLS_BETWEEN_REPORTS
    }

    pub fn report(&self, stats: &Stats) {
        let move_to = |from: &Cell<u64>, to: &AtomicU64| match from.take() {
            0 => (),
            amount => drop(to.fetch_add(amount, Ordering::Relaxed)),
        };
        move_to(&self.calls, &stats.calls);
        move_to(&self.async_calls, &stats.async_calls);
        move_to(&self.bytes_in, &stats.bytes_in);
        move_to(&self.bytes_out, &stats.bytes_out);
        if let Some(ns) = clock::nanoseconds(self.vendor_ticks.get()) {
            self.vendor_ticks.set(0);
            stats.vendor_ns.fetch_add(ns, Ordering::Relaxed);
        }
    }
}
