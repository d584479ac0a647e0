//! The session's handles: typed ids with generations over native values.
//!
//! A guest only ever holds ids. Looking one up is lock-free, because every
//! call does it; creating and ending objects takes the lock.

mod ending;
mod entry;
mod guest_ids;
pub mod image;
pub mod in_use;
#[cfg(test)]
pub mod interleave;
mod metadata;
mod quota;
mod rebuilding;
mod referrers;
mod referring;
mod temporary;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use aviary_gate::Charges;
use aviary_wire::{Ends, HandleId, MAX_PREDEFINED};

use crate::api::{HandleTypeInfo, Role};
use crate::handles::guest_ids::GuestSlots;
use crate::handles::in_use::{InUse, point};
use crate::handles::quota::HandleQuota;
use crate::handles::referrers::Referrers;
use entry::{HandleEntry, HandleSlot, Metadata, id_of, index_of, slot_state};
use temporary::Rebuilding;

pub use entry::{Busy, Ended, Exclusive, Full, Published, Unusable, type_of};
pub use temporary::{Difference, ForeignImage};

/// Objects that one session may have at a time. Bounds the memory a guest can make the server spend.
pub const MAX_HANDLES: usize = FIRST_SEGMENT * ((1 << SEGMENTS) - 1);

const FIRST_SEGMENT: usize = 1024;
const SEGMENTS: usize = 12;

#[derive(Default)]
struct HandleTableState {
    /// By index: what has an id that the server chose.
    entries: Vec<HandleEntry>,
    free: VecDeque<u32>,
    /// By index: the live objects with ids that the guest chose.
    minted: HashMap<u32, HandleEntry>,
    by_native: HashMap<(u32, u64), u32>,
    /// By ids, of live objects only.
    ends: Ends,
    /// The objects of a snapshot are being made again.
    rebuilding: Option<Box<Rebuilding>>,
    /// Structures of ended objects that a call under way may still have a pointer to, by the objects' ids.
    retired: Vec<(u64, Metadata)>,
    /// Length of `retired` at which it is looked through.
    retired_limit: usize,
    /// By ids, of live objects only.
    referrers: Referrers,
    /// By id: objects whose native objects were released, as they were.
    absent: HashMap<u64, HandleEntry>,
}

impl HandleTableState {
    fn entry(&mut self, index: u32) -> Option<&mut HandleEntry> {
        match index & HandleId::MINTED {
            0 => self.entries.get_mut(index as usize),
            _ => self.minted.get_mut(&index),
        }
    }

    fn id(&self, ty: u32, index: u32) -> Option<u64> {
        let entry = match index & HandleId::MINTED {
            0 => self.entries.get(index as usize),
            _ => self.minted.get(&index),
        };
        entry.map(|entry| id_of(ty, entry.generation, index))
    }

    /// True if a call is under way that may end this live object, or one that it ends with.
    fn about_to_end(&mut self, id: u64) -> bool {
        let mut ids = vec![id];
        let mut at = 0;
        while let Some(id) = ids.get(at).copied() {
            if index_of(id).and_then(|index| self.entry(index)).is_some_and(|entry| entry.ending.is_some()) {
                return true;
            }
            let owners = self.ends.owners(id).iter().filter(|owner| !ids.contains(owner));
            let owners: Vec<u64> = owners.copied().collect();
            ids.extend(owners);
            at += 1;
        }
        false
    }

    /// True if the vendor uses the native value of a live object again, whose end, because of that of an owner, is
    /// still on its way here.
    fn superseded(&mut self, id: u64, role: Role, owners: &[u64]) -> bool {
        // The new one belongs to something that stays, or nothing may have its address at the same time.
        !self.ends.owners(id).is_empty()
            && self.about_to_end(id)
            && (role == Role::Allocate || owners.iter().any(|owner| !self.about_to_end(*owner)))
    }
}

pub struct HandleTable {
    segments: [OnceLock<Box<[HandleSlot]>>; SEGMENTS],
    minted: GuestSlots,
    state: Mutex<HandleTableState>,
    types: &'static [HandleTypeInfo],
    /// The objects that the calls under way use.
    pub in_use: InUse,
    /// Counts the objects that calls have created.
    pub quota: HandleQuota,
    /// True as long as the state has a `rebuilding`: for those that look without the lock.
    rebuilds: AtomicBool,
}

