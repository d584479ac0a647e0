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

// The fuzz targets use the crate from outside.
#[cfg(all(test, not(loom)))]
extern crate self as aviary_ring;
pub mod ablation;
mod consumer;
mod doorbell;
mod file;
#[cfg_attr(loom, path = "futex_model.rs")]
pub mod futex;
#[cfg(all(test, not(loom)))]
mod fuzz_tests;
mod line;
#[cfg_attr(loom, path = "memory_model.rs")]
mod memory;
mod producer;
mod reserve;
mod sync;
mod wait;

pub use consumer::{Consumer, ConsumerPosition};
pub use doorbell::{Doorbell, Reach};
pub use file::is_ordinary_memory;
pub use memory::RingMemory;
pub use producer::{Producer, ProducerPosition};
pub use reserve::{Reserve, STEP_BYTES, leave_out_of_dumps};
pub use wait::liveness::{Interruption, Liveness, WaitError, WaitPoint, uninterrupted};
pub use wait::wake::WakeHandle;

use thiserror::Error;

/// Bytes of a ring's memory before its lines.
pub const HEADER: usize = 256;

/// A cache line; the model checker gets shorter ones.
pub const LINE: usize = if cfg!(loom) { 16 } else { 64 };

/// Bytes of zeros at the start of a ring's memory that make the ring empty; the bytes after them
/// may hold anything.
pub const EMPTY: usize = HEADER + LINE;

/// A ring can no longer be used, or a message cannot be sent.
///
/// ```
/// use aviary_ring::RingError;
///
/// let error = RingError::Peer { what: "the length of a message", value: 1 << 40, capacity: 2048 };
/// assert!(error.to_string().contains("impossible value"));
/// ```
#[derive(Debug, Error, displaydoc::Display, Clone, Copy, PartialEq, Eq)]
pub enum RingError {
    /// the peer wrote an impossible value into the ring of {capacity} bytes: {what} is {value}
    Peer { what: &'static str, value: u64, capacity: usize },
    /// a message of {length} bytes is longer than the limit of {limit}
    TooLong { length: usize, limit: usize },
    /// the peer has ended
    Dead,
    /// this side was asked to stop waiting for messages
    Interrupted,
    /// cannot continue a ring of {capacity} bytes: {what} is {value}, which is impossible
    Position { what: &'static str, value: u64, capacity: usize },
    /// {length} bytes of shared memory at {address:#x} cannot hold a ring
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
