//! Host memory is made before it is needed: to make it takes several times as long as to copy into it, and others would wait for
//! that at a session's first eviction. Step by step, so that a session hears what else it is told.

use super::{Preparing, Swapped};
use crate::node::{Core, CoreState};
use aviary_control::SwapOrder;

/// Bytes that a session makes at a time: some ten milliseconds.
const STEP: u64 = 64 << 20;

impl Preparing {
    /// The session says that it keeps so much.
    pub(super) fn after(self, kept: u64) -> Preparing {
        match self {
            Preparing::Until(bytes) if kept >= bytes => Preparing::No,
            Preparing::Until(_) => Preparing::Done,
            other => other,
        }
    }
}

impl Swapped {
    /// Of so many bytes of device memory: those of host memory that it is to keep after the next step; `None`: it makes none.
    fn next_step(&self, held: u64) -> Option<u64> {
        let is_quiet = self.giving.is_none() && self.promised == 0 && self.bytes == 0;
        let wanted = held.min(self.kept.saturating_add(STEP));
        (is_quiet && self.preparing == Preparing::No && wanted > self.kept).then_some(wanted)
    }
}

impl Core {
    /// Sessions that may be told to leave, as their devices have not room for all, make host memory as far as there is some that
    /// nobody has.
    pub(super) fn prepare_host_memory(&self, state: &mut CoreState) {
        let contended = state.swapping.residency.contended();
        for (session, held) in contended {
            let Some(swapped) = state.swapping.sessions.get(&session) else { continue };
            let Some(wanted) = swapped.next_step(held) else { continue };
            let (server, tenant, more) = (swapped.server, swapped.tenant.clone(), wanted - swapped.kept);
            let room = self.free_room(state, &tenant, session);
            if more > room.node.min(room.tenant) {
                continue;
            }
            state.swapping.sessions.entry(session).and_modify(|swapped| {
                (swapped.kept, swapped.preparing) = (wanted, Preparing::Until(wanted));
            });
            self.settle_swap(state, server, session);
            self.tell_swap(state, session, SwapOrder::Prepare { bytes: wanted });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_prepares_step_by_step_until_it_has_what_it_needs() {
        let mut swapped = Swapped::default();
        let held = 2 * STEP + 5;
        for expected in [STEP, 2 * STEP, held] {
            assert_eq!(swapped.next_step(held), Some(expected));
            (swapped.kept, swapped.preparing) = (expected, Preparing::Until(expected));
            assert_eq!(swapped.next_step(held), None, "one step at a time");
            swapped.preparing = swapped.preparing.after(expected);
        }
        assert_eq!((swapped.next_step(held), swapped.next_step(held + 1)), (None, Some(held + 1)));
        // It has no memory, or was told to give some back.
        swapped.preparing = Preparing::Until(held + 1).after(held);
        assert_eq!(swapped.next_step(held + 1), None);
    }

    #[test]
    fn session_that_is_leaving_or_giving_back_prepares_nothing() {
        let quiet = Swapped::default();
        let busy = |change: fn(&mut Swapped)| {
            let mut swapped = Swapped::default();
            change(&mut swapped);
            swapped.next_step(STEP)
        };
        assert_eq!(quiet.next_step(STEP), Some(STEP));
        assert_eq!(busy(|swapped| swapped.giving = Some(1)), None);
        assert_eq!(busy(|swapped| swapped.promised = 1), None);
        assert_eq!(busy(|swapped| swapped.bytes = 1), None);
        assert_eq!(busy(|swapped| swapped.preparing = Preparing::Done), None);
    }
}
