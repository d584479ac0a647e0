//! Interposition: what every call must pass before the vendor library sees it.
//!
//! The gate keeps the accounts of a session and enforces the limits: the tenant's, through the page that all API
//! servers of the tenant share, or the session's own where there is no node. Scheduling policies plug in here.

mod account;
mod audit;
mod grants;
mod holding;
mod lock;
mod page;
mod sealed;

pub use account::{Account, Kind, Refused};
pub use grants::{DEVICE_SEATS, DeviceSeat, GrantPage, Manner, NOT_YET, grant, monotonic};
pub use holding::Holding;
pub use page::{Balance, PageError, SLOTS, TenantPage};
pub use sealed::{Atomics, SealedPage};

use std::sync::Arc;

/// A resource that an API declares: `continuous_rc` or `instantaneous_rc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resource<'a> {
    pub name: &'a str,
    pub kind: Kind,
}

/// An API server's place in its tenant's page.
#[derive(Debug, Clone)]
pub struct Seat {
    page: Arc<TenantPage>,
    slot: u32,
}

impl Seat {
    /// `None`: there is no such slot.
    pub fn new(page: TenantPage, slot: u32) -> Option<Seat> {
        ((slot as usize) < SLOTS).then(|| Seat { page: Arc::new(page), slot })
    }
}

/// no account of `{resource}`: {error}
#[derive(Debug, thiserror::Error)]
#[error("no account of `{resource}`: {error}")]
pub struct NoAccount {
    resource: String,
    error: PageError,
}

/// The accounts of one session, in the order in which its API declares its resources.
#[derive(Debug, Default)]
pub struct Gate {
    accounts: Vec<Account>,
    /// Where there is no tenant's page.
    audit: audit::Window,
    seat: Option<Seat>,
}

impl Gate {
    /// `limit` answers how much of a resource the session may have; `None` is unlimited.
    pub fn new<'a>(resources: impl IntoIterator<Item = Resource<'a>>, limit: impl Fn(&str) -> Option<u64>) -> Gate {
        let accounts = resources.into_iter().map(|r| Account::new(r.name, r.kind, limit(r.name))).collect();
        Gate { accounts, ..Gate::default() }
    }

    /// The session's part of its tenant's accounts.
    pub fn of_tenant<'a>(resources: impl IntoIterator<Item = Resource<'a>>, seat: &Seat) -> Result<Gate, NoAccount> {
        let account = |Resource { name, kind }: Resource| match seat.page.account(seat.slot, name, kind) {
            Ok(number) => Ok(Account::of_tenant(name, kind, seat.clone(), number)),
            Err(error) => Err(NoAccount { resource: name.to_owned(), error }),
        };
        let accounts = resources.into_iter().map(account).collect::<Result<_, _>>()?;
        Ok(Gate { accounts, seat: Some(seat.clone()), ..Gate::default() })
    }

    /// Whether a refusal now gets a line in the log, and how many of this tenant got none since the last line.
    pub fn admit_line(&self) -> Option<u64> {
        self.seat.as_ref().map_or(&self.audit, |seat| seat.page.audit()).admit()
    }

    pub fn accounts(&self) -> &[Account] {
        &self.accounts
    }

    /// Takes `amount` of a continuous resource. What is taken is returned by the [`Holding`] it ends up in.
    pub fn charge(&self, resource: usize, amount: u64) -> Result<(), Refused> {
        self.accounts.get(resource).ok_or(NOTHING)?.charge(amount)
    }

    /// Returns `amount` of a continuous resource, which must have been charged before.
    pub fn uncharge(&self, resource: usize, amount: u64) {
        if let Some(account) = self.accounts.get(resource) {
            account.uncharge(amount);
        }
    }

    /// Uses `amount` of an instantaneous resource up.
    pub fn consume(&self, resource: usize, amount: u64) -> Result<(), Refused> {
        self.accounts.get(resource).ok_or(NOTHING)?.consume(amount)
    }

    /// Returns everything that `holding` holds.
    pub fn settle(&self, holding: &mut Holding) {
        for (resource, amount) in holding.drain() {
            self.uncharge(resource, amount);
        }
    }
}

/// The answer about a resource that does not exist.
const NOTHING: Refused = Refused { used: 0, limit: 0 };

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
        assert_eq!(gate(None).charge(2, 1), Err(NOTHING));
        assert_eq!(gate(None).consume(2, 1), Err(NOTHING));
    }

    #[test]
    fn settling_returns_exactly_what_was_charged() {
        let gate = gate(Some(100));
        let mut holding = Holding::default();
        for amount in [60, 40] {
            gate.charge(0, amount).unwrap();
            holding.add(0, amount);
        }
        assert_eq!(gate.charge(0, 1), Err(Refused { used: 100, limit: 100 }));
        gate.settle(&mut holding);
        assert_eq!(gate.accounts()[0].used(), 0);
        gate.settle(&mut holding);
        assert_eq!(gate.accounts()[0].used(), 0);
        gate.charge(0, 100).unwrap();
    }
}
