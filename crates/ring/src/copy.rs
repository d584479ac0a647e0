//! Copying messages into and out of a ring, word by word.

use crate::RingMemory;

impl RingMemory {
    /// Copies `bytes` to position `at`, padding the last word with zeros.
    #[inline]
    pub(crate) fn store(&self, mut at: u64, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.store_word(at, u64::from_le_bytes(*word));
            at += 8;
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.store_word(at, u64::from_le_bytes(last));
        }
    }

    /// Appends `length` bytes from position `at` to `into`.
    #[inline]
    pub(crate) fn load(&self, mut at: u64, length: usize, into: &mut Vec<u8>) {
        into.reserve(length + 8);
        for _ in 0..length / 8 {
            into.extend_from_slice(&self.load_word(at).to_le_bytes());
            at += 8;
        }
        if !length.is_multiple_of(8) {
            into.extend_from_slice(&self.load_word(at).to_le_bytes()[..length % 8]);
        }
    }
}
