//! Handle values of the application and the ids behind them, with reference counts and metadata.

pub(crate) mod boxes;
pub(crate) mod guest_ids;
pub(crate) mod handle_type;
pub(crate) mod shapes;
pub(crate) mod tables;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aviary_wire::{Ends, HandleId, MAX_PREDEFINED, Metadata, NOT_A_HANDLE, short_value};

use crate::handles::boxes::{BoxBlock, Boxes};
use crate::handles::guest_ids::GuestIdAllocator;
use crate::handles::handle_type::{HandleType, Role};
use crate::handles::shapes::{Shapes, copied};

/// A live handle whose value is an id, whole or shortened.
struct Plain {
    id: u64,
    references: u64,
    /// Address of the metadata, as a number so that the table is Send; 0: none yet.
    metadata: usize,
    /// The kind of structure that its type carries; 0: none.
    kind: u32,
}

#[derive(Default)]
struct Tables {
    /// Values of boxed handles, by id.
    values: HashMap<u64, u64>,
    /// Other handles, by value.
    plain: HashMap<u64, Plain>,
    guest_ids: GuestIdAllocator,
    shapes: Shapes,
    /// Handles that end with others, by value.
    ends: Ends,
}

/// An ended handle.
pub(crate) struct Ended {
    pub value: u64,
    pub id: u64,
}

/// All handles of a connection.
pub(crate) struct Handles {
    types: &'static [HandleType],
    boxes: Boxes,
    tables: Mutex<Tables>,
}

