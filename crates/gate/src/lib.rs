//! Interposition: what every call must pass before the vendor library sees it.
//!
//! The gate keeps the accounts of a session and enforces the limits: the tenant's, through the page that all API
//! servers of the tenant share, or the session's own where there is no node. Scheduling policies plug in here.

mod account;
mod amounts;
mod audit;
mod charges;
mod device_limits;
mod residency;
mod shared;
mod slot;

pub use account::Account;
pub use amounts::{Allowance, Kind, Refused};
pub use aviary_ring::ablation;
pub use charges::Charges;
pub use device_limits::{DEVICE_LIMITS, DEVICE_NAME_BYTES, DeviceLimit, fits, limit_on, precedence};
pub use shared::grant_page::{DEVICE_SLOTS, DeviceSlot, GrantPage, WAIT_BOUNDS_NS, WAIT_CLASSES, monotonic};
pub use shared::page::{Balance, HeldAmount, NoRoom, PageError, ProcessUse, SLOTS, TenantPage};
pub use shared::sealed::{Atomics, SealedPage};
pub use shared::session_limits::{LimitPage, SessionLimits};
pub use shared::text::Text;
pub use shared::watch::{Findings, Rules, Watch};
pub use slot::TenantSlot;

/// Objects that calls have created, of all APIs: every session has an account of them.
pub const HANDLES: &str = "handles";
/// The bytes of a session's object log, of every API.
pub const HOST_LOG: &str = "host_log";
/// Memory of this machine that the specifications of APIs know of: sources, programs, shared memory.
pub const HOST_MEMORY: &str = "host_memory";
/// Host memory of the states of parked sessions: the node charges it, to the API server that watches.
pub const HOST_SWAP: &str = "host_swap";

use residency::{Residencies, Residency};
use std::sync::Arc;
/// A resource that an API declares: `continuous_rc` or `instantaneous_rc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resource<'a> {
    pub name: &'a str,
    pub kind: Kind,
}

/// cannot keep an account of `{resource}`: {error}
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub struct NoAccount {
    resource: String,
    error: PageError,
}

/// The accounts of one session.
///
/// An amount belongs to an *item*: a resource, by its number in the order in which the API declares them, or a resource
/// on certain devices, by a number that [`Gate::residency`] gives. What lies on devices is held of the resource as such and
/// on each of them: all of these accounts allow it, or none has it.
#[derive(Debug, Default)]
pub struct Gate {
    accounts: Vec<Account>,
    residencies: Residencies,
    /// Where there is no tenant's page.
    audit: audit::RefusalLogWindow,
    seat: Option<TenantSlot>,
}