/// Segment number and position in it: segment k holds `FIRST_SEGMENT << k` slots.
fn place(index: u32) -> (usize, usize) {
    let scaled = index as usize / FIRST_SEGMENT + 1;
    let segment = scaled.ilog2() as usize;
    (segment, index as usize - FIRST_SEGMENT * ((1 << segment) - 1))
}

impl HandleTable {
    pub fn new(types: &'static [HandleTypeInfo]) -> HandleTable {
        HandleTable {
            segments: [const { OnceLock::new() }; SEGMENTS],
            minted: GuestSlots::default(),
            state: Mutex::default(),
            types,
            in_use: InUse::default(),
            quota: HandleQuota::default(),
            rebuilds: AtomicBool::new(false),
        }
    }

    /// True if the specification says that this value of the type is no object and crosses as it is.
    fn is_predefined(&self, ty: u32, value: u64) -> bool {
        value <= MAX_PREDEFINED && self.types.get(ty as usize).is_some_and(|t| t.predefined.contains(&value))
    }

    /// The native value of a live handle of type `ty` that no call is about to end; a NULL handle is 0, a predefined one
    /// itself. The object stays as long as the caller's lane announces the id, if it did so before.
    #[inline]
    pub fn usable(&self, ty: u32, id: u64) -> Result<u64, Unusable> {
        if id <= MAX_PREDEFINED {
            return (id == 0 || self.is_predefined(ty, id)).then_some(id).ok_or(Unusable::Invalid);
        }
        if type_of(id) != ty {
            return Err(Unusable::Invalid);
        }
        let slot = index_of(id).and_then(|index| self.slot(index));
        let Some(slot) = slot.filter(|slot| slot.key.load(Ordering::Acquire) == id) else {
            return self.temporary_native(id).ok_or(Unusable::Invalid);
        };
        // Acquire keeps the second look at the key behind this load.
        let native = slot.native.load(Ordering::Acquire);
        point();
        // Sequentially consistent, after the lane's announcement: see `in_use`.
        let state = slot.state.load(Ordering::SeqCst) & !slot_state::LACKING;
        if slot.key.load(Ordering::Relaxed) != id || state & slot_state::ENDING != 0 {
            return Err(Unusable::Invalid);
        }
        if state == 0 { Ok(native) } else { Err(Unusable::Exclusive) }
    }

    /// The same for threads that execute no calls: `None` where it cannot be used now.
    pub fn native(&self, ty: u32, id: u64) -> Option<u64> {
        self.usable(ty, id).ok()
    }

    /// The id of a native value that a reply mentions; creates it if it is new.
    pub fn publish(&self, ty: u32, native: u64, role: Role) -> Result<u64, Full> {
        self.publish_found(ty, native, role, &[]).map(|published| published.id)
    }

    #[cfg(test)]
    fn publish_owned(&self, ty: u32, native: u64, role: Role, owners: &[u64]) -> Result<u64, Full> {
        self.publish_found(ty, native, role, owners).map(|published| published.id)
    }

    /// The same for an object that ends with each of `owners`.
    pub fn publish_found(&self, ty: u32, native: u64, role: Role, owners: &[u64]) -> Result<Published, Full> {
        if native == 0 || self.is_predefined(ty, native) {
            self.skip();
            return Ok(Published::known(native));
        }
        if self.is_rebuilding() {
            return Ok(self.publish_again(ty, native, role));
        }
        let mut state = self.lock();
        let known = state.by_native.get(&(ty, native)).copied();
        let known = known.and_then(|index| Some((index, state.id(ty, index)?)));
        let known = known.filter(|(_, id)| !state.superseded(*id, role, owners));
        if let Some((entry, id)) = known.and_then(|(index, id)| Some((state.entry(index)?, id))) {
            // The vendor may reuse the address of an object whose end is still on its way here.
            // So it may while only a callback still names a released one.
            let released = entry.references == entry.pins && !entry.borrowed;
            if role == Role::Borrow || (entry.ending.is_none() && !released) {
                if role == Role::Allocate {
                    entry.references += 1;
                    entry.borrowed = false;
                }
                self.tie(&mut state, id, owners);
                return Ok(Published::known(id));
            }
        }
        let index = self.vacant(&mut state)?;
        let entry = &mut state.entries[index as usize];
        entry.references = u64::from(role == Role::Allocate);
        entry.borrowed = role == Role::Borrow;
        entry.counted = role == Role::Allocate;
        if entry.counted {
            self.quota.add();
        }
        let id = id_of(ty, entry.generation, index);
        state.by_native.insert((ty, native), index);
        self.slot_or_grow(index).fill(native, id);
        if !self.tie(&mut state, id, owners) {
            self.end_all(&mut state, index, id);
        }
        Ok(Published { id, new: true })
    }

