//! The place of a running policy, where another one can take over.

use crate::context::Context;
use crate::policy::Policy;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Holds a policy that can be replaced while decisions are made: each is made by the old or by the new one, and no
/// report is lost between them.
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

    /// Puts another policy in place. Maps that both declare alike keep their content.
    pub fn swap(&self, mut next: Policy) {
        let mut held = self.lock();
        next.inherit(&mut held);
        let old = std::mem::replace(&mut *held, next);
        // What it holds may take a while to free: not while others wait.
        drop(held);
        drop(old);
    }
}
