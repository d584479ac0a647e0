//! Calls that end objects: from the mark that keeps others from beginning to use one to its end or its reprieve.

use std::sync::atomic::Ordering;

use super::entry::{Busy, Ending, index_of, slot_state};
use super::{HandleTable, HandleTableState};
use crate::handles::in_use::{LaneUses, point};

impl HandleTable {
    /// A call that gives a reference (or `all`) back is under way, until [`HandleTable::spared`] or
    /// [`HandleTable::release_ending`]. If that is the last one, no other call begins to use the object from now on, nor
    /// objects that end with it, nor uses them through others on which they were set. Calls of other lanes than `own`
    /// that do so are waited for: `wait` sleeps a little, and answers false when it is enough. `None`: there is no such
    /// object.
    pub fn ending(
        &self,
        id: u64,
        all: bool,
        own: &LaneUses,
        mut wait: impl FnMut() -> bool,
    ) -> Result<Option<Ending>, Busy> {
        // An object that has ended takes no slot, so nobody waits for its users: there are none but the call itself.
        if self.temporary_native(id).is_some() {
            return Ok(None);
        }
        match self.begin_ending(id, all) {
            Some(Ending::Last) => {}
            other => return Ok(other),
        }
        // Objects whose users are waited for: referrers at first.
        point();
        let mut waited = self.mark(&self.lock(), id);
        let mut along = Vec::new();
        loop {
            if self.in_use.uses(id, &waited, own) {
                if !wait() {
                    self.spared(id);
                    return Err(Busy);
                }
                continue;
            }
            point();
            let mut state = self.lock();
            // A call that was waited for may have retained the object, made another one that ends with it, or set it
            // on one.
            let Some(index) = self.live(&state, id) else { return Ok(None) };
            let below = state.ends.below(id);
            let Some(entry) = state.entry(index) else { return Ok(None) };
            if !all && !entry.is_last() {
                self.unmark(&mut state, index, id);
                return Ok(Some(Ending::OneOfMany));
            }
            let new: Vec<u64> = below.into_iter().filter(|id| !along.contains(id)).collect();
            entry.ending.get_or_insert_default().extend(&new);
            let before = waited.len();
            for new in new {
                waited.extend(self.mark(&state, new));
                waited.push(new);
                along.push(new);
            }
            let referrers = along.iter().chain([&id]).flat_map(|id| state.referrers.of(*id));
            let referrers: Vec<u64> = referrers.filter(|id| !waited.contains(id)).collect();
            waited.extend(referrers);
            if waited.len() == before {
                return Ok(Some(Ending::Last));
            }
        }
    }

    /// Notes that a call gives a reference, or `all`, back.
    fn begin_ending(&self, id: u64, all: bool) -> Option<Ending> {
        self.with(id, |entry| {
            entry.releasing += 1;
            if !all && !entry.is_last() {
                return Ending::OneOfMany;
            }
            entry.ending.get_or_insert_default();
            Ending::Last
        })
    }

    /// The call that was to give references back has failed.
    pub fn spared(&self, id: u64) {
        point();
        let mut state = self.lock();
        let Some(index) = self.live(&state, id) else { return };
        self.unmark(&mut state, index, id);
        if let Some(entry) = state.entry(index) {
            entry.releasing = entry.releasing.saturating_sub(1);
        }
    }

    /// Answers the objects through which this one can be used.
    fn mark(&self, state: &HandleTableState, id: u64) -> Vec<u64> {
        if let Some(slot) = index_of(id).and_then(|index| self.slot(index)) {
            slot.state.fetch_add(1, Ordering::SeqCst);
        }
        let referrers: Vec<u64> = state.referrers.of(id).collect();
        referrers.iter().for_each(|referrer| self.show_lacking(state, *referrer));
        referrers
    }

    /// The object does not end after all, nor what would have ended along with it.
    pub(super) fn unmark(&self, state: &mut HandleTableState, index: u32, id: u64) {
        let Some(along) = state.entry(index).and_then(|entry| entry.ending.take()) else { return };
        for id in along.into_iter().chain([id]) {
            let Some(slot) = self.live(state, id).and_then(|index| self.slot(index)) else { continue };
            // Checked: an object that has taken the slot over since was never marked.
            let lowered = |bits: u32| (bits & slot_state::ENDING > 0).then(|| bits - 1);
            let _ = slot.state.fetch_update(Ordering::SeqCst, Ordering::Relaxed, lowered);
            for referrer in state.referrers.of(id).collect::<Vec<_>>() {
                self.show_lacking(state, referrer);
            }
        }
    }
}
