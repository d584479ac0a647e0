//! Arithmetic of generated code on both sides: exact counts, arithmetic that cannot trap, and loads that stay in
//! bounds.
//!
//! Expressions of a specification are computed as `i128`, so that hostile 64-bit values cannot wrap.

/// The value of an output handle's slot until the vendor writes it.
pub const UNWRITTEN: u64 = 0xA5A5_A5A5_A5A5_A5A5;

use crate::memory::changes::copy_changes;
pub use crate::memory::rows::{MAX_BUFFER_BYTES, Rows, count, span};

/// Elements that are meaningful after the call.
#[inline]
pub fn returned(count: i128, capacity: usize) -> usize {
    count.clamp(0, capacity as i128) as usize
}

/// Loads an integer, or 0 where `base` is NULL, the load would leave its `limit` bytes, or no integer has that size.
///
/// # Safety
/// `base` is NULL or the address of `limit` readable bytes.
#[inline]
pub unsafe fn load(base: usize, limit: usize, at: i128, size: usize, signed: bool) -> i128 {
    if base == 0 || at < 0 || at.saturating_add(size as i128) > limit as i128 {
        return 0;
    }
    let p = (base + at as usize) as *const u8;
    // SAFETY: `size` bytes from `p` on lie within the `limit` bytes that the caller vouches for.
    unsafe {
        match (size, signed) {
            (1, false) => i128::from(p.read()),
            (1, true) => i128::from(p.cast::<i8>().read()),
            (2, false) => i128::from(p.cast::<u16>().read_unaligned()),
            (2, true) => i128::from(p.cast::<i16>().read_unaligned()),
            (4, false) => i128::from(p.cast::<u32>().read_unaligned()),
            (4, true) => i128::from(p.cast::<i32>().read_unaligned()),
            (8, false) => i128::from(p.cast::<u64>().read_unaligned()),
            (8, true) => i128::from(p.cast::<i64>().read_unaligned()),
            _ => 0,
        }
    }
}

/// Bytes. No struct is larger than a page: a larger size is a mistake.
const MAX_STRUCT_BYTES: usize = 4096;

/// Copies the struct at `own`, of which the member of `width` bytes at `offset` says how many bytes it has, to `total` zeroed
/// bytes at `to`, and returns its size; a struct that has more is `total` bytes long in the copy's member.
///
/// `None`: fewer bytes than `required`, absurdly many, or bytes beyond `total` that are not zero. NULL has size 0.
///
/// # Safety
/// `own` is NULL or the address of a struct as large as it says, in the application's own process; `to` has `total` writable
/// bytes, among them those of the member.
pub unsafe fn whole(
    own: usize,
    offset: usize,
    width: usize,
    required: usize,
    total: usize,
    to: usize,
) -> Option<usize> {
    if own == 0 {
        return Some(0);
    }
    // SAFETY: the member is part of every such struct.
    let size = unsafe { load(own, usize::MAX, offset as i128, width, false) };
    if size < required as i128 || size > total.max(MAX_STRUCT_BYTES) as i128 {
        return None;
    }
    let size = size as usize;
    // SAFETY: the struct has `size` bytes, by the API's contract.
    if (total..size).any(|at| unsafe { read::<u8>(own + at) } != 0) {
        return None;
    }
    let known = size.min(total);
    // The size that was judged is the size that is sent, even if another thread has written to the struct meanwhile.
    let told = (known as u64).to_le_bytes();
    // SAFETY: `known` bytes are in the struct and in the copy; the member is in the copy.
    unsafe {
        std::ptr::copy_nonoverlapping(own as *const u8, to as *mut u8, known);
        std::ptr::copy_nonoverlapping(told.as_ptr(), (to + offset) as *mut u8, width);
    }
    Some(size)
}

/// Copies what a call has changed of the first `size` bytes of the struct at `from` back to the application's at `own`,
/// except for the member of `width` bytes at `offset` that says how many bytes there are. `before` is the struct as it was
/// passed. Nothing for NULL.
///
/// # Safety
/// All have `size` bytes, which contain the member; `own` may be NULL.
pub unsafe fn part(from: usize, before: usize, own: usize, offset: usize, width: usize, size: usize) {
    if own == 0 {
        return;
    }
    let behind = offset + width;
    // SAFETY: both ranges, before and behind the member, lie within `size`.
    unsafe {
        for (at, length) in [(0, offset), (behind, size - behind)] {
            copy_changes((from + at) as *const u8, (before + at) as *const u8, (own + at) as *mut u8, length);
        }
    }
}

/// The value at an address of any alignment.
///
/// # Safety
/// A valid `T` can be read there.
#[inline]
pub unsafe fn read<T: Copy>(at: usize) -> T {
    // SAFETY: the caller's promise.
    unsafe { (at as *const T).read_unaligned() }
}

