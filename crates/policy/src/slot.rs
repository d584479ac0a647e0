//! The slot of a running policy, which can be replaced.

use crate::context::Context;
use crate::policy::Policy;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Holds a policy that can be replaced while decisions are made: each decision is made by the old
/// or by the new policy, and no report is lost.
pub struct PolicySlot(Mutex<Policy>);

impl PolicySlot {
    pub fn new(policy: Policy) -> Self {
        Self(Mutex::new(policy))
    }

    fn lock(&self) -> MutexGuard<'_, Policy> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn consume(&self, context: &Context) {
        self.lock().consume_mut(context);
    }

    pub fn schedule(&self, context: &Context) -> i64 {
        self.lock().schedule_mut(context)
    }

    pub fn forget(&self, tenant: u64) {
        self.lock().forget(tenant);
    }

    /// The words of a map's value, for tools and tests.
    pub fn entry(&self, map: &str, tenant: u64, key: u64) -> Option<Vec<u64>> {
        self.lock().entry(map, tenant, key)
    }

    /// Replaces the policy. Maps with equal declarations keep their content.
    pub fn swap(&self, mut next: Policy) {
        let mut held = self.lock();
        next.inherit(&mut held);
        let old = std::mem::replace(&mut *held, next);
        // Freeing the old policy may take a while, so the lock is released first.
        drop(held);
        drop(old);
    }
}
