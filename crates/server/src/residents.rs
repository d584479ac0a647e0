//! Memory that the library and the guest's application both use: the application's, in blocks of the arena that the guest
//! names with each call, and the library's own (resident memory), which is copied to such blocks and back.
//!
//! Resident memory belongs to an object and is known by a mapping, which ends with the object. A call that names it
//! uses the object, so that it cannot end meanwhile.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aviary_wire::{SAME_OBJECT, resident};

use crate::api::Reject;
use crate::call::Call;
use crate::config::MAX_USED_MEMORY;
use crate::library_memory::LibraryMemory;
use crate::mappings::Mappings;
use crate::session::Session;

/// Resident memory by its owner's id and its address; and the ids of the mappings.
#[derive(Default)]
pub struct Residents {
    known: Mutex<HashMap<u64, Vec<ResidentMemory>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ResidentMemory {
    /// Of its mapping.
    id: u64,
    address: usize,
    bytes: usize,
}

/// An owner's memory that the library told of, once it is in the table.
#[derive(Debug, PartialEq, Eq)]
enum Entered {
    /// The guest has been told of it, under this id.
    Known(u64),
    /// Under `id` from now on. `replaced`: the id of other memory that was there.
    New { id: u64, replaced: Option<u64> },
}

/// Resident memory that a call may change: from the library's address to the block.
pub(crate) struct UsedResident {
    from: usize,
    to: *mut u8,
    offset: u64,
    bytes: usize,
}

impl Residents {
    fn known(&self) -> MutexGuard<'_, HashMap<u64, Vec<ResidentMemory>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters an owner's memory. `again`: the id that the guest has for it already. `None`: there is too much, or the id is
    /// in use.
    fn enter(
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

    fn find(&self, owner: u64, id: u64) -> Option<ResidentMemory> {
        self.known().get(&owner)?.iter().find(|memory| memory.id == id).copied()
    }

    /// The object has ended, and its memory with it. Answers the ids of that.
    pub fn owner_ended(&self, mappings: &Mappings, owner: u64) -> Vec<u64> {
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

impl Session {
    pub(crate) fn resident_owner_ended(&self, owner: u64) {
        for id in self.residents.owner_ended(&self.mappings, owner) {
            self.resident_ended(id);
        }
    }

    fn resident_ended(&self, id: u64) {
        LibraryMemory::Resident(id).word().into_iter().for_each(|word| self.log.object_ended(word));
    }
}

impl Call {
    /// Memory of the library's that the guest's application uses as long as the object `native` of type `ty`.
    pub fn reply_resident(&mut self, address: usize, bytes: usize, ty: u32, native: u64) {
        if address == 0 {
            return self.reply_word(resident::NONE);
        }
        let pointer = std::ptr::with_exposed_provenance_mut::<u8>(address);
        if let Some(offset) = self.session.memory.offset_of(pointer, bytes) {
            self.reply_word(resident::IN_ARENA);
            return self.reply_word(offset);
        }
        match self.enter_resident(address, bytes, ty, native) {
            Some(id) => {
                self.reply_word(resident::ELSEWHERE);
                self.reply_word(id);
                self.reply_word(bytes as u64);
            }
            None => {
                self.session.note(&format!("{}: too much memory of the library is in use", self.function_name()));
                self.reply_word(resident::NONE);
            }
        }
    }

    /// The id of resident memory, which the log knows where the session may be moved.
    fn enter_resident(&mut self, address: usize, bytes: usize, ty: u32, native: u64) -> Option<u64> {
        let owner = self.object(ty, native)?;
        let again = match &mut self.replayed {
            None => None,
            Some(replayed) => Some(replayed.memory.resident()?),
        };
        let session = &self.session;
        let (id, replaced) = match session.residents.enter(&session.mappings, owner, (address, bytes), again)? {
            Entered::Known(id) => return Some(id),
            Entered::New { id, replaced } => (id, replaced),
        };
        replaced.into_iter().for_each(|id| session.resident_ended(id));
        if self.recording.on {
            self.recording.made.extend(LibraryMemory::Resident(id).word());
        }
        Some(id)
    }

    /// Takes what is bound to the object that was just decoded, and to those that share their memory with it, for this call.
    pub fn uses(&mut self, writes: bool) -> Result<(), Reject> {
        let groups = self.word()?;
        if groups == 0 {
            return Ok(());
        }
        let own = self.handles.last().map(|used| used.id);
        for _ in 0..groups.min(MAX_USED_MEMORY + 1) {
            let owner = match self.word()? {
                SAME_OBJECT => own,
                ty => {
                    let ty = u32::try_from(ty).map_err(|_| Reject::Malformed("a type of handles"))?;
                    self.handle(ty)?;
                    self.handles.last().map(|used| used.id)
                }
            };
            let owner = owner.ok_or(Reject::Malformed("memory without an object"))?;
            for _ in 0..self.word()?.min(MAX_USED_MEMORY + 1) {
                self.uses_one(owner, writes)?;
            }
        }
        Ok(())
    }

    fn uses_one(&mut self, owner: u64, writes: bool) -> Result<(), Reject> {
        let id = self.word()?;
        let (offset, block) = self.used_block()?;
        if id == 0 {
            if writes {
                self.on_success.copied_back.push((offset, block.len as u64));
            }
            return Ok(());
        }
        // The guest may name memory whose object has ended meanwhile, or was never there: nothing is copied.
        let Some(memory) = self.session.residents.find(owner, id) else { return Ok(()) };
        if memory.bytes != block.len {
            return Err(Reject::Malformed("resident memory has another size"));
        }
        // SAFETY: the library keeps `bytes` bytes there as long as the object, as the specification says, and this call
        // uses the object. The block was range-checked; `copy`, because both may be the same memory.
        unsafe { std::ptr::copy(block.ptr, std::ptr::with_exposed_provenance_mut(memory.address), memory.bytes) };
        if writes {
            let used = UsedResident { from: memory.address, to: block.ptr, offset, bytes: memory.bytes };
            self.used_residents.push(used);
        }
        Ok(())
    }

    /// The vendor's function has returned: what it may have changed goes to the guest's blocks.
    pub fn return_used(&mut self, success: bool) {
        for used in std::mem::take(&mut self.used_residents) {
            if !success {
                continue;
            }
            // SAFETY: as in `uses_one`: the object is used by this call until its reply is sent.
            unsafe { std::ptr::copy(std::ptr::with_exposed_provenance::<u8>(used.from), used.to, used.bytes) };
            self.on_success.copied_back.push((used.offset, used.bytes as u64));
        }
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
