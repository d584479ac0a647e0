//! The library's part of structs of the application: states that a call makes, uses and ends.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use aviary_gate::Charges;
use aviary_wire::COPIED;

use super::Call;
use crate::api::Reject;
use crate::tables::states::{STATE_ALIGN, ScratchMember, State, StateMemory, UsedState, lock};
use crate::tables::versions::Versions;

impl Call {
    fn end_state(&self, id: u64) {
        self.session.tables.foreign.end_state(id).into_iter().for_each(|state| self.return_charges(&state));
    }

    fn retire_state(&self, id: u64) {
        self.session.tables.foreign.retire_state(id).into_iter().for_each(|state| self.return_charges(&state));
    }

    fn return_charges(&self, state: &State) {
        let mut holding = std::mem::take(&mut *lock(&state.holding));
        lock(&state.scratch).iter().for_each(|member| holding.merge(&mut lock(&member.holding)));
        self.session.accounts.settle(&mut holding);
    }

    /// The struct of a state, `size` bytes and behind them `more` bytes for the handler. `makes`: it is new, and zero.
    /// `copies`: a copy of the application's struct is a state of its own.
    pub fn state(&mut self, kind: u32, size: usize, more: usize, makes: bool, copies: bool) -> Result<*mut u8, Reject> {
        let bytes = size.checked_next_multiple_of(STATE_ALIGN).and_then(|size| size.checked_add(more));
        let bytes = bytes.ok_or(Reject::Malformed("a state without an end"))?;
        let used = if makes { self.new_state(kind, bytes, copies)? } else { self.known_state(kind, bytes, copies)? };
        let memory = used.state.memory.start;
        self.effects.rare.states.push(used);
        Ok(memory)
    }

    fn new_state(&mut self, kind: u32, bytes: usize, copies: bool) -> Result<UsedState, Reject> {
        self.retire_named()?;
        let foreign = &self.session.tables.foreign;
        let state = foreign.new_state(kind, bytes, copies, 0).ok_or_else(|| self.too_many())?;
        let id = foreign.enter_state(&state).ok_or_else(|| self.too_many())?;
        Ok(UsedState { made: true, ..UsedState::new(id, state) })
    }

    fn too_many(&self) -> Reject {
        self.session.peer.journal.note(&format!("{}: too many library states at a time (limit)", self.function_name()));
        Reject::Refused
    }

    fn known_state(&mut self, kind: u32, bytes: usize, copies: bool) -> Result<UsedState, Reject> {
        let (id, version) = (self.word()?, self.word()?);
        let copied = copies && self.word()? == COPIED;
        // An honest guest asks for one that is gone after a fork, or after its memory was used again.
        let found = self.session.tables.foreign.state(kind, id).filter(|(state, _)| state.memory.len() >= bytes);
        let (state, retired) = found.ok_or(Reject::Refused)?;
        if state.busy.swap(true, Ordering::Acquire) {
            self.session
                .peer
                .journal
                .note(&format!("{}: a call of another thread uses this state", self.function_name()));
            return Err(Reject::Refused);
        }
        let used = if copies && (copied || retired || version != state.version.load(Ordering::Acquire)) {
            let used = self.copy_of(&state, version);
            state.busy.store(false, Ordering::Release);
            used?
        } else {
            UsedState::new(id, state)
        };
        if copies {
            self.retire_named()?;
        }
        if copies {
            self.session.tables.foreign.make_room_for_versions(&used.state);
            used.state.keep_version();
        }
        Ok(used)
    }

    /// Reads which states have no struct any more.
    fn retire_named(&mut self) -> Result<(), Reject> {
        for _ in 0..self.word()? {
            let id = self.word()?;
            self.retire_state(id);
        }
        Ok(())
    }

