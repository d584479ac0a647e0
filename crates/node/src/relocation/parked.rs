//! The node's steps with states that it keeps: room for them, another API server that watches, the way back, the end.

use super::{hand_over::Adopted, machine::Refusal, records::fixed_length, send::order, table::Purpose};
use crate::error::NodeError;
use crate::node::{Core, CoreState};
use crate::sessions::end::end_server;
use aviary_control::MoveOrder;
use std::collections::BTreeSet;

impl Core {
    /// Before states go to an API server that will watch: an error if there is no room for them. Moves need none.
    pub(super) fn check_parked_memory(&self, state: &CoreState, source: u64) -> Result<(), Refusal> {
        // Those of sessions that are parked already and go to another API server count once.
        let used = state.relocations.parked_bytes() - state.relocations.parked_bytes_of(source).unwrap_or(0);
        let limit = self.config.parked_memory;
        let kept = |purpose| matches!(purpose, Purpose::Park | Purpose::Upgrade);
        let record = state.relocations.get(source).filter(|record| kept(record.relocation.purpose()));
        let Some(record) = record else { return Ok(()) };
        let mut bytes = 0u64;
        for part in record.parts.values() {
            let length = part.state.as_ref().and_then(|state| fixed_length(&state.file));
            let length =
                length.ok_or_else(|| Refusal::lasting("its API server did not write a state of a fixed length"))?;
            bytes = bytes.saturating_add(length);
        }
        match used.checked_add(bytes).is_some_and(|sum| sum <= limit) {
            true => Ok(()),
            false => Err(Refusal::not_now(format!(
                "no room for its state of {bytes} bytes: parked sessions use {used} of {limit} bytes (parked_memory)"
            ))),
        }
    }

    /// The sessions are rebuilt and charged: from here on they are as if they had never been parked.
    pub(super) fn let_parked_continue(&self, state: &mut CoreState, server: u64) {
        let Some(record) = state.relocations.remove(server) else { return };
        let process = state.registry.servers.get(&server).map_or(0, |known| known.process.pid());
        for id in record.parts.keys() {
            if let Some(session) = state.registry.sessions.get_mut(id) {
                let devices = session.pages.as_mut().and_then(|pages| pages.devices.take());
                self.schedule(*id, &session.tenant, process, devices);
            }
            order(state, server, *id, MoveOrder::Go);
        }
        let ids: Vec<String> = record.parts.keys().map(u64::to_string).collect();
        let seconds = record.parked.elapsed().as_secs_f64();
        self.log.at(
            self.level_of_moves(),
            format_args!("session {}: unparked after {seconds:.3} s by API server {process}", ids.join(", ")),
        );
    }

    /// Another API server watches the lanes, and rebuilds the sessions when that is due. The present one ends.
    pub(super) fn replace_watcher(&self, state: &mut CoreState, server: u64) -> Result<(), NodeError> {
        let target = self.reserve_target(state, server).map_err(|refusal| NodeError::Parked(refusal.reason))?;
        let Some(mut record) = state.relocations.remove(server) else { return Ok(()) };
        for (id, part) in &record.parts {
            let Some(kept) = &part.state else { continue };
            match self.adopt(state, target, *id, kept, Adopted::Parked) {
                Ok((own, file)) => {
                    let Some(session) = state.registry.sessions.get_mut(id) else { continue };
                    session.server = target;
                    if let Some(pages) = &mut session.pages {
                        (pages.devices, pages.devices_file) = (own, file);
                    }
                }
                Err(error) => {
                    end_server(&mut state.registry, target);
                    state.relocations.insert(record);
                    return Err(error);
                }
            }
        }
        self.hand_on(state, server, target);
        record.source = target;
        state.relocations.insert(record);
        end_server(&mut state.registry, server);
        Ok(())
    }

    /// The state is dropped, and the API server ended: the guests see the hang-up.
    pub(super) fn lose_parked(&self, state: &mut CoreState, server: u64, why: &str) {
        let Some(record) = state.relocations.remove(server) else { return };
        for session in record.parts.keys() {
            self.log.error(format_args!("session {session} is lost: it was parked and cannot continue: {why}"));
        }
        // Some may be a new API server's already, if others could not follow.
        let servers = record.parts.keys().filter_map(|id| Some(state.registry.sessions.get(id)?.server));
        for server in servers.chain([server]).collect::<BTreeSet<_>>() {
            end_server(&mut state.registry, server);
        }
    }
}
