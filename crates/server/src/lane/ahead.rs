//! Parts of long outputs that leave for another machine while the vendor's library writes the rest.

use std::cell::RefCell;

use aviary_transport::{AHEAD_BYTES, LaneEnd, Region};

/// What leaves at a time: some of what a guest sends so, as a device has to be asked for each.
pub const OUTPUT_PART: usize = 4 * AHEAD_BYTES;

/// By place in the arena and length: parts of outputs of the call under way that have left, which its answer does not carry again.
#[derive(Default)]
pub struct Ahead(RefCell<Vec<(u64, u64)>>);

impl Ahead {
    /// Sends a part. Nothing happens if the lane has ended: its thread finds out by itself.
    pub fn send(&self, end: &mut LaneEnd, offset: u64, bytes: usize) {
        if bytes > 0 && end.send(&[], &[Region { offset, length: bytes }]).is_ok() {
            self.note(offset, bytes as u64);
        }
    }

    fn note(&self, offset: u64, bytes: u64) {
        let mut parts = self.0.borrow_mut();
        match parts.last_mut().filter(|(begin, length)| begin + length == offset) {
            Some((_, length)) => *length += bytes,
            None => parts.push((offset, bytes)),
        }
    }

    /// Takes what has left out of an answer's regions, and forgets it.
    #[inline]
    pub fn take_from(&self, regions: &mut Vec<(u64, u64)>) {
        if !self.0.borrow().is_empty() {
            let parts = self.0.take();
            parts.iter().for_each(|part| *regions = regions.iter().flat_map(|region| rest(*region, *part)).collect());
        }
    }
}

/// What of a region lies before and behind a part.
fn rest((begin, bytes): (u64, u64), (from, gone): (u64, u64)) -> impl Iterator<Item = (u64, u64)> {
    let (end, to) = (begin + bytes, from + gone);
    [(begin, end.min(from)), (begin.max(to), end)].into_iter().filter(|(a, b)| b > a).map(|(a, b)| (a, b - a))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_carries_what_has_not_left() {
        let ahead = Ahead::default();
        let mut regions = vec![(100, 50), (400, 8)];
        ahead.take_from(&mut regions);
        assert_eq!(regions, [(100, 50), (400, 8)]);
        for (offset, bytes) in [(100, 10), (110, 5), (130, 10), (380, 100), (0, 3)] {
            ahead.note(offset, bytes);
        }
        ahead.take_from(&mut regions);
        assert_eq!(regions, [(115, 15), (140, 10)]);
        regions.push((100, 10));
        ahead.take_from(&mut regions);
        assert_eq!(regions.len(), 3, "nothing has left since");
    }
}
