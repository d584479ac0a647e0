//! Interposition: what every call must pass before the vendor library sees it.
//!
//! Today the gate keeps the accounts and enforces the limits of one session;
//! scheduling policies plug in here.

mod account;
mod grants;
mod holding;

pub use account::{Account, Kind, Refused};
pub use grants::{GrantPage, SEATS, Seat, grant, manner};
pub use holding::Holding;

/// A resource that an API declares: `continuous_rc` or `instantaneous_rc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resource<'a> {
    pub name: &'a str,
    pub kind: Kind,
}

/// The accounts of one session, in the order in which its API declares its resources.
#[derive(Debug, Default)]
pub struct Gate {
    accounts: Vec<Account>,
}

impl Gate {
    /// `limit` answers how much of a resource the session may have; `None` is unlimited.
    pub fn new<'a>(resources: impl IntoIterator<Item = Resource<'a>>, limit: impl Fn(&str) -> Option<u64>) -> Gate {
        let accounts = resources.into_iter().map(|r| Account::new(r.name, r.kind, limit(r.name))).collect();
        Gate { accounts }
    }

    pub fn accounts(&self) -> &[Account] {
        &self.accounts
    }

    /// Takes `amount` of a continuous resource. What is taken is returned by the [`Holding`] it ends up in.
    pub fn charge(&self, resource: usize, amount: u64) -> Result<(), Refused> {
        self.accounts.get(resource).ok_or(Refused)?.charge(amount)
    }

    /// Returns `amount` of a continuous resource, which must have been charged before.
    pub fn uncharge(&self, resource: usize, amount: u64) {
        if let Some(account) = self.accounts.get(resource) {
            account.uncharge(amount);
        }
    }

    /// Uses `amount` of an instantaneous resource up.
    pub fn consume(&self, resource: usize, amount: u64) -> Result<(), Refused> {
        self.accounts.get(resource).ok_or(Refused)?.consume(amount)
    }

    /// Returns everything that `holding` holds.
    pub fn settle(&self, holding: &mut Holding) {
        for (resource, amount) in holding.drain() {
            self.uncharge(resource, amount);
        }
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
        assert_eq!(gate(None).charge(2, 1), Err(Refused));
        assert_eq!(gate(None).consume(2, 1), Err(Refused));
    }

    #[test]
    fn settling_returns_exactly_what_was_charged() {
        let gate = gate(Some(100));
        let mut holding = Holding::default();
        for amount in [60, 40] {
            gate.charge(0, amount).unwrap();
            holding.add(0, amount);
        }
        assert_eq!(gate.charge(0, 1), Err(Refused));
        gate.settle(&mut holding);
        assert_eq!(gate.accounts()[0].used(), 0);
        gate.settle(&mut holding);
        assert_eq!(gate.accounts()[0].used(), 0);
        gate.charge(0, 100).unwrap();
    }
}
