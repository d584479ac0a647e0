//! States: structs of the guest's application that the vendor's library works on between calls.
//!
//! The whole struct is here, from the call that makes it to the one that ends it, or until the guest says that its memory is
//! used for something else. The guest names it by an id; members that the application sees cross with each call.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aviary_gate::Charges;

use crate::api::Reject;
use crate::call::Call;
use crate::config::{MAX_STATE_BYTES, MAX_STATES};
use crate::session::Session;

/// Of structs and scratch memory: those with vector registers in them ask for as much.
const STATE_ALIGN: usize = 64;

/// Zeroed memory that counts towards what a session's states may have.
struct StateMemory {
    start: *mut u8,
    layout: Layout,
    taken: Arc<AtomicUsize>,
}

// SAFETY: owned memory without thread affinity; one call uses it at a time (`State::busy`).
unsafe impl Send for StateMemory {}
// SAFETY: as above.
unsafe impl Sync for StateMemory {}

impl StateMemory {
    /// `None`: all states together would have more than a session's may.
    fn new(bytes: usize, taken: &Arc<AtomicUsize>) -> Option<StateMemory> {
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
}

impl Drop for StateMemory {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.layout.size(), Ordering::AcqRel);
        // SAFETY: allocated with this very layout, and freed here only.
        unsafe { dealloc(self.start, self.layout) };
    }
}

/// Memory behind a member that only the library looks at.
struct ScratchMember {
    /// Offset of the member.
    member: usize,
    /// The application's pointer, which stands for the memory.
    address: u64,
    bytes: usize,
    memory: StateMemory,
    holding: Mutex<Charges>,
}

pub(crate) struct State {
    /// Number of its type in the specification.
    kind: u32,
    memory: StateMemory,
    /// True while a call works on it.
    busy: AtomicBool,
    scratch: Mutex<Vec<ScratchMember>>,
    /// Charges of the call that made it.
    holding: Mutex<Charges>,
}

/// The states of a session.
#[derive(Default)]
pub struct States {
    live: Mutex<LiveStates>,
    /// Bytes that they have together.
    taken: Arc<AtomicUsize>,
}

#[derive(Default)]
struct LiveStates {
    by_id: HashMap<u64, Arc<State>>,
    last_id: u64,
}

impl States {
    fn live(&self) -> MutexGuard<'_, LiveStates> {
        lock(&self.live)
    }

    fn new_state(&self, kind: u32, bytes: usize) -> Option<Arc<State>> {
        if self.live().by_id.len() >= MAX_STATES {
            return None;
        }
        let memory = StateMemory::new(bytes, &self.taken)?;
        let busy = AtomicBool::new(true);
        Some(Arc::new(State { kind, memory, busy, scratch: Mutex::default(), holding: Mutex::default() }))
    }

    fn enter(&self, state: &Arc<State>) -> u64 {
        let mut live = self.live();
        live.last_id += 1;
        let id = live.last_id;
        live.by_id.insert(id, state.clone());
        id
    }

    fn get(&self, kind: u32, id: u64) -> Option<Arc<State>> {
        self.live().by_id.get(&id).filter(|state| state.kind == kind).cloned()
    }

    /// True while there are some.
    pub fn any(&self) -> bool {
        !self.live().by_id.is_empty()
    }

    fn remove(&self, id: u64) -> Option<Arc<State>> {
        self.live().by_id.remove(&id)
    }
}

/// A state that a call works on.
pub(crate) struct UsedState {
    id: u64,
    state: Arc<State>,
    made: bool,
    ends: bool,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    fn end_state(&self, id: u64) {
        let Some(state) = self.states.remove(id) else { return };
        let mut holding = std::mem::take(&mut *lock(&state.holding));
        lock(&state.scratch).iter().for_each(|member| holding.merge(&mut lock(&member.holding)));
        self.settle(&mut holding);
    }
}

