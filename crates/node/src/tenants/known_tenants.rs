//! The tenants that a node knows: those of its configuration, and others since they attached first.
//!
//! Peers decide how many others there are (user ids, names in certificates). What the node keeps of them - accounts, a user id, a
//! home - goes back when they are idle and there is no room for a new one: the one that attached longest ago first. Of a tenant
//! that is forgotten the totals begin anew when it comes back.

use crate::error::NodeError;
use crate::node::CoreState;
use crate::users::server_users::{NewUser, ServerUsers};
use aviary_control::ServerUser;
use std::collections::BTreeSet;

impl CoreState {
    /// Before a session of this tenant: it is known from here on.
    ///
    /// # Errors
    /// Why not, for the guest: too many tenants without an entry in the configuration have sessions.
    pub fn admit_tenant(&mut self, tenant: &str, most: usize) -> Result<(), String> {
        // Only then are names collected: every session of a tenant with an entry comes by here, too.
        if !self.tenants().lists(tenant) {
            self.make_room(tenant, most)?;
        }
        self.tenancy.last_uses.touch(tenant);
        Ok(())
    }

    /// For a tenant without an entry: forgets the idle one that attached longest ago, if there are too many.
    fn make_room(&mut self, tenant: &str, most: usize) -> Result<(), String> {
        let known = self.without_entry();
        if known.contains(tenant) || known.len() < most {
            return Ok(());
        }
        let idle = self.idle_by_age(&known);
        let Some(oldest) = idle.first() else {
            return Err(format!(
                "{most} tenants that are not in the configuration have sessions already (most_tenants)"
            ));
        };
        self.forget(oldest);
        Ok(())
    }

    /// The user of this tenant's API servers; `None`: the node's own.
    /// `own`: the kernel says that the guest is the node's own user.
    ///
    /// # Errors
    /// There is no id left, or no home can be made.
    pub fn user_for(&mut self, tenant: &str, own: bool) -> Result<Option<ServerUser>, NodeError> {
        let tenants = self.tenants();
        let Some(users) = &mut self.server_users else { return Ok(None) };
        let is_listed = tenants.lists(tenant);
        let bytes = tenants.called(tenant).home_bytes();
        let waiting = |users: &ServerUsers| {
            let without = |name: &&str| *name != tenant && !users.has(name);
            tenants.list.iter().map(|listed| listed.name.as_str()).filter(without).count()
        };
        let reserved = if is_listed { 0 } else { waiting(users) };
        if let NewUser::Found(user) = users.of(tenant, own, reserved, bytes)? {
            return Ok(user);
        }
        let mut idle = self.idle_by_age(&self.without_entry());
        if is_listed {
            let listed: BTreeSet<String> = tenants.list.iter().map(|listed| listed.name.clone()).collect();
            idle.extend(self.idle_by_age(&listed));
        }
        let Some(users) = &mut self.server_users else { return Ok(None) };
        users.reclaim(&idle);
        match users.of(tenant, own, 0, bytes)? {
            NewUser::Found(user) => Ok(user),
            NewUser::Full => {
                Err(NodeError::ServerUser(tenant.to_owned(), "all user ids are in use (api_server_users)".into()))
            }
        }
    }

    /// An API server of this tenant has ended: its last one leaves no files.
    pub fn clear_home_if_idle(&mut self, tenant: &str) {
        if let (false, Some(users)) = (self.tenancy.accounts.is_in_use(tenant), &mut self.server_users) {
            users.clear_home(tenant);
        }
    }

    /// Tenants that nobody has configured and of which the node keeps something.
    fn without_entry(&self) -> BTreeSet<String> {
        let tenants = self.tenants();
        let counted = [&self.tenancy.accounts, &self.tenancy.card_accounts]
            .into_iter()
            .flat_map(|accounts| accounts.tenants.keys());
        let users = self.server_users.iter().flat_map(ServerUsers::tenants);
        counted.chain(users).filter(|name| !tenants.lists(name)).cloned().collect()
    }

    /// Those of these tenants that have no API server, session or client of a card.
    fn idle_by_age(&self, tenants: &BTreeSet<String>) -> Vec<String> {
        let busy: BTreeSet<&str> = self.registry.sessions.values().map(|session| session.tenant.as_str()).collect();
        let is_idle = |name: &&String| {
            let accounts = [&self.tenancy.accounts, &self.tenancy.card_accounts];
            !busy.contains(name.as_str()) && !accounts.into_iter().any(|accounts| accounts.is_in_use(name))
        };
        let mut idle: Vec<String> = tenants.iter().filter(is_idle).cloned().collect();
        self.tenancy.last_uses.sort(&mut idle);
        idle
    }

    pub(crate) fn forget(&mut self, tenant: &str) {
        self.tenancy.accounts.tenants.remove(tenant);
        self.tenancy.card_accounts.tenants.remove(tenant);
        if let Some(users) = &mut self.server_users {
            users.reclaim(&[tenant.to_owned()]);
        }
        self.tenancy.last_uses.forget(tenant);
    }
}