impl Handles {
    pub fn new(types: &'static [HandleType]) -> Self {
        Handles { types, boxes: Boxes::new(), tables: Mutex::new(Tables::default()) }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The word that names the application's value to the server.
    #[inline]
    pub fn word_of(&self, ty: u32, value: u64) -> u64 {
        if value == 0 || value <= MAX_PREDEFINED && self.is_predefined(ty, value) {
            return value;
        }
        match self.types.get(ty as usize) {
            Some(t) if t.shape.is_some() => self.short_word_of(value),
            Some(t) if t.boxed.is_some() => self.boxes.id_of(value).unwrap_or(NOT_A_HANDLE),
            Some(t) if t.size == 4 => self.short_word_of(value & u64::from(u32::MAX)),
            // The server checks the value.
            Some(_) => value,
            None => NOT_A_HANDLE,
        }
    }

    /// True if the specification declares that this value of the type names no object and is sent
    /// unchanged.
    fn is_predefined(&self, ty: u32, value: u64) -> bool {
        self.types.get(ty as usize).is_some_and(|t| t.predefined.contains(&value))
    }

    fn short_word_of(&self, value: u64) -> u64 {
        match value {
            0 => 0,
            value => self.tables().plain.get(&value).map_or(NOT_A_HANDLE, |p| p.id),
        }
    }

    /// The application's value for an id that the server sent; 0 if there is no memory for it.
    pub fn value_of(&self, ty: u32, id: u64, role: Role) -> u64 {
        if id <= MAX_PREDEFINED {
            return id;
        }
        let Some(t) = self.types.get(ty as usize) else { return 0 };
        if let Some(shape) = t.shape {
            return self.shaped_value(id, role, &copied(shape));
        }
        match t.boxed {
            // SAFETY: a generated function without requirements: it evaluates the specification's expression.
            Some(prefix) => self.boxed_value(id, role, unsafe { prefix() }),
            None => self.plain_value(id, role, t.size),
        }
    }

    /// A new handle, value and id, for an object that the server will create under this id.
    /// `fresh`: see [`GuestIdAllocator::allocate`]. `None`: there are too many objects.
    pub fn mint(&self, ty: u32, fresh: bool) -> Option<(u64, u64)> {
        let id = self.tables().guest_ids.allocate(ty, fresh)?;
        match self.value_of(ty, id, Role::Allocate) {
            0 => {
                self.tables().guest_ids.end(id);
                None
            }
            value => Some((value, id)),
        }
    }

    fn boxed_value(&self, id: u64, role: Role, prefix: usize) -> u64 {
        let mut tables = self.tables();
        if let Some(value) = tables.values.get(&id) {
            if role == Role::Allocate
                && let Some(block) = self.boxes.find(*value)
            {
                block.references.fetch_add(1, Ordering::Relaxed);
            }
            return *value;
        }
        match self.boxes.allocate(id, prefix) {
            Some(block) => {
                let value = block.as_ptr() as u64;
                tables.values.insert(id, value);
                value
            }
            None => 0,
        }
    }

    /// The address of the object's copy of the table, `words` for one that is new.
    pub fn shaped_value(&self, id: u64, role: Role, words: &[usize]) -> u64 {
        let mut tables = self.tables();
        if let Some(value) = tables.values.get(&id).copied() {
            if let Some(known) = tables.plain.get_mut(&value) {
                known.references += u64::from(role == Role::Allocate);
            }
            return value;
        }
        let value = tables.shapes.make(words);
        let kind = self.metadata_of(id).map_or(0, |m| m.kind);
        tables.plain.insert(value, Plain { id, references: 1, metadata: 0, kind });
        tables.values.insert(id, value);
        value
    }

    fn plain_value(&self, id: u64, role: Role, size: usize) -> u64 {
        let value = if size == 4 { u64::from(short_value(id)) } else { id };
        let mut tables = self.tables();
        match tables.plain.get_mut(&value) {
            Some(known) if known.id == id => {
                known.references += u64::from(role == Role::Allocate);
            }
            // A new handle, or a shortened generation that wrapped after its old owner ended
            // unnoticed.
            _ => {
                if tables.plain.contains_key(&value) {
                    self.release_locked(&mut tables, value, true);
                }
                tables.plain.insert(
                    value,
                    Plain { id, references: 1, metadata: 0, kind: self.metadata_of(id).map_or(0, |m| m.kind) },
                );
            }
        }
        value
    }

    /// Has the object of the boxed handle `now` the value `before` from now on, by which `parent` knew it: the handles of the process
    /// that this one was forked from. False: one of the values is none.
    pub fn rename(&self, now: u64, before: u64, parent: &'static Handles) -> bool {
        let mut tables = self.tables();
        let (Some(block), Some(older)) = (self.boxes.find(now), parent.boxes.find(before)) else { return false };
        let id = block.id.load(Ordering::Acquire);
        if id == 0 || now == before {
            return id != 0;
        }
        block.id.store(0, Ordering::Release);
        self.free_metadata(block.metadata.swap(null_mut(), Ordering::AcqRel), id);
        self.boxes.retire(block);
        self.boxes.adopt(older, id);
        tables.values.insert(id, before);
        true
    }

    pub fn is_handle(&self, value: u64) -> bool {
        value != 0 && (self.boxes.id_of(value).is_some() || self.tables().plain.contains_key(&value))
    }

    pub fn is_handle_of(&self, ty: u32, value: u64) -> bool {
        let Some(t) = self.types.get(ty as usize) else { return false };
        let id = match t.boxed {
            Some(_) => self.boxes.id_of(value),
            None => self.tables().plain.get(&value).map(|p| p.id),
        };
        id.and_then(HandleId::from_word).is_some_and(|id| u32::from(id.ty) == ty)
    }

    pub fn retain(&self, value: u64) {
        if let Some(block) = self.boxes.find(value) {
            block.references.fetch_add(1, Ordering::Relaxed);
        } else if let Some(plain) = self.tables().plain.get_mut(&value) {
            plain.references += 1;
        }
    }

    /// Drops one reference or all; returns the handles that ended with the last one, the handle
    /// itself first.
    pub fn release(&self, value: u64, all: bool) -> Vec<Ended> {
        self.release_locked(&mut self.tables(), value, all)
    }

    fn release_locked(&self, tables: &mut Tables, value: u64, all: bool) -> Vec<Ended> {
        let Some(id) = self.drop_reference(tables, value, all) else { return Vec::new() };
        let mut ended = vec![Ended { value, id }];
        for value in tables.ends.end(value) {
            let id = self.drop_reference(tables, value, true);
            ended.extend(id.map(|id| Ended { value, id }));
        }
        ended
    }

    /// Makes the handle `value` end when the handle `owner` ends. If the owner has ended meanwhile,
    /// returns the handles that ended with it.
    pub fn end_with(&self, value: u64, owner_ty: u32, owner: u64) -> Vec<Ended> {
        let mut tables = self.tables();
        let nothing = owner == 0 || owner <= MAX_PREDEFINED && self.is_predefined(owner_ty, owner);
        if nothing || !self.is_live(&tables, value) {
            return Vec::new();
        }
        if !self.is_live(&tables, owner) {
            return self.release_locked(&mut tables, value, true);
        }
        tables.ends.tie(value, owner);
        Vec::new()
    }

    fn is_live(&self, tables: &Tables, value: u64) -> bool {
        self.boxes.id_of(value).is_some() || tables.plain.contains_key(&value)
    }

    /// Drops a reference, or all; returns the id if none is left.
    fn drop_reference(&self, tables: &mut Tables, value: u64, all: bool) -> Option<u64> {
        if let Some(block) = self.boxes.find(value) {
            return self.release_box(tables, value, block, all);
        }
        let plain = tables.plain.get_mut(&value)?;
        plain.references = plain.references.saturating_sub(1);
        if plain.references > 0 && !all {
            return None;
        }
        let plain = tables.plain.remove(&value)?;
        if tables.shapes.end(value) {
            tables.values.remove(&plain.id);
        }
        self.free_metadata(plain.metadata as *mut u8, plain.id);
        tables.guest_ids.end(plain.id);
        Some(plain.id)
    }

    /// Drops a reference of a boxed handle under the tables' lock, so that two concurrent releases
    /// of the last reference end the block once.
    fn release_box(&self, tables: &mut Tables, value: u64, block: &BoxBlock, all: bool) -> Option<u64> {
        let id = block.id.load(Ordering::Acquire);
        if id == 0 {
            return None;
        }
        let before = block.references.fetch_sub(1, Ordering::Relaxed);
        if before > 1 && !all {
            return None;
        }
        block.id.store(0, Ordering::Release);
        if tables.values.get(&id) == Some(&value) {
            tables.values.remove(&id);
        }
        self.free_metadata(block.metadata.swap(null_mut(), Ordering::AcqRel), id);
        self.boxes.retire(block);
        tables.guest_ids.end(id);
        Some(id)
    }

    /// The handle's metadata, zeroed at first; NULL without a live handle, and for a handle that carries another kind.
    pub fn metadata(&self, value: u64, kind: u32) -> *mut u8 {
        if value == 0 {
            return null_mut();
        }
        if let Some(block) = self.boxes.find(value) {
            return self.box_metadata(&block.id, &block.metadata, kind);
        }
        let mut tables = self.tables();
        match tables.plain.get_mut(&value) {
            Some(plain) if plain.kind == kind => {
                if plain.metadata == 0 {
                    plain.metadata = self.new_metadata(plain.id) as usize;
                }
                plain.metadata as *mut u8
            }
            _ => null_mut(),
        }
    }

    fn box_metadata(&self, id: &AtomicU64, place: &AtomicPtr<u8>, kind: u32) -> *mut u8 {
        let present = place.load(Ordering::Acquire);
        if !present.is_null() && self.carries(id.load(Ordering::Acquire), kind) {
            return present;
        }
        // The lock prevents a concurrent release from missing the metadata stored here.
        let _tables = self.tables();
        let id = id.load(Ordering::Acquire);
        if id == 0 || !self.carries(id, kind) {
            return null_mut();
        }
        let present = place.load(Ordering::Acquire);
        if !present.is_null() {
            return present;
        }
        let new = self.new_metadata(id);
        place.store(new, Ordering::Release);
        new
    }

    fn metadata_of(&self, id: u64) -> Option<Metadata> {
        self.types.get(HandleId::type_of_word(id))?.metadata
    }

    fn carries(&self, id: u64, kind: u32) -> bool {
        self.metadata_of(id).is_some_and(|m| m.kind == kind)
    }

    fn metadata_layout(&self, id: u64) -> Option<Layout> {
        Layout::from_size_align(self.metadata_of(id)?.size, 16).ok().filter(|l| l.size() > 0)
    }

    fn new_metadata(&self, id: u64) -> *mut u8 {
        match self.metadata_layout(id) {
            // SAFETY: the layout's size is not zero.
            Some(layout) => unsafe { alloc_zeroed(layout) },
            None => null_mut(),
        }
    }

    fn free_metadata(&self, p: *mut u8, id: u64) {
        if let (false, Some(layout)) = (p.is_null(), self.metadata_layout(id)) {
            // SAFETY: `p` came from `new_metadata` for this id, so with this layout, and was taken out of its only place.
            unsafe { dealloc(p, layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe fn prefix() -> usize {
        0xabc
    }

    const CARRIED: Option<Metadata> = Some(Metadata { kind: 1, size: 24 });
    /// Of the second type, and of the others.
    const KINDS: [u32; 3] = [1, 2, 1];

    static TYPES: [HandleType; 3] = [
        HandleType { name: "boxed", size: 8, boxed: Some(prefix), shape: None, predefined: &[1], metadata: CARRIED },
        HandleType {
            name: "plain",
            size: 8,
            boxed: None,
            shape: None,
            predefined: &[],
            metadata: Some(Metadata { kind: 2, size: 8 }),
        },
        HandleType { name: "short", size: 4, boxed: None, shape: None, predefined: &[7], metadata: CARRIED },
    ];

    #[test]
    fn handles_of_every_kind_are_translated_both_ways() {
        let handles = Handles::new(&TYPES);
        for ty in 0..3u32 {
            let id = u64::from(ty) << 56 | 3 << 32 | u64::from(10 + ty);
            let value = handles.value_of(ty, id, Role::Allocate);
            assert_eq!(handles.word_of(ty, value), id);
            assert_eq!(handles.value_of(ty, id, Role::Borrow), value);
            assert!(handles.is_handle(value));
            let kind = KINDS[ty as usize];
            assert!(handles.metadata(value, 3 - kind).is_null(), "another structure, before there is one");
            let metadata = handles.metadata(value, kind);
            assert!(!metadata.is_null() && handles.metadata(value, kind) == metadata);
            assert!(handles.metadata(value, 3 - kind).is_null() && handles.metadata(value, 0).is_null(), "and after");
            // SAFETY: as many zeroed bytes, as the descriptor says.
            unsafe { assert_eq!(metadata.add(if kind == 1 { 23 } else { 7 }).read(), 0) };
            handles.retain(value);
            assert!(handles.release(value, false).is_empty());
            assert!(!handles.release(value, false).is_empty());
            assert!(handles.release(value, false).is_empty(), "it ended");
            assert!(!handles.is_handle(value));
            assert!(handles.metadata(value, kind).is_null());
        }
    }

    #[test]
    fn values_that_are_no_handles_are_recognised() {
        let handles = Handles::new(&TYPES);
        let local = 5u64;
        assert_eq!(handles.word_of(0, 0), 0);
        assert_eq!(handles.word_of(0, &raw const local as u64), NOT_A_HANDLE);
        assert_eq!(handles.word_of(2, 99), NOT_A_HANDLE);
        assert_eq!(handles.word_of(1, 99), 99, "the server checks the value");
        assert_eq!(handles.word_of(7, 99), NOT_A_HANDLE);
    }

    #[test]
    fn predefined_values_are_no_objects() {
        let handles = Handles::new(&TYPES);
        assert_eq!(handles.word_of(0, 1), 1);
        assert_eq!(handles.word_of(0, 2), NOT_A_HANDLE);
        assert_eq!(handles.word_of(2, 7), 7);
        assert_eq!(handles.value_of(0, 1, Role::Allocate), 1);
        assert!(!handles.is_handle(1) && handles.metadata(1, 1).is_null() && handles.release(1, true).is_empty());
    }

    #[test]
    fn handle_is_valid_for_its_own_type_only() {
        let handles = Handles::new(&TYPES);
        for ty in 0..3u32 {
            let value = handles.value_of(ty, u64::from(ty) << 56 | 3 << 32 | u64::from(10 + ty), Role::Allocate);
            assert!((0..4).all(|other| handles.is_handle_of(other, value) == (other == ty)), "{ty}");
        }
    }

    #[test]
    fn an_allocation_of_a_known_object_adds_a_reference() {
        let handles = Handles::new(&TYPES);
        let value = handles.value_of(0, 1 << 32 | 1, Role::Allocate);
        assert_eq!(handles.value_of(0, 1 << 32 | 1, Role::Allocate), value);
        assert!(handles.release(value, false).is_empty());
        assert!(handles.is_handle(value));
        handles.retain(value);
        assert!(!handles.release(value, true).is_empty(), "all references at once");
    }
    #[test]
    fn child_of_a_fork_knows_objects_by_the_values_of_its_parent() {
        let parent: &'static Handles = Box::leak(Box::new(Handles::new(&TYPES)));
        let before = parent.value_of(0, 3 << 32 | 10, Role::Borrow);
        let child = Handles::new(&TYPES);
        let id = 3 << 32 | 20;
        let now = child.value_of(0, id, Role::Borrow);
        assert_eq!(child.word_of(0, before), NOT_A_HANDLE);
        assert!(!child.rename(now + 8, before, parent) && !child.rename(now, before + 8, parent));
        assert!(child.rename(now, before, parent));
        assert_eq!((child.word_of(0, before), child.value_of(0, id, Role::Borrow)), (id, before));
        assert!(child.rename(before, before, parent), "a second time");
        assert_eq!(child.word_of(0, now), NOT_A_HANDLE);
        assert!(!child.metadata(before, 1).is_null());
        assert!(!child.release(before, true).is_empty() && !child.is_handle(before));
    }

    #[test]
    fn handles_of_every_kind_end_with_others() {
        let handles = Handles::new(&TYPES);
        let new = |ty: u32, index: u64| handles.value_of(ty, u64::from(ty) << 56 | 1 << 32 | index, Role::Allocate);
        for ty in 0..3u32 {
            let owner = new(ty, 100);
            let inner: Vec<u64> = (0..3u32).map(|other| new(other, 101 + u64::from(other))).collect();
            for (value, kind) in inner.iter().zip(KINDS) {
                handles.retain(*value);
                assert!(!handles.metadata(*value, kind).is_null());
                assert!(handles.end_with(*value, ty, owner).is_empty());
            }
            let deep = new(1, 110);
            assert!(handles.end_with(deep, 0, inner[0]).is_empty());
            let ended = handles.release(owner, false);
            assert_eq!(ended[0].value, owner);
            assert_eq!(ended.len(), 5);
            for value in inner.iter().chain([&deep]) {
                assert!(ended.iter().any(|e| e.value == *value) && !handles.is_handle(*value));
                assert!(
                    (1..3).all(|kind| handles.metadata(*value, kind).is_null())
                        && handles.release(*value, true).is_empty()
                );
            }
        }
    }

    #[test]
    fn handle_of_an_ended_owner_ends() {
        let handles = Handles::new(&TYPES);
        let owner = handles.value_of(0, 1 << 32 | 1, Role::Allocate);
        let value = handles.value_of(1, 1 << 56 | 1 << 32 | 2, Role::Borrow);
        assert!(handles.end_with(value, 0, 0).is_empty() && handles.end_with(value, 0, 1).is_empty());
        assert!(handles.is_handle(value), "NULL and predefined handles never end");
        handles.release(owner, true);
        let ended = handles.end_with(value, 0, owner);
        assert_eq!((ended.len(), ended[0].value, handles.is_handle(value)), (1, value, false));
        assert!(handles.end_with(value, 0, owner).is_empty());
    }
}
