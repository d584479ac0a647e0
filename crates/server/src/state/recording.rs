//! The notes of one call for the session's object log.
//!
//! Only calls of functions that make, change or end objects are noted, and only where the session may be moved.

use std::mem::take;

use aviary_state::{Effect, Owner};

use crate::call::per_call::{PerCall, per_call};
use crate::state::object_log::{NewRecord, ObjectLog};

per_call! {
    /// The notes of the call under way. Their memory serves the next one.
    pub struct CallRecording {
        /// Something reads the notes: the session may be moved, and the function is one whose calls are recorded.
        pub on: bool,
        /// The whole request, header included, as it came: handlers translate values in place.
        pub request: Vec<u8>,
        /// The owners of the state that the call changes.
        pub changed: Vec<Owner>,
        /// Tells the call apart from others of this function with the same owner.
        pub key: Vec<u64>,
        /// Objects that it makes and the specification records, and those that it is the first to tell the guest of.
        pub made: Vec<u64>,
        /// Memory of the library's that the call has freed, by its words.
        pub freed: Vec<u64>,
        /// Objects that must exist first, beside those that the call uses.
        pub depends: Vec<u64>,
        /// The id of the object that was current on the thread when the call began; 0: none was.
        pub current: u64,
        /// Arena inputs, by offset: the blocks themselves are the guest's and change.
        pub blocks: Vec<(u64, Vec<u8>)>,
        /// The ids in the reply, in order; 0 where none was written.
        pub replied: Vec<u64>,
        /// Values that must come out equal when the call is made again.
        pub same: Vec<u64>,
        /// The numbers of the closures that it registered.
        pub callbacks: Vec<u64>,
    }
}

impl CallRecording {
    /// Begins the notes of a call, or none.
    #[inline]
    pub fn start(&mut self, on: bool, request: &[u8]) {
        self.on = on;
        if on {
            self.begin(request);
        }
    }

    fn begin(&mut self, request: &[u8]) {
        self.renew();
        self.on = true;
        self.request.extend_from_slice(request);
    }

    fn belongs_to_something(&self) -> bool {
        !self.made.is_empty() || !self.changed.is_empty()
    }

    /// Keeps the call, if it belongs to anything. `used`: the objects that it uses. False: the log is full, for the first
    /// time.
    #[must_use]
    pub fn keep(&mut self, log: &ObjectLog, function: u32, used: impl Iterator<Item = u64>) -> bool {
        if !self.on || !self.belongs_to_something() {
            return true;
        }
        self.on = false;
        let effect = if self.made.is_empty() { Effect::Changes } else { Effect::Makes };
        let mut owners: Vec<Owner> = self.made.iter().map(|id| Owner::Object(*id)).collect();
        owners.append(&mut self.changed);
        owners.sort_unstable();
        owners.dedup();
        let is_owner = |id: u64| owners.contains(&Owner::Object(id));
        let current = current_for(&owners, self.current);
        // It needs what it frees.
        let used = used
            .chain(self.freed.iter().copied())
            .chain(take(&mut self.depends))
            .chain(Some(current).filter(|id| *id != 0));
        let mut inputs: Vec<u64> = used.filter(|id| !is_owner(*id)).collect();
        inputs.sort_unstable();
        inputs.dedup();
        log.keep(NewRecord {
            function,
            effect,
            owners,
            inputs,
            current,
            key: take(&mut self.key),
            outputs: take(&mut self.replied),
            same: take(&mut self.same),
            callbacks: take(&mut self.callbacks),
            request: &self.request,
            blocks: &self.blocks,
        })
    }

    /// Keeps the call as one that takes or gives back a reference of an object, or ends it.
    #[must_use]
    pub fn keep_of_life(
        &mut self,
        log: &ObjectLog,
        function: u32,
        effect: Effect,
        id: u64,
        used: impl Iterator<Item = u64>,
    ) -> bool {
        // Made again, a call that also makes or changes something does both.
        if !self.on || self.belongs_to_something() {
            return true;
        }
        log.keep(NewRecord {
            function,
            effect,
            owners: vec![Owner::Object(id)],
            inputs: used.chain(Some(self.current)).filter(|used| *used != id && *used != 0).collect(),
            current: self.current,
            key: Vec::new(),
            outputs: self.replied.clone(),
            same: Vec::new(),
            callbacks: self.callbacks.clone(),
            request: &self.request,
            blocks: &self.blocks,
        })
    }
}

/// The current object that a call of these owners needs: a thread's own calls are made again on the thread, in their order.
fn current_for(owners: &[Owner], current: u64) -> u64 {
    if owners.iter().any(|owner| matches!(owner, Owner::Thread(_))) { 0 } else { current }
}
