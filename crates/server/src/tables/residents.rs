//! Memory that the library and the guest's application both use: the application's, in blocks of the arena that the guest
//! names with each call, and the library's own (resident memory), which is copied to such blocks and back.
//!
//! Resident memory belongs to an object and is known by a mapping, which ends with the object. A call that names it
//! uses the object, so that it cannot end meanwhile.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::tables::library_memory::LibraryMemory;
use crate::tables::mappings::Mappings;

/// Resident memory by its owner's id and its address; and the ids of the mappings.
#[derive(Default)]
pub struct Residents {
    known: Mutex<HashMap<u64, Vec<ResidentMemory>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResidentMemory {
    /// Of its mapping.
    pub id: u64,
    pub address: usize,
    pub bytes: usize,
}

/// An owner's memory that the library told of, once it is in the table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// The guest has been told of it, under this id.
    Known(u64),
    /// Under `id` from now on. `replaced`: the id of other memory that was there.
    New { id: u64, replaced: Option<u64> },
}

/// Resident memory that a call may change: from the library's address to the block.
pub(crate) struct UsedResident {
    pub from: usize,
    pub to: *mut u8,
    pub offset: u64,
    pub bytes: usize,
}

impl Residents {
    fn known(&self) -> MutexGuard<'_, HashMap<u64, Vec<ResidentMemory>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters an owner's memory. `again`: the id that the guest has for it already. `None`: there is too much, or the id is
    /// in use.
    pub(crate) fn enter(
        &self,
        mappings: &Mappings,
        owner: u64,
        (address, bytes): (usize, usize),
        again: Option<u64>,
    ) -> Option<Entered> {
        let mut known = self.known();
        let of_owner = known.entry(owner).or_default();
        let mut replaced = None;
        if let Some(at) = of_owner.iter().position(|memory| memory.address == address) {
            if of_owner[at].bytes == bytes {
                return Some(Entered::Known(of_owner[at].id));
            }
            // The library has other memory there now.
            replaced = Some(of_owner.swap_remove(at).id);
            replaced.iter().for_each(|id| drop(mappings.remove(*id)));
        }
        let pointer = std::ptr::with_exposed_provenance_mut(address);
        let id = match again {
            None => mappings.add(pointer, bytes, None)?,
            Some(id) => mappings.add_again(id, pointer, bytes)?,
        };
        of_owner.push(ResidentMemory { id, address, bytes });
        Some(Entered::New { id, replaced })
    }

    pub(crate) fn find(&self, owner: u64, id: u64) -> Option<ResidentMemory> {
        self.known().get(&owner)?.iter().find(|memory| memory.id == id).copied()
    }

    /// The object has ended, and its memory with it. Answers the ids of that.
    pub(crate) fn owner_ended(&self, mappings: &Mappings, owner: u64) -> Vec<u64> {
        let ended = self.known().remove(&owner).unwrap_or_default();
        for memory in &ended {
            if let Some(mapping) = mappings.remove(memory.id) {
                // A copy that is under way ends first.
                mapping.begin_unmapping();
            }
        }
        ended.into_iter().map(|memory| memory.id).collect()
    }

    /// All memory that objects have.
    pub(crate) fn all(&self) -> Vec<LibraryMemory> {
        self.known().values().flatten().map(|memory| LibraryMemory::Resident(memory.id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_ends_with_its_owner() {
        let (residents, mappings) = (Residents::default(), Mappings::default());
        let memory = [0u8; 32];
        let address = memory.as_ptr().expose_provenance();
        let enter = |owner, bytes, again| residents.enter(&mappings, owner, (address, bytes), again);
        let Some(Entered::New { id, replaced: None }) = enter(1, 16, None) else { panic!("not entered") };
        assert_eq!(enter(1, 16, None), Some(Entered::Known(id)), "asked again");
        assert_eq!(residents.find(1, id).map(|m| m.bytes), Some(16));
        assert_eq!(residents.find(2, id), None, "another object's");
        let Some(Entered::New { id: other, replaced }) = enter(1, 32, None) else { panic!("not entered") };
        assert!(other != id && replaced == Some(id));
        assert!(mappings.get(id).is_none() && residents.find(1, id).is_none());
        assert_eq!(residents.owner_ended(&mappings, 1), [other]);
        assert!(mappings.is_empty() && residents.all().is_empty());
        assert_eq!(residents.find(1, other), None);
        // In the process that the session has moved to.
        assert_eq!(enter(3, 16, Some(9)), Some(Entered::New { id: 9, replaced: None }));
        assert_eq!(enter(4, 16, Some(9)), None, "the id is in use");
        assert_eq!(enter(4, 16, None), Some(Entered::New { id: 10, replaced: None }));
    }
}
