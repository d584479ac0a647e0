//! The node's steps about what processes really have on devices: it lists them after sessions have left, and ends API servers that have
//! kept what they report as gone.

use super::holders::{Answer, Claimed, KeptMemory, ListStage, Verdict, judge, unchanged};
use crate::devices::Holder;
use crate::node::{Core, CoreState};
use crate::sessions::end::end_server;
use crate::users::descent::is_started_by;
use aviary_schedule::residency::Place;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;

impl Core {
    /// Lists who has memory of devices, if a session has left, and ends API servers that have kept some.
    pub(crate) fn look_at_holders(&self, state: &mut CoreState, now: u64) {
        let Some(lister) = &self.config.holder_lister else { return };
        if let Some((list, claims)) = state.swapping.holders.take() {
            let claims = unchanged(claims, &claimed(state));
            self.end_those_that_keep(state, &list, &claims);
        }
        if state.swapping.holders.is_due(now) {
            let (claims, answer) = (claimed(state), Answer::default());
            if claims.is_empty() {
                state.swapping.holders.stage = ListStage::Idle { next: 0 };
                return;
            }
            state.swapping.holders.stage = ListStage::Running { begun: now, claims, answer: answer.clone() };
            let lister = lister.clone();
            std::thread::spawn(move || {
                let listed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| lister.list()));
                *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(listed.unwrap_or_default());
            });
        }
    }

    fn end_those_that_keep(&self, state: &mut CoreState, list: &[Holder], claims: &BTreeMap<u64, Claimed>) {
        let rules = state.tenancy.shares.rules();
        let beside = |device: &str| rules.of(device).map_or(u64::MAX, |settings| settings.beside);
        let kept = match judge(list, claims, beside, is_started_by) {
            Verdict::Kept(kept) => {
                self.log.debug(format_args!(
                    "what {} API servers have of devices was compared with what they say",
                    claims.len()
                ));
                kept
            }
            Verdict::Blind => return state.swapping.holders.say_unchecked(&self.log),
        };
        for KeptMemory { server, device, has, may } in kept {
            self.log.error(format_args!(
                "the API server of sessions {:?} has {has} bytes of {device:?}, as its driver says, and may have {may} with \
                 `beside`: what it has reported as swapped out is still there; it is ended",
                state.registry.sessions_of(server)
            ));
            end_server(&mut state.registry, server);
        }
    }
}

/// API servers with a session that is out, and none on its way.
fn claimed(state: &CoreState) -> BTreeMap<u64, Claimed> {
    let swapping = &state.swapping;
    let mut found: BTreeMap<u64, Claimed> = BTreeMap::new();
    let mut under_way = BTreeSet::new();
    let mut out = BTreeSet::new();
    for (session, swapped) in &swapping.sessions {
        match swapping.residency.place(*session) {
            Some(place) if place.is_under_way() => _ = under_way.insert(swapped.server),
            Some(Place::Out) => _ = out.insert(swapped.server),
            _ => {}
        }
        let claimed = found.entry(swapped.server).or_default();
        claimed.outs.insert(*session, swapped.outs);
        // Nothing is not unknown: who was granted no byte of a device may have none.
        let none = swapping.devices.keys().map(|device| (device.clone(), 0));
        for (device, bytes) in none.chain(swapping.resident(*session)) {
            *claimed.most.entry(device).or_default() += bytes;
        }
    }
    found.retain(|server, claimed| {
        let known = state.registry.servers.get(server);
        claimed.processes = known.map(|known| known.process.processes().into_iter().collect()).unwrap_or_default();
        known.is_some() && out.contains(server) && !under_way.contains(server)
    });
    found
}
