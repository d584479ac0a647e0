//! Limits that hold on each device of a name, in the tenant's page.
//!
//! An API server makes the account of a device when it first allocates there, and must know its limit at that moment:
//! so the page has the limits of all devices that there may be, beside those of the accounts that there are.

use crate::shared::text::Text;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Limits of devices that a tenant may have.
pub const DEVICE_LIMITS: usize = 64;
/// Longest name of a resource, in words.
pub const RESOURCE_NAME_WORDS: usize = 4;
/// Longest name of a device, in words.
pub const DEVICE_NAME_WORDS: usize = 8;
/// Longest name of a device, in bytes; longer ones are cut off.
pub const DEVICE_NAME_BYTES: usize = 8 * DEVICE_NAME_WORDS;

/// The amount that a tenant may have of a resource on each device that has such a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceLimit {
    /// As the API names it; may end with `*`.
    pub device: String,
    pub resource: String,
    pub limit: u64,
}

/// A name may end with `*`.
pub fn fits(pattern: &str, device: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => device.starts_with(start),
        None => device == pattern,
    }
}

/// The first one in order of this key goes before all others that fit: a name before a pattern, longer ones first.
pub fn precedence(pattern: &str) -> impl Ord + use<> {
    std::cmp::Reverse((!pattern.ends_with('*'), pattern.len()))
}

/// Read and written under the page's lock.
#[repr(C)]
pub(crate) struct DeviceLimitTable {
    count: AtomicU32,
    entries: [DeviceLimitEntry; DEVICE_LIMITS],
}

#[repr(C)]
struct DeviceLimitEntry {
    resource: Text<RESOURCE_NAME_WORDS>,
    /// One word more than a device's name, for the `*`.
    device: Text<{ DEVICE_NAME_WORDS + 1 }>,
    limit: AtomicU64,
}

impl DeviceLimitTable {
    /// In order of their precedence; there are not more than [`DEVICE_LIMITS`].
    pub fn store(&self, limits: &[DeviceLimit]) {
        for (entry, limit) in self.entries.iter().zip(limits) {
            entry.resource.store(&limit.resource);
            entry.device.store(&limit.device);
            entry.limit.store(limit.limit, Ordering::Relaxed);
        }
        self.count.store(limits.len().min(DEVICE_LIMITS) as u32, Ordering::Relaxed);
    }

    /// True if it has these limits, in this order.
    pub fn has(&self, limits: &[DeviceLimit]) -> bool {
        let same = |(entry, limit): (&DeviceLimitEntry, &DeviceLimit)| {
            entry.resource.is(&limit.resource)
                && entry.device.is(&limit.device)
                && entry.limit.load(Ordering::Relaxed) == limit.limit
        };
        self.count.load(Ordering::Relaxed) as usize == limits.len() && self.entries.iter().zip(limits).all(same)
    }

    /// The limit of a resource on a device.
    pub fn find(&self, resource: &str, device: &str) -> Option<u64> {
        let count = self.count.load(Ordering::Relaxed) as usize;
        let entries = &self.entries[..count.min(DEVICE_LIMITS)];
        let found = entries.iter().find(|entry| entry.resource.is(resource) && fits(&entry.device.load(), device))?;
        Some(found.limit.load(Ordering::Relaxed))
    }
}

/// The limit of a resource on a device, out of a list in order of precedence.
pub fn limit_on(limits: &[DeviceLimit], resource: &str, device: &str) -> Option<u64> {
    limits.iter().find(|limit| limit.resource == resource && fits(&limit.device, device)).map(|limit| limit.limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> DeviceLimitTable {
        let entry =
            |_| DeviceLimitEntry { resource: Text::default(), device: Text::default(), limit: AtomicU64::new(0) };
        DeviceLimitTable { count: AtomicU32::new(0), entries: std::array::from_fn(entry) }
    }

    fn limit(device: &str, resource: &str, limit: u64) -> DeviceLimit {
        DeviceLimit { device: device.into(), resource: resource.into(), limit }
    }

    #[test]
    fn the_first_that_fits_counts() {
        let mut limits = vec![limit("*", "memory", 1), limit("card 1", "memory", 3), limit("card*", "memory", 2)];
        limits.push(limit("card*", "files", 9));
        limits.sort_by_key(|limit| precedence(&limit.device));
        let table = table();
        table.store(&limits);
        for (device, expected) in [("card 1", 3), ("card 10", 2), ("chip", 1)] {
            assert_eq!(table.find("memory", device), Some(expected), "{device}");
            assert_eq!(limit_on(&limits, "memory", device), Some(expected), "{device}");
        }
        assert_eq!((table.find("files", "card 1"), table.find("files", "chip")), (Some(9), None));
        table.store(&limits[..1]);
        assert_eq!((table.find("memory", "card 1"), table.find("memory", "chip")), (Some(3), None));
    }

    #[test]
    fn the_longest_pattern_fits() {
        let (name, table) = ("x".repeat(DEVICE_NAME_BYTES), table());
        table.store(&[limit(&format!("{name}*"), "memory", 5)]);
        assert_eq!(table.find("memory", &name), Some(5));
    }
}
