//! The settings of tenants and of the devices that they share, once for the whole node: weight, priority, cap and limits by a
//! tenant's name, and the rules of devices.
//!
//! [`Core::change_shares`](crate::node::Core) is the only writer. Scheduler, cards, accounts and attaches keep no copies: they
//! have a handle and ask when they need it.

use crate::scheduling::rules::Rules;
use crate::tenants::tenant::{Tenant, Tenants};
use aviary_schedule::Share;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A handle; all of a node are of the same settings.
#[derive(Debug, Clone)]
pub struct Shares(Arc<Mutex<Table>>);

#[derive(Debug)]
struct Table {
    /// Counts changes.
    version: u64,
    tenants: Arc<Tenants>,
    rules: Arc<Rules>,
}

impl Shares {
    pub fn new(tenants: Tenants, rules: Rules) -> Self {
        Self(Arc::new(Mutex::new(Table { version: 0, tenants: Arc::new(tenants), rules: Arc::new(rules) })))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rules that are `None` stay. Answers the new version.
    pub fn replace(&self, tenants: Tenants, rules: Option<Rules>) -> u64 {
        let mut table = self.table();
        table.tenants = Arc::new(tenants);
        if let Some(rules) = rules {
            table.rules = Arc::new(rules);
        }
        table.version += 1;
        table.version
    }

    pub fn tenants(&self) -> Arc<Tenants> {
        self.table().tenants.clone()
    }

    pub fn rules(&self) -> Arc<Rules> {
        self.table().rules.clone()
    }

    /// A tenant's share of scheduled devices.
    pub fn of(&self, tenant: &str) -> Share {
        let tenants = self.tenants();
        let configured = tenants.list.iter().find(|known| known.name == tenant);
        configured.map_or_else(|| Tenant::new(tenant).share(), Tenant::share)
    }
}

#[cfg(test)]
mod tests {
    use crate::tenants::shares::*;
    use crate::tenants::tenant::TenantChange;

    #[test]
    fn every_handle_sees_a_change_and_versions_count_them() {
        let shares = Shares::new(Tenants::default(), Rules::default());
        let (scheduler, before) = (shares.clone(), shares.rules());
        let mut tenants = (*shares.tenants()).clone();
        let weight = Some(7);
        tenants.change(&TenantChange { name: "a".into(), weight, ..TenantChange::default() });
        assert_eq!((scheduler.of("a").weight, scheduler.of("b")), (1, Tenant::new("b").share()));
        assert_eq!(shares.replace(tenants.clone(), None), 1);
        assert_eq!((scheduler.of("a").weight, scheduler.tenants().called("a").weight), (7, 7));
        assert!(Arc::ptr_eq(&before, &scheduler.rules()), "rules that are not replaced stay");
        assert_eq!(shares.replace(tenants, Some(Rules::default())), 2);
        assert!(!Arc::ptr_eq(&before, &scheduler.rules()));
    }
}
