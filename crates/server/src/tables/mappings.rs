//! Library memory that the guest has mapped where it cannot be shared.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::api::Poll;
use crate::session::config::MAX_MAPPINGS;

/// State of the memory of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MappingState {
    Mapped,
    /// The vendor library has been told, or is about to be told, to unmap it.
    Unmapping,
}

/// The state of a mapping, for a content that is still to be copied. Held while it is copied.
pub type SharedMappingState = Arc<Mutex<MappingState>>;

/// One mapping: the vendor keeps this memory valid until it is told to unmap it.
#[derive(Debug, Clone)]
pub struct Mapping {
    pub state: SharedMappingState,
    address: usize,
    pub bytes: usize,
    /// Its content is valid once this says so.
    pub ready: Option<(u64, Poll)>,
}

impl Mapping {
    fn new(pointer: *mut u8, bytes: usize, ready: Option<(u64, Poll)>) -> Mapping {
        let state = Arc::new(Mutex::new(MappingState::Mapped));
        Mapping { state, address: pointer.expose_provenance(), bytes, ready }
    }

    /// From now on nothing reads the memory. False: another call unmaps it already.
    pub fn begin_unmapping(&self) -> bool {
        self.change(MappingState::Unmapping) == MappingState::Mapped
    }

    /// The vendor library has refused to unmap it.
    pub fn end_unmapping(&self) {
        self.change(MappingState::Mapped);
    }

    /// Answers the state before.
    fn change(&self, to: MappingState) -> MappingState {
        std::mem::replace(&mut *self.state.lock().unwrap_or_else(PoisonError::into_inner), to)
    }

    pub fn pointer(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address)
    }
}

#[derive(Default)]
struct MappingTable {
    next: u64,
    mappings: HashMap<u64, Mapping>,
}

/// Ids are never reused, so a stale one finds nothing.
#[derive(Default)]
pub struct Mappings {
    table: Mutex<MappingTable>,
    /// Mappings that lie in the arena, which need no entry. A guest that unmaps more than it has mapped only deceives
    /// itself about when it can be moved.
    in_arena: AtomicI64,
}

impl Mappings {
    pub fn add(&self, pointer: *mut u8, bytes: usize, ready: Option<(u64, Poll)>) -> Option<u64> {
        let mut table = self.lock();
        if table.mappings.len() >= MAX_MAPPINGS {
            return None;
        }
        table.next += 1;
        let id = table.next;
        table.mappings.insert(id, Mapping::new(pointer, bytes, ready));
        Some(id)
    }

    /// Memory that the guest has a mapping's id for, from before the session moved. `None`: the id is in use.
    pub fn add_again(&self, id: u64, pointer: *mut u8, bytes: usize) -> Option<u64> {
        let mut table = self.lock();
        if table.mappings.len() >= MAX_MAPPINGS || table.mappings.contains_key(&id) {
            return None;
        }
        table.next = table.next.max(id);
        table.mappings.insert(id, Mapping::new(pointer, bytes, None));
        Some(id)
    }

    /// True if there are more mappings than those `others`.
    pub fn are_more_than(&self, others: usize) -> bool {
        self.lock().mappings.len() > others || self.in_arena.load(Ordering::Relaxed) > 0
    }

    pub fn get(&self, id: u64) -> Option<Mapping> {
        self.lock().mappings.get(&id).cloned()
    }

    /// Takes the poll of a mapping: a poll function is asked until it says yes, by one asker only.
    pub fn take_ready(&self, id: u64) -> Option<(u64, Poll)> {
        self.lock().mappings.get_mut(&id)?.ready.take()
    }

    pub fn is_empty(&self) -> bool {
        self.lock().mappings.is_empty() && self.in_arena.load(Ordering::Relaxed) <= 0
    }

    /// So many more mappings lie in the arena.
    pub fn in_arena(&self, more: i64) {
        self.in_arena.fetch_add(more, Ordering::Relaxed);
    }

    pub fn remove(&self, id: u64) -> Option<Mapping> {
        self.lock().mappings.remove(&id)
    }

    fn lock(&self) -> MutexGuard<'_, MappingTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_at_a_time_unmaps() {
        let mappings = Mappings::default();
        let mut memory = [0u8; 8];
        let id = mappings.add(memory.as_mut_ptr(), 8, None).unwrap();
        let [first, second] = [(); 2].map(|()| mappings.get(id).unwrap());
        assert!(first.begin_unmapping() && !second.begin_unmapping());
        first.end_unmapping();
        assert!(second.begin_unmapping(), "the library has refused the first");
    }

    #[test]
    fn an_ended_mapping_is_not_found_again() {
        let mappings = Mappings::default();
        let mut memory = [0u8; 8];
        let first = mappings.add(memory.as_mut_ptr(), 8, None).unwrap();
        mappings.remove(first);
        let second = mappings.add(memory.as_mut_ptr(), 8, None).unwrap();
        assert_ne!(first, second);
        assert!(mappings.get(first).is_none());
        assert_eq!(mappings.get(second).unwrap().pointer(), memory.as_mut_ptr());
        assert!(mappings.get(0).is_none());
    }
}