    /// Memory of `bytes` bytes behind the member at that offset, kept as long as the application has the same `address`
    /// and size there. `resource`: its account.
    pub fn state_scratch(
        &mut self,
        memory: usize,
        member: usize,
        address: u64,
        bytes: usize,
        resource: Option<u32>,
    ) -> Result<*mut u8, Reject> {
        let state = self.used_state(memory).ok_or(Reject::Malformed("scratch memory without a state"))?.state.clone();
        let mut scratch = lock(&state.scratch);
        if let Some(copied) = scratch.iter_mut().find(|s| s.member == member && s.adopted && s.bytes == bytes)
            && address != 0
        {
            (copied.address, copied.adopted) = (address, false);
        }
        if let Some(known) = scratch.iter().find(|s| s.member == member && s.address == address && s.bytes == bytes) {
            return Ok(known.memory.start);
        }
        if let Some(known) = scratch.iter().position(|s| s.member == member) {
            let ended = scratch.remove(known);
            self.session.accounts.settle(&mut ended.holding.into_inner().unwrap_or_else(PoisonError::into_inner));
        }
        if address == 0 {
            return Ok(std::ptr::null_mut());
        }
        let mut holding = Charges::default();
        if let Some(item) = resource {
            self.session.accounts.charge(self.request.header.function, item as usize, bytes as u64)?;
            holding.add(item as usize, bytes as u64);
        }
        let Some(memory) = self.session.tables.foreign.new_state_memory(bytes) else {
            self.session.accounts.settle(&mut holding);
            return Err(Reject::Refused);
        };
        let start = memory.start;
        let born = state.version.load(Ordering::Acquire) + 1;
        let versions = state.versions.is_some().then(|| self.session.tables.foreign.new_versions(born));
        let holding = Mutex::new(holding);
        scratch.push(ScratchMember { member, address, bytes, memory, resource, holding, adopted: false, versions });
        Ok(start)
    }

    fn used_state(&mut self, memory: usize) -> Option<&mut UsedState> {
        self.effects.rare.states.iter_mut().find(|used| used.state.memory.start as usize == memory)
    }

    /// The id and version that the guest knows the state by after the call; id 0 if it has ended or was not made.
    pub fn reply_state(&mut self, memory: usize, ends: bool, success: bool) {
        let (id, version) = match self.used_state(memory) {
            Some(used) => {
                used.ends = ends && success;
                used.told = true;
                let gone = used.ends || used.made && !success;
                (if gone { 0 } else { used.id }, used.state.version.load(Ordering::Acquire) + 1)
            }
            None => (0, 0),
        };
        self.reply_word(id);
        self.reply_word(version);
    }

    /// How far the library has advanced a pointer that it was `passed`, in bytes; so much of an output is new.
    pub fn reply_cursor(&mut self, passed: u64, value: u64) -> Result<usize, Reject> {
        let room =
            self.effects.rare.cursors.iter().filter(|(start, _)| *start as u64 == passed).map(|(_, room)| *room).max();
        let moved = value.wrapping_sub(passed);
        if value == 0 {
            self.reply_word(if passed == 0 { 0 } else { u64::MAX });
            return Ok(0);
        }
        match room {
            Some(room) if moved <= room as u64 => {
                self.reply_word(moved);
                Ok(moved as usize)
            }
            _ => {
                self.session.peer.journal.note(&format!(
                    "{}: the library moved a pointer out of its buffer: the call fails",
                    self.function_name()
                ));
                // The guest does not get this answer.
                self.effects.rare.states.iter_mut().for_each(|used| used.told = false);
                Err(Reject::Refused)
            }
        }
    }

    /// The library may advance the pointer to this buffer. Data without a pointer is refused.
    pub fn cursor(&mut self, start: *mut u8, room: usize) -> Result<(), Reject> {
        if start.is_null() && room > 0 {
            return Err(Reject::Refused);
        }
        self.effects.rare.cursors.push((start as usize, room));
        Ok(())
    }

    /// The call is over: those that it made stay if it succeeded.
    pub(crate) fn leave_states(&mut self, success: bool) {
        self.effects.rare.cursors.clear();
        for used in std::mem::take(&mut self.effects.rare.states) {
            if used.made && success {
                *lock(&used.state.price) = self.effects.holding.iter().collect();
                lock(&used.state.holding).merge(&mut self.effects.holding);
            }
            if used.told {
                used.state.version.fetch_add(1, Ordering::AcqRel);
            }
            if used.ends || used.made && !success || used.copied && !used.told {
                self.end_state(used.id);
            }
            used.state.busy.store(false, Ordering::Release);
        }
    }

    // A copy of the struct that the application goes on with: a state of its own, with what the library had in the original
    // when the struct was copied.

    /// A new state with the content of this one at a version. The caller keeps other calls from the original.
    fn copy_of(&mut self, original: &Arc<State>, version: u64) -> Result<UsedState, Reject> {
        let now = version == original.version.load(Ordering::Acquire);
        let versions = original.versions.as_ref().ok_or(Reject::Refused)?;
        let content = content_of(&original.memory, &lock(versions), now, version);
        let Ok(Some(content)) = content else { return Err(self.forgotten()) };
        let foreign = &self.session.tables.foreign;
        let state = foreign.new_state(original.kind, content.len(), true, version).ok_or_else(|| self.too_many())?;
        fill(&state.memory, &content);
        let mut holding = Charges::default();
        let price = lock(&original.price).clone();
        let copied = self.charge_all(&price, &mut holding).and_then(|()| {
            let scratch = self.scratch_of(original, now, version)?;
            rebase(original, &state, &scratch);
            *lock(&state.scratch) = scratch;
            Ok(())
        });
        if let Err(reject) = copied {
            self.session.accounts.settle(&mut holding);
            return Err(reject);
        }
        *lock(&state.price) = price;
        *lock(&state.holding) = holding;
        let Some(id) = foreign.enter_state(&state) else {
            self.return_charges(&state);
            return Err(self.too_many());
        };
        Ok(UsedState { copied: true, ..UsedState::new(id, state) })
    }

