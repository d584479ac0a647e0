//! A process's place in its tenant's page.

use crate::shared::page::{SLOTS, TenantPage};
use crate::shared::session_limits::{KnownLimit, LimitPage};
use std::sync::Arc;

/// An API server's place in its tenant's page.
#[derive(Debug, Clone)]
pub struct TenantSlot {
    pub(crate) page: Arc<TenantPage>,
    pub(crate) slot: u32,
    /// `None`: the tenant's page alone says what is allowed.
    limits: Option<Arc<dyn LimitPage>>,
}

impl TenantSlot {
    /// `None`: there is no such slot.
    pub fn new(page: TenantPage, slot: u32) -> Option<TenantSlot> {
        ((slot as usize) < SLOTS).then(|| TenantSlot { page: Arc::new(page), slot, limits: None })
    }

    /// For a session to which the node has given these limits, too.
    pub fn limited(self, limits: Arc<dyn LimitPage>) -> TenantSlot {
        TenantSlot { limits: Some(limits), ..self }
    }

    pub(crate) fn own_limit(&self, resource: &str, device: &str, known: &mut KnownLimit) -> Option<u64> {
        self.limits.as_ref().and_then(|page| (**page).as_ref().find(resource, device, known))
    }

    /// Names the process that the slot's API server works for, for the tenant's lists of processes.
    pub fn show_guest(&self, process: u32) {
        self.page.show_guest(self.slot, process);
    }
}
