//! Snapshots of sessions: the object log, its content store, and the format in which both travel.
//!
//! An API server keeps the log while its guest calls. To move, park or checkpoint a session is to write the log, and all
//! else that is needed, to another API server as a snapshot. A snapshot is hostile input to its reader: every count
//! and length is compared with what is there before it is believed.

#![forbid(unsafe_code)]

// The fuzz targets use the crate from outside.
#[cfg(test)]
extern crate self as aviary_state;
mod codec;
mod content;
#[cfg(test)]
mod fuzz_tests;
mod log;
mod record;
mod snapshot;
mod store;

pub use codec::FormatError;
pub use content::{Content, Hash};
pub use log::{Log, LogSize};
pub use record::{Block, Effect, Owner, Record};
pub use snapshot::{Holding, Identity, ObjectImage, Slot, Snapshot, SnapshotReader, SnapshotWriter, StateChunk};
pub use store::Store;
