//! Chains of structs in the application's memory.
//!
//! The application's chain is read as natively the vendor's library would read it, but no further than
//! [`MOST_LINKS`]. A message has a number for each link, 0 after the last, and the link's bytes; the pointer to the next
//! link in them means nothing to the server, which writes its own.

use aviary_transport::bounds::{Chain, MOST_LINKS, load, read};

use crate::call::Call;
use crate::reply::Reply;

/// The links at `first` that are known: where they are and what. `None`: too many, or unknown ones that are refused.
///
/// # Safety
/// Each link, as the application has made it, has its kind and the pointer to the next; those that are known are whole.
unsafe fn walk(first: usize, chain: &Chain) -> Option<Vec<(usize, usize)>> {
    let mut found = Vec::new();
    let mut link = first;
    for _ in 0..MOST_LINKS {
        if link == 0 {
            return Some(found);
        }
        // SAFETY: the caller's promise.
        let kind = unsafe { load(link, usize::MAX, chain.kind.0 as i128, chain.kind.1, false) } as u64;
        match chain.links.iter().position(|known| known.0 == kind) {
            Some(index) => found.push((link, index)),
            None if chain.refuse => return None,
            None => {}
        }
        // SAFETY: as before.
        link = unsafe { read(link + chain.next) };
    }
    (link == 0).then_some(found)
}

impl Call {
    /// The known links of the chain at `first`. False: the call is refused.
    ///
    /// # Safety
    /// As [`walk`].
    pub unsafe fn chain(&mut self, first: usize, chain: &Chain) -> bool {
        // SAFETY: the caller's promise.
        let Some(links) = (unsafe { walk(first, chain) }) else { return false };
        for (link, index) in links {
            self.word(index as u64 + 1);
            // SAFETY: as before.
            unsafe { self.raw(link as *const u8, chain.links[index].1) };
        }
        self.word(0);
        true
    }
}

impl Reply {
    /// Takes over the bytes that the library wrote into the links, except their kinds and pointers. A link that the
    /// application has changed meanwhile stays as it is.
    ///
    /// # Safety
    /// As [`walk`]; known links are writable.
    pub unsafe fn chain(&mut self, first: usize, chain: &Chain) {
        // SAFETY: the caller's promise.
        let links = unsafe { walk(first, chain) }.unwrap_or_default();
        let mut links = links.into_iter();
        for _ in 0..MOST_LINKS {
            let Some(index) = self.word().checked_sub(1) else { return };
            let size = chain.links.get(index as usize).map_or(0, |link| link.1);
            let mut nowhere = vec![0u8; size];
            let to = match links.next() {
                Some((link, own)) if own as u64 == index => link as *mut u8,
                _ => nowhere.as_mut_ptr(),
            };
            // SAFETY: a known link has `size` bytes, and so does the buffer.
            unsafe { self.changed(to, size, &[chain.kind, (chain.next, size_of::<usize>())]) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    struct Link {
        next: *const Link,
        kind: u32,
        value: u32,
    }

    const DROPS: Chain = Chain { kind: (8, 4), next: 0, links: &[(7, 16), (9, 16)], refuse: false };
    const REFUSES: Chain = Chain { refuse: true, ..DROPS };

    fn kinds(first: &Link, chain: &Chain) -> Option<Vec<usize>> {
        // SAFETY: the links are structs of this test.
        let found = unsafe { walk(&raw const *first as usize, chain) };
        found.map(|found| found.into_iter().map(|link| link.1).collect())
    }

    #[test]
    fn a_chain_is_read_in_order_and_no_further_than_its_bound() {
        let last = Link { next: std::ptr::null(), kind: 7, value: 3 };
        let unknown = Link { next: &raw const last, kind: 8, value: 2 };
        let first = Link { next: &raw const unknown, kind: 9, value: 1 };
        assert_eq!(kinds(&first, &DROPS), Some(vec![1, 0]));
        assert_eq!(kinds(&first, &REFUSES), None);
        assert_eq!(kinds(&last, &REFUSES), Some(vec![0]));
        // SAFETY: there is no link.
        assert_eq!(unsafe { walk(0, &REFUSES) }, Some(vec![]));
        let mut ring = Link { next: std::ptr::null(), kind: 7, value: 0 };
        ring.next = &raw const ring;
        assert_eq!(kinds(&ring, &DROPS), None);
        assert!(last.value + unknown.value + first.value + ring.value == 6);
    }
}
