//! Which handles the calls under way use, so that no other thread ends an object below the vendor's function.
//!
//! Each lane announces the ids that its calls use in a list of its own: its shadow thread writes, threads that end
//! objects read. An id is announced first and looked up then; a thread that ends an object marks it as ending first and
//! reads the lists then. Both orders are sequentially consistent, so of a call that uses an object and a call that ends
//! it at the same time at least one sees the other: the user is told that the handle is invalid, or the other waits.
//!
//! A guest that races its own calls is an attacker here: the vendor's library frees what another thread of it still
//! uses, which is how a guest would get its own code into the API server.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A step that other threads may see; tests take every order of them.
#[cfg(not(test))]
#[inline(always)]
pub fn point() {}
#[cfg(test)]
pub use crate::handles::interleave::point;

/// Ids that a lane announces without taking a lock: all handles of any but calls with long arrays.
const LISTED: usize = 62;

/// The ids that the calls of one lane use. Written by the lane's shadow thread only.
pub struct LaneUses {
    listed: [AtomicU64; LISTED],
    /// Ids announced, those of outer calls (below callbacks) first.
    len: AtomicUsize,
    /// Ids beyond `LISTED`.
    more: Mutex<Vec<u64>>,
    /// True: one of [`InUse::lanes`].
    listed_lane: bool,
    /// Number of the lane; `None`: the list is not a lane's.
    lane: Option<u32>,
    /// Number of the function that the lane has called last.
    function: AtomicU32,
}

impl Default for LaneUses {
    fn default() -> LaneUses {
        LaneUses {
            listed: [const { AtomicU64::new(0) }; LISTED],
            len: AtomicUsize::new(0),
            more: Mutex::default(),
            listed_lane: false,
            lane: None,
            function: AtomicU32::new(0),
        }
    }
}

impl LaneUses {
    /// The lane begins to execute a call of this function.
    #[inline]
    pub fn calls(&self, function: u32) {
        self.function.store(function, Ordering::Relaxed);
    }

    /// How many ids are announced: what [`LaneUses::forget_from`] is given at the end of a call that begins now.
    #[inline]
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// From now on the object stays, if it is looked up after this and found not to be ending.
    #[inline]
    pub fn announce(&self, id: u64) {
        point();
        let at = self.len.load(Ordering::Relaxed);
        match self.listed.get(at) {
            Some(listed) => {
                listed.swap(id, Ordering::SeqCst);
            }
            None => lock(&self.more).push(id),
        }
        self.len.store(at + 1, Ordering::Relaxed);
    }

    /// The same for a thread that no call ends on: the list keeps the last ids.
    pub fn announce_last(&self, id: u64) {
        if self.len() == LISTED {
            self.forget_from(0);
        }
        self.announce(id);
    }

    /// The call that began when `from` ids were announced uses nothing any longer.
    #[inline]
    pub fn forget_from(&self, from: usize) {
        let len = self.len.load(Ordering::Relaxed);
        if len == from {
            return;
        }
        point();
        if len > LISTED {
            lock(&self.more).truncate(from.saturating_sub(LISTED));
        }
        for listed in self.listed.get(from..len.min(LISTED)).unwrap_or_default() {
            // Release: the vendor's function is through with the object before a thread that waits for that ends it.
            listed.store(0, Ordering::Release);
        }
        self.len.store(from.min(len), Ordering::Relaxed);
    }

    /// The first announced id for which `found` answers true. Listed ids have no gaps: a zero ends the list, also while
    /// the end of a call clears it from below.
    fn find(&self, mut found: impl FnMut(u64) -> bool) -> bool {
        for listed in &self.listed {
            match listed.load(Ordering::SeqCst) {
                0 => return false,
                id if found(id) => return true,
                _ => {}
            }
        }
        lock(&self.more).iter().any(|id| found(*id))
    }
}

/// The lists of all lanes of a session.
#[derive(Default)]
pub struct InUse {
    lanes: Mutex<Vec<Arc<LaneUses>>>,
    /// Length of `lanes`; written under its lock, before a new lane announces anything.
    lane_count: AtomicUsize,
    /// Of threads that execute no calls, the vendor library's own: what they have looked at last.
    others: Mutex<Vec<Arc<LaneUses>>>,
}

impl InUse {
    /// The list of a thread that executes calls and is no lane; it leaves with the thread.
    pub fn lane(&self) -> Arc<LaneUses> {
        self.add_lane(LaneUses::default())
    }

    /// The list of a new lane; it leaves with the lane.
    pub fn lane_numbered(&self, number: u32) -> Arc<LaneUses> {
        self.add_lane(LaneUses { lane: Some(number), ..LaneUses::default() })
    }

