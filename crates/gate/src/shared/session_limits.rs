//! The limits of a session's tenant in a page that only the node and this session's API server have.
//!
//! The tenant's own page has them, too, and is checked first: there all of the tenant's API servers count together. But any of
//! those can write anything there. So each session checks once more what it has itself against what is here: whatever another API
//! server of the tenant writes, no program gets more than the whole limit.
//!
//! The node writes, under a version that is odd meanwhile; the API server reads. One that writes here changes its own limit only.

use crate::device_limits::{DEVICE_LIMITS, DEVICE_NAME_WORDS, DeviceLimit, RESOURCE_NAME_WORDS, fits};
use crate::shared::text::Text;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Limits of resources and of devices. What there is no room for is bounded by the tenant's page alone.
const ENTRIES: usize = DEVICE_LIMITS + 64;
/// So often a reader looks again while the node writes; then nothing is known.
const MOST_READS: u32 = 1000;

#[repr(C)]
pub struct SessionLimits {
    /// 0: the node has written nothing.
    version: AtomicU64,
    count: AtomicU32,
    entries: [Entry; ENTRIES],
}

#[repr(C)]
struct Entry {
    resource: Text<RESOURCE_NAME_WORDS>,
    /// Empty: wherever, all together. One word more than a device's name, for the `*`.
    device: Text<{ DEVICE_NAME_WORDS + 1 }>,
    limit: AtomicU64,
}

/// A session's page with the limits.
pub trait LimitPage: AsRef<SessionLimits> + Send + Sync + std::fmt::Debug {}
impl<T: AsRef<SessionLimits> + Send + Sync + std::fmt::Debug> LimitPage for T {}

/// A limit that was looked up, and the version that had it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct KnownLimit {
    version: u64,
    limit: Option<u64>,
}

impl SessionLimits {
    /// By the node. `on_devices`: in order of their precedence.
    pub fn store(&self, limits: &BTreeMap<String, u64>, on_devices: &[DeviceLimit]) {
        let writing = self.version.load(Ordering::Relaxed) | 1;
        self.version.store(writing, Ordering::Relaxed);
        fence(Ordering::Release);
        let whole = limits.iter().map(|(resource, limit)| (resource.as_str(), "", *limit));
        let parts = on_devices.iter().map(|on| (on.resource.as_str(), on.device.as_str(), on.limit));
        // A name that is cut off would be another one's.
        let fitting = whole.chain(parts).filter(|(resource, ..)| resource.len() <= Text::<RESOURCE_NAME_WORDS>::BYTES);
        let mut count = 0;
        for (entry, (resource, device, limit)) in self.entries.iter().zip(fitting) {
            entry.resource.store(resource);
            entry.device.store(device);
            entry.limit.store(limit, Ordering::Relaxed);
            count += 1;
        }
        self.count.store(count, Ordering::Relaxed);
        self.version.store(writing.wrapping_add(1), Ordering::Release);
    }

    /// The limit of a resource on a device; `device` empty: of all together. `known`: what was found last.
    pub(crate) fn find(&self, resource: &str, device: &str, known: &mut KnownLimit) -> Option<u64> {
        for _ in 0..MOST_READS {
            let version = self.version.load(Ordering::Acquire);
            if version == known.version {
                break;
            }
            if version.is_multiple_of(2) {
                let limit = self.look(resource, device);
                fence(Ordering::Acquire);
                if self.version.load(Ordering::Relaxed) == version {
                    *known = KnownLimit { version, limit };
                    break;
                }
            }
            std::thread::yield_now();
        }
        known.limit
    }

    fn look(&self, resource: &str, device: &str) -> Option<u64> {
        let count = self.count.load(Ordering::Relaxed) as usize;
        let is_it = |entry: &&Entry| match device.is_empty() {
            _ if !entry.resource.is(resource) => false,
            true => entry.device.is(""),
            false => !entry.device.is("") && fits(&entry.device.load(), device),
        };
        let found = self.entries[..count.min(ENTRIES)].iter().find(is_it)?;
        Some(found.limit.load(Ordering::Relaxed)).filter(|limit| *limit != u64::MAX)
    }
}

impl Default for SessionLimits {
    fn default() -> Self {
        let entry = |_| Entry { resource: Text::default(), device: Text::default(), limit: AtomicU64::new(0) };
        let (version, count) = (AtomicU64::new(0), AtomicU32::new(0));
        SessionLimits { version, count, entries: std::array::from_fn(entry) }
    }
}

