//! Making the objects of a snapshot again, under the ids that the guest holds.
//!
//! The calls of the log may need objects that have ended, whose places others have now. Those are temporary: their ids
//! are known as long as the rebuild lasts, and take no slot.

mod absent;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::Ordering;

use aviary_state::{ObjectImage, Slot, Snapshot};
use aviary_wire::{HandleId, NOT_A_HANDLE};

use super::entry::{Ended, HandleEntry, Published, index_of, type_of};
use super::temporary::{Difference, ForeignImage, Rebuilding, TemporaryObject};
use super::{HandleTable, HandleTableState, MAX_HANDLES};
use crate::api::Role;

impl HandleTableState {
    pub(super) fn temporary_entry(&mut self, id: u64) -> Option<&mut HandleEntry> {
        self.rebuilding.as_mut()?.temporary.get_mut(&id).map(|object| &mut object.entry)
    }

    pub(super) fn release_temporary(&mut self, id: u64, all: bool) -> Option<Ended> {
        let entry = self.temporary_entry(id)?;
        entry.references = if all { 0 } else { entry.references.saturating_sub(1) };
        if entry.references > 0 || (entry.borrowed && !all) {
            return None;
        }
        let rebuilding = self.rebuilding.as_mut()?;
        let object = rebuilding.temporary.remove(&id)?;
        rebuilding.temporary_by_native.remove(&(type_of(id), object.native));
        Some(Ended { id, holding: object.entry.holding, counted: object.entry.counted, along: Vec::new() })
    }
}

impl HandleTable {
    #[inline]
    pub(super) fn is_rebuilding(&self) -> bool {
        self.rebuilds.load(Ordering::Relaxed)
    }

