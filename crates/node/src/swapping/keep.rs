//! Host memory that sessions keep for the next time that their memory leaves: to make it anew takes longer than to copy. It is
//! charged to their tenants, and others get it when they need it.

use super::{PATIENCE, Preparing, Swapped, Swapping};
use crate::node::{Core, CoreState};
use crate::sessions::end::end_server;
use crate::sessions::stats;
use aviary_control::SwapOrder;
use aviary_gate::monotonic;

/// Content may take more of the host's memory than was granted of the device's: by such a part.
const CONTENT_MORE: u64 = 8;

/// Bytes of host memory that a session may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HostRoom {
    /// The node's.
    pub node: u64,
    /// Its tenant's.
    pub tenant: u64,
}

impl Swapped {
    /// Bytes of host memory that it takes or may take.
    pub fn host_bytes(&self) -> u64 {
        self.bytes.saturating_add(self.promised.max(self.kept))
    }
}

impl Swapping {
    /// Sessions that keep host memory and have not given it back in time.
    pub fn late_givers(&self, now: u64) -> Vec<u64> {
        let is_late = |swapped: &Swapped| {
            swapped.kept > 0 && swapped.giving.is_some_and(|since| since.saturating_add(PATIENCE.leave) <= now)
        };
        self.sessions.iter().filter(|(_, swapped)| is_late(swapped)).map(|(session, _)| *session).collect()
    }

    /// When the first of those that give host memory back is late.
    pub fn next_late_giver(&self) -> Option<u64> {
        let giving = self.sessions.values().filter(|swapped| swapped.kept > 0);
        giving.filter_map(|swapped| Some(swapped.giving?.saturating_add(PATIENCE.leave))).min()
    }

    /// Bytes that sessions keep, by one condition.
    fn kept(&self, of: impl Fn(u64, &Swapped) -> bool) -> u64 {
        let kept =
            self.sessions.iter().filter(|(session, swapped)| of(**session, swapped)).map(|(_, swapped)| swapped.kept);
        kept.fold(0, u64::saturating_add)
    }
}

impl Core {
    /// Host memory that nobody has, for a session of this tenant.
    pub(super) fn free_room(&self, state: &CoreState, tenant: &str, session: u64) -> HostRoom {
        let of_others = |(number, other): &(&u64, &Swapped)| **number != session && other.tenant == tenant;
        // What others of the tenant keep is charged already.
        let promised = state.swapping.sessions.iter().filter(of_others);
        let promised =
            promised.map(|(_, other)| other.promised.saturating_sub(other.kept)).fold(0, u64::saturating_add);
        HostRoom {
            node: self.config.parked_memory.saturating_sub(state.kept_bytes()),
            tenant: state.tenancy.accounts.swap_room(tenant).saturating_sub(promised),
        }
    }

    /// Host memory for one session that is to leave, at most as much as it may have; `None`: others give theirs back first.
    pub(super) fn host_room(&self, state: &mut CoreState, session: u64) -> Option<u64> {
        let swapped = state.swapping.sessions.get(&session)?;
        let (tenant, own) = (swapped.tenant.clone(), swapped.kept);
        let free = self.free_room(state, &tenant, session);
        let room = HostRoom { node: free.node.saturating_add(own), tenant: free.tenant.saturating_add(own) };
        let held =
            state.swapping.residency.held(session).into_iter().map(|(_, bytes)| bytes).fold(0, u64::saturating_add);
        // Of a session whose memory nobody has granted nobody knows how much it is.
        let most = if held > 0 { held.saturating_add(held / CONTENT_MORE) } else { u64::MAX };
        let needed = if held > 0 { most } else { device_memory(state, session) };
        let lacks = |room: u64, whose: Option<&str>, state: &mut CoreState| {
            room < needed && self.take_back(state, whose, |number| number == session)
        };
        if lacks(room.tenant, Some(&tenant), state) || lacks(room.node, None, state) {
            return None;
        }
        Some(most.min(room.node).min(room.tenant))
    }

    /// Sessions give host memory back that they keep: those of a tenant, or all, but not some. True: some have.
    fn take_back(&self, state: &mut CoreState, tenant: Option<&str>, but: impl Fn(u64) -> bool) -> bool {
        let now = monotonic();
        let gives = |number: u64, swapped: &Swapped| {
            swapped.kept > 0 && !but(number) && tenant.is_none_or(|tenant| tenant == swapped.tenant)
        };
        let giving = state.swapping.sessions.iter().filter(|(number, swapped)| gives(**number, swapped));
        let giving: Vec<u64> = giving.map(|(number, _)| *number).collect();
        giving.iter().for_each(|session| self.let_keep(state, *session, 0, now));
        !giving.is_empty()
    }

    /// A session keeps no more than this. It is told once until it has answered.
    pub(super) fn let_keep(&self, state: &mut CoreState, session: u64, most: u64, now: u64) {
        let Some(swapped) = state.swapping.sessions.get_mut(&session) else { return };
        if swapped.kept > most && swapped.giving.is_none() {
            (swapped.giving, swapped.preparing) = (Some(now), Preparing::Done);
            self.tell_swap(state, session, SwapOrder::Keep { most });
        }
    }

    /// The states of sessions that are to be parked have the room that these sessions keep, and that of others if they need it.
    /// Bytes of the former; `None`: others give theirs back first.
    pub(crate) fn room_of_kept(&self, state: &mut CoreState, sessions: &[u64], room: u64) -> Option<u64> {
        let own = state.swapping.kept(|session, _| sessions.contains(&session));
        let needed = sessions.iter().map(|session| device_memory(state, *session)).fold(0, u64::saturating_add);
        let lacks = room.saturating_add(own) < needed;
        (!lacks || !self.take_back(state, None, |session| sessions.contains(&session))).then_some(own)
    }

    /// All give back what they keep.
    pub(crate) fn take_back_all(&self, state: &mut CoreState) {
        self.take_back(state, None, |_| false);
    }

    pub(super) fn end_late_givers(&self, state: &mut CoreState, now: u64) {
        for session in state.swapping.late_givers(now) {
            let Some(swapped) = state.swapping.sessions.get_mut(&session) else { continue };
            (swapped.giving, swapped.kept) = (None, 0);
            let server = swapped.server;
            self.log.error(format_args!(
                "session {session}: it has not given host memory back in time: its API server is ended"
            ));
            end_server(&mut state.registry, server);
        }
    }
}

/// As its API server says: it decides only who gives host memory back.
fn device_memory(state: &CoreState, session: u64) -> u64 {
    let pages = state.registry.sessions.get(&session).and_then(|known| known.pages.as_ref());
    pages.map_or(0, |pages| stats::read(&pages.stats).get("device_memory.used").copied().unwrap_or(0))
}
