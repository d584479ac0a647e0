//! Holdings of the API server of one slot, for a session that is parked: noted before that API server ends, and charged to
//! another one before the session is made anew.
//!
//! The node notes it out of a page that API servers write. One that was taken over can have it note anything; all of it is
//! charged against the limits of that API server's own tenant before anything comes of it.

use crate::shared::page::{NODE_LOCK_TIMEOUT, NODE_OWNER, PageError, TenantPage, lower, name_of};
use std::sync::atomic::Ordering;

/// An amount of a continuous resource that one API server holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldAmount {
    pub name: String,
    /// On which device; `None`: wherever, all together.
    pub device: Option<String>,
    pub amount: u64,
}

/// Amounts cannot be charged again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub enum NoRoom {
    /// the tenant's limit of {name} has no room: {used} of {limit} are in use, and the session needs {wanted}
    Limit { name: String, used: u64, limit: u64, wanted: u64 },
    /// {0}
    Page(#[from] PageError),
}

impl TenantPage {
    /// All that the API server of this slot holds now; no amount is 0.
    pub fn held_by(&self, slot: u32) -> Vec<HeldAmount> {
        let Some(row) = self.rows().get(slot as usize) else { return Vec::new() };
        let amount =
            |(account, held): (&crate::shared::page::SharedAccount, &std::sync::atomic::AtomicU64)| HeldAmount {
                name: name_of(&account.name),
                device: Some(account.device.load()).filter(|device| !device.is_empty()),
                amount: held.load(Ordering::Relaxed),
            };
        self.accounts().iter().zip(row).map(amount).filter(|held| held.amount != 0).collect()
    }

