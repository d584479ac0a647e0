//! The order in which tenants attached last: the one that is not needed for longest goes first.

use std::collections::HashMap;

/// When each tenant attached last, by a count of all attaches.
#[derive(Debug, Default)]
pub struct LastUses {
    count: u64,
    by_tenant: HashMap<String, u64>,
}

impl LastUses {
    pub fn touch(&mut self, tenant: &str) {
        self.count += 1;
        match self.by_tenant.get_mut(tenant) {
            Some(last) => *last = self.count,
            None => _ = self.by_tenant.insert(tenant.to_owned(), self.count),
        }
    }

    /// The longest ago first; those that never attached to this program before all.
    pub fn sort(&self, tenants: &mut [String]) {
        tenants.sort_by_key(|tenant| self.by_tenant.get(tenant).copied().unwrap_or(0));
    }

    pub fn forget(&mut self, tenant: &str) {
        self.by_tenant.remove(tenant);
    }
}

#[cfg(test)]
mod tests {
    use crate::tenants::last_uses::*;

    #[test]
    fn tenants_are_sorted_by_their_last_use() {
        let mut uses = LastUses::default();
        ["one", "two", "one", "three"].into_iter().for_each(|name| uses.touch(name));
        let mut all = ["three", "one", "two", "never"].map(str::to_owned);
        uses.sort(&mut all);
        assert_eq!(all, ["never", "two", "one", "three"]);
    }
}
