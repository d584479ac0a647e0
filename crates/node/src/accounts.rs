//! The tenants' pages: who has which place in them, and what they say.

use crate::{NodeError, Tenant};
use aviary_gate::{Balance, HeldAmount, NoRoom, PageError, SLOTS, TenantPage, limit_on};
use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// An API server's place in its tenant's page, until the process is reaped: it holds what it was granted as long as
/// it lives, whatever sessions it has or had.
#[derive(Debug)]
pub struct AssignedSlot {
    pub tenant: String,
    pub slot: u32,
}

/// A page exists while an API server of the tenant does: an idle tenant costs no descriptor. What was counted is
/// kept, as totals must not begin anew.
#[derive(Debug)]
pub(crate) enum TenantPageState {
    InUse {
        page: TenantPage,
        /// The descriptor that API servers get.
        descriptor: OwnedFd,
        taken: BTreeSet<u32>,
    },
    Idle(Vec<Balance>),
}

#[derive(Debug, Default)]
pub struct Accounts {
    pub(crate) tenants: BTreeMap<String, TenantPageState>,
}

impl Accounts {
    /// A place for one more API server of this tenant.
    pub fn assign_slot(&mut self, tenant: &Tenant) -> Result<AssignedSlot, NodeError> {
        let name = || tenant.name.clone();
        let state = self.tenants.entry(name()).or_insert_with(|| TenantPageState::Idle(Vec::new()));
        if let TenantPageState::Idle(balances) = state {
            *state = open(tenant, balances).map_err(|error| NodeError::Page(name(), error))?;
        }
        let full = || NodeError::NoSlot(name(), SLOTS);
        let TenantPageState::InUse { page, taken, .. } = state else { return Err(full()) };
        let slot = (0..SLOTS as u32).find(|slot| !taken.contains(slot)).ok_or_else(full)?;
        taken.insert(slot);
        page.note_slot(slot);
        Ok(AssignedSlot { tenant: name(), slot })
    }

