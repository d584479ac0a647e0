//! Which packets are compressed: those that a slow connection sends sooner for it. Pure; [`crate::carry::link`] tells it what it
//! sends and how long that takes.

use std::time::Duration;

/// The size of a packet in bytes from which on it is compressed.
const MIN_BYTES: usize = 1000;
/// Larger packets are sampled first. Of smaller ones the fewer segments count.
const SAMPLE_BYTES: usize = 8 << 10;
/// A sample stands for so many bytes after it.
const VERDICT_BYTES: usize = 1 << 20;
/// Bytes of the wire over which its speed is measured.
const MEASURED_BYTES: usize = 1 << 20;
/// A connection of 10 Gbit/s, in bytes per second: sending takes less time than compressing.
const FAST: f64 = 1.25e9;
/// Estimated speed of the compressor, in bytes per second.
const COMPRESSOR: f64 = 250e6;
/// From this round trip on small packets are compressed: they fit fewer segments.
const FAR: Duration = Duration::from_micros(300);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    Off,
    /// Compress if the connection is slow and the data becomes shorter.
    Auto,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Shrinks,
    ShrinksToAThird,
    Dense,
}

/// What was seen of a connection and of the data that it carries.
#[derive(Debug)]
pub struct Compressing {
    choice: Compression,
    /// Bytes per second of the wire; `None`: not known yet.
    speed: Option<f64>,
    measured: (usize, Duration),
    verdict: Verdict,
    /// Bytes for which the verdict holds.
    holds_for: usize,
}

impl Compressing {
    /// `is_local`: the peer is on this machine.
    pub fn new(choice: Compression, is_local: bool) -> Compressing {
        let choice = if is_local { Compression::Off } else { choice };
        Compressing { choice, speed: None, measured: (0, Duration::ZERO), verdict: Verdict::Dense, holds_for: 0 }
    }

    /// Whether to compress these frames, which are one packet.
    pub fn pays(&mut self, frames: &[u8], round_trip: Duration) -> bool {
        if self.choice == Compression::Off || frames.len() < MIN_BYTES {
            return false;
        }
        if frames.len() <= SAMPLE_BYTES {
            return round_trip >= FAR && self.speed.is_none_or(|speed| speed < FAST);
        }
        // One whose speed is not known may be fast.
        let Some(speed) = self.speed.filter(|speed| *speed < FAST) else { return false };
        if self.holds_for == 0 {
            self.judge(&frames[frames.len() / 2..][..SAMPLE_BYTES.min(frames.len() / 2)]);
        }
        self.holds_for = self.holds_for.saturating_sub(frames.len());
        match self.verdict {
            Verdict::ShrinksToAThird => true,
            Verdict::Shrinks => speed < COMPRESSOR,
            Verdict::Dense => false,
        }
    }

    fn judge(&mut self, sample: &[u8]) {
        let packed = lz4_flex::block::compress(sample).len();
        self.verdict = match packed {
            packed if packed * 3 < sample.len() => Verdict::ShrinksToAThird,
            packed if packed * 10 < sample.len() * 8 => Verdict::Shrinks,
            _ => Verdict::Dense,
        };
        self.holds_for = VERDICT_BYTES;
    }

