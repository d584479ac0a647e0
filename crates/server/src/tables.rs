//! Memory that both sides know, and what is handed over with a session's state. Tables know neither calls nor sessions.

pub mod contents;
pub mod deferred_outputs;
pub mod freed;
pub mod handed;
pub mod library_memory;
pub mod mappings;
pub mod memory;
pub mod residents;
pub mod scratch;
pub mod states;
pub mod vendor_table;
pub mod versions;

use contents::Contents;
use deferred_outputs::DeferredOutputs;
use freed::FreedMemory;
use handed::Handed;
use mappings::Mappings;
use memory::SessionMemory;
use residents::Residents;
use states::States;

/// The tables of one session.
pub struct Tables {
    pub memory: SessionMemory,
    pub mappings: Mappings,
    pub states: States,
    pub freed: FreedMemory,
    pub residents: Residents,
    pub late: DeferredOutputs,
    pub handed: Handed,
    pub contents: Contents,
}

impl Tables {
    /// `memory`: what the session shares with its guest.
    pub fn new(memory: SessionMemory) -> Tables {
        Tables {
            memory,
            mappings: Mappings::default(),
            states: States::default(),
            freed: FreedMemory::default(),
            residents: Residents::default(),
            late: DeferredOutputs::default(),
            handed: Handed::default(),
            contents: Contents::default(),
        }
    }
}
