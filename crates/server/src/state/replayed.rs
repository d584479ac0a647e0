//! The record of a call that is made again, as its handler asks for it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use aviary_state::{Record, Store};

use crate::tables::foreign::logged::MemoryAgain;

/// The record of a call that is made again.
pub(crate) struct ReplayedCall {
    record: Record,
    store: Arc<Store>,
    ids: Arc<BTreeMap<(u32, String), u64>>,
    callbacks: VecDeque<u64>,
    /// Foreign memory that it gives out.
    pub memory: MemoryAgain,
    /// Values that have to be the recorded ones.
    pub found: Vec<u64>,
    /// The session's own log has the record.
    pub is_logged: bool,
}

impl ReplayedCall {
    /// `ids`: by type and name, the ids of objects that another process finds by their names.
    pub fn new(record: Record, store: Arc<Store>, ids: Arc<BTreeMap<(u32, String), u64>>) -> ReplayedCall {
        let callbacks = record.callbacks.iter().copied().collect();
        let memory = MemoryAgain::of(&record.owners);
        ReplayedCall { record, store, ids, callbacks, memory, found: Vec::new(), is_logged: false }
    }

    /// Content of the block at `offset`, if the call read it.
    pub fn block(&self, offset: u64) -> Option<&[u8]> {
        self.record.block(offset).and_then(|content| self.store.bytes_of(content))
    }

    /// The id of the object with this name.
    pub fn id_of(&self, ty: u32, name: Option<&str>) -> Option<u64> {
        self.ids.get(&(ty, name?.to_owned())).copied()
    }

    /// True if the next callback of the call must not be called again.
    pub fn callback_has_run(&mut self) -> bool {
        self.callbacks.pop_front().is_none_or(|number| number == 0)
    }
}