    /// A packet of `frames` bytes was sent as `bytes` in this time.
    pub fn sent(&mut self, frames: usize, bytes: usize, took: Duration) {
        if bytes < frames && bytes * 10 >= frames * 8 && frames > SAMPLE_BYTES {
            (self.verdict, self.holds_for) = (Verdict::Dense, VERDICT_BYTES);
        }
        self.measured.0 += bytes;
        self.measured.1 += took;
        if self.measured.0 >= MEASURED_BYTES {
            let (bytes, took) = std::mem::take(&mut self.measured);
            self.speed = Some(bytes as f64 / took.as_secs_f64().max(1e-9));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: usize = 64 << 10;
    const NEXT_DOOR: Duration = Duration::from_micros(30);

    fn random(bytes: usize) -> Vec<u8> {
        let mut word = 1u64;
        let mut next = || {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (word >> 56) as u8
        };
        std::iter::repeat_with(&mut next).take(bytes).collect()
    }

    /// Sends 4 MiB in such packets over a connection of this speed; how many were compressed.
    fn compressed(compressing: &mut Compressing, packet: &[u8], speed: f64) -> usize {
        let mut count = 0;
        for _ in 0..(4 << 20) / packet.len() {
            let pays = compressing.pays(packet, NEXT_DOOR);
            count += usize::from(pays);
            let bytes = if pays { lz4_flex::block::compress(packet).len() } else { packet.len() };
            compressing.sent(packet.len(), bytes, Duration::from_secs_f64(bytes as f64 / speed));
        }
        count
    }

    #[test]
    fn a_slow_wire_carries_less_of_what_shrinks_and_a_fast_one_is_left_alone() {
        let (constant, dense) = (vec![1; PACKET], random(PACKET));
        let auto = || Compressing::new(Compression::Auto, false);
        // 100 Mbit/s, next door: all but what measured it.
        assert_eq!(compressed(&mut auto(), &constant, 12.5e6), 48);
        assert_eq!(compressed(&mut auto(), &dense, 12.5e6), 0);
        // Faster than 10 Gbit/s.
        assert_eq!(compressed(&mut auto(), &constant, 2e9), 0);
        // On this machine, and where nobody wants it.
        assert_eq!(compressed(&mut Compressing::new(Compression::Auto, true), &constant, 12.5e6), 0);
        assert_eq!(compressed(&mut Compressing::new(Compression::Off, false), &constant, 12.5e6), 0);
    }

    #[test]
    fn what_shrinks_a_little_is_compressed_where_the_wire_is_slower_than_the_compressor() {
        let half = [vec![0; PACKET / 2], random(PACKET / 2)].concat();
        let mixed: Vec<u8> = half
            .chunks(PACKET / 2)
            .next()
            .into_iter()
            .flatten()
            .copied()
            .zip(random(PACKET / 2))
            .flat_map(|(a, b)| [a, a, a, b])
            .take(PACKET)
            .collect();
        let shrinks = lz4_flex::block::compress(&mixed).len();
        assert!(shrinks * 3 > PACKET && shrinks * 10 < PACKET * 8, "{shrinks}");
        let auto = || Compressing::new(Compression::Auto, false);
        assert!(compressed(&mut auto(), &mixed, 12.5e6) > 0);
        assert_eq!(compressed(&mut auto(), &mixed, 500e6), 0);
    }

    #[test]
    fn data_that_does_not_get_shorter_is_sampled_once_in_a_mebibyte() {
        let mut compressing = Compressing::new(Compression::Auto, false);
        let dense = random(PACKET);
        compressed(&mut compressing, &dense, 12.5e6);
        assert!(!compressing.pays(&dense, NEXT_DOOR));
        let held = compressing.holds_for;
        // Other data that comes within it is not looked at.
        assert!(!compressing.pays(&vec![0; PACKET], NEXT_DOOR) && compressing.holds_for == held - PACKET);
        // A sample that has lied is found out.
        (compressing.verdict, compressing.holds_for) = (Verdict::ShrinksToAThird, VERDICT_BYTES);
        compressing.sent(PACKET, PACKET * 9 / 10, Duration::ZERO);
        assert_eq!(compressing.verdict, Verdict::Dense);
    }

    #[test]
    fn small_packets_are_compressed_where_a_segment_is_far() {
        let mut compressing = Compressing::new(Compression::Auto, false);
        let small = vec![0; MIN_BYTES];
        assert!(compressing.pays(&small, FAR) && !compressing.pays(&small, NEXT_DOOR));
        assert!(!compressing.pays(&small[1..], FAR));
    }
}
