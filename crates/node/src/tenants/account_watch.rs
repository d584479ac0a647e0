//! What becomes of API servers whose tenant's page says what it should not.
//!
//! Any API server of the tenant can have written it. So one that holds more than there was room for ends, and where the page is
//! written again and again all of the tenant's do: the tenant's programs are the only ones that lose by it.

use crate::node::{Core, CoreState};
use crate::sessions::events::Lie;
use aviary_gate::Findings;
use std::time::Instant;

/// After so many looks within ten seconds that found something, the tenant's API servers end.
const MOST_REWRITES: u32 = 3;
impl Core {
    pub(crate) fn watch_accounts(&self, now: Instant) {
        let mut state = self.state();
        state.tenancy.accounts.look(now);
        state.tenancy.card_accounts.look(now);
        for (tenant, findings) in state.tenancy.accounts.take_findings() {
            self.judge(&mut state, &tenant, findings, now);
        }
        // Their pages are cards' processes, which are the node's own.
        for (tenant, Findings { rewritten, .. }) in state.tenancy.card_accounts.take_findings() {
            if let Some(what) = rewritten {
                let tenant = tenant.escape_debug();
                self.log.warn(format_args!("accounts of tenant {tenant} at cards: {what} was wrong: it was repaired"));
            }
        }
    }

    fn judge(&self, state: &mut CoreState, tenant: &str, findings: Findings, now: Instant) {
        for (slot, resource) in findings.takers {
            for server in state.servers_of(tenant, Some(slot)) {
                self.end_liar(state, server, &Lie::TookWithoutRoom(resource.clone()));
            }
        }
        let keeper = findings.keeper.map_or(Vec::new(), |slot| state.servers_of(tenant, Some(slot)));
        for server in keeper {
            self.end_liar(state, server, &Lie::KeepsLock);
        }
        let Some(what) = findings.rewritten else { return };
        let count = state.tenancy.rewrites.count(tenant, now);
        if count == 1 {
            self.log.warn(format_args!(
                "an API server of tenant {} has written {what} in the tenant's accounts: the node has put it back",
                tenant.escape_debug()
            ));
        }
        if count >= MOST_REWRITES {
            for server in state.servers_of(tenant, None) {
                self.end_liar(state, server, &Lie::Rewrote(what));
            }
        }
    }
}

impl CoreState {
    /// The API servers of a tenant that were not killed yet; `slot`: the one with this place alone.
    fn servers_of(&self, tenant: &str, slot: Option<u32>) -> Vec<u64> {
        let is_its = |seat: &crate::tenants::accounts::AssignedSlot| {
            seat.tenant == tenant && slot.is_none_or(|slot| slot == seat.slot)
        };
        let servers = self.registry.servers.iter();
        let heard = servers.filter(|(_, server)| server.state.is_heard() && server.seat.as_ref().is_some_and(is_its));
        heard.map(|(id, _)| *id).collect()
    }
}