    fn forgotten(&self) -> Reject {
        self.session.peer.journal.note(&format!(
            "{}: the struct is a copy of a stream that has gone on for too long since: what it was then is not known any more",
            self.function_name()
        ));
        Reject::Refused
    }

    fn charge_all(&self, price: &[(usize, u64)], holding: &mut Charges) -> Result<(), Reject> {
        for (item, amount) in price {
            self.session.accounts.charge(self.request.header.function, *item, *amount)?;
            holding.add(*item, *amount);
        }
        Ok(())
    }

    /// Copies of the memory that only the library looks at.
    fn scratch_of(&self, original: &State, now: bool, version: u64) -> Result<Vec<ScratchMember>, Reject> {
        let mut copies: Vec<ScratchMember> = Vec::new();
        for member in lock(&original.scratch).iter() {
            let versions = member.versions.as_ref().ok_or(Reject::Refused)?;
            let copied = match content_of(&member.memory, versions, now, version) {
                Ok(None) => continue,
                Ok(Some(content)) => self.scratch_copy(member, &content, version),
                Err(()) => Err(self.forgotten()),
            };
            match copied {
                Ok(copy) => copies.push(copy),
                Err(reject) => {
                    copies.iter().for_each(|copy| self.session.accounts.settle(&mut lock(&copy.holding)));
                    return Err(reject);
                }
            }
        }
        Ok(copies)
    }

    fn scratch_copy(&self, member: &ScratchMember, content: &[u8], version: u64) -> Result<ScratchMember, Reject> {
        let mut holding = Charges::default();
        let price = member.resource.map(|item| (item as usize, member.bytes as u64));
        self.charge_all(price.as_slice(), &mut holding)?;
        let Some(memory) = self.session.tables.foreign.new_state_memory(content.len()) else {
            self.session.accounts.settle(&mut holding);
            return Err(self.too_many());
        };
        fill(&memory, content);
        Ok(ScratchMember {
            member: member.member,
            address: member.address,
            bytes: member.bytes,
            memory,
            resource: member.resource,
            holding: Mutex::new(holding),
            adopted: true,
            versions: Some(self.session.tables.foreign.new_versions(version)),
        })
    }
}

/// Memory of the original and the copy's in its place.
struct Moved {
    from: usize,
    bytes: usize,
    to: usize,
}

/// `now`: the version is the present one.
fn content_of(memory: &StateMemory, versions: &Versions, now: bool, version: u64) -> Result<Option<Vec<u8>>, ()> {
    // SAFETY: no call works on the original.
    if now { Ok(Some(unsafe { memory.content() }.to_vec())) } else { versions.content_at(version) }
}

fn fill(memory: &StateMemory, content: &[u8]) {
    let bytes = content.len().min(memory.len());
    // SAFETY: new memory of this size, which no call uses yet.
    unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), memory.start, bytes) };
}

/// Pointers of the library into the original's memory lead into the copy's. A word of data that looks like one is changed,
/// too; a guest that makes such words spoils its own data.
fn rebase(original: &State, state: &State, scratch: &[ScratchMember]) {
    let place = |from: &StateMemory, to: &StateMemory| Moved {
        from: from.start.addr(),
        bytes: from.len(),
        to: to.start.expose_provenance(),
    };
    let mut moved = vec![place(&original.memory, &state.memory)];
    for member in lock(&original.scratch).iter() {
        let copy =
            scratch.iter().find(|s| (s.member, s.address, s.bytes) == (member.member, member.address, member.bytes));
        moved.extend(copy.map(|copy| place(&member.memory, &copy.memory)));
    }
    for memory in std::iter::once(&state.memory).chain(scratch.iter().map(|s| &s.memory)) {
        for word in 0..memory.len() / size_of::<usize>() {
            // SAFETY: a word of new memory, aligned to more than a word, which no call uses yet.
            let word = unsafe { &mut *memory.start.cast::<usize>().add(word) };
            if let Some(m) = moved.iter().find(|m| word.wrapping_sub(m.from) <= m.bytes) {
                *word = m.to + (*word - m.from);
            }
        }
    }
}
