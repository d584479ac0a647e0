//! Message rings in memory that is shared with an untrusted peer.
//!
//! One ring carries messages one way, from one producer to one consumer. Each
//! side knows privately where it is; a message says by itself that it is there
//! (see `line.rs`). Whatever the peer wrote is only believed after a range
//! check, so a lying peer produces a [`RingError::Peer`] and nothing worse.
//! Messages are copied out once before anybody looks at them.
//!
//! Nobody makes a system call while both sides are active. A side that finds
//! nothing to do spins for as long as that recently paid off and then sleeps
//! (for as long as the wait will probably last, where it knows that) on a futex, or at a [`Doorbell`] where the peer is in another machine; the
//! other side looks at one shared word after each publication and only wakes a
//! peer that says it sleeps.

mod consumer;
mod doorbell;
mod file;
mod forecast;
#[cfg_attr(loom, path = "futex_model.rs")]
pub mod futex;
mod line;
#[cfg_attr(loom, path = "memory_model.rs")]
mod memory;
mod producer;
mod sync;
mod wait;
mod wake;

pub use consumer::Consumer;
pub use doorbell::Doorbell;
pub use file::is_ordinary_memory;
pub use memory::RingMemory;
pub use producer::Producer;
pub use wait::{Liveness, WaitError};
pub use wake::WakeHandle;

use thiserror::Error;

/// Bytes of a ring's memory before its lines.
pub const HEADER: usize = 256;

/// A cache line; the model checker gets shorter ones.
pub const LINE: usize = if cfg!(loom) { 16 } else { 64 };

/// Zeros at the start of a ring's memory that make it an empty ring, whatever follows.
pub const EMPTY: usize = HEADER + LINE;

/// Why a ring can no longer be used, or the message not be sent.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
pub enum RingError {
    /// the peer published an impossible {what} ({value}) in a ring of {capacity} bytes
    #[error("the peer published an impossible {what} ({value}) in a ring of {capacity} bytes")]
    Peer { what: &'static str, value: u64, capacity: usize },
    /// a message of {length} bytes exceeds the limit of {limit}
    #[error("a message of {length} bytes exceeds the limit of {limit}")]
    TooLong { length: usize, limit: usize },
    /// the peer is gone
    #[error("the peer is gone")]
    Dead,
    /// {length} bytes of shared memory at {address:#x} cannot hold a ring
    #[error("{length} bytes of shared memory at {address:#x} cannot hold a ring")]
    Memory { address: usize, length: usize },
}

impl From<WaitError> for RingError {
    fn from(_: WaitError) -> Self {
        RingError::Dead
    }
}