    /// Charges all of these amounts to a slot, or none of them.
    ///
    /// # Errors
    /// The first account that has no room, or accounts that cannot be had.
    pub fn charge_all(&self, slot: u32, amounts: &[HeldAmount]) -> Result<(), NoRoom> {
        let layout = self.layout();
        let Some(row) = self.rows().get(slot as usize) else { return Err(PageError::Full.into()) };
        let mut indexes = Vec::new();
        for held in amounts {
            let device = held.device.as_deref().unwrap_or_default();
            // One that is there is not looked for under the lock.
            let index = match self.find(&held.name, device) {
                Some(index) => index,
                None => self.register(NODE_OWNER, NODE_LOCK_TIMEOUT, &held.name, device)?,
            };
            let _ = layout.accounts[index].kind.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire);
            if layout.accounts[index].kind.load(Ordering::Acquire) != 1 {
                return Err(PageError::OtherKind.into());
            }
            indexes.push(index);
        }
        if !layout.lock.lock(NODE_OWNER, NODE_LOCK_TIMEOUT) {
            return Err(PageError::Busy.into());
        }
        let refused = indexes.iter().zip(amounts).find_map(|(index, held)| {
            let account = &layout.accounts[*index];
            let (used, limit) = (account.used.load(Ordering::Relaxed), account.limit.load(Ordering::Relaxed));
            let fits = used.checked_add(held.amount).is_some_and(|sum| sum <= limit);
            let name = held.device.as_ref().map_or(held.name.clone(), |device| format!("{} on {device}", held.name));
            (!fits).then_some(NoRoom::Limit { name, used, limit, wanted: held.amount })
        });
        if refused.is_none() {
            for (index, held) in indexes.iter().zip(amounts) {
                let account = &layout.accounts[*index];
                let before = account.used.fetch_add(held.amount, Ordering::Relaxed);
                row[*index].fetch_add(held.amount, Ordering::Relaxed);
                account.peak.fetch_max(before.saturating_add(held.amount), Ordering::Relaxed);
            }
        }
        layout.lock.unlock();
        refused.map_or(Ok(()), Err)
    }

    /// Gives back all that a slot holds of a resource wherever it is. An API server that was taken over may say there what it
    /// likes: its tenant uses nothing less than nothing.
    ///
    /// # Errors
    /// [`PageError::Busy`]: nothing is given back.
    pub fn uncharge_all(&self, slot: u32, name: &str) -> Result<(), PageError> {
        let layout = self.layout();
        let (Some(row), Some(index)) = (self.rows().get(slot as usize), self.find(name, "")) else { return Ok(()) };
        if !layout.lock.lock(NODE_OWNER, NODE_LOCK_TIMEOUT) {
            return Err(PageError::Busy);
        }
        lower(&layout.accounts[index].used, row[index].swap(0, Ordering::Relaxed));
        layout.lock.unlock();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gate, Kind, Resource, TenantSlot};
    use std::os::fd::AsFd;

    fn gate(page: &std::os::fd::OwnedFd, slot: u32) -> Gate {
        let memory = Resource { name: "memory", kind: Kind::Continuous };
        let page = TenantPage::open(page.as_fd()).unwrap();
        Gate::of_tenant([memory], &TenantSlot::new(page, slot).unwrap()).unwrap()
    }

    #[test]
    fn amounts_of_an_ended_slot_are_charged_again_all_or_none() {
        let (page, descriptor) = TenantPage::create().unwrap();
        (0..3).for_each(|slot| page.note_slot(slot));
        page.set_limit("memory", Some(10)).unwrap();
        let (parked, other) = (gate(&descriptor, 0), gate(&descriptor, 1));
        parked.charge(0, 6).unwrap();
        parked.charge(parked.residency(0, &["card".into()]).unwrap(), 1).unwrap();
        let noted = page.held_by(0);
        assert_eq!(noted.iter().map(|held| held.amount).sum::<u64>(), 8, "{noted:?}");
        page.release(0);
        let used = || page.balances().iter().map(|balance| (balance.used, balance.held)).collect::<Vec<_>>();
        assert_eq!(used(), [(0, 0), (0, 0)]);
        // Another session has taken the room.
        other.charge(0, 5).unwrap();
        let refused = page.charge_all(2, &noted).unwrap_err();
        assert_eq!(refused, NoRoom::Limit { name: "memory".into(), used: 5, limit: 10, wanted: 7 });
        assert_eq!(used(), [(5, 5), (0, 0)], "nothing was charged");
        other.uncharge(0, 2);
        page.charge_all(2, &noted).unwrap();
        assert_eq!(used(), [(10, 10), (1, 1)]);
        page.release(2);
        assert_eq!(used(), [(3, 3), (0, 0)]);
    }

    #[test]
    fn all_of_one_resource_is_given_back_and_never_more_than_is_used() {
        let (page, _descriptor) = TenantPage::create().unwrap();
        (0..2).for_each(|slot| page.note_slot(slot));
        let held = |name: &str, amount| HeldAmount { name: name.into(), device: None, amount };
        page.charge_all(0, &[held("memory", 3), held("swap", 5)]).unwrap();
        page.charge_all(1, &[held("swap", 4)]).unwrap();
        page.uncharge_all(0, "swap").unwrap();
        page.uncharge_all(0, "nothing").unwrap();
        let used = || page.balances().iter().map(|balance| balance.used).collect::<Vec<_>>();
        assert_eq!((used(), page.held_by(0)), (vec![3, 4], vec![held("memory", 3)]));
        // As a process of the tenant's may write there.
        page.rows()[1][1].store(u64::MAX, Ordering::Relaxed);
        page.uncharge_all(1, "swap").unwrap();
        assert_eq!(used(), [3, 0]);
    }

    #[test]
    fn amounts_that_no_sum_can_have_are_refused() {
        let (page, _descriptor) = TenantPage::create().unwrap();
        page.note_slot(0);
        let all = HeldAmount { name: "memory".into(), device: None, amount: u64::MAX };
        page.charge_all(0, std::slice::from_ref(&all)).unwrap();
        assert!(page.charge_all(0, &[HeldAmount { amount: 1, ..all }]).is_err());
        assert!(page.held_by(7).is_empty() && page.charge_all(7, &[]).is_err());
    }
}
