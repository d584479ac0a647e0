//! Lines: the layout of a message in a ring, and the order in which its lines become visible.
//!
//! A line starts with its seal, which is written last. The consumer knows the position of the next
//! line and polls only its seal, so a short message costs one cache line and no separate index.
//!
//! ```text
//! bits 0..32   bytes of the message from this line on
//! bits 32..48  1 + the CPU that the producer ran on, a hint; 0: unknown
//! bits 48..64  the lap: how often the ring was begun, modulo 2^16
//! ```
//!
//! The word of a seal never holds anything but seals. Every lap writes every line, so the old
//! content of the word in lap n is the seal of lap n - 1, and no message content can imitate a
//! seal. In the first lap the old content is zero: the producer clears the seal of the next line
//! before it seals a line, so the ring need not be zeroed as a whole. A hostile producer can write
//! any seal: a length is checked against the bytes that may follow, and the content is copied once,
//! as for any message.

use crate::LINE;
use crate::memory::RingMemory;
use crate::sync::Ordering;

/// Bytes of a message in a line.
pub(crate) const PAYLOAD: usize = LINE - 8;

/// A seal, loaded once from shared memory.
#[derive(Clone, Copy)]
pub(crate) struct Seal(u64);

impl Seal {
    #[inline]
    pub fn new(length: usize, cpu: u32, lap: u16) -> Seal {
        Seal(length as u64 & 0xffff_ffff | u64::from(cpu as u16) << 32 | u64::from(lap) << 48)
    }

    /// Bytes of the message from this line on.
    #[inline]
    pub fn length(self) -> usize {
        self.0 as u32 as usize
    }

    #[inline]
    pub fn cpu(self) -> u32 {
        u32::from((self.0 >> 32) as u16)
    }

    #[inline]
    pub fn lap(self) -> u16 {
        (self.0 >> 48) as u16
    }

    pub fn value(self) -> u64 {
        self.0
    }
}

impl RingMemory {
    /// The lap of position `at`, modulo 2^16. The first lap is 1, because zeros must not look like
    /// seals.
    #[inline]
    pub(crate) fn lap(&self, at: u64) -> u16 {
        ((at >> self.capacity().trailing_zeros()) + 1) as u16
    }

    /// The seal of the line at `at`, if it was written in the current lap.
    #[inline]
    pub(crate) fn seal(&self, at: u64) -> Option<Seal> {
        // SYNC POINT: acquires the line's content and all lines before it, which the producer
        // released with the seal.
        let seal = Seal(self.line(at)[0].load(Ordering::Acquire));
        (seal.lap() == self.lap(at)).then_some(seal)
    }

    /// Writes the line at `at` with as many bytes of `rest`, the remainder of a message, as fit.
    /// `order` is Release for the line whose seal publishes a segment, Relaxed for the lines after
    /// it.
    #[inline]
    pub(crate) fn write_line(&self, at: u64, rest: &[u8], cpu: u32, order: Ordering) {
        self.writes(at);
        let [seal, line @ ..] = self.line(at);
        let (words, tail) = rest[..rest.len().min(PAYLOAD)].as_chunks::<8>();
        for (to, word) in line.iter().zip(words) {
            to.store(u64::from_le_bytes(*word), Ordering::Relaxed);
        }
        if !tail.is_empty()
            && let Some(to) = line.get(words.len())
        {
            let mut last = [0; 8];
            last[..tail.len()].copy_from_slice(tail);
            to.store(u64::from_le_bytes(last), Ordering::Relaxed);
        }
        // SYNC POINT: pairs with the Acquire load in `seal`.
        seal.store(Seal::new(rest.len(), cpu, self.lap(at)).0, order);
    }

    /// Clears the seal at `at`, before the previous line is sealed: old content of the memory must
    /// not look like a seal.
    #[inline]
    pub(crate) fn clear_in_first_lap(&self, at: u64) {
        if at < self.capacity() as u64 {
            self.line(at)[0].store(0, Ordering::Relaxed);
        }
    }

    /// Appends `length <= PAYLOAD` bytes of the line at `at` to `into`.
    #[inline]
    pub(crate) fn read_line(&self, at: u64, length: usize, into: &mut Vec<u8>) {
        self.reads(at);
        into.reserve(PAYLOAD);
        let end = into.len() + length.min(PAYLOAD);
        let mut to = into.spare_capacity_mut().as_mut_ptr().cast::<u64>();
        for word in &self.line(at)[1..] {
            let word = word.load(Ordering::Relaxed).to_le();
            // SAFETY: `reserve` made room for PAYLOAD bytes there, one word for each of the line.
            unsafe {
                to.write_unaligned(word);
                to = to.add(1);
            }
        }
        // SAFETY: at least `length` bytes after the old end were written by the loop over the
        // line's words.
        unsafe { into.set_len(end) };
    }
}
