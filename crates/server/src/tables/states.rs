//! States: structs of the guest's application that the vendor's library works on between calls.
//!
//! The whole struct is here, from the call that makes it to the one that ends it, or until the guest says that its memory is
//! used for something else. The guest names it by an id; members that the application sees cross with each call.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aviary_gate::Charges;

use crate::session::config::MAX_STATE_BYTES;
use crate::tables::versions::Versions;

/// Of structs and scratch memory: those with vector registers in them ask for as much.
pub(crate) const STATE_ALIGN: usize = 64;

/// States whose struct has ended.
pub(crate) const MAX_RETIRED: usize = 32;
pub(crate) const MAX_RETIRED_BYTES: usize = 16 << 20;

/// Zeroed memory that counts towards what a session's states may have.
pub(crate) struct StateMemory {
    pub start: *mut u8,
    layout: Layout,
    taken: Arc<AtomicUsize>,
}

// SAFETY: owned memory without thread affinity; one call uses it at a time (`State::busy`).
unsafe impl Send for StateMemory {}
// SAFETY: as above.
unsafe impl Sync for StateMemory {}

impl StateMemory {
    /// `None`: all states together would have more than a session's may.
    pub fn new(bytes: usize, taken: &Arc<AtomicUsize>) -> Option<StateMemory> {
        let layout = Layout::from_size_align(bytes.max(1).checked_next_multiple_of(STATE_ALIGN)?, STATE_ALIGN).ok()?;
        let more = |now: usize| now.checked_add(layout.size()).filter(|sum| *sum <= MAX_STATE_BYTES);
        taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Some(StateMemory { start, layout, taken: taken.clone() })
    }

    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// # Safety
    /// No call works on it meanwhile, and nothing writes to it while the slice is used.
    pub unsafe fn content(&self) -> &[u8] {
        // SAFETY: owned memory of this size, zeroed at first; the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start, self.layout.size()) }
    }
}

impl Drop for StateMemory {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.layout.size(), Ordering::AcqRel);
        // SAFETY: allocated with this very layout, and freed here only.
        unsafe { dealloc(self.start, self.layout) };
    }
}

/// Memory behind a member that only the library looks at.
pub(crate) struct ScratchMember {
    /// Offset of the member.
    pub member: usize,
    /// The application's pointer, which stands for the memory.
    pub address: u64,
    pub bytes: usize,
    pub memory: StateMemory,
    pub resource: Option<u32>,
    pub holding: Mutex<Charges>,
    /// It was copied with a state, whose struct may now name another address for it.
    pub adopted: bool,
    pub versions: Option<Versions>,
}

pub(crate) struct State {
    /// Number of its type in the specification.
    pub kind: u32,
    pub memory: StateMemory,
    /// True while a call works on it.
    pub busy: AtomicBool,
    pub scratch: Mutex<Vec<ScratchMember>>,
    /// Charges of the call that made it.
    pub holding: Mutex<Charges>,
    /// What a state of its kind is charged with.
    pub price: Mutex<Vec<(usize, u64)>>,
    /// Counts the calls that have worked on it.
    pub version: AtomicU64,
    /// Number of the call among those of the session that has worked on it last.
    pub used: AtomicU64,
    /// Present if a copy of the application's struct is a state of its own.
    pub versions: Option<Mutex<Versions>>,
}

impl State {
    /// The contents before a call that works on it.
    pub(crate) fn keep_version(&self) {
        let Some(versions) = &self.versions else { return };
        let version = self.version.load(Ordering::Acquire);
        // SAFETY: the call that is about to begin works on the state alone.
        lock(versions).keep(version, unsafe { self.memory.content() });
        for member in lock(&self.scratch).iter_mut() {
            // SAFETY: as above.
            let content = unsafe { member.memory.content() };
            member.versions.iter_mut().for_each(|versions| versions.keep(version, content));
        }
    }
}

/// What the states of a session have together.
#[derive(Default)]
pub(crate) struct StateBudget {
    /// Bytes of their memory.
    pub taken: Arc<AtomicUsize>,
    /// Bytes of their earlier contents.
    pub versions: Arc<AtomicUsize>,
    /// Calls that have worked on states with earlier contents.
    pub calls: AtomicU64,
}

/// A state that a call works on.
pub(crate) struct UsedState {
    pub id: u64,
    pub state: Arc<State>,
    pub made: bool,
    /// It is new, for a copy of the application's struct.
    pub copied: bool,
    pub ends: bool,
    /// The answer says its version after the call.
    pub told: bool,
}

impl UsedState {
    pub fn new(id: u64, state: Arc<State>) -> UsedState {
        UsedState { id, state, made: false, copied: false, ends: false, told: false }
    }
}

pub(crate) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "states_tests.rs"]
mod tests;
