//! The tenants' pages: who has which place in them, and what they say.

use crate::{NodeError, Tenant};
use aviary_gate::{Balance, PageError, SLOTS, TenantPage};
use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// An API server's place in its tenant's page, until the process is reaped: it holds what it was granted as long as
/// it lives, whatever sessions it has or had.
#[derive(Debug)]
pub struct Seat {
    pub tenant: String,
    pub slot: u32,
}

#[derive(Debug)]
struct Page {
    page: TenantPage,
    /// What API servers get.
    descriptor: OwnedFd,
    taken: BTreeSet<u32>,
}

/// A tenant's page stays for good once there is one: totals must not begin anew.
#[derive(Debug, Default)]
pub struct Accounts {
    pages: BTreeMap<String, Page>,
}

impl Accounts {
    /// A place for one more API server of this tenant.
    pub fn seat(&mut self, tenant: &Tenant) -> Result<Seat, NodeError> {
        let page = match self.pages.get_mut(&tenant.name) {
            Some(page) => page,
            None => {
                let page = new_page(tenant)?;
                self.pages.entry(tenant.name.clone()).or_insert(page)
            }
        };
        let free = (0..SLOTS as u32).find(|slot| !page.taken.contains(slot));
        let slot = free.ok_or_else(|| NodeError::NoSlot(tenant.name.clone(), SLOTS))?;
        page.taken.insert(slot);
        page.page.seat(slot);
        Ok(Seat { tenant: tenant.name.clone(), slot })
    }

    pub fn descriptor(&self, seat: &Seat) -> Option<BorrowedFd<'_>> {
        self.pages.get(&seat.tenant).map(|page| page.descriptor.as_fd())
    }

    /// Its API server was reaped. Answers how many refusals of the tenant were not told in the log.
    pub fn release(&mut self, seat: &Seat) -> u64 {
        let Some(page) = self.pages.get_mut(&seat.tenant) else { return 0 };
        page.page.release(seat.slot);
        page.taken.remove(&seat.slot);
        page.page.take_untold()
    }

    /// Gives a tenant's page the limits that the tenant has now.
    pub fn apply(&self, tenant: &Tenant) -> Result<(), PageError> {
        self.pages.get(&tenant.name).map_or(Ok(()), |page| set_limits(&page.page, tenant))
    }

    /// Tenants that have or had sessions.
    pub fn names(&self) -> Vec<String> {
        self.pages.keys().cloned().collect()
    }

    pub fn balances(&self, tenant: &str) -> Vec<Balance> {
        self.pages.get(tenant).map(|page| page.page.balances()).unwrap_or_default()
    }
}

fn new_page(tenant: &Tenant) -> Result<Page, NodeError> {
    let failed = |error: String| NodeError::Page(tenant.name.clone(), error);
    let (page, descriptor) = TenantPage::create().map_err(|error| failed(error.to_string()))?;
    set_limits(&page, tenant).map_err(|error| failed(error.to_string()))?;
    Ok(Page { page, descriptor, taken: BTreeSet::new() })
}

fn set_limits(page: &TenantPage, tenant: &Tenant) -> Result<(), PageError> {
    for balance in page.balances().iter().filter(|balance| !tenant.limits.contains_key(&balance.name)) {
        page.set_limit(&balance.name, None)?;
    }
    tenant.limits.iter().try_for_each(|(resource, limit)| page.set_limit(resource, Some(*limit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_reused_and_limits_follow_the_tenant() {
        let mut accounts = Accounts::default();
        let mut tenant = Tenant::new("alice");
        tenant.limits.insert("memory".into(), 5);
        let (one, two) = (accounts.seat(&tenant).unwrap(), accounts.seat(&tenant).unwrap());
        assert_eq!((one.slot, two.slot), (0, 1));
        accounts.release(&one);
        assert_eq!(accounts.seat(&tenant).unwrap().slot, 0);
        let limit = |accounts: &Accounts| accounts.balances("alice")[0].limit;
        assert_eq!(limit(&accounts), Some(5));
        tenant.limits = [("calls".into(), 3)].into();
        accounts.apply(&tenant).unwrap();
        assert_eq!(limit(&accounts), None);
        assert_eq!(accounts.balances("alice")[1].limit, Some(3));
    }

    #[test]
    fn a_tenant_has_no_more_places_than_its_page() {
        let mut accounts = Accounts::default();
        let tenant = Tenant::new("alice");
        (0..SLOTS).for_each(|_| drop(accounts.seat(&tenant).unwrap()));
        assert!(matches!(accounts.seat(&tenant), Err(NodeError::NoSlot(..))));
        accounts.seat(&Tenant::new("bob")).unwrap();
    }
}
