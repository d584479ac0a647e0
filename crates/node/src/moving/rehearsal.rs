//! Parks that are rehearsed. The new API server gets the sessions as one gets them that are parked, and is told at once to make
//! them anew, out of the memory of the devices itself where the module hands that over. Equal or not, it ends then: another one,
//! which makes nothing yet, takes its place.

use super::Refusal;
use crate::node::{Core, CoreState};

impl Core {
    /// The sessions of `source` are rehearsed: a fresh API server is the new one from now on.
    pub(super) fn replace_rehearser(&self, state: &mut CoreState, source: u64) -> Result<(), Refusal> {
        let gone = || Refusal::not_now("it is not parked any more");
        let rehearser = state.moves.of(source).ok_or_else(gone)?.target.ok_or_else(gone)?;
        // Before the next one is reserved, which is for the same guest.
        crate::end::end_server(&mut state.registry, rehearser);
        let target = self.reserve_target(state, source)?;
        let one = state.moves.of(source).ok_or_else(gone)?;
        (one.target, one.rehearser) = (Some(target), Some(rehearser));
        Ok(())
    }
}

/// True while an API server that was told to end may hold memory of a device.
pub(super) fn holds_something(state: &CoreState, server: u64) -> bool {
    state.registry.servers.contains_key(&server) || state.emptying.contains_key(&server)
}
