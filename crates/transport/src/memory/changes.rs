//! Memory that a vendor's library may have written in part: what it did not write stays as the application has it.
//!
//! Content travels to the library, and a copy of it stays behind. Afterwards the bytes that differ from that copy are
//! written to the application's memory, and no others: those that another thread of it has written meanwhile stay, too.

/// Bytes that are compared at once before any of them is looked at.
const COMPARED_BYTES: usize = 4096;
const WORD: usize = size_of::<u64>();

/// Writes to `to` the bytes at `from` that differ from those at `before`.
///
/// # Safety
/// `bytes` bytes are readable at `from` and `before`, and writable at `to` where those differ.
pub unsafe fn copy_changes(from: *const u8, before: *const u8, to: *mut u8, bytes: usize) {
    for at in (0..bytes).step_by(COMPARED_BYTES) {
        let length = COMPARED_BYTES.min(bytes - at);
        // SAFETY: the caller's promise. `memcmp` takes memory that another thread changes meanwhile as it finds it, which
        // slices would not.
        unsafe {
            let (from, before, to) = (from.add(at), before.add(at), to.add(at));
            if libc::memcmp(from.cast(), before.cast(), length) != 0 {
                copy_changed_words(from, before, to, length);
            }
        }
    }
}

/// # Safety
/// As [`copy_changes`].
unsafe fn copy_changed_words(from: *const u8, before: *const u8, to: *mut u8, bytes: usize) {
    let whole = bytes / WORD * WORD;
    for at in (0..whole).step_by(WORD) {
        // SAFETY: the caller's promise. Each word is read once: what is compared is what is written.
        unsafe {
            let new = from.add(at).cast::<u64>().read_unaligned();
            let changed = new ^ before.add(at).cast::<u64>().read_unaligned();
            if changed == 0 {
                continue;
            }
            if !has_zero_byte(changed) {
                to.add(at).cast::<u64>().write_unaligned(new);
                continue;
            }
            for byte in (0..WORD).filter(|byte| changed.to_ne_bytes()[*byte] != 0) {
                to.add(at + byte).write(new.to_ne_bytes()[byte]);
            }
        }
    }
    for at in whole..bytes {
        // SAFETY: the caller's promise.
        unsafe {
            let new = from.add(at).read();
            if new != before.add(at).read() {
                to.add(at).write(new);
            }
        }
    }
}

const fn has_zero_byte(word: u64) -> bool {
    const ONES: u64 = u64::from_ne_bytes([0x01; WORD]);
    const TOPS: u64 = u64::from_ne_bytes([0x80; WORD]);
    word.wrapping_sub(ONES) & !word & TOPS != 0
}

/// Bytes of the mask over a value of so many bytes: a bit for each byte that has changed.
pub const fn mask_bytes(bytes: usize) -> usize {
    bytes.div_ceil(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(from: &[u8], before: &[u8], to: &[u8]) -> Vec<u8> {
        let mut to = to.to_vec();
        // SAFETY: all have one length.
        unsafe { copy_changes(from.as_ptr(), before.as_ptr(), to.as_mut_ptr(), from.len()) };
        to
    }

    #[test]
    fn only_what_differs_is_written() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize
        };
        for _ in 0..300 {
            let length = random() % 10_000;
            let before: Vec<u8> = (0..length).map(|_| random() as u8).collect();
            let mut from = before.clone();
            let run = 1 + random() % 600;
            for at in (0..length).filter(|at| at / run % 3 == 1) {
                from[at] = random() as u8;
            }
            let now: Vec<u8> = (0..length).map(|_| random() as u8).collect();
            let expected: Vec<u8> =
                (0..length).map(|at| if from[at] != before[at] { from[at] } else { now[at] }).collect();
            assert!(changes(&from, &before, &now) == expected);
        }
    }

    #[test]
    fn unchanged_memory_is_not_written() {
        let size = 3 * COMPARED_BYTES;
        let flags = rustix::mm::MapFlags::PRIVATE;
        // SAFETY: a new mapping, of which only the first page stays writable.
        let to: *mut u8 = unsafe {
            let both = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
            let to = rustix::mm::mmap_anonymous(std::ptr::null_mut(), size, both, flags).unwrap();
            let rest = to.byte_add(COMPARED_BYTES);
            rustix::mm::mprotect(rest, size - COMPARED_BYTES, rustix::mm::MprotectFlags::READ).unwrap();
            to.cast()
        };
        let mut from = vec![0u8; size];
        from[5] = 7;
        // SAFETY: `from` differs in the first page alone; a write to the others would end this test.
        unsafe { copy_changes(from.as_ptr(), to, to, size) };
        // SAFETY: mapped above.
        assert_eq!(unsafe { std::slice::from_raw_parts(to, size) }, from);
    }
}
