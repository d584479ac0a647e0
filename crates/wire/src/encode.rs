//! Writing messages.

use crate::decode::tag;
use crate::message::{HEADER_SIZE, ReplyHeader, RequestHeader};
use crate::padded;

/// Builds one message; its memory is reused for the next.
///
/// ```
/// use aviary_wire::{BufferRef, Decoder, Encoder, RequestHeader};
///
/// let mut encoder = Encoder::new();
/// encoder.start();
/// encoder.word(7);
/// encoder.buffer_inline(b"data");
/// let message = encoder.finish_request(RequestHeader { function: 3, ..RequestHeader::default() });
///
/// let (header, body) = RequestHeader::parse(message)?;
/// assert_eq!((header.function, header.length as usize), (3, message.len()));
/// let mut decoder = Decoder::new(body);
/// assert_eq!((decoder.word()?, decoder.buffer()?), (7, BufferRef::Inline(b"data")));
/// decoder.finish()?;
/// # Ok::<(), aviary_wire::DecodeError>(())
/// ```
#[derive(Debug, Default)]
pub struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts over with room for the header.
    #[inline]
    pub fn start(&mut self) {
        self.bytes.clear();
        self.bytes.resize(HEADER_SIZE, 0);
    }

    /// Bytes so far, header included.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The message so far, header included.
    pub fn message(&self) -> &[u8] {
        &self.bytes
    }

    /// The memory held for reuse.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Gives memory back after an unusually large message.
    pub fn shrink(&mut self, to: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(to);
    }

    #[inline]
    pub fn word(&mut self, v: u64) {
        self.bytes.extend_from_slice(&v.to_le_bytes());
    }

    /// Overwrites a word written before, at byte offset `at` of the message.
    pub fn set_word(&mut self, at: usize, v: u64) {
        if let Some(place) = self.bytes.get_mut(at..at + 8) {
            place.copy_from_slice(&v.to_le_bytes());
        }
    }

    #[inline]
    fn data(&mut self, data: &[u8]) {
        self.bytes.extend_from_slice(data);
        self.bytes.resize(padded(self.bytes.len()), 0);
    }

    /// A length word and the data.
    #[inline]
    pub fn bytes(&mut self, data: &[u8]) {
        self.word(data.len() as u64);
        self.data(data);
    }

    /// A word 0 for `None`, else 1 + length and the data.
    pub fn optional_bytes(&mut self, data: Option<&[u8]>) {
        match data {
            None => self.word(0),
            Some(data) => {
                self.word(1 + data.len() as u64);
                self.data(data);
            }
        }
    }

    #[inline]
    pub fn array(&mut self, count: Option<usize>) {
        self.word(count.map_or(0, |n| 1 + n as u64));
    }

    #[inline]
    pub fn buffer_null(&mut self) {
        self.word(tag::NULL);
    }

    #[inline]
    pub fn buffer_inline(&mut self, data: &[u8]) {
        self.word(tag::INLINE | (data.len() as u64) << 3);
        self.data(data);
    }

    #[inline]
    pub fn buffer_arena(&mut self, offset: u64, length: usize) {
        self.word(tag::ARENA | (length as u64) << 3);
        self.word(offset);
    }

    #[inline]
    pub fn buffer_reserved(&mut self, length: usize) {
        self.word(tag::RESERVED | (length as u64) << 3);
    }

    /// See [`crate::BufferRef::Part`].
    pub fn buffer_part(&mut self, length: usize, union: usize, offset: usize) {
        self.word(tag::PART | (length as u64) << 3);
        self.word(union as u64);
        self.word(offset as u64);
    }

    /// Fills in the header and gives the whole message.
    #[inline]
    pub fn finish_request(&mut self, mut header: RequestHeader) -> &[u8] {
        header.length = self.stated_length();
        self.bytes[..HEADER_SIZE].copy_from_slice(&header.to_bytes());
        &self.bytes
    }

    /// Fills in the header and gives the whole message.
    #[inline]
    pub fn finish_reply(&mut self, mut header: ReplyHeader) -> &[u8] {
        header.length = self.stated_length();
        self.bytes[..HEADER_SIZE].copy_from_slice(&header.to_bytes());
        &self.bytes
    }

    /// The bytes written after the header.
    #[inline]
    pub fn body(&self) -> &[u8] {
        self.bytes.get(HEADER_SIZE..).unwrap_or(&[])
    }

    /// A message over 4 GiB cannot be stated; senders refuse anything above
    /// [`crate::MAX_MESSAGE`], so a saturated length never leaves the process.
    #[inline]
    fn stated_length(&mut self) -> u32 {
        if self.bytes.len() < HEADER_SIZE {
            self.bytes.resize(HEADER_SIZE, 0);
        }
        u32::try_from(self.bytes.len()).unwrap_or(u32::MAX)
    }
}