impl Gate {
    /// `limit` answers how much of a resource the session may have; `None` is unlimited.
    pub fn new<'a>(resources: impl IntoIterator<Item = Resource<'a>>, limit: impl Fn(&str) -> Option<u64>) -> Gate {
        let accounts = resources.into_iter().map(|r| Account::new(r.name, r.kind, limit(r.name))).collect();
        Gate { accounts, ..Gate::default() }
    }

    /// The session's part of its tenant's accounts.
    pub fn of_tenant<'a>(
        resources: impl IntoIterator<Item = Resource<'a>>,
        seat: &TenantSlot,
    ) -> Result<Gate, NoAccount> {
        let account = |Resource { name, kind }: Resource| match seat.page.account(seat.slot, name, kind) {
            Ok(number) => Ok(Account::of_tenant(name, kind, seat.clone(), number)),
            Err(error) => Err(NoAccount { resource: name.to_owned(), error }),
        };
        let accounts = resources.into_iter().map(account).collect::<Result<_, _>>()?;
        Ok(Gate { accounts, seat: Some(seat.clone()), ..Gate::default() })
    }

    /// Decides if a refusal gets a line in the log now; `Some` holds the number of refusals of this tenant without a
    /// line since the last one.
    pub fn admit_line(&self) -> Option<u64> {
        self.seat.as_ref().map_or(&self.audit, |seat| seat.page.audit()).admit()
    }

    /// Those of the resources; of devices see [`Gate::device_accounts`].
    pub fn accounts(&self) -> &[Account] {
        &self.accounts
    }

    /// Those of resources on devices, in the order in which the session came to use them.
    pub fn device_accounts(&self) -> Vec<Arc<Account>> {
        self.residencies.accounts()
    }

    /// The item of a continuous resource on these devices; on none it is the resource. A device that is named twice
    /// counts once.
    pub fn residency(&self, resource: usize, devices: &[String]) -> Result<usize, NoAccount> {
        let mut names: Vec<&str> = Vec::new();
        for name in devices.iter().map(|name| &name[..name.floor_char_boundary(DEVICE_NAME_BYTES)]) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let Some(account) = self.accounts.get(resource).filter(|_| !devices.is_empty()) else { return Ok(resource) };
        let (name, kind) = (account.name(), account.kind());
        let none = |device: &str, error| NoAccount { resource: format!("{name} on {device}"), error };
        let open = |device: &str| match &self.seat {
            None => Ok(Account::new(name, kind, None).on(device)),
            Some(seat) => match seat.page.device_account(seat.slot, name, device) {
                Ok(number) => Ok(Account::of_tenant(name, kind, seat.clone(), number).on(device)),
                Err(error) => Err(none(device, error)),
            },
        };
        let place = self.residencies.residency(resource, &names, account.number(), open)?;
        place.map(|place| self.accounts.len() + place).ok_or_else(|| none("one more set of devices", PageError::Full))
    }

    /// The account of the resource that an item is, or lies on devices of, and those of the devices.
    fn parts(&self, item: usize) -> Option<(&Account, Option<Arc<Residency>>)> {
        match item.checked_sub(self.accounts.len()) {
            None => Some((&self.accounts[item], None)),
            Some(place) => {
                let place = self.residencies.get(place)?;
                Some((self.accounts.get(place.resource)?, Some(place)))
            }
        }
    }

    /// The number of the resource that an item is, or lies on devices of.
    pub fn resource(&self, item: usize) -> Option<usize> {
        match item.checked_sub(self.accounts.len()) {
            None => Some(item),
            Some(place) => Some(self.residencies.get(place)?.resource),
        }
    }

    /// The devices that an item lies on; of a resource as such none.
    pub fn devices(&self, item: usize) -> Vec<String> {
        let place = item.checked_sub(self.accounts.len()).and_then(|place| self.residencies.get(place));
        let accounts = place.iter().flat_map(|place| &place.accounts);
        accounts.filter_map(|account| account.device().map(str::to_owned)).collect()
    }

    /// The allowance of a continuous resource on a device (`None`: wherever), also of one that this API does not
    /// declare;
    /// `None`: as much as the device has.
    pub fn allowance(&self, resource: &str, device: Option<&str>) -> Option<Allowance> {
        if let Some(seat) = &self.seat {
            let device = device.map(|name| &name[..name.floor_char_boundary(DEVICE_NAME_BYTES)]);
            return seat.page.allowance(seat.slot, resource, device);
        }
        let account = self.accounts.iter().find(|account| account.name() == resource)?;
        account.limit().map(|limit| Allowance::new(limit, account.used()))
    }

    /// The tenant's programs that hold a continuous resource on a device, also one that this API does not declare.
    pub fn process_uses(&self, resource: &str, device: &str) -> Vec<ProcessUse> {
        let device = &device[..device.floor_char_boundary(DEVICE_NAME_BYTES)];
        self.seat.as_ref().map_or_else(Vec::new, |seat| seat.page.process_uses(resource, device))
    }

    /// Takes `amount` of a continuous resource. What is taken is returned by the [`Charges`] it ends up in.
    pub fn charge(&self, item: usize, amount: u64) -> Result<(), Refusal> {
        let (account, place) = self.parts(item).ok_or(NOTHING)?;
        let devices = place.as_ref().map_or(&[][..], |place| &place.accounts);
        if let (Some(seat), Some(number)) = (&self.seat, account.number()) {
            let numbers = place.as_ref().map_or(std::slice::from_ref(&number), |place| &place.numbers);
            let part = |at: usize| at.checked_sub(1).and_then(|at| devices.get(at)).map_or(account, |device| device);
            let refusal = |at, figures| Refusal { figures, device: part(at).device().map(str::to_owned) };
            seat.page.charge(seat.slot, numbers, amount).map_err(|(at, figures)| {
                part(at).note_refusal();
                refusal(at, figures)
            })?;
            // The page would have refused it, too, had nobody else written there.
            return raise_all(account, devices, amount).map_err(|(at, figures)| {
                seat.page.uncharge(seat.slot, numbers, amount);
                numbers.get(at).into_iter().for_each(|number| seat.page.note_refusal(*number));
                refusal(at, figures)
            });
        }
        // Without a tenant's page the limit is this account's, and devices have none.
        account.raise(amount)?;
        for device in devices {
            let _ = device.raise(amount);
        }
        Ok(())
    }

    /// Returns `amount` of a continuous resource, which must have been charged before.
    pub fn uncharge(&self, item: usize, amount: u64) {
        let Some((account, place)) = self.parts(item).filter(|_| amount > 0) else { return };
        // Lowered here first: the sum of the sessions' amounts never exceeds the tenant's account.
        account.lower(amount);
        place.iter().flat_map(|place| &place.accounts).for_each(|device| device.lower(amount));
        if let (Some(seat), Some(number)) = (&self.seat, account.number()) {
            let numbers = place.as_ref().map_or(std::slice::from_ref(&number), |place| &place.numbers);
            seat.page.uncharge(seat.slot, numbers, amount);
        }
    }

    /// Uses `amount` of an instantaneous resource up.
    pub fn consume(&self, resource: usize, amount: u64) -> Result<(), Refusal> {
        Ok(self.accounts.get(resource).ok_or(NOTHING)?.consume(amount)?)
    }

    /// Returns everything that `holding` holds.
    pub fn settle(&self, holding: &mut Charges) {
        for (item, amount) in holding.drain() {
            self.uncharge(item, amount);
        }
    }
}

