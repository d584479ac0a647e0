//! What a library has consumed of a stream's input, for one that still reads what lies before the pointer that it is given.
//!
//! The server's copies of inputs do not lie one behind the other, so the last bytes that were consumed are kept with the
//! state, and lie before the next input again if they do so in the application. If its inputs lie apart, a library that
//! looks there finds something else, natively too; here bytes lie there that match none of those that it expects, so that
//! it takes nothing from there.

use crate::api::Reject;
use crate::call::{Buffer, Call, Transfer};

use aviary_wire::IN_PLACE;

/// In front of twice as many bytes as are kept: those that are kept move to the front when the end is reached.
#[repr(C)]
struct Header {
    /// Bytes that follow; the last ones are kept.
    length: u64,
    /// The application's address behind what was consumed last.
    end: u64,
    /// The application's address of the input of this call.
    begin: u64,
}

/// The history of one member of a state: a header and twice `most` bytes, in memory of the state, which one call uses at
/// a time.
struct History {
    header: *mut Header,
    most: usize,
}

impl History {
    fn header(&mut self) -> &mut Header {
        // SAFETY: generated code passes an aligned place in the memory of a state that this call uses alone; zeros at first.
        unsafe { &mut *self.header }
    }

    /// Bytes that are kept.
    fn length(&mut self) -> usize {
        self.stored().min(self.most)
    }

    fn stored(&mut self) -> usize {
        (self.header().length as usize).min(2 * self.most)
    }

    fn bytes(&self) -> *mut u8 {
        // SAFETY: the bytes follow the header in the same memory.
        unsafe { self.header.add(1).cast() }
    }

    /// Puts what is kept before `end`, or with `apart` something that differs from it in each byte.
    ///
    /// # Safety
    /// So many bytes as are kept can be written before `end`.
    unsafe fn put_before(&mut self, end: *mut u8, apart: bool) {
        let (length, stored) = (self.length(), self.stored());
        // SAFETY: the caller's promise; memory of a state overlaps no buffer. A guest that changes arena memory meanwhile
        // changes its own data.
        unsafe {
            let (from, to) = (self.bytes().add(stored - length), end.sub(length));
            std::ptr::copy_nonoverlapping(from, to, length);
            if apart {
                (0..length).for_each(|at| *to.add(at) = !*to.add(at));
            }
        }
    }

    /// # Safety
    /// `moved` bytes at `from` can be read. A guest that changes them meanwhile changes its own data.
    unsafe fn append(&mut self, from: *const u8, moved: usize) {
        let new = moved.min(self.most);
        let mut stored = self.stored();
        // SAFETY: all within twice `most` bytes behind the header, and the caller's promise.
        unsafe {
            if stored + new > 2 * self.most {
                let kept = self.length().min(self.most - new);
                std::ptr::copy(self.bytes().add(stored - kept), self.bytes(), kept);
                stored = kept;
            }
            std::ptr::copy_nonoverlapping(from.add(moved - new), self.bytes().add(stored), new);
        }
        self.header().length = (stored + new) as u64;
    }
}

impl Call {
    /// An input of `bytes` bytes of a stream, which the application has at `begin`, behind what the library has consumed of it
    /// before. `history`: where at most `most` bytes of that are kept.
    ///
    /// # Safety
    /// `history` is a place in the memory of a state of this call, for a header and twice `most` bytes.
    pub unsafe fn buffer_behind(
        &mut self,
        history: usize,
        most: usize,
        begin: u64,
        bytes: usize,
    ) -> Result<Buffer, Reject> {
        let room = self.word()?;
        let (place, mut buffer) = self.reference(Some(bytes), false, true)?;
        let mut kept = History { header: std::ptr::with_exposed_provenance_mut(history), most };
        kept.header().begin = begin;
        let (length, apart) = (kept.length(), kept.header().end != begin);
        if length == 0 || buffer.ptr.is_null() || bytes == 0 {
            return Ok(buffer);
        }
        let before = |bytes: usize| match place {
            Transfer::Arena(offset) => {
                let bytes = offset.min(bytes as u64);
                self.session.tables.memory.range(offset - bytes, bytes).filter(|_| bytes > 0)
            }
            _ => None,
        };
        // What lies there is the application's, as natively; it is only opened.
        if room == IN_PLACE && before(most).is_some() {
            return Ok(buffer);
        }
        if room != IN_PLACE && room >= length as u64 && before(length).is_some() {
            // SAFETY: bytes of the arena right before the buffer, which the guest has left free for this.
            unsafe { kept.put_before(buffer.ptr, apart) };
            return Ok(buffer);
        }
        let copy = self.scratch(length.checked_add(bytes).ok_or(Reject::Malformed("a buffer without an end"))?);
        // SAFETY: scratch memory has room for both, and overlaps nothing.
        unsafe {
            std::ptr::copy_nonoverlapping(buffer.ptr, copy.add(length), bytes);
            buffer.ptr = copy.add(length);
            kept.put_before(buffer.ptr, apart);
        }
        Ok(buffer)
    }

    /// The library has consumed `moved` bytes from `passed` on.
    ///
    /// # Safety
    /// As for [`Call::buffer_behind`], and `moved` bytes lie there.
    pub unsafe fn keep_history(&mut self, history: usize, most: usize, passed: u64, moved: usize) {
        let mut kept = History { header: std::ptr::with_exposed_provenance_mut(history), most };
        if moved > 0 {
            // SAFETY: the caller's promise.
            unsafe { kept.append(std::ptr::with_exposed_provenance(passed as usize), moved) };
            kept.header().end = kept.header().begin.wrapping_add(moved as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MOST: usize = 16;

    proptest! {
        #[test]
        fn the_last_bytes_are_kept(pieces in prop::collection::vec(0usize..40, 0..30)) {
            let mut memory = [0u64; 3 + 2 * MOST / 8];
            let mut history = History { header: memory.as_mut_ptr().cast(), most: MOST };
            let all: Vec<u8> = (0..2000u32).map(|n| (n * 7 + n / 256) as u8).collect();
            let mut at = 0;
            for piece in pieces {
                // SAFETY: memory for a header and twice as many bytes, and a part of `all`.
                unsafe { history.append(all.as_ptr().add(at), piece) };
                at += piece;
                let length = history.length();
                prop_assert_eq!(length, at.min(MOST));
                let mut before = [0u8; MOST];
                // SAFETY: at most so many bytes are kept.
                unsafe { history.put_before(before.as_mut_ptr().add(MOST), false) };
                prop_assert_eq!(&before[MOST - length..], &all[at - length..at]);
                // SAFETY: as above.
                unsafe { history.put_before(before.as_mut_ptr().add(MOST), true) };
                prop_assert!(before[MOST - length..].iter().zip(&all[at - length..at]).all(|(a, b)| a != b));
            }
        }
    }
}
