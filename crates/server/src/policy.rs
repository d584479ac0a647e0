//! Which functions a tenant may call.

use crate::api::ApiDescriptor;
use crate::config::SessionConfig;

/// Who a session belongs to and what it may not do, for the gate and the log.
#[derive(Debug, Default)]
pub struct Policy {
    pub tenant: String,
    /// Process id of the guest.
    pub guest: u32,
    /// By the function's number. Most tenants may call everything.
    denied: Option<Box<[bool]>>,
}

impl Policy {
    pub fn new(api: &ApiDescriptor, config: &SessionConfig) -> Policy {
        let (tenant, guest) = (config.tenant.clone(), config.guest);
        let rule = &config.functions;
        let listed = |list: &[String], name: &str| list.iter().any(|listed| listed == name);
        let denies =
            |name: &str| listed(&rule.deny, name) || rule.allow.as_ref().is_some_and(|allowed| !listed(allowed, name));
        let denied: Box<[bool]> = api.functions.iter().map(|function| denies(function.name)).collect();
        Policy { tenant, guest, denied: denied.contains(&true).then_some(denied) }
    }

    pub fn denies(&self, function: u32) -> bool {
        self.denied.as_ref().is_some_and(|denied| denied.get(function as usize).is_some_and(|denied| *denied))
    }
}
