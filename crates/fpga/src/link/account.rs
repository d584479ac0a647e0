//! The memory that a client may have mapped: a limit of its own, or its tenant's on a node.

use aviary_control::FPGA_MEMORY;
use aviary_gate::{Gate, Kind, NoAccount, Resource, TenantSlot};

/// An account of mapped bytes. What is left in it is returned when it is dropped.
///
/// A tenant's page is shared by the node and its cards, and by no API server: one that was taken over could keep the page's lock
/// and make the card's only thread wait.
#[derive(Debug)]
pub struct MemoryAccount {
    limit: Limit,
    used: u64,
}

#[derive(Debug)]
enum Limit {
    Own(u64),
    Tenant { gate: Gate, item: usize },
}

impl MemoryAccount {
    pub fn own(limit: u64) -> MemoryAccount {
        MemoryAccount { limit: Limit::Own(limit), used: 0 }
    }

    /// `card`: the name of the device on which the memory counts as well.
    ///
    /// # Errors
    /// The page has no room for the account.
    pub fn of_tenant(slot: &TenantSlot, card: &str) -> Result<MemoryAccount, NoAccount> {
        let memory = Resource { name: FPGA_MEMORY, kind: Kind::Continuous };
        let gate = Gate::of_tenant([memory], slot)?;
        let item = gate.residency(0, &[card.to_owned()])?;
        Ok(MemoryAccount { limit: Limit::Tenant { gate, item }, used: 0 })
    }

    /// False: the limit is reached, and nothing was taken.
    pub fn charge(&mut self, bytes: u64) -> bool {
        let fits = match &self.limit {
            Limit::Own(limit) => self.used.checked_add(bytes).is_some_and(|sum| sum <= *limit),
            Limit::Tenant { gate, item } => gate.charge(*item, bytes).is_ok(),
        };
        self.used += if fits { bytes } else { 0 };
        fits
    }

    /// Of what was charged.
    pub fn uncharge(&mut self, bytes: u64) {
        let bytes = bytes.min(self.used);
        self.used -= bytes;
        if let Limit::Tenant { gate, item } = &self.limit {
            gate.uncharge(*item, bytes);
        }
    }
}

impl Drop for MemoryAccount {
    fn drop(&mut self) {
        self.uncharge(self.used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aviary_gate::TenantPage;
    use std::os::fd::AsFd;

    #[test]
    fn clients_of_a_tenant_share_its_limit() {
        let (page, descriptor) = TenantPage::create().unwrap();
        page.set_limit(FPGA_MEMORY, Some(100)).unwrap();
        let account = |slot| {
            page.note_slot(slot);
            let slot = TenantSlot::new(TenantPage::open(descriptor.as_fd()).unwrap(), slot).unwrap();
            MemoryAccount::of_tenant(&slot, "card0").unwrap()
        };
        let (mut one, mut other) = (account(0), account(1));
        assert!(one.charge(60) && !other.charge(41) && other.charge(40));
        one.uncharge(10);
        assert!(other.charge(10) && !one.charge(1));
        let used = |device: Option<&str>| {
            let balances = page.balances();
            balances.iter().find(|balance| balance.device.as_deref() == device).unwrap().used
        };
        assert_eq!((used(None), used(Some("card0"))), (100, 100));
        drop(one);
        assert_eq!(used(None), 50);
        // No more is returned than was taken.
        other.uncharge(1000);
        assert_eq!(used(None), 0);
    }

    #[test]
    fn limit_of_its_own_is_exact() {
        let mut account = MemoryAccount::own(100);
        assert!(account.charge(100) && !account.charge(1) && !account.charge(u64::MAX));
        account.uncharge(1);
        assert!(account.charge(1));
    }
}
