//! The devices that a session's memory lies on.

use crate::account::Account;
use std::sync::{Arc, PoisonError, RwLock};

/// Sets of devices that a session may use together: a hostile program could think of more without end.
const MAX_RESIDENCIES: usize = 1024;

/// A resource on certain devices.
#[derive(Debug)]
pub struct Residency {
    pub resource: usize,
    /// One for each device.
    pub accounts: Vec<Arc<Account>>,
    /// Of the resource and then of the devices, in the tenant's page; empty without one.
    pub numbers: Vec<usize>,
}

/// All residencies that a session has come to use; they stay.
#[derive(Debug, Default)]
pub struct Residencies {
    known: RwLock<OpenResidencies>,
}

#[derive(Debug, Default)]
struct OpenResidencies {
    residencies: Vec<Arc<Residency>>,
    accounts: Vec<(usize, Arc<Account>)>,
}

impl Residencies {
    pub fn get(&self, number: usize) -> Option<Arc<Residency>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).residencies.get(number).cloned()
    }

    pub fn accounts(&self) -> Vec<Arc<Account>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.accounts.iter().map(|(_, account)| account.clone()).collect()
    }

    /// The number of that place. `open` makes the account of a device that there is none of yet; `whole` is the number
    /// of the resource's own in the tenant's page. `None`: there are too many.
    pub fn residency<E>(
        &self,
        resource: usize,
        devices: &[&str],
        whole: Option<usize>,
        open: impl Fn(&str) -> Result<Account, E>,
    ) -> Result<Option<usize>, E> {
        let is_same = |residency: &Arc<Residency>| {
            let names = residency.accounts.iter().map(|account| account.device());
            residency.resource == resource && names.eq(devices.iter().map(|device| Some(*device)))
        };
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = known.residencies.iter().position(is_same) {
            return Ok(Some(at));
        }
        drop(known);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = known.residencies.iter().position(is_same) {
            return Ok(Some(at));
        }
        if known.residencies.len() >= MAX_RESIDENCIES {
            return Ok(None);
        }
        let mut accounts: Vec<Arc<Account>> = Vec::new();
        for device in devices {
            let there = known.accounts.iter().find(|(of, on)| *of == resource && on.device() == Some(*device));
            let account = match there {
                Some((_, account)) => account.clone(),
                None => {
                    let account = Arc::new(open(device)?);
                    known.accounts.push((resource, account.clone()));
                    account
                }
            };
            accounts.push(account);
        }
        let numbers = whole.into_iter().chain(accounts.iter().filter_map(|account| account.number())).collect();
        known.residencies.push(Arc::new(Residency { resource, accounts, numbers }));
        Ok(Some(known.residencies.len() - 1))
    }
}
