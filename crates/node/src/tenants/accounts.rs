//! The tenants' pages: who has which place in them, and what they say.

use crate::error::NodeError;
use crate::tenants::tenant::Tenant;
use aviary_gate::{
    Balance, Findings, HOST_SWAP, HeldAmount, NoRoom, PageError, Rules, SLOTS, TenantPage, Watch, limit_on,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

/// How often the node compares the pages with what it knows.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The longest interval: each look that finds nothing doubles it, so that a node whose sessions are idle rests.
const LONGEST_LOOK_INTERVAL: Duration = Duration::from_secs(8);

/// An API server's place in its tenant's page, until the process is reaped: it holds what it was granted as long as
/// it lives, whatever sessions it has or had.
#[derive(Debug)]
pub struct AssignedSlot {
    pub tenant: String,
    pub slot: u32,
}

/// A page exists while an API server of the tenant does: an idle tenant costs no descriptor. What was counted of resources that
/// APIs declare is kept, as totals must not begin anew; what else a page says is not.
#[derive(Debug)]
pub(crate) enum TenantPageState {
    InUse {
        page: TenantPage,
        /// The descriptor that API servers get.
        descriptor: OwnedFd,
        taken: BTreeSet<u32>,
        watch: Watch,
    },
    Idle(Vec<Balance>),
}

#[derive(Debug, Default)]
pub struct Accounts {
    pub(crate) tenants: BTreeMap<String, TenantPageState>,
    /// The resources that the node's APIs declare; `None`: nobody has told.
    declared: Option<BTreeSet<String>>,
    /// What looks at the pages have found, by tenant, until it is taken.
    findings: Vec<(String, Findings)>,
    looked_at: Option<Instant>,
    /// Looks in a row that found nothing, since the last session began or ended.
    quiet_looks: u32,
}

impl Accounts {
    /// `declared`: the resources that the node's APIs declare.
    pub fn of(declared: Option<BTreeSet<String>>) -> Self {
        Self { declared, ..Self::default() }
    }

    /// A place for one more API server of this tenant.
    pub fn assign_slot(&mut self, tenant: &Tenant) -> Result<AssignedSlot, NodeError> {
        self.quiet_looks = 0;
        let name = || tenant.name.clone();
        let state = self.tenants.entry(name()).or_insert_with(|| TenantPageState::Idle(Vec::new()));
        if let TenantPageState::Idle(balances) = state {
            *state = open(tenant, balances, &self.declared).map_err(|error| NodeError::Page(name(), error))?;
        }
        let full = || NodeError::NoSlot(name(), SLOTS);
        let TenantPageState::InUse { page, taken, watch, .. } = state else { return Err(full()) };
        // The new API server begins with what the node says.
        note(&mut self.findings, &tenant.name, watch.look(page, taken));
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
        self.quiet_looks = 0;
        let Some(state) = self.tenants.get_mut(&seat.tenant) else { return 0 };
        let TenantPageState::InUse { page, taken, watch, .. } = state else { return 0 };
        page.release(seat.slot);
        taken.remove(&seat.slot);
        note(&mut self.findings, &seat.tenant, watch.look(page, taken));
        let suppressed = page.take_untold().min(watch.refusals());
        if taken.is_empty() {
            *state = TenantPageState::Idle(watch.rest(page));
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

    /// Charges an API server with the host memory of states that it watches over.
    pub fn charge_swap(&self, seat: &AssignedSlot, bytes: u64) -> Result<(), NoRoom> {
        self.charge_all(seat, &[HeldAmount { name: HOST_SWAP.into(), device: None, amount: bytes }])
    }

    /// The states are needed no longer.
    pub fn uncharge_swap(&self, seat: &AssignedSlot) -> Result<(), PageError> {
        match self.tenants.get(&seat.tenant) {
            Some(TenantPageState::InUse { page, .. }) => page.uncharge_all(seat.slot, HOST_SWAP),
            _ => Ok(()),
        }
    }

    /// Bytes of host memory that states of the tenant's sessions may still take.
    pub fn swap_room(&self, tenant: &str) -> u64 {
        let balances = self.balances(tenant);
        let own = balances.iter().find(|balance| balance.name == HOST_SWAP);
        own.and_then(|own| Some(own.limit?.saturating_sub(own.used))).unwrap_or(u64::MAX)
    }

    /// Gives a tenant's accounts the limits that the tenant has now.
    pub fn apply(&mut self, tenant: &Tenant) -> Result<(), PageError> {
        match self.tenants.get_mut(&tenant.name) {
            Some(TenantPageState::InUse { page, taken, watch, .. }) => {
                let result = set_limits(page, tenant);
                // If the page could not be changed now, the next look does it.
                watch.set_rules(rules(tenant, &self.declared));
                watch.begin_anew(page, taken);
                result
            }
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

    /// True for a tenant that has an API server, or one that was not seen to end.
    pub fn is_in_use(&self, tenant: &str) -> bool {
        matches!(self.tenants.get(tenant), Some(TenantPageState::InUse { .. }))
    }

    /// Tenants that have or had sessions.
    pub fn names(&self) -> Vec<String> {
        self.tenants.keys().cloned().collect()
    }

    /// Compares the pages with what the node knows, if it is time.
    pub fn look(&mut self, now: Instant) {
        if self.next_look(now).is_none_or(|at| at > now) {
            return;
        }
        self.looked_at = Some(now);
        self.quiet_looks = self.quiet_looks.saturating_add(1);
        for (tenant, state) in &mut self.tenants {
            if let TenantPageState::InUse { page, taken, watch, .. } = state {
                note(&mut self.findings, tenant, watch.look(page, taken));
            }
        }
        if !self.findings.is_empty() {
            self.quiet_looks = 0;
        }
    }

    /// `None`: no tenant has a page. The first time is at once.
    pub fn next_look(&self, now: Instant) -> Option<Instant> {
        let in_use = self.tenants.values().any(|state| matches!(state, TenantPageState::InUse { .. }));
        in_use.then(|| self.looked_at.map_or(now, |at| at + self.interval()))
    }

    fn interval(&self) -> Duration {
        (LOOK_INTERVAL * (1 << self.quiet_looks.saturating_sub(1).min(4))).min(LONGEST_LOOK_INTERVAL)
    }

    pub fn take_findings(&mut self) -> Vec<(String, Findings)> {
        std::mem::take(&mut self.findings)
    }

    pub fn balances(&self, tenant: &str) -> Vec<Balance> {
        match self.tenants.get(tenant) {
            Some(TenantPageState::InUse { page, watch, .. }) => watch.shown(page),
            Some(TenantPageState::Idle(balances)) => balances.clone(),
            None => Vec::new(),
        }
    }
}

fn open(tenant: &Tenant, balances: &[Balance], declared: &Option<BTreeSet<String>>) -> Result<TenantPageState, String> {
    let (page, descriptor) = TenantPage::create().map_err(|error| error.to_string())?;
    let filled = page.restore(balances).and_then(|()| set_limits(&page, tenant));
    filled.map_err(|error| error.to_string())?;
    let (taken, mut watch) = (BTreeSet::new(), Watch::default());
    watch.set_rules(rules(tenant, declared));
    watch.begin_anew(&page, &taken);
    Ok(TenantPageState::InUse { page, descriptor, taken, watch })
}

fn rules(tenant: &Tenant, declared: &Option<BTreeSet<String>>) -> Rules {
    Rules { limits: tenant.limits.clone(), device_limits: tenant.device_limits.clone(), declared: declared.clone() }
}

fn note(findings: &mut Vec<(String, Findings)>, tenant: &str, found: Findings) {
    if found != Findings::default() {
        findings.push((tenant.to_owned(), found));
    }
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
    use crate::tenants::accounts::*;
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
    fn pages_are_looked_at_once_at_first_and_then_in_intervals() {
        let mut accounts = Accounts::default();
        let (start, later) = (Instant::now(), Instant::now() + std::time::Duration::from_secs(3600));
        assert_eq!(accounts.next_look(start), None, "no page");
        let _seat = accounts.assign_slot(&Tenant::new("alice")).unwrap();
        assert_eq!(accounts.next_look(later), Some(later));
        // A moment that was taken before the question, as the loop takes it.
        accounts.look(start);
        assert_eq!(accounts.next_look(later), Some(start + LOOK_INTERVAL), "or the loop would never rest");
        accounts.look(later);
        assert_eq!(accounts.next_look(later), Some(later + 2 * LOOK_INTERVAL), "nothing was found");
        for _ in 0..10 {
            accounts.look(accounts.next_look(later).unwrap());
        }
        let last = accounts.looked_at.unwrap();
        assert_eq!(accounts.next_look(later), Some(last + LONGEST_LOOK_INTERVAL));
        let _other = accounts.assign_slot(&Tenant::new("alice")).unwrap();
        assert_eq!(accounts.next_look(later), Some(last + LOOK_INTERVAL), "a session has begun");
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