impl Call {
    /// The struct of a state, `size` bytes and behind them `more` bytes for the handler. `makes`: it is new, and zero.
    pub fn state(&mut self, kind: u32, size: usize, more: usize, makes: bool) -> Result<*mut u8, Reject> {
        if makes {
            for _ in 0..self.word()? {
                let id = self.word()?;
                self.session.end_state(id);
            }
            let bytes = size.checked_next_multiple_of(STATE_ALIGN).and_then(|size| size.checked_add(more));
            let Some(state) = bytes.and_then(|bytes| self.session.states.new_state(kind, bytes)) else {
                self.session.note(&format!("{}: too many states at a time", self.function_name()));
                return Err(Reject::Refused);
            };
            let (memory, id) = (state.memory.start, self.session.states.enter(&state));
            self.states.push(UsedState { id, state, made: true, ends: false });
            return Ok(memory);
        }
        let id = self.word()?;
        // An honest guest asks for one that is gone after a fork, or after its memory was used again.
        let state = self.session.states.get(kind, id).ok_or(Reject::Refused)?;
        if state.busy.swap(true, Ordering::Acquire) {
            self.session.note(&format!("{}: another thread's call works on this state", self.function_name()));
            return Err(Reject::Refused);
        }
        let memory = state.memory.start;
        self.states.push(UsedState { id, state, made: false, ends: false });
        Ok(memory)
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
        if let Some(known) = scratch.iter().find(|s| s.member == member && s.address == address && s.bytes == bytes) {
            return Ok(known.memory.start);
        }
        if let Some(known) = scratch.iter().position(|s| s.member == member) {
            let ended = scratch.remove(known);
            self.session.settle(&mut ended.holding.into_inner().unwrap_or_else(PoisonError::into_inner));
        }
        if address == 0 {
            return Ok(std::ptr::null_mut());
        }
        let mut holding = Charges::default();
        if let Some(item) = resource {
            self.session.charge(self.header.function, item as usize, bytes as u64)?;
            holding.add(item as usize, bytes as u64);
        }
        let Some(memory) = StateMemory::new(bytes, &self.session.states.taken) else {
            self.session.settle(&mut holding);
            return Err(Reject::Refused);
        };
        let start = memory.start;
        scratch.push(ScratchMember { member, address, bytes, memory, holding: Mutex::new(holding) });
        Ok(start)
    }

    fn used_state(&mut self, memory: usize) -> Option<&mut UsedState> {
        self.states.iter_mut().find(|used| used.state.memory.start as usize == memory)
    }

    /// The id that the guest knows the state by after the call, 0 if it has ended or was not made.
    pub fn reply_state(&mut self, memory: usize, ends: bool, success: bool) {
        let id = match self.used_state(memory) {
            Some(used) => {
                used.ends = ends && success;
                let gone = used.ends || used.made && !success;
                if gone { 0 } else { used.id }
            }
            None => 0,
        };
        self.reply_word(id);
    }

    /// How far the library has advanced a pointer that it was `passed`, in bytes; so much of an output is new.
    pub fn reply_cursor(&mut self, passed: u64, value: u64) -> Result<usize, Reject> {
        let room = self.cursors.iter().filter(|(start, _)| *start as u64 == passed).map(|(_, room)| *room).max();
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
                self.session.note(&format!(
                    "{}: the library has moved a pointer out of its buffer; the call fails",
                    self.function_name()
                ));
                Err(Reject::Refused)
            }
        }
    }

    /// The library may advance the pointer to this buffer. Data without a pointer is refused.
    pub fn cursor(&mut self, start: *mut u8, room: usize) -> Result<(), Reject> {
        if start.is_null() && room > 0 {
            return Err(Reject::Refused);
        }
        self.cursors.push((start as usize, room));
        Ok(())
    }

    /// The call is over: those that it made stay if it succeeded.
    pub(crate) fn leave_states(&mut self, success: bool) {
        self.cursors.clear();
        for used in std::mem::take(&mut self.states) {
            if used.made && success {
                lock(&used.state.holding).merge(&mut self.holding);
            }
            if used.ends || used.made && !success {
                self.session.end_state(used.id);
            }
            used.state.busy.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
#[path = "states_tests.rs"]
mod tests;
