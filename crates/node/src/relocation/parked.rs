//! The node's steps with states that it keeps: room for them, another API server that watches, the way back, the end.

use super::{
    hand_over::Adopted,
    machine::Refusal,
    records::{Record, fixed_length},
    table::Purpose,
};
use crate::node::{Core, CoreState};
use crate::sessions::end::end_server;
use aviary_gate::NoRoom;

impl Core {
    /// Before states go to an API server that will watch: an error if there is no room for them beside those of other sessions.
    /// Moves need none.
    pub(super) fn check_parked_memory(&self, state: &CoreState, record: &Record) -> Result<(), Refusal> {
        if !matches!(record.relocation.purpose(), Purpose::Park | Purpose::Upgrade) {
            return Ok(());
        }
        let (used, limit) = (state.kept_bytes(), self.config.parked_memory);
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
        self.continue_in(state, server);
        // Where the accounts are locked it stays charged until the API server ends.
        if let Some(seat) = state.registry.servers.get(&server).and_then(|known| known.seat.as_ref())
            && let Err(error) = state.tenancy.accounts.uncharge_swap(seat)
        {
            self.log.warn(format_args!("tenant {}: {error}: it stays charged for a state", seat.tenant.escape_debug()));
        }
        let process = state.registry.process_of(server);
        let Some(record) = state.relocations.remove(server) else { return };
        let seconds = record.parked.elapsed().as_secs_f64();
        let ids = record.ids();
        let told = format_args!("session {ids}: unparked after {seconds:.3} s by API server {process}");
        self.log.at(self.level_of_moves(), told);
    }

    /// Another API server watches the lanes, and rebuilds the sessions when that is due. The present one ends.
    pub(super) fn replace_watcher(&self, state: &mut CoreState, server: u64) -> Result<(), Refusal> {
        let target = self.reserve_target(state, server)?;
        let handed =
            state.with_relocation(server, |state, record| self.hand_states(state, record, target, Adopted::Parked));
        if let Err(refusal) = handed {
            end_server(&mut state.registry, target);
            return Err(refusal);
        }
        if let Some(record) = state.relocations.remove(server) {
            self.charge_next_watcher(state, &record, target);
            self.give_to(state, record, target);
        }
        end_server(&mut state.registry, server);
        Ok(())
    }

    /// The source gets the states that an earlier node has left, and watches.
    pub(crate) fn hand_kept(&self, state: &mut CoreState, server: u64) -> Result<(), Refusal> {
        state.with_relocation(server, |state, record| {
            self.hand_states(state, record, server, Adopted::Parked)?;
            for (id, part) in &mut record.parts {
                let pages = state.registry.sessions.get_mut(id).and_then(|session| session.pages.as_mut());
                if let Some(pages) = pages {
                    (pages.devices, pages.devices_file) = (part.devices.take(), part.devices_file.take());
                }
            }
            self.charge_next_watcher(state, record, server);
            Ok(())
        })
    }

    /// A limit that was lowered meanwhile is no reason to lose a session.
    fn charge_next_watcher(&self, state: &CoreState, record: &Record, target: u64) {
        let seat = |server: u64| state.registry.servers.get(&server).and_then(|known| known.seat.as_ref());
        let accounts = &state.tenancy.accounts;
        let given_back = seat(record.source).map_or(Ok(()), |from| accounts.uncharge_swap(from));
        let charged = given_back.map_err(NoRoom::from);
        let charged = charged.and_then(|()| seat(target).map_or(Ok(()), |to| accounts.charge_swap(to, record.bytes())));
        if let Err(error) = charged {
            self.log.warn(format_args!("session {}: parked without a charge for its state: {error}", record.ids()));
        }
    }

    /// The state is dropped, and the API server ended: the guests see the hang-up.
    pub(super) fn lose_parked(&self, state: &mut CoreState, server: u64, why: &str) {
        let Some(record) = state.relocations.remove(server) else { return };
        for session in record.parts.keys() {
            self.log.error(format_args!("session {session} is lost: it was parked and cannot continue: {why}"));
        }
        end_server(&mut state.registry, server);
    }
}