    /// False: one of the owners has ended meanwhile.
    fn tie(&self, state: &mut HandleTableState, id: u64, owners: &[u64]) -> bool {
        let (live, ended): (Vec<u64>, Vec<u64>) = owners.iter().partition(|id| self.live(state, **id).is_some());
        live.into_iter().for_each(|owner| state.ends.tie(id, owner));
        ended.is_empty()
    }

    /// True if the guest may give this id to a new object: it is one of its own, and newer than all that had its index.
    pub fn may_adopt(&self, ty: u32, id: u64) -> bool {
        let _state = self.lock();
        self.is_rebuilding() || self.choice(ty, id).is_some()
    }

    fn choice(&self, ty: u32, id: u64) -> Option<HandleId> {
        let choice = HandleId::from_word(id).filter(|id| u32::from(id.ty) == ty && id.is_minted())?;
        let within = choice.index & !HandleId::MINTED < HandleId::MAX_GUEST_IDS;
        (within && choice.generation > self.minted.generation(choice.index)).then_some(choice)
    }

    /// Enters a new object under the id that the guest chose. `None`: it may not have that id. The guest gives an
    /// index away again when its object has ended for it; if the vendor's library did not agree (the asynchronous call
    /// that was to end it failed), what is still entered there ends now: nobody can name it any longer.
    pub fn adopt(&self, ty: u32, id: u64, native: u64, owners: &[u64]) -> Option<Option<Ended>> {
        if self.is_rebuilding() {
            return (self.publish_again(ty, native, Role::Allocate).id == id).then_some(None);
        }
        let mut state = self.lock();
        let HandleId { generation, index, .. } = self.choice(ty, id)?;
        let old = self.minted.get(index).map_or(0, |slot| slot.key.load(Ordering::Relaxed));
        let ended = (old != 0).then(|| self.end_all(&mut state, index, old));
        state.minted.insert(index, HandleEntry { references: 1, counted: true, ..HandleEntry::of(generation) });
        self.quota.add();
        if !self.is_predefined(ty, native) {
            state.by_native.insert((ty, native), index);
        }
        self.minted.begin(index, generation).fill(native, id);
        if !self.tie(&mut state, id, owners) {
            self.end_all(&mut state, index, id);
        }
        Some(ended)
    }

    pub fn id(&self, ty: u32, native: u64) -> Option<u64> {
        let state = self.lock();
        let known = state.by_native.get(&(ty, native)).and_then(|index| state.id(ty, *index));
        known.or_else(|| state.rebuilding.as_ref()?.temporary_id(ty, native))
    }

    /// The guest owns one reference more.
    pub fn retain(&self, id: u64) {
        self.with(id, |entry| entry.references += 1);
    }

    /// The guest gave a reference (or `all`) back. Answers what is left if that was the last.
    ///
    /// A borrowed object stays after its last release: the guest still may
    /// hold the value that a query answered (OpenCL's root devices).
    pub fn release(&self, id: u64, all: bool) -> Option<Ended> {
        self.release_locked(&mut self.lock(), id, all)
    }

    /// The same by a call that [`HandleTable::ending`] announced. Under one lock: between the end of the announcement
    /// and that of the object, another thread that was given the same address would be told this id.
    pub fn release_ending(&self, id: u64, all: bool) -> Option<Ended> {
        let mut state = self.lock();
        let index = self.live(&state, id)?;
        let entry = state.entry(index)?;
        entry.releasing = entry.releasing.saturating_sub(1);
        let ended = self.release_locked(&mut state, id, all);
        if ended.is_none() {
            self.unmark(&mut state, index, id);
        }
        ended
    }

    fn release_locked(&self, state: &mut HandleTableState, id: u64, all: bool) -> Option<Ended> {
        let Some(index) = self.live(state, id) else {
            let ended = state.release_temporary(id, all)?;
            self.end_where_set(state, id);
            return Some(ended);
        };
        let entry = state.entry(index)?;
        entry.references = if all { 0 } else { entry.references.saturating_sub(1) };
        if entry.references > 0 || (entry.borrowed && !all) {
            return None;
        }
        Some(self.end_all(state, index, id))
    }

