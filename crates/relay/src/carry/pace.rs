//! How much is given to a connection at a time: the more, the faster it is, so that a small message waits about as long behind
//! bulk data on any wire. Pure; [`crate::carry::link`] tells it what it sends and how long that takes.

use std::time::Duration;

/// Bytes over which the speed is measured.
const MEASURED_BYTES: usize = 1 << 20;
/// The kernel holds as much unsent as the wire takes in this time, within bounds.
const AHEAD: Duration = Duration::from_millis(1);
const LEAST_UNSENT: u32 = 128 << 10;
const MOST_UNSENT: u32 = 4 << 20;
/// A piece is as much as the wire takes in this time, within bounds.
const OF_PIECE: Duration = Duration::from_micros(250);
pub const LEAST_PIECE: usize = 64 << 10;
const MOST_PIECE: usize = 240 << 10;

#[derive(Debug)]
pub struct Pace {
    measured: (usize, Duration),
    /// The most bytes of a piece of bulk data.
    pub piece: usize,
    /// The most bytes that the kernel holds unsent.
    pub unsent: u32,
}

impl Pace {
    pub fn new() -> Self {
        Pace { measured: (0, Duration::ZERO), piece: LEAST_PIECE, unsent: LEAST_UNSENT }
    }

    /// So many bytes were given to the kernel in this time. True: the bounds have changed.
    pub fn sent(&mut self, bytes: usize, took: Duration) -> bool {
        self.measured.0 += bytes;
        self.measured.1 += took;
        if self.measured.0 < MEASURED_BYTES {
            return false;
        }
        let (bytes, took) = std::mem::take(&mut self.measured);
        let speed = bytes as f64 / took.as_secs_f64().max(1e-9);
        let within = |time: Duration, least: usize, most: usize| {
            // In steps of the least, so that small changes of the speed change nothing.
            let steps = (speed * time.as_secs_f64() / least as f64) as usize;
            steps.saturating_mul(least).clamp(least, most)
        };
        let unsent = within(AHEAD, LEAST_UNSENT as usize, MOST_UNSENT as usize) as u32;
        let piece = within(OF_PIECE, LEAST_PIECE, MOST_PIECE);
        let changed = (unsent, piece) != (self.unsent, self.piece);
        (self.unsent, self.piece) = (unsent, piece);
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(speed: f64) -> Pace {
        let mut pace = Pace::new();
        let packet = 64 << 10;
        for _ in 0..MEASURED_BYTES / packet {
            pace.sent(packet, Duration::from_secs_f64(packet as f64 / speed));
        }
        pace
    }

    #[test]
    fn fast_wires_get_more_at_a_time_and_slow_ones_keep_calls_short() {
        for (speed, unsent, piece) in [
            (12.5e6, LEAST_UNSENT, LEAST_PIECE),
            (125e6, LEAST_UNSENT, LEAST_PIECE),
            (1.25e9, 9 * LEAST_UNSENT, MOST_PIECE),
            (1e12, MOST_UNSENT, MOST_PIECE),
        ] {
            let pace = after(speed);
            assert_eq!((pace.unsent, pace.piece), (unsent, piece), "{speed}");
        }
        let mut pace = Pace::new();
        assert!(!pace.sent(MEASURED_BYTES - 1, Duration::ZERO) && pace.sent(1, Duration::ZERO));
    }
}
