//! Outputs of a request, and how what the library has changed gets to the application.

use aviary_transport::{Rows, copy_changes};

/// The source of an output's bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputSource {
    /// None: the application passed NULL.
    Nowhere,
    /// The reply, in which the bytes follow.
    Message,
    /// A block that belongs to the call, by its offset.
    Block(u64),
    /// The application's buffer, which is shared memory itself.
    Direct,
}

/// The content of an output when the request was written: what the library leaves alone is not written back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// It does not matter: the specification says that the library writes all of it.
    Written,
    /// In the request, behind so many bytes of it.
    Request(usize),
    /// In [`Frame::before`], behind so many bytes.
    Kept(usize),
}

/// An output of the request.
#[derive(Clone, Copy)]
pub(crate) struct Output {
    pub to: *mut u8,
    pub bytes: usize,
    pub source: OutputSource,
    pub before: Before,
    pub rows: Option<Rows>,
}

/// Writes `bytes` bytes at `from` to the application's memory at `to`: all, or those that differ from `before`; of rows
/// only what lies in them.
///
/// # Safety
/// So many bytes are readable at `from` and `before`, and those that are to be written are writable at `to`.
pub(crate) unsafe fn write_back(
    from: *const u8,
    before: Option<*const u8>,
    to: *mut u8,
    bytes: usize,
    rows: Option<Rows>,
) {
    let write = |at: usize, length: usize| {
        // SAFETY: the caller's promise; pieces lie within `bytes`. `copy`, as the application's buffer may be a part of the
        // arena itself.
        unsafe {
            match before {
                None => std::ptr::copy(from.add(at), to.add(at), length),
                Some(before) => copy_changes(from.add(at), before.add(at), to.add(at), length),
            }
        }
    };
    match rows {
        None => write(0, bytes),
        Some(rows) => rows.pieces(bytes).for_each(|(at, length)| write(at, length)),
    }
}

impl OutputSource {
    pub fn behind(self, bytes: usize) -> OutputSource {
        match self {
            OutputSource::Block(offset) => OutputSource::Block(offset + bytes as u64),
            other => other,
        }
    }
}

impl Before {
    pub fn behind(self, bytes: usize) -> Before {
        match self {
            Before::Written => Before::Written,
            Before::Request(at) => Before::Request(at + bytes),
            Before::Kept(at) => Before::Kept(at + bytes),
        }
    }
}
