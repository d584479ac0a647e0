//! States: structs of the guest's application that the vendor's library works on between calls.
//!
//! The whole struct is here, from the call that makes it to the one that ends it, or until the guest says that its memory is
//! used for something else. The guest names it by an id; members that the application sees cross with each call.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aviary_gate::Charges;

use crate::session::config::{MAX_STATE_BYTES, MAX_STATES, MAX_VERSIONS_BYTES};
use crate::tables::versions::Versions;

/// Of structs and scratch memory: those with vector registers in them ask for as much.
pub(crate) const STATE_ALIGN: usize = 64;
/// States whose struct has gone.
const MAX_RETIRED: usize = 32;
const MAX_RETIRED_BYTES: usize = 16 << 20;

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

/// The states of a session.
#[derive(Default)]
pub struct States {
    live: Mutex<LiveStates>,
    /// Bytes that they have together.
    pub(crate) taken: Arc<AtomicUsize>,
    /// Bytes of their earlier contents.
    versions: Arc<AtomicUsize>,
    /// Calls that have worked on states with earlier contents.
    calls: AtomicU64,
}

#[derive(Default)]
struct LiveStates {
    by_id: HashMap<u64, Arc<State>>,
    last_id: u64,
    /// Those whose struct has gone, and of which there may be a copy that no call has named yet; the oldest first.
    retired: VecDeque<Retired>,
}

#[derive(Clone, Copy)]
struct Retired {
    id: u64,
    bytes: usize,
}

impl LiveStates {
    fn has_retired(&self, id: u64) -> bool {
        self.retired.iter().any(|retired| retired.id == id)
    }

    /// They are charged to nobody.
    fn has_too_many_retired(&self) -> bool {
        let bytes: usize = self.retired.iter().map(|retired| retired.bytes).sum();
        self.retired.len() > MAX_RETIRED || bytes > MAX_RETIRED_BYTES
    }

    fn drop_oldest_retired(&mut self) -> bool {
        let oldest = self.retired.pop_front();
        oldest.is_some_and(|retired| self.by_id.remove(&retired.id).is_some())
    }
}

impl States {
    fn live(&self) -> MutexGuard<'_, LiveStates> {
        lock(&self.live)
    }

    /// A state that a call works on, with zeros. `copies`: earlier contents are kept from this version on.
    pub(crate) fn new_state(&self, kind: u32, bytes: usize, copies: bool, version: u64) -> Option<Arc<State>> {
        if self.live().by_id.len() >= MAX_STATES && !self.live().drop_oldest_retired() {
            return None;
        }
        let memory = self.new_memory(bytes)?;
        Some(Arc::new(State {
            kind,
            memory,
            busy: AtomicBool::new(true),
            scratch: Mutex::default(),
            holding: Mutex::default(),
            price: Mutex::default(),
            version: AtomicU64::new(version),
            used: AtomicU64::new(0),
            versions: copies.then(|| Mutex::new(self.new_versions(version))),
        }))
    }

    /// Makes room for earlier contents of a state that a call is about to change: those that were used longest ago give
    /// theirs up, many at once, so that this is rare.
    pub(crate) fn make_room_for_versions(&self, state: &State) {
        state.used.store(self.calls.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        let scratch: usize = lock(&state.scratch).iter().map(|member| member.memory.len()).sum();
        if self.versions.load(Ordering::Acquire) + 2 * (state.memory.len() + scratch) <= MAX_VERSIONS_BYTES {
            return;
        }
        let mut others: Vec<Arc<State>> = self.live().by_id.values().cloned().collect();
        others.retain(|other| !std::ptr::eq(&**other, state) && other.versions.is_some());
        others.sort_by_key(|other| other.used.load(Ordering::Relaxed));
        for other in others {
            if self.versions.load(Ordering::Acquire) <= MAX_VERSIONS_BYTES / 4 * 3 {
                return;
            }
            other.versions.iter().for_each(|versions| lock(versions).forget());
            lock(&other.scratch).iter_mut().flat_map(|member| &mut member.versions).for_each(Versions::forget);
        }
    }

    pub(crate) fn new_versions(&self, born: u64) -> Versions {
        Versions::new(born, &self.versions, MAX_VERSIONS_BYTES)
    }

    /// Memory for a state, for which the retired ones may go.
    pub(crate) fn new_memory(&self, bytes: usize) -> Option<StateMemory> {
        loop {
            if let Some(memory) = StateMemory::new(bytes, &self.taken) {
                return Some(memory);
            }
            if !self.live().drop_oldest_retired() {
                return None;
            }
        }
    }

    pub(crate) fn enter(&self, state: &Arc<State>) -> u64 {
        let mut live = self.live();
        live.last_id += 1;
        let id = live.last_id;
        live.by_id.insert(id, state.clone());
        id
    }

    /// The state, and whether its struct has gone.
    pub(crate) fn get(&self, kind: u32, id: u64) -> Option<(Arc<State>, bool)> {
        let live = self.live();
        let state = live.by_id.get(&id).filter(|state| state.kind == kind).cloned()?;
        Some((state, live.has_retired(id)))
    }

    /// True while there are some.
    pub fn any(&self) -> bool {
        let live = self.live();
        live.by_id.len() > live.retired.len()
    }

    pub(crate) fn remove(&self, id: u64) -> Option<Arc<State>> {
        let mut live = self.live();
        live.retired.retain(|retired| retired.id != id);
        live.by_id.remove(&id)
    }

    /// The struct has gone. A state of which there may be a copy stays for a while.
    pub(crate) fn retire(&self, id: u64) -> Option<Arc<State>> {
        let mut live = self.live();
        let state = live.by_id.get(&id).cloned()?;
        if state.versions.is_none() {
            live.by_id.remove(&id);
        } else if !live.has_retired(id) {
            let bytes = state.memory.len() + lock(&state.scratch).iter().map(|s| s.memory.len()).sum::<usize>();
            live.retired.push_back(Retired { id, bytes });
            while live.has_too_many_retired() && live.drop_oldest_retired() {}
        }
        Some(state)
    }
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
