//! Lines: how a message lies in a ring, and how its parts become visible.
//!
//! A line starts with its seal, which is written last. The consumer knows which line comes next and looks
//! at its seal only, so that a short message costs one cache line and not an index beside it.
//!
//! ```text
//! bits 0..32   bytes of the message from this line on
//! bits 32..48  1 + the CPU that the producer ran on, a hint; 0: unknown
//! bits 48..64  the lap: how often the ring was begun, modulo 2^16
//! ```
//!
//! The place of a seal never holds anything but seals. Every lap writes every line, so what is there before
//! the seal of lap n is that of lap n - 1 and cannot be mistaken, whatever messages contain. In the first
//! lap it is a zero: the producer clears the seal of the next line before it seals one, so nobody need
//! clear the whole ring first. A hostile producer can write whatever seals it likes: a length is checked
//! against what may come, and the content is copied once, as always.

use crate::sync::Ordering;
use crate::{LINE, RingMemory};

/// Bytes of a message in a line.
pub(crate) const PAYLOAD: usize = LINE - 8;

/// A seal, loaded once.
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
    /// The lap that position `at` belongs to; the first is 1, as zeros must not look like seals.
    #[inline]
    pub(crate) fn lap(&self, at: u64) -> u16 {
        ((at >> self.capacity().trailing_zeros()) + 1) as u16
    }

    /// The seal of the line at `at`, if it has been written in this lap.
    #[inline]
    pub(crate) fn seal(&self, at: u64) -> Option<Seal> {
        // SYNC POINT: with the seal, the line's content and all lines before it are visible.
        let seal = Seal(self.line(at)[0].load(Ordering::Acquire));
        (seal.lap() == self.lap(at)).then_some(seal)
    }

    /// Writes the line at `at`: as much of `rest`, the rest of a message, as it holds. `order` is Release for
    /// the line that makes it visible, Relaxed for lines after that one.
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
        // SYNC POINT: see `seal`.
        seal.store(Seal::new(rest.len(), cpu, self.lap(at)).0, order);
    }

    /// Before the line before `at` is sealed: what the memory held before the ring must not look like a seal.
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
        // SAFETY: at least `length` bytes after the old end were written just now.
        unsafe { into.set_len(end) };
    }
}
