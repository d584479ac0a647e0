//! Tables of functions that follow the vendor's: a function that the vendor's table lacks is NULL in the guest's, and its
//! numbers are the vendor's.
//!
//! Written by every reply that tells of the vendor's table, each time with the same values; read by the application, at any
//! time. A reply that is too short tells of no functions: the connection has failed then.

use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Function slots in one word of a reply.
const SLOTS: usize = u64::BITS as usize;

/// The guest's table of `N` words.
pub struct VendorTable<const N: usize> {
    words: [AtomicUsize; N],
    filled: Once,
    /// Where functions are, in bytes.
    slots: &'static [usize],
    /// Numbers: place and width in bytes, and the largest value.
    values: &'static [(usize, usize, u64)],
}

impl<const N: usize> VendorTable<N> {
    pub const fn new(slots: &'static [usize], values: &'static [(usize, usize, u64)]) -> VendorTable<N> {
        VendorTable { words: [const { AtomicUsize::new(0) }; N], filled: Once::new(), slots, values }
    }

    /// The address of the table, with the functions that `fill` enters.
    pub fn address(&self, fill: impl FnOnce(&mut [usize; N])) -> usize {
        self.filled.call_once(|| {
            let mut words = [0; N];
            fill(&mut words);
            self.words.iter().zip(words).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        });
        self.words.as_ptr() as usize
    }

    /// Sets the pointer at that place, in bytes, to another table of the guest's, or to none.
    pub fn point(&self, offset: usize, to: usize) {
        self.words[offset / 8].store(to, Ordering::Relaxed);
    }

    /// `word` is the vendor's next word of the reply.
    pub(crate) fn follow(&self, word: impl FnMut() -> u64) {
        follow(self.slots, self.values, word, &mut |at, change| {
            let place = &self.words[at];
            place.store(change.of(place.load(Ordering::Relaxed)), Ordering::Relaxed);
        });
    }
}

/// The bits of a word that a reply says, and the mask under which they lie.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WordChange {
    mask: usize,
    bits: usize,
}

impl WordChange {
    pub(crate) fn of(self, word: usize) -> usize {
        word & !self.mask | self.bits
    }
}

/// Reads what a reply says of a table, and has `change` change its words.
pub(crate) fn follow(
    slots: &[usize],
    values: &[(usize, usize, u64)],
    mut word: impl FnMut() -> u64,
    change: &mut dyn FnMut(usize, WordChange),
) {
    for slots in slots.chunks(SLOTS) {
        let present = word();
        for (_, slot) in slots.iter().enumerate().filter(|(n, _)| (present >> n) & 1 == 0) {
            change(slot / 8, WordChange { mask: usize::MAX, bits: 0 });
        }
    }
    for &(offset, width, most) in values {
        let value = word().min(most);
        let (shift, mask) = (offset % 8 * 8, u64::MAX >> (64 - 8 * width));
        // A number is as wide as it is aligned: it lies in one word.
        change(offset / 8, WordChange { mask: (mask << shift) as usize, bits: ((value & mask) << shift) as usize });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two functions, a number of 8 bytes, two of 4.
    static TABLE: VendorTable<4> = VendorTable::new(&[8, 16], &[(0, 8, 24), (24, 4, u64::MAX), (28, 4, 5)]);

    fn words(table: &VendorTable<4>) -> [usize; 4] {
        std::array::from_fn(|n| table.words[n].load(Ordering::Relaxed))
    }

    #[test]
    fn a_table_has_what_the_vendors_has() {
        let address = TABLE.address(|words| (words[1], words[2]) = (111, 222));
        assert_eq!(address, TABLE.words.as_ptr() as usize);
        assert_eq!(words(&TABLE), [0, 111, 222, 0]);
        // The first function is there; the vendor's is larger and of a later version than the header's.
        let mut reply = [0b01, 4096, 0xffff_ffff_0000_0007, 9].into_iter();
        TABLE.follow(|| reply.next().unwrap_or(0));
        assert_eq!(words(&TABLE), [24, 111, 0, (5 << 32) | 7]);
        assert_eq!(TABLE.address(|_| panic!("filled twice")), address);
        // A reply that ends tells of nothing.
        TABLE.follow(|| 0);
        assert_eq!(words(&TABLE), [0, 0, 0, 0]);
    }
}