/// Writes to an address of any alignment.
///
/// # Safety
/// A `T` can be written there.
#[inline]
pub unsafe fn write<T>(at: usize, value: T) {
    // SAFETY: the caller's promise.
    unsafe { (at as *mut T).write_unaligned(value) }
}

/// Elements of `stride` bytes up to and including the terminating zero, which stands at a multiple of `step`; 0 for NULL.
///
/// # Safety
/// `base` is NULL or the address of elements that end so: in the application's own process, by the API's contract.
pub unsafe fn terminated(base: usize, stride: usize, step: usize) -> usize {
    if base == 0 {
        return 0;
    }
    let mut index = 0;
    loop {
        // SAFETY: no terminating zero came before, so this element can be read.
        let zero = (0..stride).all(|b| unsafe { read::<u8>(base + index * stride + b) } == 0);
        if zero && index % step == 0 {
            return index + 1;
        }
        index += 1;
    }
}

/// Length of a string, or of the part that fits into `limit` bytes; 0 for NULL.
///
/// # Safety
/// `base` is NULL or the address of a string, or of `limit` readable bytes.
pub unsafe fn length(base: i128, limit: usize) -> i128 {
    let base = base as usize;
    if base == 0 {
        return 0;
    }
    // SAFETY: neither the end of the string nor the limit came before.
    (0..limit).take_while(|i| unsafe { read::<u8>(base + i) } != 0).count() as i128
}

/// 0 where the division has no value.
#[inline]
pub fn divide(a: i128, b: i128) -> i128 {
    a.checked_div(b).unwrap_or(0)
}

/// 0 where the division has no value.
#[inline]
pub fn remainder(a: i128, b: i128) -> i128 {
    a.checked_rem(b).unwrap_or(0)
}

/// Saturates; 0 where C gives the shift no value.
#[inline]
pub fn shift_left(a: i128, b: i128) -> i128 {
    if (0..64).contains(&b) { a.saturating_mul(1 << b) } else { 0 }
}

/// 0 where the shift has no value.
#[inline]
pub fn shift_right(a: i128, b: i128) -> i128 {
    if (0..127).contains(&b) { a >> b } else { 0 }
}

/// Most links of a chain: a longer one, or one that bites its tail, is refused.
pub const MOST_LINKS: usize = 64;

/// A list of structs, each of which says what it is, as a specification describes it.
pub struct Chain {
    /// Place and width of the number that says what a link is.
    pub kind: (usize, usize),
    /// Place of the pointer to the next link.
    pub next: usize,
    /// Numbers and sizes in bytes of known links.
    pub links: &'static [(u64, usize)],
    /// A link that nothing describes makes the call fail; else it is left out.
    pub refuse: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_sane_or_refused() {
        assert_eq!((count(0, 0), count(3, 8), count(1 << 40, 1)), (Some(0), Some(3), Some(1 << 40)));
        for (n, stride) in [(-1, 1), ((1 << 40) + 1, 1), (1 << 38, 8), (i128::MAX, 8), (i128::MIN, 0), (i128::MAX, 1)] {
            assert_eq!(count(n, stride), None, "{n} of {stride}");
        }
        assert_eq!(count(1 << 100, 0), None, "more than can be counted, of nothing");
        assert_eq!((returned(-5, 4), returned(2, 4), returned(i128::MAX, 4)), (0, 2, 4));
    }

