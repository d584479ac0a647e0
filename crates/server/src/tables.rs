//! Memory that both sides know, and what is handed over with a session's state. Tables know neither calls nor sessions.

pub mod contents;
pub mod deferred_outputs;
pub mod foreign;
pub mod handed;
pub mod memory;
pub mod overlap;
pub mod rooms;
pub mod scratch;
pub mod states;
pub mod vendor_table;
pub mod versions;

use contents::{Contents, KeptPlaces};
use deferred_outputs::DeferredOutputs;
use foreign::ForeignTable;
use handed::Handed;
use memory::SessionMemory;
use overlap::Overlap;

/// The tables of one session.
pub struct Tables {
    pub memory: SessionMemory,
    pub foreign: ForeignTable,
    pub late: DeferredOutputs,
    pub handed: Handed,
    pub contents: Contents,
    pub kept: KeptPlaces,
    pub overlap: Overlap,
}

impl Tables {
    /// `memory`: what the session shares with its guest.
    pub fn new(memory: SessionMemory) -> Tables {
        Tables {
            memory,
            foreign: ForeignTable::default(),
            late: DeferredOutputs::default(),
            handed: Handed::default(),
            contents: Contents::default(),
            kept: KeptPlaces::default(),
            overlap: Overlap::default(),
        }
    }
}
