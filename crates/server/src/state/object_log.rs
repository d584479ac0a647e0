//! The object log of a session: the calls that would make its objects again, and how their explicit state is saved.
//!
//! A log is only kept where the session may be moved: recording costs a copy of each request that makes or changes an
//! object.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aviary_state::{Block, Effect, Log, LogSize, Owner, Record};

use crate::api::ExplicitState;

/// Bytes that the log of a session may have; a session with a larger one cannot be moved.
const MAX_LOG_BYTES: usize = 256 << 20;
/// Bytes that the tenant is charged for at a time.
const STEP: u64 = 64 << 10;

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
    /// Its size, as of the last change.
    bytes: AtomicU64,
    /// Bytes that the tenant is charged for.
    charged: AtomicU64,
    /// Held while `charged` changes.
    changing: Mutex<()>,
}

impl ObjectLog {
    fn new(on: bool, limit: usize) -> ObjectLog {
        let kept = LoggedState { log: Log::new(limit), blocked_by: None, states: HashMap::new() };
        let (bytes, charged, changing) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::new(()));
        ObjectLog { on: AtomicBool::new(on), kept: Mutex::new(kept), bytes, charged, changing }
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
        self.note_size(&kept);
        within_limit
    }

    fn note_size(&self, kept: &LoggedState) {
        self.bytes.store(kept.log.size().bytes as u64, Ordering::Relaxed);
    }

    /// Bytes that the tenant is charged for.
    pub fn charged(&self) -> u64 {
        self.charged.load(Ordering::SeqCst)
    }

    /// The tenant is charged for so many already, by the process in which the session was before.
    pub fn resume(&self, charged: u64) {
        self.charged.store(charged, Ordering::SeqCst);
    }

    /// True: what the tenant is charged for is less than the log has, or much more.
    pub fn is_unsettled(&self) -> bool {
        let (bytes, charged) = (self.bytes.load(Ordering::Relaxed), self.charged.load(Ordering::Relaxed));
        bytes > charged || charged - bytes > 2 * STEP
    }

    /// Charges the tenant for what the log has, and returns what it no longer has. False: the tenant has no room for it,
    /// for the first time, and the log is off now.
    #[must_use]
    pub fn settle<E>(&self, charge: impl FnOnce(u64) -> Result<(), E>, uncharge: impl FnOnce(u64)) -> bool {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let charged = self.charged();
        let wanted = self.bytes.load(Ordering::Relaxed).next_multiple_of(STEP);
        if wanted > charged && charge(wanted - charged).is_err() {
            let mut kept = self.lock();
            kept.log.overflow();
            kept.states.clear();
            self.note_size(&kept);
            let was_on = self.on.swap(false, Ordering::Relaxed);
            self.charged.store(0, Ordering::SeqCst);
            uncharge(charged);
            return !was_on;
        }
        self.charged.store(wanted, Ordering::SeqCst);
        if wanted < charged {
            uncharge(charged - wanted);
        }
        true
    }

    /// The session has called a function that keeps it where it is: nothing will read the log, so it is off from now on.
    #[cold]
    pub fn block(&self, function: u32) {
        let mut kept = self.lock();
        kept.blocked_by.get_or_insert(function);
        kept.log.close();
        self.note_size(&kept);
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
        self.note_size(&kept);
    }

    /// The lane has closed.
    pub fn thread_ended(&self, lane: u32) {
        if self.is_on() {
            let mut kept = self.lock();
            kept.log.thread_ended(lane);
            self.note_size(&kept);
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

    /// The use of a tenant, and its limit.
    struct Account(AtomicU64, u64);

    impl Account {
        fn settle(&self, log: &ObjectLog) -> bool {
            let raised = |used: u64, by: u64| Some(used + by).filter(|sum| *sum <= self.1);
            let raise = |by| self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |used| raised(used, by)).map(drop);
            log.settle(raise, |amount| _ = self.0.fetch_sub(amount, Ordering::SeqCst))
        }
    }

    #[test]
    fn tenant_is_charged_in_steps_for_what_the_log_has() {
        let (account, log) = (Account(AtomicU64::new(0), u64::MAX), ObjectLog::on());
        for id in 0..1000u64 {
            assert!(log.keep(new(id, &id.to_le_bytes().repeat(64))));
            if log.is_unsettled() {
                assert!(account.settle(&log));
            }
            let used = account.0.load(Ordering::SeqCst);
            assert!(used >= log.size().bytes as u64 && used == log.charged() && used.is_multiple_of(STEP));
        }
        (0..1000).for_each(|id| log.object_ended(id));
        assert!(log.is_unsettled() && account.settle(&log) && !log.is_unsettled());
        assert!(account.0.load(Ordering::SeqCst) <= STEP);
    }

    #[test]
    fn log_that_its_tenant_has_no_room_for_is_off_and_charged_no_longer() {
        let (account, log) = (Account(AtomicU64::new(0), 3 * STEP), ObjectLog::on());
        let full = (0..u64::MAX).find(|id| {
            let kept = log.keep(new(*id, &id.to_le_bytes().repeat(64)));
            assert!(kept && log.is_on());
            log.is_unsettled() && !account.settle(&log)
        });
        assert!(full.is_some() && !log.is_on() && log.lock().log.is_overflown());
        assert_eq!((account.0.load(Ordering::SeqCst), log.charged()), (0, 0));
        assert!(account.settle(&log), "it says so once");
    }

    #[test]
    fn a_log_that_is_full_is_off() {
        let log = ObjectLog::new(true, 10_000);
        let kept = (0..100).filter(|id| log.keep(new(*id, &[0; 100]))).count();
        assert_eq!(kept, 99, "it says so once");
        assert!(!log.is_on() && log.lock().log.is_overflown());
    }
}
