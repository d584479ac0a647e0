//! Objects that calls use through other objects, and calls that have one of those for themselves.

use std::sync::atomic::Ordering;

use super::entry::{Busy, Exclusive, index_of, slot_state};
use super::{HandleTable, HandleTableState};
use crate::handles::in_use::{LaneUses, point};
use crate::handles::referrers::ENDED;

impl HandleTable {
    /// Takes the object, which `own` announces, for one call: others that begin wait. Those that have begun are
    /// waited for by [`HandleTable::await_exclusive`].
    pub fn try_exclusive(&self, id: u64) -> Exclusive {
        let Some(slot) = index_of(id).and_then(|index| self.slot(index)) else { return Exclusive::Others };
        point();
        // The slot is the object's own as long as that is announced.
        let before = slot.state.fetch_or(slot_state::EXCLUSIVE, Ordering::SeqCst);
        if before & slot_state::EXCLUSIVE == 0 { Exclusive::Taken } else { Exclusive::Others }
    }

    /// Waits until no call of another lane than `own` uses the object, which the caller has taken. `wait` as in
    /// [`HandleTable::ending`]. `Busy`: they go on, or one of them ends the object and waits itself.
    pub fn await_exclusive(&self, id: u64, own: &LaneUses, mut wait: impl FnMut() -> bool) -> Result<(), Busy> {
        while self.in_use.uses(id, &[], own) {
            let slot = index_of(id).and_then(|index| self.slot(index));
            point();
            let ending = slot.is_none_or(|slot| slot.state.load(Ordering::SeqCst) & slot_state::ENDING != 0);
            if ending || !wait() {
                return Err(Busy);
            }
        }
        Ok(())
    }

    /// The call that had the object for itself is done with it, and still announces it.
    pub fn end_exclusive(&self, id: u64) {
        point();
        if let Some(slot) = index_of(id).and_then(|index| self.slot(index)) {
            slot.state.fetch_and(!slot_state::EXCLUSIVE, Ordering::SeqCst);
        }
    }

    /// True: something that was set on the object has ended, or is about to. The object is announced before.
    pub fn is_lacking(&self, id: u64) -> bool {
        point();
        let slot = index_of(id).and_then(|index| self.slot(index));
        slot.is_some_and(|slot| slot.state.load(Ordering::SeqCst) & slot_state::LACKING != 0)
    }

    /// From now on calls use these objects through `referrer`, in the place of those that were set in `slot` before.
    pub fn refer(&self, referrer: u64, slot: u64, objects: &[u64]) {
        point();
        let mut state = self.lock();
        if self.is_there(&mut state, referrer) && state.referrers.set(referrer, slot, objects) {
            self.show_lacking(&state, referrer);
        }
    }

    /// The same for all that is set on `like`.
    pub fn refer_as(&self, referrer: u64, like: u64) {
        let mut state = self.lock();
        if self.is_there(&mut state, referrer) {
            state.referrers.copy(like, referrer);
            self.show_lacking(&state, referrer);
        }
    }

    /// True also for an object that has ended, where a session is made again: another may be a copy of it.
    fn is_there(&self, state: &mut HandleTableState, id: u64) -> bool {
        self.live(state, id).is_some() || state.temporary_entry(id).is_some()
    }

    /// The object has ended: where it was set something is lacking.
    pub(super) fn end_where_set(&self, state: &mut HandleTableState, id: u64) {
        for referrer in state.referrers.end(id) {
            self.show_lacking(state, referrer);
        }
    }

    /// Shows calls if what is set on the object can be used.
    pub(super) fn show_lacking(&self, state: &HandleTableState, referrer: u64) {
        let mut objects = state.referrers.objects(referrer);
        let lacking = objects.any(|id| id == ENDED || self.is_ending(id));
        let Some(slot) = self.live(state, referrer).and_then(|index| self.slot(index)) else { return };
        match lacking {
            true => slot.state.fetch_or(slot_state::LACKING, Ordering::SeqCst),
            false => slot.state.fetch_and(!slot_state::LACKING, Ordering::SeqCst),
        };
    }

    fn is_ending(&self, id: u64) -> bool {
        let slot = index_of(id).and_then(|index| self.slot(index));
        slot.is_none_or(|slot| slot.state.load(Ordering::SeqCst) & slot_state::ENDING != 0)
    }
}
