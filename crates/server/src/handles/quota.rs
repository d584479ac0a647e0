//! The `handles` of a session: objects that calls create, which cost the vendor's library memory, count against a limit
//! of the tenant.
//!
//! The tenant's account is charged in batches, so that a call that creates an object changes one word of this process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Objects that are charged at a time, where the limit allows it.
const BATCH: u64 = 64;

#[derive(Default)]
pub struct HandleQuota {
    /// Live objects that calls have created, and those that calls under way are about to.
    used: AtomicU64,
    /// Objects that the tenant is charged for.
    charged: AtomicU64,
    /// Held while `charged` changes.
    changing: Mutex<()>,
}

impl HandleQuota {
    /// A call is about to create `n` objects, until [`HandleQuota::release`]. `charge` takes an amount from the tenant's
    /// account; an error of the least amount is the answer.
    #[inline]
    pub fn reserve<E>(&self, n: u64, charge: impl FnMut(u64) -> Result<(), E>) -> Result<(), E> {
        let used = self.used.fetch_add(n, Ordering::SeqCst).saturating_add(n);
        if used <= self.charged.load(Ordering::SeqCst) { Ok(()) } else { self.charge(n, charge) }
    }

    #[cold]
    fn charge<E>(&self, n: u64, mut charge: impl FnMut(u64) -> Result<(), E>) -> Result<(), E> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let used = self.used.load(Ordering::SeqCst);
        let lacking = used.saturating_sub(self.charged.load(Ordering::SeqCst));
        if lacking == 0 {
            return Ok(());
        }
        let batch = lacking.max(BATCH);
        let taken = if charge(batch).is_ok() { Ok(batch) } else { charge(lacking).map(|()| lacking) };
        match taken {
            Ok(taken) => {
                self.charged.fetch_add(taken, Ordering::SeqCst);
                Ok(())
            }
            Err(error) => {
                self.used.fetch_sub(n, Ordering::SeqCst);
                Err(error)
            }
        }
    }

    /// Objects that the tenant is charged for.
    pub fn charged(&self) -> u64 {
        self.charged.load(Ordering::SeqCst)
    }

    /// The tenant is charged for so many already, by the process in which the session was before. No call is under way.
    pub fn resume(&self, charged: u64) {
        self.charged.store(charged, Ordering::SeqCst);
    }

    /// A call has created an object. Called before its reservation is released.
    #[inline]
    pub fn add(&self) {
        self.used.fetch_add(1, Ordering::SeqCst);
    }

    /// So many objects have ended, or were reserved. `uncharge` returns an amount to the tenant's account.
    #[inline]
    pub fn release(&self, n: u64, uncharge: impl FnOnce(u64)) {
        let used = self.used.fetch_sub(n, Ordering::SeqCst) - n;
        if self.charged.load(Ordering::SeqCst).saturating_sub(used) > 2 * BATCH {
            self.settle(uncharge);
        }
    }

    #[cold]
    fn settle(&self, uncharge: impl FnOnce(u64)) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let charged = self.charged.load(Ordering::SeqCst);
        let surplus = charged.saturating_sub(self.used.load(Ordering::SeqCst)).saturating_sub(BATCH);
        self.charged.store(charged - surplus, Ordering::SeqCst);
        // A call that has reserved meanwhile, before it could see that, has what it needs.
        let lacking = self.used.load(Ordering::SeqCst).saturating_sub(charged - surplus).min(surplus);
        self.charged.fetch_add(lacking, Ordering::SeqCst);
        if surplus > lacking {
            uncharge(surplus - lacking);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An account with a limit.
    struct Account(AtomicU64, u64);

    impl Account {
        fn charge(&self, amount: u64) -> Result<(), ()> {
            let raised = |used: u64| Some(used + amount).filter(|sum| *sum <= self.1);
            self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, raised).map(drop).map_err(drop)
        }

        fn uncharge(&self, amount: u64) {
            assert!(self.0.fetch_sub(amount, Ordering::SeqCst) >= amount);
        }

        fn used(&self) -> u64 {
            self.0.load(Ordering::SeqCst)
        }
    }

    fn create(quota: &HandleQuota, account: &Account) -> Result<(), ()> {
        quota.reserve(1, |amount| account.charge(amount))?;
        quota.add();
        quota.release(1, |amount| account.uncharge(amount));
        Ok(())
    }

    #[test]
    fn the_limit_is_reached_to_the_last_object() {
        for limit in [1, 63, 64, 65, 200] {
            let (quota, account) = (HandleQuota::default(), Account(AtomicU64::new(0), limit));
            assert_eq!((0..limit + 10).filter(|_| create(&quota, &account).is_ok()).count() as u64, limit);
            assert_eq!(account.used(), limit);
            quota.release(1, |amount| account.uncharge(amount));
            assert_eq!((create(&quota, &account), create(&quota, &account)), (Ok(()), Err(())));
        }
    }

    #[test]
    fn what_has_ended_is_returned_but_for_a_batch_or_two() {
        let (quota, account) = (HandleQuota::default(), Account(AtomicU64::new(0), u64::MAX));
        (0..10_000).for_each(|_| create(&quota, &account).unwrap());
        assert!((10_000..10_000 + BATCH).contains(&account.used()));
        quota.release(10_000, |amount| account.uncharge(amount));
        assert!(account.used() <= 2 * BATCH);
    }

    #[test]
    fn threads_have_never_more_than_they_are_charged_for() {
        let (quota, account, live) = (HandleQuota::default(), Account(AtomicU64::new(0), 1000), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for seed in 0..4u64 {
                let (quota, account, live) = (&quota, &account, &live);
                scope.spawn(move || {
                    let mut own = 0;
                    for step in 0..if cfg!(miri) { 100 } else { 20_000 } {
                        if own > 0 && (step * 31 + seed) % 5 < 2 {
                            live.fetch_sub(own, Ordering::SeqCst);
                            quota.release(own, |amount| account.uncharge(amount));
                            own = 0;
                        } else if create(quota, account).is_ok() {
                            own += 1;
                            assert!(live.fetch_add(1, Ordering::SeqCst) < 1000);
                        }
                    }
                    live.fetch_sub(own, Ordering::SeqCst);
                    quota.release(own, |amount| account.uncharge(amount));
                });
            }
        });
        assert!(account.used() <= 2 * BATCH && quota.used.load(Ordering::SeqCst) == 0);
    }
}
