//! Making and changing a grant, and the connections of its guests.
//!
//! One thread at a time makes, changes or takes back grants: the one that has the store. What is written to a disk is written
//! without the node's lock, so that a slow one holds up no guest.

use super::{
    commitment::{Claim, Excess, Promise, Stock, excess},
    entrance,
    error::GrantError,
    report::{GrantReport, report_of},
    request::{Grant, GrantEntrance, GrantRequest, GrantStep},
    store::GrantStore,
    table::MOST_GRANTS,
};
use crate::attach::foreign::{LISTENER, nobody};
use crate::epoll::Token;
use crate::error::NodeError;
use crate::node::{Core, CoreState};
use crate::tenants::tenant::Tenants;
use aviary_control::Foreign;
use std::{
    os::fd::AsFd,
    sync::{MutexGuard, PoisonError},
    time::{Instant, SystemTime},
};

impl CoreState {
    /// Settings as the configuration has them, with those of all grants. What a grant has the name of is the grant's alone: notes
    /// say so.
    pub(crate) fn with_grants(&self, mut tenants: Tenants) -> (Tenants, Vec<String>) {
        let mut notes = Vec::new();
        tenants.list.retain(|tenant| {
            let stays = !self.grants.knows(&tenant.name);
            if !stays {
                let name = tenant.name.escape_debug();
                notes.push(format!("tenant {name} is a grant: its entry in the configuration has no effect"));
            }
            stays
        });
        tenants.list.extend(self.grants.tenants());
        (tenants, notes)
    }
}

