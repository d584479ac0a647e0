//! How many pieces of a VM's application memory are mapped here at a time.
//!
//! Each piece is a mapping of this process, of which Linux allows 65,530 by default; in a guest whose free memory is
//! fragmented, every page of a buffer is a piece. At the limit nothing could be mapped any more, not even to undo
//! the former mapping: the session would end. So part of them is kept for the arena and the vendor's library, and a
//! guest that wants more is refused before, and copies.

use std::collections::BTreeMap;

/// 80 MiB of single pages. With a hole beside each of them, two thirds of what Linux allows.
const MAX_MAPPED_FRAGMENTS: usize = 20_480;

#[derive(Default)]
pub struct MappedFragments {
    /// By the arena's offset.
    counts: BTreeMap<u64, usize>,
    total: usize,
}

impl MappedFragments {
    /// False: they are too many.
    pub fn add(&mut self, offset: u64, count: usize) -> bool {
        if self.total + count > MAX_MAPPED_FRAGMENTS {
            return false;
        }
        self.total += count;
        *self.counts.entry(offset).or_default() += count;
        true
    }

    /// Everything that begins in the range.
    pub fn remove(&mut self, offset: u64, length: u64) {
        let gone: Vec<u64> = self.counts.range(offset..offset.saturating_add(length)).map(|(at, _)| *at).collect();
        for at in gone {
            self.total -= self.counts.remove(&at).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmapped_fragments_free_room() {
        let mut pieces = MappedFragments::default();
        assert!(pieces.add(0, MAX_MAPPED_FRAGMENTS - 1));
        assert!(!pieces.add(4096, 2));
        assert!(pieces.add(4096, 1));
        assert!(!pieces.add(8192, 1));
        pieces.remove(4096, 4096);
        assert!(pieces.add(8192, 1));
        pieces.remove(0, u64::MAX);
        pieces.remove(0, u64::MAX);
        assert!(pieces.add(0, MAX_MAPPED_FRAGMENTS));
    }
}
