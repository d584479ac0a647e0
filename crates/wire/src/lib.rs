//! Messages between a guest library and an API server.
//!
//! This crate knows bytes only: it does no I/O and contains no `unsafe`. The
//! normative description is `docs/runtime.md`. Everything that is decoded here
//! may come from a hostile peer; a decoder copies nothing it has not checked
//! and every failure says what was wrong and where.
#![forbid(unsafe_code)]

// The fuzz targets use the crate from outside.
#[cfg(test)]
extern crate self as aviary_wire;
pub mod attach;
pub mod control;
pub mod decode;
pub mod encode;
pub mod ends;
#[cfg(test)]
mod fuzz_tests;
pub mod handle;
pub mod message;
pub mod origin;
pub mod tenant;
pub mod text;

pub use attach::{Hello, Welcome};
pub use control::Control;
pub use decode::{BufferRef, DecodeError, Decoder};
pub use encode::Encoder;
pub use ends::Ends;
pub use handle::{HandleId, MAX_PREDEFINED, Metadata, NOT_A_HANDLE, short_value};
pub use message::{HEADER_SIZE, ReplyHeader, RequestHeader, flag, kind, status};
pub use origin::Origin;
pub use text::{Shown, shown};

/// Changes whenever a guest and a server of different versions would misunderstand each other.
pub const WIRE_VERSION: u32 = 8;

/// Longest message that a receiver reassembles.
pub const MAX_MESSAGE: usize = 64 << 20;

/// Data of at most this many bytes travels in the message itself.
pub const INLINE_INPUT: usize = 4096;

/// Outputs of at most this many bytes come back in the message; larger ones use the arena.
pub const RESERVED_OUTPUT: usize = 4096;

/// Before an input of a stream, in place of the number of bytes before it that are the server's to write: it lies in memory of
/// the application, and so does what the application has before it.
pub const IN_PLACE: u64 = u64::MAX;

/// The word behind id and version of a state: the application's struct is a copy of the one that the state was made for.
pub const COPIED: u64 = 1;

/// In place of a delivery's offset: the asynchronous call with the ticket that stands in place of its bytes was
/// rejected, and all its blocks are free. No block lies there: the first page is the server's.
pub const REJECTED_CALL: u64 = 0;

/// In place of a handle's type, where memory that both sides use belongs to the object that the request has just named.
pub const SAME_OBJECT: u64 = u64::MAX;

/// In a reply: where memory is that the library and the application both use.
pub mod resident {
    /// There is none.
    pub const NONE: u64 = 0;
    /// In the arena: its offset follows.
    pub const IN_ARENA: u64 = 1;
    /// Only on the server: its id and its bytes follow.
    pub const ELSEWHERE: u64 = 2;
}

/// Rounds up to the alignment of fields.
#[inline]
pub const fn padded(bytes: usize) -> usize {
    (bytes + 7) & !7
}
