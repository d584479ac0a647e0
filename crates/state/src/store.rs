//! Contents by their hash: an image that a hundred records name is kept once.

use std::collections::HashMap;

use crate::content::{Content, Hash};

/// Contents up to this many bytes stay in their record: a hash and an entry cost as much.
const MAX_INLINE_BYTES: usize = 4096;

struct StoredContent {
    bytes: Box<[u8]>,
    /// Contents of records that name it.
    references: usize,
}

/// Large contents of records. Bounded by the log that it belongs to.
#[derive(Default)]
pub struct Store {
    contents: HashMap<Hash, StoredContent>,
    bytes: usize,
}

impl Store {
    /// One more reference of these bytes.
    pub fn add(&mut self, bytes: &[u8]) -> Content {
        if bytes.len() <= MAX_INLINE_BYTES {
            return Content::Inline(bytes.into());
        }
        let hash = *blake3::hash(bytes).as_bytes();
        let stored = self.contents.entry(hash).or_insert_with(|| {
            self.bytes += bytes.len();
            StoredContent { bytes: bytes.into(), references: 0 }
        });
        stored.references += 1;
        Content::Stored(hash)
    }

    /// One more reference of a content that is here already. False: it is not.
    pub fn retain(&mut self, content: &Content) -> bool {
        match content {
            Content::Inline(_) => true,
            Content::Stored(hash) => self.contents.get_mut(hash).map(|stored| stored.references += 1).is_some(),
        }
    }

    pub fn release(&mut self, content: &Content) {
        let Content::Stored(hash) = content else { return };
        let Some(stored) = self.contents.get_mut(hash) else { return };
        stored.references -= 1;
        if stored.references == 0
            && let Some(stored) = self.contents.remove(hash)
        {
            self.bytes -= stored.bytes.len();
        }
    }

    /// `None`: the store never had it.
    pub fn bytes_of<'a>(&'a self, content: &'a Content) -> Option<&'a [u8]> {
        match content {
            Content::Inline(bytes) => Some(bytes),
            Content::Stored(hash) => self.contents.get(hash).map(|stored| &*stored.bytes),
        }
    }

    /// Bytes of all stored contents.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Hash, &[u8])> {
        self.contents.iter().map(|(hash, stored)| (hash, &*stored.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_contents_are_kept_once_until_the_last_reference_goes() {
        let mut store = Store::default();
        let image = vec![7; MAX_INLINE_BYTES + 1];
        let (first, second) = (store.add(&image), store.add(&image));
        assert_eq!(first, second);
        assert_eq!(store.bytes(), image.len());
        store.release(&first);
        assert_eq!(store.bytes_of(&second), Some(&*image));
        store.release(&second);
        assert_eq!((store.bytes(), store.bytes_of(&second)), (0, None));
    }

    #[test]
    fn small_contents_stay_in_their_record() {
        let mut store = Store::default();
        let small = store.add(&[1; MAX_INLINE_BYTES]);
        assert_eq!(store.bytes(), 0);
        assert_eq!(store.bytes_of(&small).map(<[u8]>::len), Some(MAX_INLINE_BYTES));
    }
}
