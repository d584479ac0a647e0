//! Who a user is to this node, and what that tenant's sessions may use.

use crate::scheduling::Share;
use std::collections::BTreeMap;

/// Limits by resource name.
pub type Limits = BTreeMap<String, u64>;

/// Users that are treated as one. The kernel says which user a guest is: nobody can claim to be another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    pub name: String,
    pub users: Vec<u32>,
    /// Of each of its sessions; they take the place of the node's own.
    pub limits: Limits,
    /// What it is entitled to where devices are scheduled.
    pub share: Share,
}

/// Tenants of a node. A user of none is a tenant of its own, with the node's limits.
#[derive(Debug, Clone, Default)]
pub struct Tenants {
    pub list: Vec<Tenant>,
    pub limits: Limits,
}

impl Tenants {
    /// Name and limits for a session of this user.
    pub fn of(&self, uid: u32) -> (String, Limits) {
        let mut limits = self.limits.clone();
        match self.list.iter().find(|tenant| tenant.users.contains(&uid)) {
            Some(tenant) => {
                limits.extend(tenant.limits.clone());
                (tenant.name.clone(), limits)
            }
            None => (format!("uid-{uid}"), limits),
        }
    }

    /// What the tenant of this name is entitled to.
    pub fn share(&self, name: &str) -> Share {
        self.list.iter().find(|tenant| tenant.name == name).map_or(Share::default(), |tenant| tenant.share)
    }

    /// Limits for a session of a tenant that showed its name from another machine.
    pub fn named(&self, name: &str) -> (String, Limits) {
        let mut limits = self.limits.clone();
        if let Some(tenant) = self.list.iter().find(|tenant| tenant.name == name) {
            limits.extend(tenant.limits.clone());
        }
        (name.to_owned(), limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenants_limits_come_before_the_nodes() {
        let limits = |pairs: &[(&str, u64)]| {
            pairs.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect::<Limits>()
        };
        let alice =
            Tenant { name: "alice".into(), users: vec![7], limits: limits(&[("memory", 1)]), share: Share::default() };
        let tenants = Tenants { list: vec![alice], limits: limits(&[("memory", 9), ("calls", 3)]) };
        assert_eq!(tenants.of(7), ("alice".into(), limits(&[("memory", 1), ("calls", 3)])));
        assert_eq!(tenants.of(8), ("uid-8".into(), limits(&[("memory", 9), ("calls", 3)])));
    }
}
