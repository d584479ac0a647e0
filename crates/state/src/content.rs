//! Bytes of a record.

/// BLAKE3 of the bytes.
pub type Hash = [u8; 32];

/// Bytes of a record: small ones in it, large ones in the store, once each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    Inline(Box<[u8]>),
    Stored(Hash),
}
