//! Message rings in memory that is shared with an untrusted peer.
//!
//! One ring carries messages one way, from one producer to one consumer. Each side keeps its
//! position privately; the seal in a line announces a message (see `line.rs`). A value that the
//! peer wrote is used only after a range check, so a lying peer causes a [`RingError::Peer`] and
//! nothing worse. A message is copied out once before it is decoded.
//!
//! Neither side makes a system call while both are active. A side without work spins for as long as
//! spinning recently paid off and then sleeps, for the predicted length of the wait if there is a
//! prediction. It sleeps on a futex, or at a [`Doorbell`] if the peer is in another machine. The
//! other side reads one shared word after each publication and wakes only a peer whose word says
//! that it sleeps.

mod consumer;
mod doorbell;
mod file;
#[cfg_attr(loom, path = "futex_model.rs")]
pub mod futex;
mod line;
#[cfg_attr(loom, path = "memory_model.rs")]
mod memory;
mod producer;
mod sync;
mod wait;
mod wait_predictor;
mod wake;

pub use consumer::{Consumer, ConsumerPosition};
pub use doorbell::Doorbell;
pub use file::is_ordinary_memory;
pub use memory::RingMemory;
pub use producer::{Producer, ProducerPosition};
pub use wait::{Interruption, Liveness, WaitError, WaitPoint, uninterrupted};
pub use wake::WakeHandle;

use thiserror::Error;

/// Bytes of a ring's memory before its lines.
pub const HEADER: usize = 256;

/// A cache line; the model checker gets shorter ones.
pub const LINE: usize = if cfg!(loom) { 16 } else { 64 };

/// Bytes of zeros at the start of a ring's memory that make the ring empty; the bytes after them
/// may hold anything.
pub const EMPTY: usize = HEADER + LINE;

/// The reason why a ring can no longer be used, or a message not be sent.
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
    /// this side was asked to stop waiting for messages
    #[error("this side was asked to stop waiting for messages")]
    Interrupted,
    /// a ring of {capacity} bytes cannot go on where {what} is {value}
    #[error("a ring of {capacity} bytes cannot go on where {what} is {value}")]
    Position { what: &'static str, value: u64, capacity: usize },
    /// {length} bytes of shared memory at {address:#x} cannot hold a ring
    #[error("{length} bytes of shared memory at {address:#x} cannot hold a ring")]
    Memory { address: usize, length: usize },
}

impl From<WaitError> for RingError {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::Gone => RingError::Dead,
            WaitError::Interrupted => RingError::Interrupted,
        }
    }
}
