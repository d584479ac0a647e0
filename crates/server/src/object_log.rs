//! The object log: the calls that would bring a session's objects back.
//!
//! A recorded call belongs to one object and is dropped when that object ends,
//! unless another live object depends on it. Replaying the log in a fresh
//! session runs the same handlers over the same requests; the handle table
//! binds what they create to the ids that the guest holds.
//!
//! A log is only kept where something may read it: an application that sets ten arguments a thousand times a second would
//! fill gigabytes in an hour. As long as nothing reads the logs of sessions, all of them are [`ObjectLog::off`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Notes of one call while it runs.
#[derive(Default, Debug, Clone)]
pub struct CallRecording {
    /// The whole request, header included, as it came: handlers translate values in place.
    pub request: Vec<u8>,
    /// The object that the call belongs to; without one it is not kept.
    pub object: Option<u64>,
    /// Objects that must exist first.
    pub depends: Vec<u64>,
    /// Arena inputs, by offset: the blocks themselves are the guest's and change.
    pub blocks: Vec<(u64, Vec<u8>)>,
    /// The ids in the reply, in order; 0 where none was written.
    pub replied: Vec<u64>,
}

/// A call that can be made again.
#[derive(Debug, Clone)]
pub struct RecordedCall {
    pub function: u32,
    pub recording: CallRecording,
}

impl RecordedCall {
    /// Contents of the block at `offset`, if the call read `length` bytes from it.
    pub fn block(&self, offset: u64, length: usize) -> Option<*const u8> {
        let found = self.recording.blocks.iter().find(|(at, bytes)| *at == offset && bytes.len() == length);
        found.map(|(_, bytes)| bytes.as_ptr())
    }
}

#[derive(Default)]
struct ObjectLogState {
    next: u64,
    /// By order of execution.
    records: BTreeMap<u64, RecordedCall>,
    of_object: HashMap<u64, Vec<u64>>,
    /// How many kept records name the object as a dependency.
    needed: HashMap<u64, usize>,
    /// Ended, but still needed.
    ended: HashSet<u64>,
}

/// Calls are recorded for it only if it is on.
pub struct ObjectLog {
    on: bool,
    state: Mutex<ObjectLogState>,
}

impl ObjectLog {
    /// Keeps nothing.
    pub fn off() -> ObjectLog {
        ObjectLog { on: false, state: Mutex::default() }
    }

    /// For who replays it: only tests do.
    #[cfg(test)]
    pub fn on() -> ObjectLog {
        ObjectLog { on: true, ..ObjectLog::off() }
    }

    /// True if calls have to be recorded for it.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on
    }

    pub fn keep(&self, record: RecordedCall) {
        let Some(object) = record.recording.object else { return };
        let mut state = self.lock();
        let order = state.next;
        state.next += 1;
        for id in record.recording.depends.iter().filter(|id| **id != object) {
            *state.needed.entry(*id).or_default() += 1;
        }
        state.of_object.entry(object).or_default().push(order);
        state.records.insert(order, record);
    }

    /// The object has ended: its calls go, and those of ended objects that only it needed.
    pub fn object_ended(&self, object: u64) {
        if !self.on {
            return;
        }
        let mut state = self.lock();
        state.ended.insert(object);
        let mut gone = vec![object];
        while let Some(object) = gone.pop() {
            if state.needed.contains_key(&object) || !state.ended.remove(&object) {
                continue;
            }
            for order in state.of_object.remove(&object).unwrap_or_default() {
                if let Some(record) = state.records.remove(&order) {
                    gone.extend(state.drop_needs(object, &record));
                }
            }
        }
    }

    /// The kept calls, in the order in which they were made.
    pub fn records(&self) -> Vec<RecordedCall> {
        self.lock().records.values().cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.lock().records.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, ObjectLogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ObjectLogState {
    /// Answers the objects that nothing needs any longer.
    fn drop_needs(&mut self, object: u64, record: &RecordedCall) -> Vec<u64> {
        let mut free = Vec::new();
        for id in record.recording.depends.iter().filter(|id| **id != object) {
            if let Some(count) = self.needed.get_mut(id) {
                *count -= 1;
                if *count == 0 {
                    self.needed.remove(id);
                    free.push(*id);
                }
            }
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(function: u32, object: u64, depends: &[u64]) -> RecordedCall {
        let recording = CallRecording { object: Some(object), depends: depends.to_vec(), ..CallRecording::default() };
        RecordedCall { function, recording }
    }

    fn functions(log: &ObjectLog) -> Vec<u32> {
        log.records().iter().map(|r| r.function).collect()
    }

    #[test]
    fn the_calls_of_an_object_go_with_it() {
        let log = ObjectLog::on();
        log.keep(record(1, 10, &[]));
        log.keep(record(2, 11, &[]));
        log.keep(record(3, 10, &[]));
        log.object_ended(10);
        assert_eq!(functions(&log), [2]);
        log.object_ended(11);
        log.object_ended(11);
        assert!(log.is_empty());
    }

    #[test]
    fn dependencies_of_a_live_object_are_kept() {
        let log = ObjectLog::on();
        log.keep(record(1, 10, &[]));
        log.keep(record(2, 20, &[10]));
        log.keep(record(3, 20, &[20, 10]));
        log.object_ended(10);
        assert_eq!(functions(&log), [1, 2, 3]);
        log.object_ended(20);
        assert!(log.is_empty());
    }

    #[test]
    fn chains_of_ended_objects_go_together() {
        let log = ObjectLog::on();
        log.keep(record(1, 1, &[]));
        log.keep(record(2, 2, &[1]));
        log.keep(record(3, 3, &[2]));
        log.object_ended(1);
        log.object_ended(2);
        assert_eq!(functions(&log), [1, 2, 3]);
        log.object_ended(3);
        assert!(log.is_empty());
    }

    #[test]
    fn a_block_is_found_by_its_place_and_size() {
        let mut record = record(1, 1, &[]);
        record.recording.blocks.push((64, vec![1, 2, 3]));
        assert!(record.block(64, 3).is_some());
        assert!(record.block(64, 2).is_none());
        assert!(record.block(0, 3).is_none());
    }
}
