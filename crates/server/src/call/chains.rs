//! Chains of structs that a call is passed.
//!
//! The guest says of each link what it is, and its bytes. Kinds are written by the server, sizes are those that the
//! specification says, and the pointers lead from one copy to the next: nothing that a guest sends is followed.

use aviary_transport::bounds::{Chain, MOST_LINKS, read};

use crate::api::Reject;
use crate::call::Call;

/// In front of each copy: where the next one is, and which link it is. The library does not see it.
const FRONT: usize = 16;

impl Call {
    /// Takes the links of a chain out of the request: the address of the first one, 0 if there is none.
    pub fn chain(&mut self, chain: &Chain) -> Result<usize, Reject> {
        let (mut first, mut before) = (0usize, 0usize);
        for _ in 0..=MOST_LINKS {
            let Some(index) = self.word()?.checked_sub(1) else { return Ok(first) };
            let Some(&(kind, size)) = usize::try_from(index).ok().and_then(|index| chain.links.get(index)) else {
                return Err(Reject::Malformed("a link of a chain that no guest library sends"));
            };
            let bytes = self.raw(size)?;
            let link = self.scratch(FRONT + 2 * size) as usize + FRONT;
            // SAFETY: the copy has `size` bytes, as many behind it and room in front; the members lie in each link, as the specification
            // was checked. The guest cannot change what was copied.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes, link as *mut u8, size);
                std::ptr::copy_nonoverlapping(bytes, (link + size) as *mut u8, size);
                put(link + chain.kind.0, kind, chain.kind.1);
                put(link + chain.next, 0, size_of::<usize>());
                put(link - 8, index, 8);
                if before != 0 {
                    put(before + chain.next, link as u64, size_of::<usize>());
                    put(before - FRONT, link as u64, 8);
                }
            }
            first = if first == 0 { link } else { first };
            before = link;
        }
        Err(Reject::Malformed("a chain is longer than guest libraries send"))
    }

    /// Puts what the library wrote into the links at `first` into the reply; no address goes with it.
    ///
    /// # Safety
    /// `first` is what [`Call::chain`] answered in this call.
    pub unsafe fn reply_chain(&mut self, first: usize, chain: &Chain) {
        let mut link = first;
        while link != 0 {
            // SAFETY: a copy that `chain` made; what is in front of it no one else writes.
            let (index, size) = unsafe {
                let index = read::<u64>(link - 8);
                (index, chain.links.get(index as usize).map_or(0, |known| known.1))
            };
            self.reply_word(index + 1);
            let apart = [chain.kind, (chain.next, size_of::<usize>())];
            // SAFETY: the copy has so many bytes, and as many behind it.
            unsafe { self.reply_changed(link as *const u8, (link + size) as *const u8, size, &apart) };
            // SAFETY: as before.
            link = unsafe { read::<u64>(link - FRONT) } as usize;
        }
        self.reply_word(0);
    }
}

/// # Safety
/// `width` bytes at `at` are writable.
unsafe fn put(at: usize, value: u64, width: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(value.to_le_bytes().as_ptr(), at as *mut u8, width.min(8)) };
}
