//! Whether grants together give away more of a device than there is: of its time, the sum of their shares, and of its memory, where
//! the configuration or its vendor's library says how much that is.
//!
//! Devices are known by names that may end with `*`. Of two such patterns that fit one device the longer one fits nothing but what
//! the shorter one fits, so that the most that is given away of any device is what all patterns give away that cover the longest
//! one: sums are exact although no device has been seen yet.

use super::request::WHOLE_SHARE;
use crate::scheduling::rules::Rules;
use crate::tenants::tenant::Tenant;
use aviary_gate::{fits, limit_on};
use std::collections::{BTreeMap, BTreeSet};

const MEMORY: &str = "device_memory";
/// Of all devices.
const ANY: &str = "*";

/// What a grant may have, for sums.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    /// With what it has from the node.
    pub tenant: Tenant,
    /// Per cent of the time of each device; 0: nothing is guaranteed.
    pub share: u32,
    /// It is being taken back: what its sessions have is not free yet, and it gets no more.
    pub is_leaving: bool,
}

/// A device of which too much would be given away.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Excess {
    pub device: String,
    pub what: &'static str,
    pub sum: u64,
    pub most: u64,
}

impl Claim {
    fn may_use(&self, device: &str) -> bool {
        self.tenant.only_devices.as_ref().is_none_or(|names| names.iter().any(|name| fits(name, device)))
    }

    /// Bytes; `None`: it has no limit.
    fn memory_on(&self, device: &str) -> Option<u64> {
        let on_device = limit_on(&self.tenant.device_limits, MEMORY, device);
        let of_all = self.tenant.limits.get(MEMORY).copied();
        on_device.into_iter().chain(of_all).min()
    }
}

/// What devices have, for sums.
pub(super) struct Stock<'a> {
    pub rules: &'a Rules,
    /// Bytes, as their vendors' libraries say.
    pub listed: &'a BTreeMap<String, u64>,
}

/// How much memory of a device there is to give away.
struct Memory {
    bytes: u64,
    /// With what is swapped.
    most: u64,
    /// What one without a limit counts as.
    unlimited: u64,
}

impl Stock<'_> {
    fn memory_of(&self, device: &str) -> Option<Memory> {
        let settings = self.rules.of(device);
        if let Some((settings, bytes)) = settings.and_then(|settings| Some((settings, settings.memory?))) {
            // Where the node swaps, sessions may have more than the device.
            let most = u64::try_from(u128::from(bytes) * u128::from(settings.oversubscribe) / 1000).unwrap_or(u64::MAX);
            return Some(Memory { bytes, most, unlimited: bytes });
        }
        // Nobody has said that it is shared out: one without a limit is promised nothing.
        let bytes = *self.listed.get(device)?;
        Some(Memory { bytes, most: bytes, unlimited: 0 })
    }
}

/// A claim, and what the grant of its name has now.
pub(super) struct Promise<'a> {
    pub new: &'a Claim,
    pub now: Option<&'a Claim>,
}

/// The first device of which the `others` and the new claim have more than there is, if the grant gets more of it than it has now.
pub(super) fn excess(others: &[Claim], promise: &Promise<'_>, stock: &Stock<'_>) -> Option<Excess> {
    let of_claims = others.iter().chain([promise.new]).flat_map(|claim| {
        let limits = claim.tenant.device_limits.iter().map(|limit| limit.device.as_str());
        claim.tenant.only_devices.iter().flatten().map(String::as_str).chain(limits)
    });
    let of_rules = stock.rules.0.iter().map(|(name, _)| name.as_str());
    let listed = stock.listed.keys().map(String::as_str);
    let devices: BTreeSet<&str> = of_claims.chain(of_rules).chain(listed).chain([ANY]).collect();
    let mut devices = devices.into_iter().filter(|device| promise.new.may_use(device));
    devices.find_map(|device| on_device(others, promise, stock, device))
}

