//! Taking grants back: by an operator, or because their time is over.
//!
//! The file goes first: whatever ends the node then, the grant is not there any more. Then the socket goes and the sessions are
//! ended. The tenant stays known, with its limits, until all that it held was given back; then its name is free.

use super::{
    entrance,
    error::GrantError,
    request::{FreedAmount, Grant, GrantEntrance, GrantStep, RevokeReport},
    store::GrantStore,
    table::Held,
};
use crate::error::NodeError;
use crate::node::{Core, CoreState};
use crate::sessions::end::EndRequest;
use crate::tenants::tenant::Tenants;
use aviary_gate::Balance;
use std::{
    os::fd::AsFd,
    sync::{PoisonError, TryLockError},
    time::SystemTime,
};

impl CoreState {
    /// A session or an API server of this tenant is there, or may be.
    pub(super) fn is_in_use(&self, tenant: &str) -> bool {
        let accounts = [&self.tenancy.accounts, &self.tenancy.card_accounts];
        self.sessions_of_tenant(tenant) > 0
            || self.relays.of_tenant(tenant) > 0
            || accounts.into_iter().any(|accounts| accounts.is_in_use(tenant))
    }

    fn held_by_tenant(&self, tenant: &str) -> Vec<FreedAmount> {
        let accounts = [&self.tenancy.accounts, &self.tenancy.card_accounts];
        let held = accounts.into_iter().flat_map(|accounts| accounts.balances(tenant));
        let freed = |Balance { name: resource, device, held: amount, .. }| FreedAmount { resource, device, amount };
        held.filter(|balance| balance.held > 0).map(freed).collect()
    }
}

impl Core {
    /// Asked again, it says how far that is.
    pub(crate) fn revoke(&self, name: &str) -> Result<RevokeReport, NodeError> {
        let mut guard = self.grant_store()?;
        let Some(store) = guard.as_mut() else { return Err(GrantError::NoFolder.into()) };
        let grant = self.state().grants.held.get(name).map(|held| held.grant.clone());
        if let Some(grant) = grant {
            store.remove(&grant, true)?;
            store.pass(GrantStep::FileRemoved);
            self.withdraw(&mut self.state(), &grant, "by an operator (aviary revoke)")?;
            store.pass(GrantStep::Ended);
        } else if !self.state().grants.knows(name)
            && let Some(grant) = store.named(name)?
        {
            return self.remove_file_of(store, &grant);
        }
        self.settle_grants();
        Ok(self.state().grants.ask(name))
    }

    /// Of a grant that could not be in force when the node started: nobody has come by it since.
    fn remove_file_of(&self, store: &mut GrantStore, grant: &Grant) -> Result<RevokeReport, NodeError> {
        store.remove(grant, true)?;
        // Where somebody else listens it is theirs.
        if let GrantEntrance::Socket(folder) = &grant.entrance
            && let Err(left) =
                entrance::open(folder, false).map_or_else(|why| Err(why.to_string()), |_| entrance::close(folder, true))
        {
            self.log.warn(format_args!("grant {}: its folder {} is left: {left}", grant.name, folder.display()));
        }
        let name = &grant.name;
        self.log.info(format_args!("grant {name} was revoked, by an operator (aviary revoke): it was not in force"));
        Ok(RevokeReport { known: true, ..RevokeReport::of_none(&grant.name) })
    }

    /// Of a grant whose file is gone.
    fn withdraw(&self, state: &mut CoreState, grant: &Grant, why: &str) -> Result<(), NodeError> {
        let name = &grant.name;
        let sessions = state.sessions_of_tenant(name) + state.relays.of_tenant(name);
        let freed = state.held_by_tenant(name);
        let report = RevokeReport { name: name.clone(), known: true, done: false, sessions, freed };
        let Some(Held { listener, .. }) = state.grants.begin_to_leave(name, report) else { return Ok(()) };
        self.log.info(format_args!("grant {name} was revoked, {why}: {sessions} sessions end"));
        if let Some(listener) = listener {
            self.epoll.remove(listener.as_fd());
        }
        if let GrantEntrance::Socket(folder) = &grant.entrance
            && let Err(left) = entrance::close(folder, true)
        {
            self.log.warn(format_args!("grant {name}: its folder {} is left: {left}", folder.display()));
        }
        self.end_relays(state, Some(name));
        match self.end_sessions_in(state, &EndRequest::Tenant(name.clone())) {
            // It has never attached.
            Ok(_) | Err(NodeError::NoTenantNamed(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Grants of which nothing is left are forgotten.
    pub(crate) fn settle_grants(&self) {
        let mut state = self.state();
        let over = |state: &CoreState| {
            let mut leaving = state.grants.leaving.iter();
            leaving.find(|(name, leaving)| !leaving.report.done && !state.is_in_use(name)).map(|(name, _)| name.clone())
        };
        while let Some(name) = over(&state) {
            state.forget(&name);
            if let Some(leaving) = state.grants.leaving.get_mut(&name) {
                leaving.report.done = true;
            }
            let mut tenants = Tenants::clone(&state.tenants());
            tenants.list.retain(|tenant| tenant.name != name);
            if let Err(error) = self.change_shares(&mut state, tenants, None, Some(&name)) {
                self.log.error(error);
            }
            self.log.info(format_args!("nothing is left of grant {name}"));
        }
    }

    /// Takes back those whose time is over.
    pub(crate) fn expire_grants(&self, now: SystemTime) {
        let over = self.state().grants.expired(now);
        if over.is_empty() {
            return;
        }
        // If another thread is at it, the next look comes soon.
        let mut store = match self.grant_store.try_lock() {
            Ok(store) => store,
            Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(TryLockError::WouldBlock) => return,
        };
        for name in over {
            self.expire(store.as_mut(), &name, now);
        }
    }

    fn expire(&self, store: Option<&mut GrantStore>, name: &str, now: SystemTime) {
        let mut state = self.state();
        let Some(grant) = state.grants.held.get(name).map(|held| held.grant.clone()) else { return };
        // It may have got more time since.
        if !grant.is_over(now) {
            return;
        }
        // Unflushed: a file that is there again is of a grant whose time is over.
        if let Some(Err(error)) = store.map(|store| store.remove(&grant, false)) {
            self.log.error(error);
        }
        if let Err(error) = self.withdraw(&mut state, &grant, "as its time is over") {
            self.log.error(error);
        }
    }
}
