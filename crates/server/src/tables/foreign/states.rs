//! States among foreign memory: they share what a session's states may have, and one whose struct has ended stays for a
//! while, as there may be a copy of the struct that no call has named yet.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::session::config::MAX_VERSIONS_BYTES;
use crate::tables::foreign::kind::Kind;
use crate::tables::foreign::{ForeignMemory, ForeignTable, Table};
use crate::tables::states::{MAX_RETIRED, MAX_RETIRED_BYTES, State, StateBudget, StateMemory, lock};
use crate::tables::versions::Versions;

impl ForeignMemory {
    fn of_state(state: Arc<State>) -> ForeignMemory {
        let memory = ForeignMemory::new(Kind::State { of: state.kind }, state.memory.start.addr(), 0);
        ForeignMemory { state: Some(state), ..memory }
    }
}

impl Table {
    pub fn states(&self) -> impl Iterator<Item = &Arc<State>> {
        self.by_id.values().filter_map(|memory| memory.state.as_ref())
    }

    /// They are charged to nobody.
    fn has_too_many_retired(&self) -> bool {
        let bytes: usize = self.retired_states.iter().map(|(_, bytes)| bytes).sum();
        self.retired_states.len() > MAX_RETIRED || bytes > MAX_RETIRED_BYTES
    }

    fn drop_oldest_retired(&mut self) -> bool {
        self.retired_states.pop_front().is_some_and(|(id, _)| self.remove(id).is_some())
    }
}

impl ForeignTable {
    /// The state of a type, and whether its struct has ended.
    pub(crate) fn state(&self, of: u32, id: u64) -> Option<(Arc<State>, bool)> {
        let table = self.table();
        let memory = table.by_id.get(&id).filter(|memory| memory.kind == Kind::State { of })?;
        Some((memory.state.clone()?, memory.ending))
    }

    /// A state that a call works on, with zeros. `copies`: earlier contents are kept from this version on.
    pub(crate) fn new_state(&self, kind: u32, bytes: usize, copies: bool, version: u64) -> Option<Arc<State>> {
        let memory = self.new_state_memory(bytes)?;
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

    /// The id of a new state, for which the oldest retired one may go. `None`: there are too many.
    pub(crate) fn enter_state(&self, state: &Arc<State>) -> Option<u64> {
        let mut table = self.table();
        if table.is_full(Kind::State { of: state.kind }) {
            table.drop_oldest_retired();
        }
        table.enter(ForeignMemory::of_state(state.clone()), None)
    }

    /// Makes room for earlier contents of a state that a call is about to change: those that were used longest ago give
    /// theirs up, many at once, so that this is rare.
    pub(crate) fn make_room_for_versions(&self, state: &State) {
        let StateBudget { versions, calls, .. } = &self.states;
        state.used.store(calls.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        let scratch: usize = lock(&state.scratch).iter().map(|member| member.memory.len()).sum();
        if versions.load(Ordering::Acquire) + 2 * (state.memory.len() + scratch) <= MAX_VERSIONS_BYTES {
            return;
        }
        let mut others: Vec<Arc<State>> = self.table().states().cloned().collect();
        others.retain(|other| !std::ptr::eq(&**other, state) && other.versions.is_some());
        others.sort_by_key(|other| other.used.load(Ordering::Relaxed));
        for other in others {
            if versions.load(Ordering::Acquire) <= MAX_VERSIONS_BYTES / 4 * 3 {
                return;
            }
            other.versions.iter().for_each(|versions| lock(versions).forget());
            lock(&other.scratch).iter_mut().flat_map(|member| &mut member.versions).for_each(Versions::forget);
        }
    }

    pub(crate) fn new_versions(&self, born: u64) -> Versions {
        Versions::new(born, &self.states.versions, MAX_VERSIONS_BYTES)
    }

    /// Memory for a state, for which the retired ones may go.
    pub(crate) fn new_state_memory(&self, bytes: usize) -> Option<StateMemory> {
        loop {
            if let Some(memory) = StateMemory::new(bytes, &self.states.taken) {
                return Some(memory);
            }
            if !self.table().drop_oldest_retired() {
                return None;
            }
        }
    }

    /// A call has ended the state, or has not made it.
    pub(crate) fn end_state(&self, id: u64) -> Option<Arc<State>> {
        let mut table = self.table();
        table.retired_states.retain(|(retired, _)| *retired != id);
        table.remove(id)?.state
    }

    /// The struct has ended. A state of which there may be a copy stays for a while.
    pub(crate) fn retire_state(&self, id: u64) -> Option<Arc<State>> {
        let mut table = self.table();
        let memory = table.by_id.get_mut(&id)?;
        let state = memory.state.clone()?;
        if state.versions.is_none() {
            table.remove(id);
        } else if !std::mem::replace(&mut memory.ending, true) {
            let bytes = state.memory.len() + lock(&state.scratch).iter().map(|s| s.memory.len()).sum::<usize>();
            table.retired_states.push_back((id, bytes));
            while table.has_too_many_retired() && table.drop_oldest_retired() {}
        }
        Some(state)
    }
}