/// Of the session's own accounts, all or none. The error says which of them refused.
fn raise_all(account: &Account, devices: &[Arc<Account>], amount: u64) -> Result<(), (usize, Refused)> {
    account.raise(amount).map_err(|figures| (0, figures))?;
    for (at, device) in devices.iter().enumerate() {
        if let Err(figures) = device.raise(amount) {
            account.lower(amount);
            devices[..at].iter().for_each(|device| device.lower(amount));
            return Err((at + 1, figures));
        }
    }
    Ok(())
}

/// The answer about a resource that does not exist.
const NOTHING: Refused = Refused { used: 0, limit: 0 };

/// Why there is nothing more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub figures: Refused,
    /// Whose limit it is; `None`: that of all devices together.
    pub device: Option<String>,
}

impl From<Refused> for Refusal {
    fn from(figures: Refused) -> Refusal {
        Refusal { figures, device: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(limit: Option<u64>) -> Gate {
        let memory = Resource { name: "memory", kind: Kind::Continuous };
        let calls = Resource { name: "calls", kind: Kind::Instantaneous };
        Gate::new([memory, calls], move |_| limit)
    }

    #[test]
    fn an_unknown_resource_is_refused() {
        assert_eq!(gate(None).charge(2, 1), Err(NOTHING.into()));
        assert_eq!(gate(None).consume(2, 1), Err(NOTHING.into()));
    }

    #[test]
    fn a_session_without_a_tenant_is_told_of_its_own_limit() {
        let limited = gate(Some(100));
        limited.charge(0, 60).unwrap();
        assert_eq!(limited.allowance("memory", Some("card")), Some(Allowance { limit: 100, left: 40 }));
        assert_eq!((limited.allowance("files", None), gate(None).allowance("memory", None)), (None, None));
    }

    #[test]
    fn settling_returns_exactly_what_was_charged() {
        let gate = gate(Some(100));
        let mut holding = Charges::default();
        for amount in [60, 40] {
            gate.charge(0, amount).unwrap();
            holding.add(0, amount);
        }
        assert_eq!(gate.charge(0, 1), Err(Refused { used: 100, limit: 100 }.into()));
        gate.settle(&mut holding);
        assert_eq!(gate.accounts()[0].used(), 0);
        gate.settle(&mut holding);
        assert_eq!(gate.accounts()[0].used(), 0);
        gate.charge(0, 100).unwrap();
    }
}
