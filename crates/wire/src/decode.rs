//! Reading messages that a hostile peer may have written.

use thiserror::Error;

use crate::padded;

/// Tags of buffer references.
pub mod tag {
    pub const NULL: u64 = 0;
    pub const INLINE: u64 = 1;
    pub const ARENA: u64 = 2;
    pub const RESERVED: u64 = 3;
    pub const PART: u64 = 4;
}

/// Why a message could not be decoded.
///
/// ```
/// use aviary_wire::Decoder;
///
/// let mut decoder = Decoder::new(&[0; 16]);
/// decoder.word()?;
/// assert_eq!(decoder.finish().unwrap_err().to_string(), "8 bytes are left over after the last field");
/// # Ok::<(), aviary_wire::DecodeError>(())
/// ```
#[derive(Debug, Error, displaydoc::Display, Clone, Copy, PartialEq, Eq)]
pub enum DecodeError {
    /// a message of {length} bytes has no room for a header
    Header { length: usize },
    /// the header states {stated} bytes but the message has {length}
    Length { stated: u32, length: usize },
    /// {what} at byte {at} of the body needs {needed} bytes, {left} are left
    Short { what: &'static str, at: usize, needed: u64, left: usize },
    /// {what} at byte {at} of the body has the impossible value {value:#x}
    Value { what: &'static str, at: usize, value: u64 },
    /// {left} bytes are left over after the last field
    Trailing { left: usize },
}

/// A decoded buffer reference. Lengths and offsets are the peer's: the arena checks them.
///
/// ```
/// use aviary_wire::BufferRef;
///
/// assert_eq!((BufferRef::Inline(b"abc").length(), BufferRef::Null.length()), (3, 0));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferRef<'a> {
    Null,
    Inline(&'a [u8]),
    Arena {
        offset: u64,
        length: usize,
    },
    /// An output without data.
    Reserved {
        length: usize,
    },
    /// A part of memory that several buffers of the message share, of the one with this number in the message: `offset`
    /// bytes behind its beginning. Where the number is new a word and the memory's own reference follow.
    Part {
        union: u64,
        offset: u64,
        length: usize,
    },
}

impl BufferRef<'_> {
    /// Bytes that the buffer has room for; 0 for NULL.
    pub fn length(&self) -> usize {
        match self {
            BufferRef::Null => 0,
            BufferRef::Inline(data) => data.len(),
            BufferRef::Arena { length, .. } | BufferRef::Reserved { length } | BufferRef::Part { length, .. } => {
                *length
            }
        }
    }
}

/// Walks over the fields of a body.
///
/// ```
/// use aviary_wire::{DecodeError, Decoder};
///
/// // What a peer states is checked against what is there, before anything of it is used.
/// let mut decoder = Decoder::new(&[0xff; 8]);
/// assert!(matches!(decoder.bytes(), Err(DecodeError::Short { .. } | DecodeError::Value { .. })));
/// ```
#[derive(Debug, Clone)]
pub struct Decoder<'a> {
    body: &'a [u8],
    at: usize,
}

impl<'a> Decoder<'a> {
    #[inline]
    pub fn new(body: &'a [u8]) -> Self {
        Decoder { body, at: 0 }
    }

    /// Continues at byte `at` of `body`, as [`Decoder::position`] told it.
    #[inline]
    pub fn resume(body: &'a [u8], at: usize) -> Self {
        Decoder { body, at: at.min(body.len()) }
    }

    #[inline]
    pub fn position(&self) -> usize {
        self.at
    }

    pub fn remaining(&self) -> usize {
        self.body.len() - self.at
    }

    /// Fails unless every field was read.
    #[inline]
    pub fn finish(&self) -> Result<(), DecodeError> {
        match self.remaining() {
            0 => Ok(()),
            left => Err(DecodeError::Trailing { left }),
        }
    }

    #[cold]
    fn short(&self, what: &'static str, needed: u64) -> DecodeError {
        DecodeError::Short { what, at: self.at, needed, left: self.remaining() }
    }

    #[inline]
    pub fn word(&mut self) -> Result<u64, DecodeError> {
        self.named_word("a word")
    }

    #[inline]
    fn named_word(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        match self.body[self.at..].first_chunk::<8>() {
            Some(bytes) => {
                self.at += 8;
                Ok(u64::from_le_bytes(*bytes))
            }
            None => Err(self.short(what, 8)),
        }
    }

    /// `length` bytes and their padding. `length` is untrusted: compared before any arithmetic on it.
    #[inline]
    fn data(&mut self, what: &'static str, length: u64) -> Result<&'a [u8], DecodeError> {
        let left = self.remaining();
        if length > left as u64 || padded(length as usize) > left {
            return Err(self.short(what, length));
        }
        let length = length as usize;
        let data = &self.body[self.at..self.at + length];
        self.at += padded(length);
        Ok(data)
    }

    #[inline]
    pub fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.named_word("the length of bytes")?;
        self.data("bytes", length)
    }

    /// Written by [`crate::Encoder::optional_bytes`].
    pub fn optional_bytes(&mut self) -> Result<Option<&'a [u8]>, DecodeError> {
        match self.named_word("the length of optional bytes")? {
            0 => Ok(None),
            n => self.data("optional bytes", n - 1).map(Some),
        }
    }

    /// Count of an array; `None` is NULL. The count is not bounded by what is left: elements may be empty.
    #[inline]
    pub fn array(&mut self) -> Result<Option<usize>, DecodeError> {
        let at = self.at;
        match self.named_word("an array")? {
            0 => Ok(None),
            n => match usize::try_from(n - 1) {
                Ok(count) if count <= isize::MAX as usize => Ok(Some(count)),
                _ => Err(DecodeError::Value { what: "an array", at, value: n }),
            },
        }
    }

    #[inline]
    pub fn buffer(&mut self) -> Result<BufferRef<'a>, DecodeError> {
        let at = self.at;
        let word = self.named_word("a buffer")?;
        // The shift leaves 61 bits: always a valid usize.
        let length = word >> 3;
        match word & 7 {
            tag::NULL if length == 0 => Ok(BufferRef::Null),
            tag::INLINE => self.data("an inline buffer", length).map(BufferRef::Inline),
            tag::ARENA => {
                let offset = self.named_word("an arena offset")?;
                Ok(BufferRef::Arena { offset, length: length as usize })
            }
            tag::RESERVED => Ok(BufferRef::Reserved { length: length as usize }),
            tag::PART => {
                let union = self.named_word("the number of shared memory")?;
                let offset = self.named_word("an offset in shared memory")?;
                Ok(BufferRef::Part { union, offset, length: length as usize })
            }
            _ => Err(DecodeError::Value { what: "a buffer", at, value: word }),
        }
    }
}
