//! Memory of the vendor's library that the guest's application frees.
//!
//! The guest has a copy and the id of the original. An id is used once: a second call that frees the same memory, and an
//! id that was never given out, are refused here and never reach the library.
//!
//! Where the session moves the call that handed the memory out is made again, and the new memory gets the id of the old.
//! Ids above all that are in use then begin anew: the guest has forgotten them, and one that has not can only free what it
//! was given itself.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::session::config::MAX_FREED;
use crate::tables::library_memory::LibraryMemory;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LentMemory {
    address: usize,
    /// The functions that free it, by number in the specification.
    group: u32,
}

#[derive(Default)]
struct LentTable {
    last_id: u64,
    lent: HashMap<u64, LentMemory>,
}

/// Memory that a session's application may free.
#[derive(Default)]
pub struct FreedMemory {
    table: Mutex<LentTable>,
}

/// Memory that a call is about to free.
pub(crate) struct Freeing {
    id: u64,
    memory: LentMemory,
}

impl Freeing {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn address(&self) -> usize {
        self.memory.address
    }
}

impl FreedMemory {
    fn table(&self) -> MutexGuard<'_, LentTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: the application holds too much.
    pub(crate) fn lend(&self, address: usize, group: u32) -> Option<u64> {
        let mut table = self.table();
        if table.lent.len() >= MAX_FREED {
            return None;
        }
        table.last_id += 1;
        let id = table.last_id;
        table.lent.insert(id, LentMemory { address, group });
        Some(id)
    }

    /// Memory of a call that is made again, under the id that the guest has for it. `None`: the id is in use.
    pub(crate) fn lend_again(&self, id: u64, address: usize, group: u32) -> Option<u64> {
        let mut table = self.table();
        if table.lent.len() >= MAX_FREED || table.lent.contains_key(&id) {
            return None;
        }
        table.last_id = table.last_id.max(id);
        table.lent.insert(id, LentMemory { address, group });
        Some(id)
    }

    pub(crate) fn take(&self, id: u64, groups: &[u32]) -> Option<Freeing> {
        let mut table = self.table();
        let memory = *table.lent.get(&id).filter(|memory| groups.contains(&memory.group))?;
        table.lent.remove(&id);
        Some(Freeing { id, memory })
    }

    pub(crate) fn put_back(&self, freeing: Freeing) {
        self.table().lent.insert(freeing.id, freeing.memory);
    }

    /// The memory that the application has to free.
    pub(crate) fn lent(&self) -> Vec<LibraryMemory> {
        self.table().lent.keys().map(|id| LibraryMemory::Freed(*id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_freed_once() {
        let freed = FreedMemory::default();
        let id = freed.lend(0x1000, 3).unwrap();
        assert!(freed.take(id, &[2]).is_none(), "another function's");
        assert!(freed.take(id + 1, &[3]).is_none(), "never given out");
        let freeing = freed.take(id, &[2, 3]).unwrap();
        assert_eq!(freeing.memory.address, 0x1000);
        assert!(freed.take(id, &[3]).is_none(), "at the same time");
        freed.put_back(freeing);
        assert_eq!(freed.lent(), [LibraryMemory::Freed(id)]);
        assert!(freed.take(id, &[3]).is_some(), "the library had refused");
        assert!(freed.lent().is_empty());
        assert!(freed.lend(0x1000, 3).unwrap() > id, "the same address again");
        assert_eq!(freed.lend_again(7, 0x2000, 3), Some(7));
        assert_eq!(freed.lend_again(7, 0x3000, 3), None, "in use");
        assert!(freed.lend(0x3000, 3).unwrap() > 7);
    }
}
