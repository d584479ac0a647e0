//! Memory of the vendor's library that the application holds mapped.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::memory::block::Block;

/// One mapping of memory outside the arena.
#[derive(Clone, Copy)]
pub(crate) struct Mapping {
    /// The server's id of the mapping.
    pub id: u64,
    pub block: Block,
    pub bytes: usize,
    /// Address at which the application asked for the content; 0: it works in the block itself.
    pub at: usize,
    /// True if the application may have changed the content.
    pub write: bool,
}

/// Mappings by the pointer that the application got; one pointer can be mapped several times.
#[derive(Default)]
pub(crate) struct Mappings {
    by_pointer: Mutex<HashMap<usize, Vec<Mapping>>>,
}

impl Mappings {
    fn all(&self) -> MutexGuard<'_, HashMap<usize, Vec<Mapping>>> {
        self.by_pointer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, pointer: usize, mapping: Mapping) {
        self.all().entry(pointer).or_default().push(mapping);
    }

    /// The newest mapping at the pointer.
    pub fn find(&self, pointer: usize) -> Option<Mapping> {
        self.all().get(&pointer).and_then(|m| m.last().copied())
    }

    /// Ends a mapping; `None` if another thread has ended it.
    pub fn remove(&self, pointer: usize, id: u64) -> Option<Mapping> {
        let mut all = self.all();
        let list = all.get_mut(&pointer)?;
        let index = list.iter().rposition(|m| m.id == id)?;
        let mapping = list.remove(index);
        if list.is_empty() {
            all.remove(&pointer);
        }
        Some(mapping)
    }
}
