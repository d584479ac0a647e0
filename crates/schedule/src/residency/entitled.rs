//! How much of the devices' time tenants have had, by their weights: who has had less keeps its turn for longer.

use std::collections::BTreeMap;

/// What one tenant has had.
#[derive(Debug, Clone, Copy, Default)]
struct Had {
    /// Nanoseconds of device time, as last told.
    used: u64,
    /// Nanoseconds by weight; time in which the tenant wanted nothing counts as if it had had as much as others.
    tag: u64,
}

#[derive(Debug, Default)]
pub struct Entitled(BTreeMap<String, Had>);

impl Entitled {
    /// All the device time that a tenant has had up to now.
    pub fn note(&mut self, tenant: &str, used: u64, weight: u32) {
        // One that comes is owed nothing for the time before.
        let least = self.0.values().map(|had| had.tag).min().unwrap_or(0);
        let had = self.0.entry(tenant.to_owned()).or_insert(Had { used, tag: least });
        let more = used.saturating_sub(had.used);
        had.used = used;
        had.tag = had.tag.saturating_add(more / u64::from(weight.max(1)));
    }

    /// 0 for all of which nobody tells the use.
    pub fn tag(&self, tenant: &str) -> u64 {
        self.0.get(tenant).map_or(0, |had| had.tag)
    }

    /// A tenant begins to wait: it is owed nothing from before, when it did not.
    pub fn begins(&mut self, tenant: &str, least: u64) {
        if let Some(had) = self.0.get_mut(tenant) {
            had.tag = had.tag.max(least);
        }
    }

    pub fn forget(&mut self, tenant: &str) {
        self.0.remove(tenant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_counts_by_weight_and_from_the_first_time_on() {
        let mut entitled = Entitled::default();
        for used in [1000, 1300, 1600] {
            entitled.note("a", used, 3);
            entitled.note("b", used, 1);
        }
        assert_eq!((entitled.tag("a"), entitled.tag("b"), entitled.tag("c")), (200, 600, 0));
        entitled.begins("a", 500);
        entitled.begins("b", 500);
        entitled.begins("c", 500);
        assert_eq!((entitled.tag("a"), entitled.tag("b"), entitled.tag("c")), (500, 600, 0));
        // A scheduler that begins anew counts from nothing.
        entitled.note("a", 30, 3);
        entitled.note("a", 60, 3);
        assert_eq!(entitled.tag("a"), 510);
        entitled.note("d", 9000, 1);
        assert_eq!(entitled.tag("d"), 510, "as much as who has had least");
        entitled.forget("a");
        assert_eq!(entitled.tag("a"), 0);
    }
}