    pub fn descriptor(&self, seat: &AssignedSlot) -> Option<BorrowedFd<'_>> {
        match self.tenants.get(&seat.tenant)? {
            TenantPageState::InUse { descriptor, .. } => Some(descriptor.as_fd()),
            TenantPageState::Idle(_) => None,
        }
    }

    /// Its API server was reaped. Answers how many refusals of the tenant were not logged in the log.
    pub fn release(&mut self, seat: &AssignedSlot) -> u64 {
        let Some(state) = self.tenants.get_mut(&seat.tenant) else { return 0 };
        let TenantPageState::InUse { page, taken, .. } = state else { return 0 };
        page.release(seat.slot);
        taken.remove(&seat.slot);
        let suppressed = page.take_untold();
        if taken.is_empty() {
            *state = TenantPageState::Idle(page.balances());
        }
        suppressed
    }

    /// Passes everything that one API server of a tenant holds to another one.
    pub fn move_slot(&self, from: &AssignedSlot, to: &AssignedSlot) -> Result<(), PageError> {
        match self.tenants.get(&from.tenant) {
            Some(TenantPageState::InUse { page, .. }) if from.tenant == to.tenant => page.move_slot(from.slot, to.slot),
            // Both have a slot of one page, or the node is wrong about them.
            _ => Err(PageError::Busy),
        }
    }

    /// All that an API server holds now.
    pub fn held_by(&self, seat: &AssignedSlot) -> Vec<HeldAmount> {
        match self.tenants.get(&seat.tenant) {
            Some(TenantPageState::InUse { page, .. }) => page.held_by(seat.slot),
            _ => Vec::new(),
        }
    }

    /// Charges all of these amounts to an API server, or none of them.
    pub fn charge_all(&self, seat: &AssignedSlot, amounts: &[HeldAmount]) -> Result<(), NoRoom> {
        match self.tenants.get(&seat.tenant) {
            Some(TenantPageState::InUse { page, .. }) => page.charge_all(seat.slot, amounts),
            // With a slot there is a page, or the node is wrong about it.
            _ => Err(PageError::Busy.into()),
        }
    }

    /// Gives a tenant's accounts the limits that the tenant has now.
    pub fn apply(&mut self, tenant: &Tenant) -> Result<(), PageError> {
        match self.tenants.get_mut(&tenant.name) {
            Some(TenantPageState::InUse { page, .. }) => set_limits(page, tenant),
            Some(TenantPageState::Idle(balances)) => {
                for balance in balances {
                    let limit = match &balance.device {
                        None => tenant.limits.get(&balance.name).copied(),
                        Some(device) => limit_on(&tenant.device_limits, &balance.name, device),
                    };
                    balance.limit = limit.filter(|limit| *limit != u64::MAX);
                }
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Tenants that have or had sessions.
    pub fn names(&self) -> Vec<String> {
        self.tenants.keys().cloned().collect()
    }

    pub fn balances(&self, tenant: &str) -> Vec<Balance> {
        match self.tenants.get(tenant) {
            Some(TenantPageState::InUse { page, .. }) => page.balances(),
            Some(TenantPageState::Idle(balances)) => balances.clone(),
            None => Vec::new(),
        }
    }
}

fn open(tenant: &Tenant, balances: &[Balance]) -> Result<TenantPageState, String> {
    let (page, descriptor) = TenantPage::create().map_err(|error| error.to_string())?;
    let filled = page.restore(balances).and_then(|()| set_limits(&page, tenant));
    filled.map_err(|error| error.to_string())?;
    Ok(TenantPageState::InUse { page, descriptor, taken: BTreeSet::new() })
}

fn set_limits(page: &TenantPage, tenant: &Tenant) -> Result<(), PageError> {
    let without = |balance: &&Balance| balance.device.is_none() && !tenant.limits.contains_key(&balance.name);
    for balance in page.balances().iter().filter(without) {
        page.set_limit(&balance.name, None)?;
    }
    page.set_device_limits(&tenant.device_limits)?;
    tenant.limits.iter().try_for_each(|(resource, limit)| page.set_limit(resource, Some(*limit)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use aviary_gate::{DeviceLimit, Gate, Kind, Resource};

    #[test]
    fn places_are_reused_and_limits_follow_the_tenant() {
        let mut accounts = Accounts::default();
        let mut tenant = Tenant::new("alice");
        tenant.limits.insert("memory".into(), 5);
        let (one, two) = (accounts.assign_slot(&tenant).unwrap(), accounts.assign_slot(&tenant).unwrap());
        assert_eq!((one.slot, two.slot), (0, 1));
        accounts.release(&one);
        assert_eq!(accounts.assign_slot(&tenant).unwrap().slot, 0);
        let limit = |accounts: &Accounts| accounts.balances("alice")[0].limit;
        assert_eq!(limit(&accounts), Some(5));
        tenant.limits = [("calls".into(), 3)].into();
        accounts.apply(&tenant).unwrap();
        assert_eq!(limit(&accounts), None);
        assert_eq!(accounts.balances("alice")[1].limit, Some(3));
    }

    #[test]
    fn an_idle_tenant_has_no_page_and_new_limits() {
        let mut accounts = Accounts::default();
        let mut tenant = Tenant::new("alice");
        tenant.limits.insert("memory".into(), 5);
        let seat = accounts.assign_slot(&tenant).unwrap();
        assert!(accounts.descriptor(&seat).is_some());
        accounts.release(&seat);
        assert!(accounts.descriptor(&seat).is_none());
        tenant.limits.insert("memory".into(), 6);
        accounts.apply(&tenant).unwrap();
        assert_eq!(accounts.balances("alice")[0].limit, Some(6));
        accounts.assign_slot(&tenant).unwrap();
        assert_eq!(accounts.balances("alice")[0].limit, Some(6));
    }

    #[test]
    fn limits_of_devices_follow_the_tenant_too() {
        let mut accounts = Accounts::default();
        let mut tenant = Tenant::new("alice");
        let limit = |limit: u64| DeviceLimit { device: "card*".into(), resource: "memory".into(), limit };
        tenant.device_limits = vec![limit(5)];
        let seat = accounts.assign_slot(&tenant).unwrap();
        let page = TenantPage::open(accounts.descriptor(&seat).unwrap()).unwrap();
        let memory = Resource { name: "memory", kind: Kind::Continuous };
        let gate = Gate::of_tenant([memory], &aviary_gate::TenantSlot::new(page, seat.slot).unwrap()).unwrap();
        let card = gate.residency(0, &["card 1".into()]).unwrap();
        gate.charge(card, 4).unwrap();
        assert_eq!(gate.charge(card, 2).unwrap_err().device.as_deref(), Some("card 1"));
        let now = |accounts: &Accounts| {
            let all = accounts.balances("alice");
            let found = all.into_iter().find(|balance| balance.device.is_some()).unwrap();
            (found.limit, found.used)
        };
        tenant.device_limits = vec![limit(6)];
        accounts.apply(&tenant).unwrap();
        assert_eq!(now(&accounts), (Some(6), 4));
        gate.charge(card, 2).unwrap();
        accounts.release(&seat);
        tenant.device_limits = vec![limit(7)];
        accounts.apply(&tenant).unwrap();
        assert_eq!(now(&accounts), (Some(7), 0), "an idle tenant");
        accounts.assign_slot(&tenant).unwrap();
        assert_eq!(now(&accounts), (Some(7), 0), "and in its next page");
    }

    #[test]
    fn a_tenant_has_no_more_places_than_its_page() {
        let mut accounts = Accounts::default();
        let tenant = Tenant::new("alice");
        (0..SLOTS).for_each(|_| drop(accounts.assign_slot(&tenant).unwrap()));
        assert!(matches!(accounts.assign_slot(&tenant), Err(NodeError::NoSlot(..))));
        accounts.assign_slot(&Tenant::new("bob")).unwrap();
    }
}