    #[test]
    fn loads_stay_within_their_limit() {
        let bytes = [0x80u8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        let base = bytes.as_ptr() as usize;
        // SAFETY: `bytes` has 9 bytes.
        let get = |at, size, signed| unsafe { load(base, bytes.len(), at, size, signed) };
        for (size, unsigned) in [(1, 0x80), (2, 0xff80), (4, 0xffff_ff80), (8, 0xffff_ffff_ffff_ff80)] {
            assert_eq!((get(0, size, false), get(0, size, true)), (unsigned, -128), "{size}");
            let last = (bytes.len() - size) as i128;
            assert_ne!(get(last, size, false), 0, "the last {size}");
            for beyond in [last + 1, -1, i128::MAX, i128::MIN, 1 << 64] {
                assert_eq!(get(beyond, size, false), 0, "{size} at {beyond}");
            }
        }
        assert_eq!((get(0, 3, false), get(0, 0, false), get(0, 16, true)), (0, 0, 0));
        // SAFETY: NULL is not read.
        assert_eq!(unsafe { load(0, 8, 0, 8, false) }, 0);
    }

    #[test]
    fn ends_are_found() {
        let words = [1u16, 0, 0x100, 0, 7, 0];
        let base = words.as_ptr() as usize;
        // SAFETY: zeros at odd and even places, the last at 3 and 1.
        unsafe {
            assert_eq!((terminated(base, 2, 1), terminated(0, 2, 1)), (2, 0));
            let pairs = [1u16, 0, 2, 3, 0, 9];
            assert_eq!(terminated(pairs.as_ptr() as usize, 2, 2), 5, "a zero in between is a value");
            let text = c"abc".as_ptr() as i128;
            assert_eq!((length(text, 10), length(text, 2), length(text, 0), length(0, 10)), (3, 2, 0, 0));
        }
    }

    #[test]
    fn arithmetic_has_a_value_for_everything() {
        let hostile = [0, 1, -1, 63, 64, 127, 128, i128::MAX, i128::MIN, i128::from(u64::MAX), i128::from(i64::MIN)];
        for a in hostile {
            for b in hostile {
                let _ = (divide(a, b), remainder(a, b), shift_left(a, b), shift_right(a, b));
            }
            assert_eq!((divide(a, 0), remainder(a, 0), shift_left(a, 64), shift_left(a, -1)), (0, 0, 0, 0));
        }
        assert_eq!((divide(7, -2), remainder(-7, 2), shift_left(3, 4), shift_right(-8, 1)), (-3, -1, 48, -4));
        assert_eq!((shift_left(i128::MAX, 1), divide(i128::MIN, -1)), (i128::MAX, 0));
    }

    /// A struct of two words: its size, and behind it `rest`.
    fn structure(size: u32, rest: &[u8]) -> Vec<u8> {
        size.to_le_bytes().into_iter().chain(rest.iter().copied()).collect()
    }

    #[test]
    fn sized_structs_are_copied_as_far_as_both_know_them() {
        struct Copied(u32, [u8; 4]);
        // Size, bytes behind it, and the copy of 8 bytes with its size.
        let cases: [(u32, &[u8], Option<Copied>); 8] = [
            (8, &[1, 2, 3, 4], Some(Copied(8, [1, 2, 3, 4]))),
            (6, &[1, 2, 3, 4], Some(Copied(6, [1, 2, 0, 0]))),
            (5, &[1, 2, 3, 4], None),
            (0, &[1, 2, 3, 4], None),
            (10, &[1, 2, 3, 4, 0, 0], Some(Copied(8, [1, 2, 3, 4]))),
            (10, &[1, 2, 3, 4, 0, 1], None),
            (4097, &[0; 8], None),
            (u32::MAX, &[0; 8], None),
        ];
        for (size, rest, expected) in cases {
            let own = structure(size, rest);
            let mut copy = [0u8; 8];
            // SAFETY: a struct of at least `size` bytes, unless the size is refused before more than that is read.
            let found = unsafe { whole(own.as_ptr() as usize, 0, 4, 6, copy.len(), copy.as_mut_ptr() as usize) };
            assert_eq!(found, expected.as_ref().map(|_| size as usize), "{size}");
            if let Some(Copied(told, rest)) = expected {
                assert_eq!(copy.to_vec(), structure(told, &rest), "{size}");
            }
        }
        // SAFETY: NULL is not read, and nothing written.
        assert_eq!(unsafe { whole(0, 0, 4, 6, 8, 0) }, Some(0));
    }

    #[test]
    fn sized_structs_keep_their_size_when_they_are_copied_back() {
        let answer = [9u8, 9, 1, 1, 5, 6, 7, 8];
        for (size, expected) in
            [(8, [9, 9, 2, 2, 5, 6, 7, 8]), (6, [9, 9, 2, 2, 5, 6, 3, 3]), (4, [9, 9, 2, 2, 3, 3, 3, 3])]
        {
            let mut own = [3u8, 3, 2, 2, 3, 3, 3, 3];
            let before = own;
            let [answer, before, own_at] =
                [answer.as_ptr() as usize, before.as_ptr() as usize, own.as_mut_ptr() as usize];
            // SAFETY: all have 8 bytes, and the member is at 2 and 3.
            unsafe { part(answer, before, own_at, 2, 2, size) };
            assert_eq!(own, expected, "{size}");
        }
        // SAFETY: NULL is not written.
        unsafe { part(answer.as_ptr() as usize, 0, 0, 2, 2, 8) };
    }

    #[test]
    fn values_need_no_alignment() {
        let mut bytes = [0u8; 9];
        let at = bytes.as_mut_ptr() as usize + 1;
        // SAFETY: eight bytes from there on.
        unsafe {
            write(at, UNWRITTEN);
            assert_eq!(read::<u64>(at), UNWRITTEN);
        }
        assert_eq!(bytes[0], 0);
    }
}
