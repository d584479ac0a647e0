//! Counters of a session, in a page that the node makes and hands out with the session.
//!
//! The API server writes, the node reads and shows; no decision depends on it, so an API server that lies shows wrong
//! numbers of its own session. The guest never sees it. The node writes the limits of the session, here because no other API
//! server of the tenant has this page.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use aviary_gate::{Account, Atomics, DeviceLimit, Gate, Kind, SealedPage, SessionLimits, Text};
use std::collections::BTreeMap;

/// "AVSTATS" and the layout's version.
pub const MAGIC: u64 = u64::from_le_bytes(*b"AVSTATS\x04");
/// Resources, and of those that lie on devices one more for each device.
pub const MAX_RESOURCES: usize = 64;

/// The page. Plain words: a reader in another process may load any of them at any time.
#[repr(C)]
pub struct Stats {
    pub magic: AtomicU64,
    /// Of the API server process.
    pub pid: AtomicU32,
    pub lanes: AtomicU32,
    pub calls: AtomicU64,
    pub async_calls: AtomicU64,
    pub callbacks: AtomicU64,
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
    /// Bytes that the server had to copy itself.
    pub bytes_copied: AtomicU64,
    /// Bytes of application memory in a VM that this process saw without a copy.
    pub bytes_pinned: AtomicU64,
    /// Nanoseconds inside the vendor library.
    pub vendor_ns: AtomicU64,
    /// Nanoseconds of device time, as the specification measures it.
    pub device_ns: AtomicU64,
    pub refused: AtomicU64,
    pub handles: AtomicU64,
    pub resources: [ResourceStats; MAX_RESOURCES],
    pub limits: SessionLimits,
}

#[repr(C)]
pub struct ResourceStats {
    /// Empty: no such resource. Those of the API are written before `magic`, those on devices when they come to be used.
    pub name: Text<4>,
    /// On which device; empty: wherever, all together.
    pub device: Text<8>,
    pub used: AtomicU64,
    pub peak: AtomicU64,
    /// `u64::MAX`: none.
    pub limit: AtomicU64,
    /// 0 continuous, 1 instantaneous.
    pub kind: AtomicU64,
}

// SAFETY: atomics only, here and in `ResourceStats`.
unsafe impl Atomics for Stats {}

impl Stats {
    fn describe(&self, gate: &Gate) {
        self.resources.iter().zip(gate.accounts()).for_each(|(slot, account)| slot.describe(account));
        self.pid.store(std::process::id(), Ordering::Relaxed);
        self.magic.store(MAGIC, Ordering::Release);
    }

    pub fn show_account(&self, resource: usize, account: &Account) {
        if let Some(slot) = self.resources.get(resource) {
            slot.show(account);
        }
    }

    /// Those that there is no room for are not shown.
    pub fn show_device_accounts(&self, gate: &Gate) {
        let slots = self.resources.iter().skip(gate.accounts().len());
        for (slot, account) in slots.zip(gate.device_accounts()) {
            if slot.name.is("") {
                slot.describe(&account);
            }
            slot.show(&account);
        }
    }
}

impl ResourceStats {
    fn describe(&self, account: &Account) {
        self.kind.store(u64::from(account.kind() == Kind::Instantaneous), Ordering::Relaxed);
        self.limit.store(account.limit().unwrap_or(u64::MAX), Ordering::Relaxed);
        self.device.store(account.device().unwrap_or_default());
        self.name.store(account.name());
    }

    fn show(&self, account: &Account) {
        self.used.store(account.used(), Ordering::Relaxed);
        self.peak.store(account.peak(), Ordering::Relaxed);
    }
}

/// A mapping of the page.
#[derive(Debug)]
pub struct StatsPage(SealedPage<Stats>);

impl StatsPage {
    pub fn create() -> rustix::io::Result<OwnedFd> {
        SealedPage::<Stats>::create("aviary-stats")
    }

    /// Maps a page for writing and describes the session's accounts in it.
    pub fn publish(fd: BorrowedFd<'_>, gate: &Gate) -> rustix::io::Result<StatsPage> {
        let page = SealedPage::<Stats>::open(fd)?;
        page.describe(gate);
        Ok(StatsPage(page))
    }

    /// By the node: what the session may have of resources, and on devices, from now on.
    pub fn limit(
        fd: BorrowedFd<'_>,
        limits: &BTreeMap<String, u64>,
        on_devices: &[DeviceLimit],
    ) -> rustix::io::Result<()> {
        SealedPage::<Stats>::open(fd)?.limits.store(limits, on_devices);
        Ok(())
    }

    /// Maps a page to load only: a store would end the process.
    pub fn open(fd: BorrowedFd<'_>) -> rustix::io::Result<StatsPage> {
        SealedPage::open_to_read(fd).map(StatsPage)
    }
}

impl AsRef<SessionLimits> for StatsPage {
    fn as_ref(&self) -> &SessionLimits {
        &self.limits
    }
}

impl std::ops::Deref for StatsPage {
    type Target = Stats;

    fn deref(&self) -> &Stats {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aviary_gate::Resource;
    use std::os::fd::AsFd;

    #[test]
    fn a_reader_sees_what_the_server_counts() {
        let gate = Gate::new([Resource { name: "memory", kind: Kind::Continuous }], |_| Some(7));
        let fd = StatsPage::create().unwrap();
        let page = StatsPage::publish(fd.as_fd(), &gate).unwrap();
        let reader = StatsPage::open(fd.as_fd()).unwrap();
        page.calls.fetch_add(3, Ordering::Relaxed);
        gate.charge(0, 5).unwrap();
        page.show_account(0, &gate.accounts()[0]);
        assert_eq!(reader.magic.load(Ordering::Acquire), MAGIC);
        assert_eq!(reader.calls.load(Ordering::Relaxed), 3);
        assert_eq!(reader.resources[0].used.load(Ordering::Relaxed), 5);
        assert_eq!(reader.resources[0].limit.load(Ordering::Relaxed), 7);
        assert_eq!(reader.resources[0].name.load(), "memory");
        let place = gate.residency(0, &["a card".into()]).unwrap();
        gate.charge(place, 2).unwrap();
        page.show_device_accounts(&gate);
        let card = &reader.resources[1];
        assert_eq!((card.name.load().as_str(), card.device.load().as_str()), ("memory", "a card"));
        assert_eq!(card.used.load(Ordering::Relaxed), 2);
    }
}
