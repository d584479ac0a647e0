//! Memory of the vendor's library that the guest's application frees, or uses as long as an object exists.

use aviary_wire::{SAME_OBJECT, resident};

use super::Call;
use super::values::UsedResident;
use crate::api::Reject;
use crate::session::config::{MAX_FREED, MAX_USED_MEMORY};
use crate::tables::foreign::Entered;
use crate::tables::foreign::logged::Logged;

impl Call {
    /// Behind the content of memory that the library has handed out: the id under which the guest frees it, 0 if it
    /// will not. Nothing is said of NULL.
    pub fn reply_freed(&mut self, address: usize, group: u32, success: bool) {
        if address == 0 {
            return;
        }
        let again = self.replayed.as_mut().map(|replayed| &mut replayed.memory);
        let lend = || self.session.tables.foreign.lend(address, group, again);
        let id = success.then(lend).flatten();
        if id.is_none() && success {
            self.session.peer.journal.note(&format!(
                "{}: {MAX_FREED} allocations of the library are not freed yet (limit)",
                self.function_name()
            ));
        }
        if self.recording.on {
            self.recording.made.extend(id.and_then(|id| Logged::Lent.word(id)));
        }
        self.reply_word(id.unwrap_or(0));
    }

    /// The library's memory that the call frees, or NULL.
    pub fn frees(&mut self, groups: &[u32]) -> Result<usize, Reject> {
        let id = self.word()?;
        if id == 0 {
            return Ok(0);
        }
        let address = self.session.tables.foreign.begin_freeing(id, groups).ok_or(Reject::Refused)?;
        self.effects.rare.freeing.push(id);
        Ok(address)
    }

    /// The vendor's function has returned: the memory is gone if it succeeded. What a call frees that is rejected before
    /// stays allocated, and nobody can free it any more.
    pub fn end_freeing(&mut self, success: bool) {
        for id in std::mem::take(&mut self.effects.rare.freeing) {
            if !success {
                self.session.tables.foreign.keep(id);
                continue;
            }
            self.session.tables.foreign.end(id);
            if self.recording.on {
                self.recording.freed.extend(Logged::Lent.word(id));
            }
        }
    }

    /// Memory of the library's that the guest's application uses as long as the object `native` of type `ty`.
    pub fn reply_resident(&mut self, address: usize, bytes: usize, ty: u32, native: u64) {
        if address == 0 {
            return self.reply_word(resident::NONE);
        }
        let pointer = std::ptr::with_exposed_provenance_mut::<u8>(address);
        if let Some(offset) = self.session.tables.memory.offset_of(pointer, bytes) {
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
                self.session.peer.journal.note(&format!(
                    "{}: the application uses too many pieces of the library's memory (limit)",
                    self.function_name()
                ));
                self.reply_word(resident::NONE);
            }
        }
    }

    /// The id of resident memory, which the log knows where the session may be moved.
    fn enter_resident(&mut self, address: usize, bytes: usize, ty: u32, native: u64) -> Option<u64> {
        let owner = self.object(ty, native)?;
        let again = self.replayed.as_mut().map(|replayed| &mut replayed.memory);
        let session = &self.session;
        let (id, replaced) = match session.tables.foreign.reside(owner, (address, bytes), again)? {
            Entered::Known(id) => return Some(id),
            Entered::New { id, replaced } => (id, replaced),
        };
        replaced.into_iter().for_each(|id| session.resident_ended(id));
        if self.recording.on {
            self.recording.made.extend(Logged::Resident.word(id));
        }
        Some(id)
    }

    /// Takes what is bound to the object that was just decoded, and to those that share their memory with it, for this call.
    pub fn uses(&mut self, writes: bool) -> Result<(), Reject> {
        let groups = self.word()?;
        if groups == 0 {
            return Ok(());
        }
        let own = self.effects.handles.last().map(|used| used.id);
        for _ in 0..groups.min(MAX_USED_MEMORY + 1) {
            let owner = match self.word()? {
                SAME_OBJECT => own,
                ty => {
                    let ty = u32::try_from(ty).map_err(|_| Reject::Malformed("a type of handles"))?;
                    self.handle(ty)?;
                    self.effects.handles.last().map(|used| used.id)
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
                self.effects.rare.on_success.copied_back.push((offset, block.len as u64));
            }
            return Ok(());
        }
        // The guest may name memory whose object has ended meanwhile, or was never there: nothing is copied.
        let Some((address, bytes)) = self.session.tables.foreign.resident(owner, id) else { return Ok(()) };
        if bytes != block.len {
            return Err(Reject::Malformed("resident memory has another size"));
        }
        // SAFETY: the library keeps `bytes` bytes there as long as the object, as the specification says, and this call
        // uses the object. The block was range-checked; `copy`, because both may be the same memory.
        unsafe { std::ptr::copy(block.ptr, std::ptr::with_exposed_provenance_mut(address), bytes) };
        if writes {
            let used = UsedResident { from: address, to: block.ptr, offset, bytes };
            self.effects.rare.residents.push(used);
        }
        Ok(())
    }

    /// The vendor's function has returned: what it may have changed goes to the guest's blocks.
    pub fn return_used(&mut self, success: bool) {
        for used in std::mem::take(&mut self.effects.rare.residents) {
            if !success {
                continue;
            }
            // SAFETY: as in `uses_one`: the object is used by this call until its reply is sent.
            unsafe { std::ptr::copy(std::ptr::with_exposed_provenance::<u8>(used.from), used.to, used.bytes) };
            self.effects.rare.on_success.copied_back.push((used.offset, used.bytes as u64));
        }
    }
}
