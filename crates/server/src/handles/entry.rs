//! Handles as values: a slot as readers see it, an entry as writers see it, and the answers of the table.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use aviary_gate::Charges;
use aviary_wire::HandleId;

/// The structure that C code keeps with one object, in words.
pub(super) type Metadata = Box<[u64]>;

/// One object as readers see it. `key` is its id, 0 while the slot is free.
///
/// Invariant: `native` changes only while `key` is 0, and a key never comes
/// back (generations), so a reader that sees the same key before and after
/// reading `native` has the native value of that key.
#[derive(Default)]
pub(crate) struct HandleSlot {
    pub(super) key: AtomicU64,
    pub(super) native: AtomicU64,
    /// Facts that calls have to know before they use the object: [`slot_state`].
    pub(super) state: AtomicU32,
}

/// The bits of [`HandleSlot::state`].
pub(super) mod slot_state {
    /// Number of calls under way that end the object, or one that it ends with: no other call may begin to use it.
    /// Changes under the table's lock.
    pub const ENDING: u32 = LACKING - 1;
    /// Something that was set on the object has ended or is about to (see `referrers`). Changes under the table's lock.
    pub const LACKING: u32 = 1 << 30;
    /// A call has the object for itself: others wait. Set and cleared by the lane of that call.
    pub const EXCLUSIVE: u32 = 1 << 31;
}

/// Why a call cannot use an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unusable {
    /// There is no such object, or it is about to end.
    Invalid,
    /// Another call has it for itself.
    Exclusive,
}

impl HandleSlot {
    pub(super) fn fill(&self, native: u64, id: u64) {
        // Release: who sees this value also sees the key's zero before it.
        self.native.store(native, Ordering::Release);
        self.state.store(0, Ordering::Relaxed);
        self.key.store(id, Ordering::Release);
    }
}

/// The part of a call that gives a reference of an object back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It gives the last reference back: the object ends, and until then no other call begins to use it.
    Last,
    /// Others remain.
    OneOfMany,
}

/// calls of other threads still use the object
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub struct Busy;

/// One object as writers see it, under the lock.
pub(super) struct HandleEntry {
    pub(super) generation: u32,
    pub(super) references: u64,
    /// Known from a query, not from a call that created it: the guest owns no reference of it.
    pub(super) borrowed: bool,
    /// References that callbacks hold, which will hand the object back: the guest may have released it meanwhile.
    pub(super) pins: u64,
    /// Calls under way that give references back, [`Ending::Last`] among them.
    pub(super) releasing: u32,
    /// A call is under way that ends it. What ends along with it, and cannot be used either until that has happened.
    pub(super) ending: Option<Vec<u64>>,
    /// A call has created it: it is one of the session's `handles`.
    pub(super) counted: bool,
    pub(super) holding: Charges,
    pub(super) metadata: Option<Metadata>,
}

impl HandleEntry {
    /// True: a reference that is given back now is the last one, once the calls under way have given theirs back.
    pub(super) fn is_last(&self) -> bool {
        self.references <= u64::from(self.releasing.max(1)) && !self.borrowed
    }

    pub(super) fn of(generation: u32) -> HandleEntry {
        HandleEntry {
            generation,
            references: 0,
            borrowed: false,
            pins: 0,
            releasing: 0,
            ending: None,
            counted: false,
            holding: Charges::default(),
            metadata: None,
        }
    }
}

/// The answer of [`HandleTable::try_exclusive`](super::HandleTable::try_exclusive).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exclusive {
    Taken,
    /// Another call has it for itself.
    Others,
}

/// The id of a native value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    pub id: u64,
    /// The guest did not know it before.
    pub new: bool,
}

impl Published {
    pub(super) fn known(id: u64) -> Published {
        Published { id, new: false }
    }
}

/// Remains of an ended object.
pub struct Ended {
    pub id: u64,
    pub holding: Charges,
    /// True: one of the session's `handles`.
    pub counted: bool,
    /// The objects that ended with it.
    pub along: Vec<Ended>,
}

/// the session has too many objects
#[derive(Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub struct Full;

pub(super) fn id_of(ty: u32, generation: u32, index: u32) -> u64 {
    // The generator numbers handle types from 0 and refuses more than 256 of them.
    HandleId { ty: ty as u8, generation, index }.to_word()
}

pub fn type_of(id: u64) -> u32 {
    (id >> 56) as u32
}

pub(super) fn index_of(id: u64) -> Option<u32> {
    HandleId::from_word(id).map(|id| id.index)
}