    fn add_lane(&self, uses: LaneUses) -> Arc<LaneUses> {
        let uses = Arc::new(LaneUses { listed_lane: true, ..uses });
        let mut lanes = lock(&self.lanes);
        lanes.retain(is_live);
        lanes.push(uses.clone());
        self.lane_count.store(lanes.len(), Ordering::SeqCst);
        uses
    }

    /// The functions that the lanes have called last, by the number of the lane.
    pub fn last_functions(&self) -> Vec<(u32, u32)> {
        let lanes = lock(&self.lanes);
        let last = |uses: &Arc<LaneUses>| Some((uses.lane?, uses.function.load(Ordering::Relaxed)));
        lanes.iter().filter(|uses| is_live(uses)).filter_map(last).collect()
    }

    /// The list of a thread that executes no calls. It keeps the structures of objects ([`InUse::ids`]), not the objects:
    /// such a thread has no call whose end would be waited for.
    pub fn other_thread(&self) -> Arc<LaneUses> {
        let uses = Arc::new(LaneUses::default());
        let mut others = lock(&self.others);
        others.retain(is_live);
        others.push(uses.clone());
        uses
    }

    /// True: a call of another lane than `own` uses the object, or one of `along`.
    pub fn uses(&self, id: u64, along: &[u64], own: &LaneUses) -> bool {
        point();
        // Sequentially consistent, after the caller's mark: a lane that is not counted yet sees the mark.
        if own.listed_lane && self.lane_count.load(Ordering::SeqCst) == 1 {
            return false;
        }
        let mut lanes = lock(&self.lanes);
        lanes.retain(is_live);
        self.lane_count.store(lanes.len(), Ordering::SeqCst);
        let mut others = lanes.iter().filter(|lane| !std::ptr::eq(own, &raw const ***lane));
        others.any(|lane| lane.find(|used| used == id || along.contains(&used)))
    }

    /// The ids that the calls of all lanes use now.
    pub fn of_lanes(&self) -> Vec<u64> {
        let mut ids = Vec::new();
        let mut collect = |id| {
            ids.push(id);
            false
        };
        lock(&self.lanes).iter().filter(|uses| is_live(uses)).for_each(|uses| _ = uses.find(&mut collect));
        ids
    }

    /// The ids that the calls of all lanes use now, and those that other threads have looked at last.
    pub fn ids(&self) -> Vec<u64> {
        let mut ids = Vec::new();
        let mut collect = |id| {
            ids.push(id);
            false
        };
        for list in [&self.lanes, &self.others] {
            lock(list).iter().filter(|uses| is_live(uses)).for_each(|uses| _ = uses.find(&mut collect));
        }
        ids
    }
}

/// False: its lane or thread has ended, and its calls with it.
fn is_live(uses: &Arc<LaneUses>) -> bool {
    let live = Arc::strong_count(uses) > 1;
    // The last use by the lane's calls comes before the end of an object.
    fence(Ordering::Acquire);
    live
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announced_ids_are_seen_by_other_lanes_until_their_call_ends() {
        let in_use = InUse::default();
        let (first, second) = (in_use.lane(), in_use.lane());
        first.announce(7);
        let inner = first.len();
        first.announce(8);
        assert!(in_use.uses(7, &[], &second) && in_use.uses(1, &[2, 8], &second));
        assert!(!in_use.uses(7, &[], &first), "a lane's own calls are no others");
        first.forget_from(inner);
        assert_eq!(in_use.ids(), [7]);
        first.forget_from(0);
        assert!(in_use.ids().is_empty() && first.is_empty());
    }

    #[test]
    fn long_lists_of_handles_are_announced_whole() {
        let in_use = InUse::default();
        let (lane, other) = (in_use.lane(), in_use.lane());
        lane.announce(1);
        let from = lane.len();
        (2..=1000).for_each(|id| lane.announce(id));
        assert_eq!(in_use.ids(), (1..=1000).collect::<Vec<_>>());
        assert!(in_use.uses(1000, &[], &other));
        lane.forget_from(from);
        assert_eq!(in_use.ids(), [1]);
        lane.announce(2);
        assert_eq!(in_use.ids(), [1, 2]);
    }

    #[test]
    fn a_thread_without_calls_keeps_structures_and_delays_no_end() {
        let in_use = InUse::default();
        let (other, lane) = (in_use.other_thread(), in_use.lane());
        (1..=1000).for_each(|id| other.announce_last(id));
        assert!(in_use.ids().contains(&1000) && in_use.ids().len() <= LISTED);
        assert!(!in_use.uses(1000, &[], &lane));
    }

    #[test]
    fn a_lane_that_has_ended_uses_nothing() {
        let in_use = InUse::default();
        let lane = in_use.lane();
        lane.announce(1);
        drop(lane);
        assert!(in_use.ids().is_empty());
    }
}