impl std::fmt::Debug for SessionLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SessionLimits(version {})", self.version.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gate, Kind, Refused, Resource, TenantPage, TenantSlot};
    use std::os::fd::AsFd;
    use std::sync::Arc;

    #[derive(Debug)]
    struct Page(SessionLimits);

    impl AsRef<SessionLimits> for Page {
        fn as_ref(&self) -> &SessionLimits {
            &self.0
        }
    }

    fn limits(amount: u64) -> BTreeMap<String, u64> {
        [("memory".to_owned(), amount)].into()
    }

    fn on(device: &str, limit: u64) -> DeviceLimit {
        DeviceLimit { device: device.into(), resource: "memory".into(), limit }
    }

    #[test]
    fn limits_of_devices_are_not_those_of_all_together() {
        let page = SessionLimits::default();
        let found = |resource, device| page.find(resource, device, &mut KnownLimit::default());
        assert_eq!(found("memory", ""), None);
        page.store(&BTreeMap::new(), &[on("card 1", 3), on("*", 2)]);
        let all = [found("memory", ""), found("memory", "card 1"), found("memory", "chip"), found("files", "chip")];
        assert_eq!(all, [None, Some(3), Some(2), None]);
        page.store(&[("memory".to_owned(), 9), ("files".to_owned(), u64::MAX)].into(), &[]);
        assert_eq!([found("memory", ""), found("memory", "card 1"), found("files", "")], [Some(9), None, None]);
    }

    #[test]
    fn a_limit_is_looked_up_again_after_the_node_has_written() {
        let (page, mut known) = (SessionLimits::default(), KnownLimit::default());
        for amount in [5, 7] {
            page.store(&limits(amount), &[]);
            assert_eq!(page.find("memory", "", &mut known), Some(amount));
        }
        // The node is in the middle of writing, for good: what was known holds.
        page.version.store(5, Ordering::Relaxed);
        page.entries[0].limit.store(100, Ordering::Relaxed);
        assert_eq!(page.find("memory", "", &mut known), Some(7));
    }

    /// What another API server of the tenant writes in the tenant's page gives a session nothing.
    #[test]
    fn no_session_has_more_than_the_limit_whatever_the_tenants_page_says() {
        let (page, descriptor) = TenantPage::create().unwrap();
        let own = Arc::new(Page(SessionLimits::default()));
        let resources = [("memory", Kind::Continuous), ("calls", Kind::Instantaneous)];
        let all = |amount: u64| resources.map(|(name, _)| (name.to_owned(), amount)).into();
        let apply = |amount: u64, card: u64| {
            resources.iter().for_each(|(name, _)| page.set_limit(name, Some(amount)).unwrap());
            page.set_device_limits(&[on("card", card)]).unwrap();
            own.0.store(&all(amount), &[on("card", card)]);
        };
        page.note_slot(0);
        apply(10, 6);
        let mapped = TenantPage::open(descriptor.as_fd()).unwrap();
        let seat = TenantSlot::new(mapped, 0).unwrap().limited(own.clone());
        let gate = Gate::of_tenant(resources.map(|(name, kind)| Resource { name, kind }), &seat).unwrap();
        let card = gate.residency(0, &["card".into()]).unwrap();
        gate.charge(card, 4).unwrap();
        gate.charge(0, 3).unwrap();
        gate.consume(1, 9).unwrap();
        let forge = || {
            for account in page.accounts() {
                account.used.store(0, Ordering::Relaxed);
                account.limit.store(u64::MAX, Ordering::Relaxed);
            }
            page.rows().iter().flatten().take(256).for_each(|amount| amount.store(0, Ordering::Relaxed));
        };
        forge();
        assert_eq!(gate.charge(0, 4).unwrap_err().figures, Refused { used: 7, limit: 10 });
        let refused = gate.charge(card, 3).unwrap_err();
        assert_eq!((refused.figures, refused.device.as_deref()), (Refused { used: 4, limit: 6 }, Some("card")));
        assert_eq!(gate.consume(1, 2).unwrap_err().figures, Refused { used: 9, limit: 10 });
        let refusals: u64 = page.accounts().iter().map(|account| account.refused.load(Ordering::Relaxed)).sum();
        assert_eq!(refusals, 3);
        gate.charge(card, 2).unwrap();
        gate.charge(0, 1).unwrap();
        forge();
        assert!(gate.charge(0, 1).is_err() && gate.charge(card, 1).is_err());
        // The operator gives it more.
        apply(12, 8);
        forge();
        gate.charge(card, 2).unwrap();
        assert!(gate.charge(0, 1).is_err());
        gate.uncharge(card, 8);
        gate.charge(0, 8).unwrap();
        assert_eq!(gate.accounts()[0].used(), 12);
    }
}
