//! Counts the memory that a remote peer has used in an arena: what it has written, and what the API server has written for
//! it. The gateway asks before each write; a peer that exceeds its limit loses its session.

use std::sync::{Mutex, PoisonError};

use aviary_transport::{HUGE_PAGE, huge_from};
use aviary_wire::{DecodeError, Decoder, Encoder};
use thiserror::Error;

const PAGE: usize = 4096;
const PAGES: usize = HUGE_PAGE / PAGE;
/// One bit for each page of a huge page.
type Chunk = [u64; PAGES / 64];

/// the session uses more than {0} bytes of its arena, the limit of the node (`aviary serve --remote-memory`)
#[derive(Debug, Error, displaydoc::Display, Clone, Copy, PartialEq, Eq)]
pub struct ArenaFull(pub usize);

/// The pages of an arena that were written. Each page counts once, until the session ends: memory that the guest frees
/// stays allocated in the gateway.
pub struct Touched(Mutex<State>);

struct State {
    chunks: Vec<Chunk>,
    /// Memory from this offset on consists of huge pages.
    huge_from: usize,
    bytes: usize,
    limit: usize,
}

impl Touched {
    /// `size`: the arena's. `limit`: bytes of memory.
    pub fn new(size: usize, limit: usize) -> Self {
        let chunks = vec![Chunk::default(); size.div_ceil(HUGE_PAGE)];
        Touched(Mutex::new(State { chunks, huge_from: huge_from(size), bytes: 0, limit }))
    }

    /// Bytes of memory that are in use.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).bytes
    }

    /// For the process that goes on with the session.
    pub fn save(&self, to: &mut Encoder) {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let used = || state.chunks.iter().enumerate().filter(|(_, chunk)| **chunk != Chunk::default());
        to.word(state.limit as u64);
        to.word(used().count() as u64);
        for (number, chunk) in used() {
            to.word(number as u64);
            chunk.iter().for_each(|bits| to.word(*bits));
        }
    }

    /// As another process has left it. `size`: the arena's.
    pub fn restored(size: usize, from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let touched = Touched::new(size, from.word()? as usize);
        let mut state = touched.0.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..from.word()? {
            let number = from.word()? as usize;
            for word in 0..PAGES / 64 {
                let bits = from.word()?;
                // A chunk that the arena does not have was not written by this program.
                let Some(chunk) = state.chunks.get_mut(number) else { continue };
                let more = (bits & !chunk[word]).count_ones() as usize * PAGE;
                chunk[word] |= bits;
                state.bytes += more;
            }
        }
        drop(state);
        Ok(touched)
    }

    /// Counts a range before it is written. A part outside of the arena is not counted: the arena refuses the write.
    pub fn touch(&self, offset: u64, length: usize) -> Result<(), ArenaFull> {
        let Ok(start) = usize::try_from(offset) else { return Ok(()) };
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let end = start.saturating_add(length).min(state.chunks.len() * HUGE_PAGE);
        let mut at = start;
        while at < end {
            let next = (at / HUGE_PAGE + 1) * HUGE_PAGE;
            state.touch_chunk(at, next.min(end));
            if state.bytes > state.limit {
                return Err(ArenaFull(state.limit));
            }
            at = next;
        }
        Ok(())
    }
}

impl State {
    /// `start..end` is in one chunk and not empty.
    fn touch_chunk(&mut self, start: usize, end: usize) {
        let huge = start >= self.huge_from;
        let chunk = &mut self.chunks[start / HUGE_PAGE];
        let within = |offset: usize| offset % HUGE_PAGE / PAGE;
        let (first, last) = if huge { (0, PAGES - 1) } else { (within(start), within(end - 1)) };
        for (word, bits) in chunk.iter_mut().enumerate().take(last / 64 + 1).skip(first / 64) {
            let low = first.saturating_sub(word * 64).min(63);
            let high = (last - word * 64).min(63);
            let mask = (u64::MAX >> (63 - (high - low))) << low;
            self.bytes += (mask & !*bits).count_ones() as usize * PAGE;
            *bits |= mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    const SIZE: usize = 4 * HUGE_PAGE;

    proptest! {
        #[test]
        fn each_page_counts_once(ranges in prop::collection::vec((0..SIZE as u64, 0usize..2 * HUGE_PAGE), 0..6)) {
            let (touched, mut pages) = (Touched::new(SIZE, usize::MAX), HashSet::new());
            for (offset, length) in ranges {
                touched.touch(offset, length).unwrap();
                let bytes = (offset as usize)..(offset as usize + length).min(SIZE);
                if bytes.is_empty() {
                    continue;
                }
                for page in bytes.start / PAGE..=(bytes.end - 1) / PAGE {
                    let huge = page / PAGES * PAGES;
                    let whole = if page * PAGE >= huge_from(SIZE) { huge..huge + PAGES } else { page..page + 1 };
                    pages.extend(whole);
                }
            }
            prop_assert_eq!(touched.bytes(), pages.len() * PAGE);
        }
    }

    #[test]
    fn the_limit_holds_to_a_page_and_any_range_is_withstood() {
        let touched = Touched::new(SIZE, 3 * PAGE);
        assert_eq!(touched.touch(10, 2 * PAGE), Ok(()));
        assert_eq!(touched.touch(0, 3 * PAGE), Ok(()), "the same three");
        for (offset, length) in [(u64::MAX, usize::MAX), (SIZE as u64, 1), (5, 0), (u64::MAX, 0)] {
            assert_eq!(touched.touch(offset, length), Ok(()), "{offset} {length}");
        }
        assert_eq!(touched.touch(3 * PAGE as u64, 1), Err(ArenaFull(3 * PAGE)));
        assert_eq!(Touched::new(SIZE, 0).touch(0, usize::MAX), Err(ArenaFull(0)));
    }
}
