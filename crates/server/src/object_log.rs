//! The object log of a session: the calls that would make its objects again, and how their explicit state is saved.
//!
//! A log is only kept where the session may be moved: recording costs a copy of each request that makes or changes an
//! object.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aviary_state::{Block, Effect, Log, LogSize, Owner, Record};

use crate::api::ExplicitState;

/// Bytes that the log of a session may have; a session with a larger one cannot be moved.
const MAX_LOG_BYTES: usize = 256 << 20;

/// A call that is to be kept.
pub struct NewRecord<'a> {
    pub function: u32,
    pub effect: Effect,
    pub owners: Vec<Owner>,
    pub inputs: Vec<u64>,
    pub current: u64,
    pub key: Vec<u64>,
    pub outputs: Vec<u64>,
    pub same: Vec<u64>,
    pub callbacks: Vec<u64>,
    pub request: &'a [u8],
    pub blocks: &'a [(u64, Vec<u8>)],
}

/// The log with what it says of objects beside their calls.
pub struct LoggedState {
    pub log: Log,
    /// The function that the session has called and because of which it stays where it is.
    pub blocked_by: Option<u32>,
    /// By id: the functions that save and restore what no call brings back.
    pub states: HashMap<u64, ExplicitState>,
}

/// Calls are recorded for it only if it is on.
pub struct ObjectLog {
    on: AtomicBool,
    kept: Mutex<LoggedState>,
}

impl ObjectLog {
    fn new(on: bool, limit: usize) -> ObjectLog {
        let kept = LoggedState { log: Log::new(limit), blocked_by: None, states: HashMap::new() };
        ObjectLog { on: AtomicBool::new(on), kept: Mutex::new(kept) }
    }

    /// Keeps nothing.
    pub fn off() -> ObjectLog {
        ObjectLog::new(false, 0)
    }

    /// Of a session that may be moved.
    pub fn on() -> ObjectLog {
        ObjectLog::new(true, MAX_LOG_BYTES)
    }

    /// True if calls have to be recorded for it.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// False: that was too much, for the first time, and the log is off now.
    #[must_use]
    pub fn keep(&self, new: NewRecord) -> bool {
        let mut kept = self.lock();
        let log = &mut kept.log;
        let request = log.content(new.request);
        let blocks = new.blocks.iter().map(|(offset, bytes)| Block { offset: *offset, content: log.content(bytes) });
        let record = Record {
            function: new.function,
            effect: new.effect,
            owners: new.owners,
            key: new.key,
            inputs: new.inputs,
            current: new.current,
            outputs: new.outputs,
            request,
            blocks: blocks.collect(),
            same: new.same,
            callbacks: new.callbacks,
        };
        let within_limit = log.keep(record);
        if !within_limit {
            kept.states.clear();
            self.on.store(false, Ordering::Relaxed);
        }
        within_limit
    }

    /// The session has called a function that keeps it where it is: nothing will read the log, so it is off from now on.
    #[cold]
    pub fn block(&self, function: u32) {
        let mut kept = self.lock();
        kept.blocked_by.get_or_insert(function);
        kept.log.close();
        kept.states.clear();
        self.on.store(false, Ordering::Relaxed);
    }

    /// The object has a state that its calls do not bring back.
    pub fn has_state(&self, id: u64, state: ExplicitState) {
        let mut kept = self.lock();
        if self.is_on() {
            kept.states.insert(id, state);
        }
    }

    pub fn object_ended(&self, id: u64) {
        if !self.is_on() {
            return;
        }
        let mut kept = self.lock();
        kept.log.object_ended(id);
        kept.states.remove(&id);
    }

    /// The lane has closed.
    pub fn thread_ended(&self, lane: u32) {
        if self.is_on() {
            self.lock().log.thread_ended(lane);
        }
    }

    pub fn size(&self) -> LogSize {
        self.lock().log.size()
    }

    pub fn lock(&self) -> MutexGuard<'_, LoggedState> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(id: u64, request: &[u8]) -> NewRecord<'_> {
        NewRecord {
            function: 1,
            effect: Effect::Makes,
            owners: vec![Owner::Object(id)],
            inputs: Vec::new(),
            current: 0,
            key: Vec::new(),
            outputs: vec![id],
            same: Vec::new(),
            callbacks: Vec::new(),
            request,
            blocks: &[],
        }
    }

    #[test]
    fn a_log_that_is_full_is_off() {
        let log = ObjectLog::new(true, 10_000);
        let kept = (0..100).filter(|id| log.keep(new(*id, &[0; 100]))).count();
        assert_eq!(kept, 99, "it says so once");
        assert!(!log.is_on() && log.lock().log.is_overflown());
    }
}
