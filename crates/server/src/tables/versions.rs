//! Earlier contents of a state's memory: a program may copy the struct of a stream, go on with one of the two, and use the
//! other later, which is then what it was when it was copied.
//!
//! Each call makes the next version of a state. Before a call the content is compared, piece by piece, with that before the last
//! call: what differs of the older one is kept. So an old version is the content before the last call with the kept pieces of
//! all versions in between, the newest first.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Small, because what a call changes is scattered (hash tables).
const PIECE_BYTES: usize = 256;

/// Pieces of a version that differ from those of the next one.
struct Older {
    version: u64,
    numbers: Box<[u32]>,
    /// One behind the other; the last piece of the memory may be short.
    pieces: Box<[u8]>,
}

impl Older {
    fn bytes(&self) -> usize {
        size_of_val(&*self.numbers) + self.pieces.len()
    }
}

/// Earlier contents of one piece of memory.
pub(crate) struct Versions {
    /// Version whose content `latest` is.
    at: u64,
    /// The first version at which there was such memory.
    born: u64,
    /// The content before the last call; empty: nothing was kept yet.
    latest: Box<[u8]>,
    older: VecDeque<Older>,
    /// Bytes that all states of the session keep in this way.
    taken: Arc<AtomicUsize>,
    most: usize,
}

impl Versions {
    /// Of memory that exists from `born` on. All together keep at most `most` bytes, which `taken` counts.
    pub fn new(born: u64, taken: &Arc<AtomicUsize>, most: usize) -> Versions {
        Versions { at: born, born, latest: Box::default(), older: VecDeque::new(), taken: taken.clone(), most }
    }

    /// The memory has this content at this version, before the call that makes the next.
    pub fn keep(&mut self, version: u64, content: &[u8]) {
        if self.latest.is_empty() {
            if !self.room_for(content.len()) {
                return;
            }
            self.latest = content.into();
            self.at = version;
            return;
        }
        let (mut numbers, mut pieces) = (Vec::new(), Vec::new());
        for (number, (new, old)) in content.chunks(PIECE_BYTES).zip(self.latest.chunks_mut(PIECE_BYTES)).enumerate() {
            if new != old {
                numbers.push(number as u32);
                pieces.extend_from_slice(old);
                old.copy_from_slice(new);
            }
        }
        let older = Older { version: self.at, numbers: numbers.into(), pieces: pieces.into() };
        let bytes = older.bytes();
        self.at = version;
        if self.room_for(bytes) {
            self.older.push_back(older);
        } else {
            // The versions before it can no longer be told.
            self.drop_older();
        }
    }

    /// The content at an earlier version than the present one; `Err`: it is not known any more. `None`: the memory was not
    /// there then.
    pub fn content_at(&self, version: u64) -> Result<Option<Vec<u8>>, ()> {
        if version < self.born {
            return Ok(None);
        }
        if self.latest.is_empty() {
            return Err(());
        }
        let mut content = self.latest.to_vec();
        let mut reached = self.at;
        for older in self.older.iter().rev() {
            if reached == version {
                break;
            }
            for (number, piece) in older.numbers.iter().zip(older.pieces.chunks(PIECE_BYTES)) {
                let at = *number as usize * PIECE_BYTES;
                content[at..at + piece.len()].copy_from_slice(piece);
            }
            reached = older.version;
        }
        if reached == version { Ok(Some(content)) } else { Err(()) }
    }

    /// Only the present content is known from now on.
    pub fn forget(&mut self) {
        self.drop_older();
        self.taken.fetch_sub(self.latest.len(), Ordering::AcqRel);
        self.latest = Box::default();
    }

    /// Counts so many more bytes, for which the oldest of this state may go.
    fn room_for(&mut self, bytes: usize) -> bool {
        loop {
            let more = |now: usize| now.checked_add(bytes).filter(|sum| *sum <= self.most);
            if self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok() {
                return true;
            }
            let Some(oldest) = self.older.pop_front() else { return false };
            self.taken.fetch_sub(oldest.bytes(), Ordering::AcqRel);
        }
    }

    fn drop_older(&mut self) {
        let bytes: usize = self.older.drain(..).map(|older| older.bytes()).sum();
        self.taken.fetch_sub(bytes, Ordering::AcqRel);
    }
}

impl Drop for Versions {
    fn drop(&mut self) {
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_version_is_told_or_not_known(
            writes in prop::collection::vec((0usize..20_000, any::<u8>()), 1..60),
            most in prop_oneof![Just(1usize << 20), 20_000usize..100_000],
        ) {
            let taken = Arc::new(AtomicUsize::new(0));
            let mut versions = Versions::new(1, &taken, most);
            let mut content = vec![0u8; 20_000];
            let mut all = Vec::new();
            for (n, (at, byte)) in writes.iter().enumerate() {
                versions.keep(n as u64 + 1, &content);
                all.push(content.clone());
                content[*at] = *byte;
                prop_assert!(taken.load(Ordering::Relaxed) <= most);
            }
            let mut known = false;
            for (n, content) in all.iter().enumerate() {
                match versions.content_at(n as u64 + 1) {
                    Ok(told) => {
                        known = true;
                        prop_assert_eq!(told.as_ref(), Some(content));
                    }
                    Err(()) => prop_assert!(!known && most < 1 << 20, "a version is lost between known ones"),
                }
            }
            prop_assert!(known);
            drop(versions);
            prop_assert_eq!(taken.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn memory_that_came_later_was_not_there() {
        let taken = Arc::new(AtomicUsize::new(0));
        let mut versions = Versions::new(5, &taken, 1 << 20);
        assert_eq!(versions.content_at(4), Ok(None));
        assert_eq!(versions.content_at(5), Err(()), "the present one is not asked for");
        versions.keep(5, &[1; 100]);
        assert_eq!(versions.content_at(5), Ok(Some(vec![1; 100])));
    }
}
