//! Numbers, bytes and lists of a snapshot, little-endian. What is read is hostile: a count is compared with the bytes
//! that are left before anything is allocated for it.

use std::io;

/// A snapshot cannot be read.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum FormatError {
    /// the snapshot is incomplete
    Short,
    /// the file is not a snapshot, or is one of another version
    Magic,
    /// the snapshot is damaged: {what} has the impossible value {value}
    Value { what: &'static str, value: u64 },
    /// the snapshot is damaged or was changed: its hash does not match
    Hash,
    /// the snapshot is damaged: it refers to a content that it does not have
    Content,
    /// cannot read the snapshot: {0}
    Read(#[from] io::Error),
}

/// Writes values one after the other.
#[derive(Default)]
pub(crate) struct Put {
    pub bytes: Vec<u8>,
}

impl Put {
    pub fn byte(&mut self, v: u8) {
        self.bytes.push(v);
    }

    pub fn word(&mut self, v: u64) {
        self.bytes.extend_from_slice(&v.to_le_bytes());
    }

    pub fn data(&mut self, data: &[u8]) {
        self.word(data.len() as u64);
        self.bytes.extend_from_slice(data);
    }

    pub fn list<T>(&mut self, items: &[T], mut put: impl FnMut(&mut Put, &T)) {
        self.word(items.len() as u64);
        items.iter().for_each(|item| put(self, item));
    }

    pub fn words(&mut self, words: &[u64]) {
        self.list(words, |put, word| put.word(*word));
    }
}

/// Reads them.
pub(crate) struct Get<'a> {
    bytes: &'a [u8],
}

impl<'a> Get<'a> {
    pub fn new(bytes: &'a [u8]) -> Get<'a> {
        Get { bytes }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], FormatError> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(FormatError::Short)?;
        self.bytes = rest;
        Ok(taken)
    }

    pub fn byte(&mut self) -> Result<u8, FormatError> {
        Ok(self.take(1)?[0])
    }

    pub fn word(&mut self) -> Result<u64, FormatError> {
        let (word, rest) = self.bytes.split_first_chunk().ok_or(FormatError::Short)?;
        self.bytes = rest;
        Ok(u64::from_le_bytes(*word))
    }

    pub fn number(&mut self, what: &'static str) -> Result<u32, FormatError> {
        let value = self.word()?;
        u32::try_from(value).map_err(|_| FormatError::Value { what, value })
    }

    pub fn flag(&mut self, what: &'static str) -> Result<bool, FormatError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(FormatError::Value { what, value: value.into() }),
        }
    }

    pub fn data(&mut self) -> Result<&'a [u8], FormatError> {
        let length = usize::try_from(self.word()?).map_err(|_| FormatError::Short)?;
        self.take(length)
    }

    pub fn text(&mut self, what: &'static str) -> Result<String, FormatError> {
        let bytes = self.data()?;
        String::from_utf8(bytes.to_vec()).map_err(|_| FormatError::Value { what, value: bytes.len() as u64 })
    }

    pub fn hash(&mut self) -> Result<[u8; 32], FormatError> {
        let (hash, rest) = self.bytes.split_first_chunk().ok_or(FormatError::Short)?;
        self.bytes = rest;
        Ok(*hash)
    }

    /// Each item has at least one byte: a longer list than the rest of the bytes is refused.
    pub fn list<T>(&mut self, mut get: impl FnMut(&mut Self) -> Result<T, FormatError>) -> Result<Vec<T>, FormatError> {
        let count = self.word()?;
        if count > self.bytes.len() as u64 {
            return Err(FormatError::Short);
        }
        (0..count).map(|_| get(self)).collect()
    }

    pub fn words(&mut self) -> Result<Vec<u64>, FormatError> {
        self.list(Get::word)
    }

    pub fn finish(&self, what: &'static str) -> Result<(), FormatError> {
        match self.bytes.len() {
            0 => Ok(()),
            left => Err(FormatError::Value { what, value: left as u64 }),
        }
    }
}