fn on_device(others: &[Claim], promise: &Promise<'_>, stock: &Stock<'_>, device: &str) -> Option<Excess> {
    let Promise { new, now } = promise;
    let now = now.filter(|claim| claim.may_use(device));
    let users = || others.iter().filter(|claim| claim.may_use(device)).chain([*new]);
    let found = |what, sum, most| Some(Excess { device: device.to_owned(), what, sum, most });
    let shares: u64 = users().map(|claim| u64::from(claim.share)).sum();
    if new.share > now.map_or(0, |now| now.share) && shares > u64::from(WHOLE_SHARE) {
        return found("shares (per cent)", shares, u64::from(WHOLE_SHARE));
    }
    let memory = stock.memory_of(device)?;
    let had_by = |claim: &Claim| match claim.memory_on(device) {
        Some(limit) => limit.min(memory.bytes),
        None if claim.is_leaving => 0,
        None => memory.unlimited,
    };
    let sum = users().map(had_by).fold(0, u64::saturating_add);
    if sum > memory.most && had_by(new) > now.map_or(0, had_by) {
        found("memory (bytes)", sum, memory.most)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduling::DeviceSettings;
    use aviary_gate::DeviceLimit;

    fn claim(share: u32, devices: &[&str], memory: &[(&str, u64)]) -> Claim {
        let mut tenant = Tenant::new("a");
        tenant.only_devices =
            Some(devices.iter().map(|name| (*name).to_owned()).collect()).filter(|names: &Vec<_>| !names.is_empty());
        for (device, limit) in memory {
            match *device {
                "" => drop(tenant.limits.insert(MEMORY.into(), *limit)),
                device => {
                    tenant.limit_on(DeviceLimit { device: device.into(), resource: MEMORY.into(), limit: *limit })
                }
            }
        }
        Claim { tenant, share, is_leaving: false }
    }

    fn rules(memory: &[(&str, u64)]) -> Rules {
        let rule = |(name, bytes): &(&str, u64)| {
            ((*name).to_owned(), DeviceSettings { memory: Some(*bytes), ..DeviceSettings::default() })
        };
        Rules(memory.iter().map(rule).collect())
    }

    fn found(claims: &[Claim], new: &Claim, rules: &Rules) -> Option<(String, u64)> {
        let stock = Stock { rules, listed: &BTreeMap::new() };
        excess(claims, &Promise { new, now: None }, &stock).map(|excess| (excess.device, excess.sum))
    }

    #[test]
    fn what_a_grant_has_already_is_not_refused() {
        let (others, listed) = ([claim(60, &[], &[("A", 60)])], BTreeMap::from([("A".to_owned(), 100)]));
        let none = Rules::default();
        let stock = Stock { rules: &none, listed: &listed };
        let found = |new: &Claim, now: &Claim| {
            excess(&others, &Promise { new, now: Some(now) }, &stock).map(|excess| (excess.what, excess.sum))
        };
        let now = claim(50, &[], &[("A", 50)]);
        assert_eq!(found(&now, &now), None);
        assert_eq!(found(&claim(45, &[], &[("A", 45)]), &now), None, "less than now");
        assert_eq!(found(&claim(51, &[], &[("A", 40)]), &now), Some(("shares (per cent)", 111)));
        assert_eq!(found(&claim(0, &[], &[("A", 51)]), &now), Some(("memory (bytes)", 111)));
        assert_eq!(
            found(&now, &claim(50, &["B"], &[("A", 50)])),
            Some(("shares (per cent)", 110)),
            "it had another one"
        );
    }

    #[test]
    fn what_is_being_taken_back_is_not_free_yet() {
        let leaving = |memory: &[(&str, u64)]| Claim { is_leaving: true, ..claim(0, &[], memory) };
        let rules = rules(&[("A*", 100)]);
        assert_eq!(found(&[leaving(&[("A*", 60)])], &claim(0, &[], &[("A*", 41)]), &rules), Some(("A*".into(), 101)));
        assert_eq!(found(&[leaving(&[("A*", 60)])], &claim(0, &[], &[("A*", 40)]), &rules), None);
        assert_eq!(found(&[leaving(&[])], &claim(0, &[], &[("A*", 100)]), &rules), None);
    }

    #[test]
    fn shares_count_on_the_devices_that_a_grant_may_use() {
        let none = Rules::default();
        let both = [claim(60, &["A 1"], &[]), claim(30, &["B*"], &[])];
        assert_eq!(found(&both, &claim(40, &[], &[]), &none), None);
        assert_eq!(found(&both, &claim(41, &[], &[]), &none), Some(("A 1".into(), 101)));
        assert_eq!(found(&both, &claim(41, &["A 2"], &[]), &none), None);
        assert_eq!(found(&both, &claim(41, &["A*"], &[]), &none), Some(("A 1".into(), 101)));
        assert_eq!(found(&both, &claim(71, &["B 7"], &[]), &none), Some(("B 7".into(), 101)));
        assert_eq!(found(&[claim(100, &[], &[])], &claim(1, &[], &[]), &none), Some(("*".into(), 101)));
        // What has no share is promised nothing.
        assert_eq!(found(&[claim(100, &[], &[])], &claim(0, &[], &[]), &none), None);
        let over = [claim(100, &[], &[]), claim(50, &[], &[])];
        assert_eq!(found(&over, &claim(0, &[], &[]), &none), None, "it is not the new one's doing");
    }

    #[test]
    fn memory_counts_where_the_configuration_says_how_much_there_is() {
        let rules = rules(&[("A*", 100)]);
        let own = |bytes| claim(0, &[], &[("A*", bytes)]);
        assert_eq!(found(&[own(60)], &own(40), &rules), None);
        assert_eq!(found(&[own(60)], &own(41), &rules), Some(("A*".into(), 101)));
        assert_eq!(found(&[own(60)], &claim(0, &["B"], &[]), &rules), None);
        assert_eq!(found(&[own(60)], &claim(0, &["A 1"], &[]), &rules), Some(("A 1".into(), 160)), "it has no limit");
        assert_eq!(found(&[own(60)], &claim(0, &[], &[("", 40)]), &rules), None, "a limit for all devices");
        assert_eq!(found(&[own(60)], &claim(0, &[], &[("A 1", 41), ("A*", 40)]), &rules), Some(("A 1".into(), 101)));
        assert_eq!(found(&[own(60)], &claim(0, &[], &[("", 41), ("A*", 40)]), &rules), None, "the lesser one counts");
        let mut twice = rules.clone();
        twice.0[0].1.oversubscribe = 2000;
        assert_eq!(found(&[own(100)], &own(100), &twice), None);
        assert_eq!(found(&[own(100), own(1)], &own(100), &twice), Some(("A*".into(), 201)));
    }
    #[test]
    fn memory_counts_where_the_library_says_how_much_there_is() {
        let listed = BTreeMap::from([("A 1".to_owned(), 100), ("B".to_owned(), 50)]);
        let found = |claims: &[Claim], new: &Claim, rules: &Rules| {
            let stock = Stock { rules, listed: &listed };
            excess(claims, &Promise { new, now: None }, &stock).map(|excess| (excess.device, excess.sum))
        };
        let none = Rules::default();
        let own = |bytes| claim(0, &[], &[("A*", bytes)]);
        assert_eq!(found(&[own(60)], &own(40), &none), None);
        assert_eq!(found(&[own(60)], &own(41), &none), Some(("A 1".into(), 101)));
        assert_eq!(found(&[own(60)], &claim(0, &[], &[]), &none), None, "it is promised nothing");
        assert_eq!(found(&[claim(0, &[], &[])], &own(100), &none), None);
        assert_eq!(found(&[own(60), own(60)], &claim(0, &[], &[]), &none), None, "it is not the new one's doing");
        assert_eq!(found(&[], &claim(0, &[], &[("", 500)]), &none), None, "all of each");
        assert_eq!(found(&[own(1)], &claim(0, &["A*"], &[("", 500)]), &none), Some(("A 1".into(), 101)));
        assert_eq!(found(&[own(150)], &own(50), &rules(&[("A*", 200)])), None, "the configuration is right");
    }
}