    /// From now on replies produce the ids that [`HandleTable::expect`] was given. The table is empty.
    pub fn begin_rebuilding(&self, snapshot: &Snapshot) -> Result<(), ForeignImage> {
        let mut state = self.lock();
        if !state.entries.is_empty() || !state.minted.is_empty() || !is_possible(snapshot, self.types.len()) {
            return Err(ForeignImage);
        }
        state.entries = snapshot.slots.iter().map(|slot| HandleEntry::of(slot.generation)).collect();
        state.rebuilding = Some(Box::new(Rebuilding {
            expected: VecDeque::new(),
            live: snapshot.objects.iter().map(|object| object.id).collect(),
            temporary: HashMap::new(),
            temporary_by_native: HashMap::new(),
            difference: None,
        }));
        self.rebuilds.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// The ids that the replies of the next call must produce, 0 where none was.
    pub fn expect(&self, ids: &[u64]) {
        if let Some(rebuilding) = &mut self.lock().rebuilding {
            rebuilding.expected = ids.iter().copied().collect();
            rebuilding.difference = None;
        }
    }

    /// The object that the reply mentions next has this id, whatever its place.
    pub fn expect_next(&self, id: Option<u64>) {
        if let Some(Rebuilding { expected, .. }) = self.lock().rebuilding.as_deref_mut() {
            let known = id.and_then(|id| expected.iter().position(|expected| *expected == id));
            let id = known.and_then(|at| expected.remove(at));
            expected.push_front(id.unwrap_or(0));
        }
    }

    /// Says if the ids of the call came out as expected.
    pub fn compare(&self, ids: &[u64]) -> Result<(), Difference> {
        let state = self.lock();
        let Some(rebuilding) = &state.rebuilding else { return Ok(()) };
        if let Some(difference) = rebuilding.difference {
            return Err(difference);
        }
        let is_there = |id: u64| rebuilding.temporary.contains_key(&id) || self.live(&state, id).is_some();
        let missing = ids.iter().find(|id| index_of(**id).is_some() && rebuilding.live.contains(id) && !is_there(**id));
        missing.map_or(Ok(()), |id| Err(Difference::Missing { expected: *id }))
    }

    /// A reply that mentions no handle where the recorded one may have.
    #[inline]
    pub fn skip(&self) {
        if self.is_rebuilding()
            && let Some(rebuilding) = &mut self.lock().rebuilding
        {
            rebuilding.expected.pop_front();
        }
    }

    /// The native value of an object that has ended.
    #[cold]
    pub(super) fn temporary_native(&self, id: u64) -> Option<u64> {
        if !self.is_rebuilding() {
            return None;
        }
        self.lock().rebuilding.as_ref()?.temporary.get(&id).map(|object| object.native)
    }

    /// Enters what a call that is made again has made.
    #[cold]
    pub(super) fn publish_again(&self, ty: u32, native: u64, role: Role) -> Published {
        let mut state = self.lock();
        let known = state.by_native.get(&(ty, native)).and_then(|index| state.id(ty, *index));
        let Some(rebuilding) = state.rebuilding.as_mut() else { return Published::known(0) };
        let expected = rebuilding.expected.pop_front().filter(|id| *id != NOT_A_HANDLE).unwrap_or(0);
        let known = known.or_else(|| rebuilding.temporary_id(ty, native));
        // Where the reply mentioned no object, the guest must not hear of one.
        if expected == 0 {
            return Published::known(0);
        }
        if known == Some(expected) {
            if let Some(index) = self.live(&state, expected) {
                take_reference(state.entry(index), role);
            } else {
                take_reference(state.temporary_entry(expected), role);
            }
            return Published::known(expected);
        }
        // The library may have used the address of an object that has ended again.
        let stale = known.filter(|id| rebuilding.temporary.remove(id).is_some());
        let is_taken = rebuilding.temporary.contains_key(&expected);
        stale.into_iter().for_each(|id| self.end_where_set(&mut state, id));
        let foreign = known.is_some() && stale.is_none() || type_of(expected) != ty;
        if foreign || is_taken || self.live(&state, expected).is_some() {
            let difference = Difference::Other { expected, known: known.unwrap_or(0) };
            state.rebuilding.iter_mut().for_each(|rebuilding| rebuilding.difference = Some(difference));
            return Published::known(0);
        }
        self.enter_again(&mut state, expected, native, role);
        Published { id: expected, new: true }
    }

    fn enter_again(&self, state: &mut HandleTableState, id: u64, native: u64, role: Role) {
        let (ty, Some(HandleId { generation, index, .. })) = (type_of(id), HandleId::from_word(id)) else { return };
        let mut entry = HandleEntry::of(generation);
        entry.references = u64::from(role == Role::Allocate);
        entry.borrowed = role == Role::Borrow;
        let Some(rebuilding) = state.rebuilding.as_mut() else { return };
        if !rebuilding.live.contains(&id) {
            rebuilding.temporary_by_native.insert((ty, native), id);
            rebuilding.temporary.insert(id, TemporaryObject { native, entry });
            return;
        }
        // The tenant is charged for it already: see `HandleQuota::resume`.
        entry.counted = role == Role::Allocate && !state.absent.contains_key(&id);
        if entry.counted {
            self.quota.add();
        }
        state.by_native.insert((ty, native), index);
        let slot = if index & HandleId::MINTED != 0 {
            state.minted.insert(index, entry);
            self.minted.begin(index, generation)
        } else {
            // `begin_rebuilding` has checked the index of every live object.
            state.entries[index as usize] = entry;
            self.slot_or_grow(index)
        };
        slot.fill(native, id);
    }

    /// Enters an object that a `remade` type's function has made. False: it is none of the snapshot's that is missing, or
    /// the library gave an object that is known.
    #[must_use]
    pub fn enter_remade(&self, id: u64, native: u64, references: u64) -> bool {
        let mut state = self.lock();
        let is_missing = state.rebuilding.as_ref().is_some_and(|rebuilding| rebuilding.live.contains(&id));
        let is_known = state.by_native.contains_key(&(type_of(id), native)) || self.live(&state, id).is_some();
        if !is_missing || is_known {
            return false;
        }
        self.enter_again(&mut state, id, native, Role::Allocate);
        let entry = index_of(id).and_then(|index| state.entry(index));
        entry.into_iter().for_each(|entry| entry.references = references);
        true
    }

    /// All objects are there again. Answers the ids of those that had ended and were not ended again.
    pub fn end_rebuilding(&self, snapshot: &Snapshot) -> Result<Vec<u64>, Difference> {
        let mut state = self.lock();
        if let Some(object) = snapshot.objects.iter().find(|object| self.live(&state, object.id).is_none()) {
            return Err(Difference::Missing { expected: object.id });
        }
        for object in &snapshot.objects {
            object.ends_with.iter().for_each(|owner| state.ends.tie(object.id, *owner));
            let index = index_of(object.id).and_then(|index| state.entry(index));
            index.into_iter().for_each(|entry| entry.borrowed = object.borrowed);
        }
        state.free = snapshot.free.iter().copied().collect();
        for Slot { index, generation } in &snapshot.guest_slots {
            self.minted.begin(*index, *generation);
        }
        self.rebuilds.store(false, Ordering::SeqCst);
        let left = state.rebuilding.take().map(|rebuilding| rebuilding.temporary.into_keys().collect());
        let left: Vec<u64> = left.unwrap_or_default();
        left.iter().for_each(|id| self.end_where_set(&mut state, *id));
        Ok(left)
    }
}

fn take_reference(entry: Option<&mut HandleEntry>, role: Role) {
    if let Some(entry) = entry.filter(|_| role == Role::Allocate) {
        entry.references += 1;
        entry.borrowed = false;
    }
}

/// True if a table could have these slots and objects. A snapshot may come from a file: what is used as an index later
/// is compared with what there is now.
fn is_possible(snapshot: &Snapshot, types: usize) -> bool {
    let Snapshot { slots, free, guest_slots, objects, .. } = snapshot;
    let numbered = (0..).zip(slots).all(|(index, slot)| slot.index == index && slot.generation > 0);
    let is_guests = |slot: &Slot| {
        let index = slot.index & !HandleId::MINTED;
        slot.index & HandleId::MINTED != 0
            && index < HandleId::MAX_GUEST_IDS
            && (1..=HandleId::MAX_GENERATION).contains(&slot.generation)
    };
    let guests: HashMap<u32, u32> = guest_slots.iter().map(|slot| (slot.index, slot.generation)).collect();
    let mut places = HashSet::new();
    let is_object = |object: &ObjectImage| {
        let Some(id) = HandleId::from_word(object.id) else { return false };
        let generation = match id.is_minted() {
            true => guests.get(&id.index).copied(),
            false => slots.get(id.index as usize).map(|slot| slot.generation),
        };
        usize::from(id.ty) < types && generation == Some(id.generation)
    };
    numbered
        && slots.len() <= MAX_HANDLES
        && guest_slots.iter().all(is_guests)
        && guests.len() == guest_slots.len()
        && objects.iter().all(|object| is_object(object) && places.insert(index_of(object.id)))
        && free.iter().all(|index| {
            let slot = slots.get(*index as usize).filter(|slot| slot.generation <= HandleId::MAX_GENERATION);
            slot.is_some() && places.insert(Some(*index))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::HandleTypeInfo;

    static TYPES: [HandleTypeInfo; 1] = [HandleTypeInfo::plain("object", 8)];

    /// A kernel that has ended, its copy that has not, and the buffers that were set on both: one has ended by a call
    /// that is made again, the other without one.
    #[test]
    fn referrers_lack_what_had_ended_in_the_old_process() {
        let old = HandleTable::new(&[]);
        let made = [1, 2, 3, 4, 5].map(|native| old.publish(0, native, Role::Allocate).unwrap());
        let [kernel, copy, called, uncalled, other] = made;
        [kernel, called, uncalled].into_iter().for_each(|id| drop(old.release(id, true)));
        let table = old.image();
        let (slots, free, objects) = (table.slots, table.free, table.objects);
        let objects = objects.into_iter().map(|object| object.image).collect();
        let snapshot = Snapshot { slots, free, objects, ..Snapshot::default() };
        let new = HandleTable::new(&TYPES);
        new.begin_rebuilding(&snapshot).unwrap();
        for (native, id) in (11..).zip(made) {
            new.expect(&[id]);
            assert_eq!(new.publish(0, native, Role::Allocate).unwrap(), id);
        }
        new.refer(kernel, 0, &[called]);
        new.refer(kernel, 1, &[uncalled]);
        new.refer_as(copy, kernel);
        assert!(new.release(called, false).is_some());
        new.end_rebuilding(&snapshot).unwrap();
        assert!(new.is_lacking(copy));
        new.refer(copy, 0, &[other]);
        assert!(new.is_lacking(copy), "the second place");
        new.refer(copy, 1, &[other]);
        assert!(!new.is_lacking(copy));
    }
}