impl Core {
    /// Whoever has it may change grants.
    pub(super) fn grant_store(&self) -> Result<MutexGuard<'_, Option<GrantStore>>, GrantError> {
        let store = self.grant_store.lock().unwrap_or_else(PoisonError::into_inner);
        if store.is_some() { Ok(store) } else { Err(GrantError::NoFolder) }
    }

    /// Makes a grant or changes the one of its name; asked again, it changes nothing.
    pub(crate) fn grant(&self, request: &GrantRequest) -> Result<GrantReport, NodeError> {
        let mut grant = request.checked(SystemTime::now())?;
        grant.check(self.config.resources.as_ref())?;
        let mut guard = self.grant_store()?;
        let Some(store) = guard.as_mut() else { return Err(GrantError::NoFolder.into()) };
        let is_new = {
            let state = self.state();
            let known = state.grants.held.get(&grant.name).and_then(|held| held.grant.via.as_ref());
            if let (Some(via), Some(known)) = (&mut grant.via, known) {
                via.key.clone_from(&known.key);
            }
            if state.grants.held.get(&grant.name).is_some_and(|held| held.grant == grant) {
                return Ok(report_of(&state, &grant));
            }
            self.check_grant(&state, &grant, request.overcommit)?;
            !state.grants.has(&grant.name)
        };
        store.open()?;
        if let (Some(via), true) = (&mut grant.via, is_new) {
            store.clear_key(&grant.name);
            via.key = self.make_key(&grant.name)?;
        }
        let listener = match &grant.entrance {
            GrantEntrance::Socket(folder) if is_new => Some(entrance::open(folder, true)?),
            _ => None,
        };
        store.pass(GrantStep::SocketMade);
        if let Err(error) = store.write(&grant) {
            self.undo(store, &grant, is_new);
            return Err(error.into());
        }
        store.pass(GrantStep::FileNamed);
        let mut state = self.state();
        let listener = listener.map(|socket| Foreign::new(socket, &self.aside, &nobody(), LISTENER));
        if let Err(error) = self.put_in_force(&mut state, grant.clone(), listener) {
            drop(state);
            self.undo(store, &grant, is_new);
            return Err(error);
        }
        store.pass(GrantStep::InForce);
        let how = if is_new { "was made" } else { "was changed" };
        self.log.info(format_args!("grant {} {how}", grant.name));
        let report = report_of(&state, &grant);
        drop(state);
        // It may be the next to expire.
        self.wake();
        Ok(report)
    }

    /// A new one leaves nothing behind. One that was to change is what its file says when the node starts again.
    fn undo(&self, store: &mut GrantStore, grant: &Grant, is_new: bool) {
        if !is_new {
            return;
        }
        if let Err(error) = store.remove(grant, true) {
            self.log.error(error);
        }
        if let GrantEntrance::Socket(folder) = &grant.entrance {
            let _ = entrance::close(folder, true);
        }
    }

    fn check_grant(&self, state: &CoreState, grant: &Grant, overcommit: bool) -> Result<(), GrantError> {
        let (name, grants) = (&grant.name, &state.grants);
        if grants.knows(name) && !grants.has(name) {
            return Err(GrantError::Leaving(name.clone()));
        }
        let known = grants.held.get(name);
        let others = || grants.held.values().filter(|held| held.grant.name != *name);
        if let Some(held) = known
            && (held.grant.entrance != grant.entrance || held.grant.via != grant.via)
        {
            return Err(GrantError::OtherEntrance(name.clone()));
        }
        if let Some(other) = others().find(|held| held.grant.entrance == grant.entrance) {
            return Err(GrantError::SameEntrance(name.clone(), other.grant.name.clone()));
        }
        if matches!(grant.entrance, GrantEntrance::Key(_)) && self.config.remote.is_none() {
            return Err(GrantError::NoRemote(name.clone()));
        }
        if known.is_none() {
            check_free(state, name)?;
        }
        if grant.via.is_some() {
            return Ok(());
        }
        let claim = |grant: &Grant| Claim {
            tenant: state.tenants().with_own(grant.tenant()),
            share: grant.share.unwrap_or(0),
            is_leaving: false,
        };
        let held = others().filter(|held| held.grant.via.is_none()).map(|held| claim(&held.grant));
        let leaving = grants.leaving_tenants().map(|tenant| Claim { tenant, share: 0, is_leaving: true });
        let claims: Vec<Claim> = held.chain(leaving).collect();
        let now = known.map(|held| claim(&held.grant));
        let listed =
            self.config.device_lister.as_ref().map(|lister| lister.memories(Instant::now())).unwrap_or_default();
        let stock = Stock { rules: &state.tenancy.shares.rules(), listed: &listed };
        let promise = Promise { new: &claim(grant), now: now.as_ref() };
        match excess(&claims, &promise, &stock).filter(|_| !overcommit) {
            Some(Excess { device, what, sum, most }) => {
                Err(GrantError::Overcommitted { name: name.clone(), device, what, sum, most })
            }
            None => Ok(()),
        }
    }

    /// From here on guests come by it. What it had as another tenant is forgotten.
    pub(super) fn put_in_force(
        &self,
        state: &mut CoreState,
        grant: Grant,
        listener: Option<Foreign>,
    ) -> Result<(), NodeError> {
        let (name, tenant) = (grant.name.clone(), grant.tenant());
        let mut tenants = Tenants::clone(&state.tenants());
        tenants.list.retain(|other| other.name != name);
        tenants.list.push(tenant);
        self.change_shares(state, tenants, None, Some(&name))?;
        let place = state.grants.put(grant, listener);
        match state.grants.listener_at(place) {
            Some(socket) => {
                self.epoll.remove(socket.as_fd());
                self.epoll.add(socket.as_fd(), Token::Grant(place))
            }
            None => Ok(()),
        }
    }

    pub(crate) fn grants(&self) -> Vec<GrantReport> {
        let state = self.state();
        state.grants.held.values().map(|held| report_of(&state, &held.grant)).collect()
    }
}

/// A name that no grant has is nobody's, and nothing is kept of whoever had it.
fn check_free(state: &CoreState, name: &str) -> Result<(), GrantError> {
    let taken = |why| Err(GrantError::Taken(name.to_owned(), why));
    if state.grants.held.len() >= MOST_GRANTS {
        return Err(GrantError::Many(MOST_GRANTS));
    }
    let tenants = state.tenants();
    if tenants.named(name).name != name || tenants.lists(name) {
        return taken("has an entry in the configuration");
    }
    if state.vms.has_tenant(name) {
        return taken("that of a virtual machine");
    }
    if state.is_in_use(name) {
        return taken("has sessions");
    }
    Ok(())
}