    /// A callback holds a reference of the object, whatever the guest gives back. False: there is no such object.
    pub fn pin(&self, id: u64) -> bool {
        let pin = |entry: &mut HandleEntry| {
            entry.references += 1;
            entry.pins += 1;
        };
        self.with(id, pin).is_some()
    }

    /// Returns the reference of a callback, after [`HandleTable::ending`].
    pub fn unpin(&self, id: u64) -> Option<Ended> {
        self.with(id, |entry| entry.pins = entry.pins.saturating_sub(1));
        self.release_ending(id, false)
    }

    /// Ties charged amounts to the object: they are returned when it ends. False: it does not exist.
    pub fn hold(&self, id: u64, holding: &mut Charges) -> bool {
        self.with(id, |entry| entry.holding.merge(holding)).is_some()
    }

    /// Takes up to `amount` out of what the object holds.
    pub fn take(&self, id: u64, resource: usize, amount: u64) -> u64 {
        self.with(id, |entry| entry.holding.take(resource, amount)).unwrap_or(0)
    }

    pub fn len(&self) -> usize {
        let state = self.lock();
        state.entries.len() - state.free.len() + state.minted.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, HandleTableState> {
        // Nothing under the lock panics half-way through a change that others could misread.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn slot(&self, index: u32) -> Option<&HandleSlot> {
        if index & HandleId::MINTED != 0 {
            return self.minted.get(index);
        }
        let (segment, at) = place(index);
        self.segments.get(segment)?.get()?.get(at)
    }

    /// The slot of an index below `MAX_HANDLES`, allocating its segment.
    fn slot_or_grow(&self, index: u32) -> &HandleSlot {
        let (segment, at) = place(index);
        let fresh = || (0..FIRST_SEGMENT << segment).map(|_| HandleSlot::default()).collect();
        &self.segments[segment].get_or_init(fresh)[at]
    }

    fn live(&self, _locked: &HandleTableState, id: u64) -> Option<u32> {
        let index = index_of(id)?;
        (self.slot(index)?.key.load(Ordering::Relaxed) == id).then_some(index)
    }

    fn with<R>(&self, id: u64, change: impl FnOnce(&mut HandleEntry) -> R) -> Option<R> {
        let mut state = self.lock();
        match self.live(&state, id) {
            Some(index) => state.entry(index),
            None => state.temporary_entry(id),
        }
        .map(change)
    }

    /// A free slot.
    fn vacant(&self, state: &mut HandleTableState) -> Result<u32, Full> {
        if let Some(index) = state.free.pop_front() {
            return Ok(index);
        }
        if state.entries.len() >= MAX_HANDLES {
            return Err(Full);
        }
        state.entries.push(HandleEntry::of(1));
        Ok((state.entries.len() - 1) as u32)
    }

    /// Ends an object and what ends with it.
    fn end_all(&self, state: &mut HandleTableState, index: u32, id: u64) -> Ended {
        let mut ended = self.end(state, index, id);
        for id in state.ends.end(id) {
            if let Some(index) = self.live(state, id) {
                ended.along.push(self.end(state, index, id));
            }
        }
        ended
    }

    fn end(&self, state: &mut HandleTableState, index: u32, id: u64) -> Ended {
        let native = self.slot(index).map_or(0, |slot| {
            slot.key.store(0, Ordering::Release);
            slot.native.load(Ordering::Relaxed)
        });
        let key = (type_of(id), native);
        // A younger object may have taken the native value over.
        if state.by_native.get(&key) == Some(&index) {
            state.by_native.remove(&key);
        }
        let entry = if index & HandleId::MINTED != 0 {
            // The slot remembers the generation; when its index is used again is up to the guest.
            state.minted.remove(&index)
        } else {
            let entry = &mut state.entries[index as usize];
            let generation = HandleId::later_generation(entry.generation);
            let entry = std::mem::replace(entry, HandleEntry::of(generation));
            // A slot whose generations are used up is retired: an old id must never become valid again.
            if generation <= HandleId::MAX_GENERATION {
                state.free.push_back(index);
            }
            Some(entry)
        };
        self.end_where_set(state, id);
        let Some(entry) = entry else {
            return Ended { id, holding: Charges::default(), counted: false, along: Vec::new() };
        };
        if let Some(metadata) = entry.metadata {
            self.retire(state, id, metadata);
        }
        Ended { id, holding: entry.holding, counted: entry.counted, along: Vec::new() }
    }
}

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
