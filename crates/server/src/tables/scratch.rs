//! Memory for the arguments of one call.

use std::alloc::{Layout, alloc_zeroed, dealloc};

/// Everything handed to vendor code is at least this aligned, as malloc's memory is.
pub const SCRATCH_ALIGN: usize = 16;

const SCRATCH_CHUNK_BYTES: usize = 16 << 10;

struct Chunk {
    start: *mut u8,
    layout: Layout,
    used: usize,
}

/// A bump allocator of zeroed memory that lives until the end of the call.
///
/// Invariant: memory beyond `used` of the kept chunk is zero, so that handing
/// it out costs nothing; `reset` restores that for what the call used.
pub struct Scratch {
    chunks: Vec<Chunk>,
    total: usize,
    limit: usize,
}

// SAFETY: the chunks are owned memory without thread affinity.
unsafe impl Send for Scratch {}

impl Scratch {
    pub fn new(limit: usize) -> Scratch {
        Scratch { chunks: Vec::new(), total: 0, limit }
    }

    /// Zeroed memory, or `None` when the call has had its share. Zero bytes give a valid pointer too.
    pub fn allocate(&mut self, bytes: usize) -> Option<*mut u8> {
        let rounded = bytes.max(1).checked_next_multiple_of(SCRATCH_ALIGN)?;
        self.total = self.total.checked_add(rounded).filter(|sum| *sum <= self.limit)?;
        if let Some(chunk) = self.chunks.last_mut().filter(|c| c.layout.size() - c.used >= rounded) {
            // SAFETY: `used + rounded` lies within the chunk, checked just above.
            let memory = unsafe { chunk.start.add(chunk.used) };
            chunk.used += rounded;
            return Some(memory);
        }
        let layout = Layout::from_size_align(rounded.max(SCRATCH_CHUNK_BYTES), SCRATCH_ALIGN).ok()?;
        // SAFETY: the layout's size is at least SCRATCH_CHUNK_BYTES, so not zero.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            return None;
        }
        self.chunks.push(Chunk { start, layout, used: rounded });
        Some(start)
    }

    /// True if an address lies in memory that was allocated and has not ended.
    pub fn contains(&self, pointer: *const u8) -> bool {
        let within = |c: &Chunk| (pointer.addr()).checked_sub(c.start.addr()).is_some_and(|at| at < c.used);
        self.chunks.iter().any(within)
    }

    /// Ends everything allocated. The first chunk is kept for the next call unless it was made for one big buffer.
    #[inline(always)]
    pub fn reset(&mut self) {
        // Whatever was asked for counts, also where there was no memory for it.
        if self.total > 0 {
            self.clear();
        }
    }

    fn clear(&mut self) {
        let keep = usize::from(self.chunks.first().is_some_and(|c| c.layout.size() == SCRATCH_CHUNK_BYTES));
        self.chunks.drain(keep..).for_each(release);
        if let Some(chunk) = self.chunks.last_mut() {
            // SAFETY: `used <= size`: the cleared range lies inside the chunk.
            unsafe { chunk.start.write_bytes(0, chunk.used) };
            chunk.used = 0;
        }
        self.total = 0;
    }
}

fn release(chunk: Chunk) {
    // SAFETY: allocated with this very layout, and popped from the list by the caller: freed once.
    unsafe { dealloc(chunk.start, chunk.layout) };
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.chunks.drain(..).for_each(release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zero_aligned_and_bounded() {
        let mut scratch = Scratch::new(1 << 20);
        for round in 0..50 {
            for bytes in [0usize, 1, 15, 16, 17, 4000, 20_000, 100_000] {
                let memory = scratch.allocate(bytes).unwrap();
                assert_eq!(memory as usize % SCRATCH_ALIGN, 0);
                // SAFETY: just allocated with `bytes` bytes.
                let bytes = unsafe { std::slice::from_raw_parts_mut(memory, bytes) };
                assert!(bytes.iter().all(|b| *b == 0), "round {round}");
                bytes.fill(0xff);
            }
            scratch.reset();
        }
        assert!(scratch.allocate(1 << 20).is_some());
        assert!(scratch.allocate(1).is_none());
        assert!(scratch.allocate(usize::MAX).is_none());
    }
}
