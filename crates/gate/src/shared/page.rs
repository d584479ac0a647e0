//! The tenant page: the accounts of one tenant, shared by the node and that tenant's API servers.
//!
//! The amount that each API server holds (`held`, by its slot) is the truth; `used` is its sum, kept at hand for the
//! check against the limit. Both change under a lock that names its holder's slot. An API server may be killed between
//! any two stores: once it is reaped, the node takes its lock over, forgets what it held and adds `used` up again.
//!
//! An API server that shares the page is trusted as far as the tenant goes: an API server that was taken over can spoil
//! the accounts of its own tenant, whose device it holds anyway. The node believes nothing here that would matter to
//! others, and never waits for long.

mod held;

pub use held::{HeldAmount, NoRoom};

use crate::amounts::{Allowance, Kind, Refused};
use crate::audit::RefusalLogWindow;
use crate::device_limits::{DEVICE_LIMITS, DEVICE_NAME_WORDS, DeviceLimit, DeviceLimitTable, RESOURCE_NAME_WORDS};
use crate::shared::lock::OwnedLock;
use crate::shared::sealed::{Atomics, SealedPage};
use crate::shared::text::Text;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// "AVTENAN" and the layout's version.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"AVTENAN\x03");
/// Resources of all APIs that a tenant uses, and of what lies on devices one more for each device.
pub const ACCOUNTS: usize = 128;
/// API servers of one tenant at a time.
pub const SLOTS: usize = 4096;
pub(crate) const UNLIMITED: u64 = u64::MAX;
/// The node as the lock's holder; slots are counted from 1 there.
pub(crate) const NODE_OWNER: u32 = SLOTS as u32 + 1;
/// How long a charge waits for the lock before it is refused. Only a stopped or hostile API server of the same
/// tenant makes it wait that long: a dead one is repaired in milliseconds.
const CHARGE_LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const NODE_LOCK_TIMEOUT: Duration = Duration::from_millis(50);

#[repr(C)]
pub(crate) struct TenantPageLayout {
    pub(crate) magic: AtomicU64,
    pub(crate) lock: OwnedLock,
    /// Accounts in use; written after the account itself.
    pub(crate) count: AtomicU32,
    pub(crate) audit: RefusalLogWindow,
    pub(crate) device_limits: DeviceLimitTable,
    pub(crate) accounts: [SharedAccount; ACCOUNTS],
    /// Process id of each slot's guest, on the guest's machine; 0: none. Written by the slot's API server, for lists
    /// of the tenant's own processes only.
    pub(crate) guests: [AtomicU32; SLOTS],
    pub(crate) held: [[AtomicU64; ACCOUNTS]; SLOTS],
}

#[repr(C)]
pub(crate) struct SharedAccount {
    pub(crate) name: Text<RESOURCE_NAME_WORDS>,
    /// On which device; empty: wherever, all together.
    pub(crate) device: Text<DEVICE_NAME_WORDS>,
    /// 0 not known yet, 1 continuous, 2 instantaneous.
    pub(crate) kind: AtomicU32,
    pub(crate) limit: AtomicU64,
    pub(crate) used: AtomicU64,
    pub(crate) peak: AtomicU64,
    pub(crate) refused: AtomicU64,
}

/// Balance of one account, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Balance {
    pub name: String,
    /// On which device; `None`: wherever, all together.
    pub device: Option<String>,
    pub kind: Option<Kind>,
    pub limit: Option<u64>,
    pub used: u64,
    pub peak: u64,
    pub refused: u64,
    /// Sum over all slots. Differs from `used` only while somebody is changing both.
    pub held: u64,
}

/// A program of the tenant, and what it holds of a resource on a device. `repr(C)`: modules read it as
/// `struct aviary_process_use`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct ProcessUse {
    pub amount: u64,
    /// Process id on the program's machine.
    pub process: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub enum PageError {
    /// the tenant has {ACCOUNTS:} accounts of resources and devices already, which is the limit
    Full,
    /// the name of the resource is longer than 32 bytes
    LongName,
    /// the tenant has more than {DEVICE_LIMITS:} limits on devices, its own and the node's together: remove some
    ManyLimits,
    /// another API declares a resource of this name as `continuous_rc` where this one has `instantaneous_rc`, or the reverse
    OtherKind,
    /// an API server has locked the tenant's accounts and does not unlock them
    Busy,
}

/// A mapping of the page.
#[derive(Debug)]
pub struct TenantPage {
    page: SealedPage<TenantPageLayout>,
    /// The node's: slots that were ever given out. The rest of `held` is never touched and costs no memory.
    slots_in_use: AtomicU32,
}

// SAFETY: the layout consists of atomics only; lock and window are such, too. What a lying peer writes is only ever
// used as a number, and indexes are clamped.
unsafe impl Atomics for TenantPageLayout {}

/// A point at which a process may be killed; tests do that.
#[cfg(not(test))]
#[inline(always)]
fn point() {}
#[cfg(test)]
use tests::point;

impl TenantPage {
    /// A new page, and the descriptor that gives it to others.
    pub fn create() -> rustix::io::Result<(TenantPage, OwnedFd)> {
        let fd = SealedPage::<TenantPageLayout>::create("aviary-tenant")?;
        let page = TenantPage::map(fd.as_fd())?;
        page.layout().magic.store(MAGIC, Ordering::Release);
        Ok((page, fd))
    }

    /// Maps a page that the node made.
    pub fn open(fd: BorrowedFd<'_>) -> rustix::io::Result<TenantPage> {
        let page = TenantPage::map(fd)?;
        if page.layout().magic.load(Ordering::Acquire) != MAGIC {
            return Err(rustix::io::Errno::INVAL);
        }
        Ok(page)
    }

    fn map(fd: BorrowedFd<'_>) -> rustix::io::Result<TenantPage> {
        Ok(TenantPage { page: SealedPage::open(fd)?, slots_in_use: AtomicU32::new(0) })
    }

    pub(crate) fn layout(&self) -> &TenantPageLayout {
        &self.page
    }

    pub(crate) fn accounts(&self) -> &[SharedAccount] {
        let count = self.layout().count.load(Ordering::Acquire) as usize;
        &self.layout().accounts[..count.min(ACCOUNTS)]
    }

    pub(crate) fn audit(&self) -> &RefusalLogWindow {
        &self.layout().audit
    }

    // An API server's part.

    /// The account of a resource, made if there is none.
    pub(crate) fn account(&self, slot: u32, name: &str, kind: Kind) -> Result<usize, PageError> {
        self.account_on(slot, name, "", kind)
    }

    /// The account of a continuous resource on a device.
    pub(crate) fn device_account(&self, slot: u32, name: &str, device: &str) -> Result<usize, PageError> {
        self.account_on(slot, name, device, Kind::Continuous)
    }

    fn account_on(&self, slot: u32, name: &str, device: &str, kind: Kind) -> Result<usize, PageError> {
        let index = match self.find(name, device) {
            Some(index) => index,
            None => self.register(slot + 1, CHARGE_LOCK_TIMEOUT, name, device)?,
        };
        let mine = 1 + u32::from(kind == Kind::Instantaneous);
        let known = &self.layout().accounts[index].kind;
        match known.compare_exchange(0, mine, Ordering::AcqRel, Ordering::Acquire) {
            Err(other) if other != mine => Err(PageError::OtherKind),
            _ => Ok(index),
        }
    }

    /// `device` is empty for the account of all devices together.
    pub(crate) fn find(&self, name: &str, device: &str) -> Option<usize> {
        self.accounts().iter().position(|account| account.name.is(name) && account.device.is(device))
    }

    /// A new account, on a device with the limit of that. It counts only once `count` says so: a process that dies
    /// before leaves nothing.
    fn register(&self, owner: u32, patience: Duration, name: &str, device: &str) -> Result<usize, PageError> {
        if name.len() > Text::<RESOURCE_NAME_WORDS>::BYTES {
            return Err(PageError::LongName);
        }
        let layout = self.layout();
        if !layout.lock.lock(owner, patience) {
            return Err(PageError::Busy);
        }
        // Somebody else may have made it meanwhile.
        let result = self.find(name, device).map_or_else(
            || {
                let next = self.accounts().len();
                let account = layout.accounts.get(next).ok_or(PageError::Full)?;
                point();
                account.name.store(name);
                account.device.store(device);
                for counter in [&account.used, &account.peak, &account.refused] {
                    counter.store(0, Ordering::Relaxed);
                }
                let limit = if device.is_empty() { None } else { layout.device_limits.find(name, device) };
                account.limit.store(limit.unwrap_or(UNLIMITED), Ordering::Relaxed);
                account.kind.store(0, Ordering::Relaxed);
                point();
                layout.count.store(next as u32 + 1, Ordering::Release);
                point();
                Ok(next)
            },
            Ok,
        );
        layout.lock.unlock();
        result
    }

    pub(crate) fn limit(&self, index: usize) -> Option<u64> {
        let limit = self.layout().accounts[index].limit.load(Ordering::Relaxed);
        (limit != UNLIMITED).then_some(limit)
    }

    /// The part of a continuous resource that its limits, also those of a device, leave; `None`: there are no limits.
    pub(crate) fn allowance(&self, slot: u32, name: &str, device: Option<&str>) -> Option<Allowance> {
        let of = |index: usize| {
            let used = self.layout().accounts[index].used.load(Ordering::Relaxed);
            self.limit(index).map(|limit| Allowance::new(limit, used))
        };
        let whole = self.find(name, "").and_then(of);
        let there = device.and_then(|device| match self.find(name, device) {
            Some(index) => of(index),
            // Nothing was allocated on it yet.
            None => self.limit_of_device(slot, name, device).map(|limit| Allowance::new(limit, 0)),
        });
        match (whole, there) {
            (Some(whole), Some(there)) => Some(whole.and(there)),
            (whole, there) => whole.or(there),
        }
    }

    fn limit_of_device(&self, slot: u32, name: &str, device: &str) -> Option<u64> {
        let layout = self.layout();
        if !layout.lock.lock(slot + 1, CHARGE_LOCK_TIMEOUT) {
            return None;
        }
        let limit = layout.device_limits.find(name, device).filter(|limit| *limit != UNLIMITED);
        layout.lock.unlock();
        limit
    }

    /// Of each of these accounts, or of none: then it says which of them refused.
    pub(crate) fn charge(&self, slot: u32, indexes: &[usize], amount: u64) -> Result<(), (usize, Refused)> {
        let layout = self.layout();
        if !layout.lock.lock(slot + 1, CHARGE_LOCK_TIMEOUT) {
            let first = indexes.first().map_or(Refused { used: 0, limit: 0 }, |index| self.refuse(*index));
            return Err((0, first));
        }
        point();
        let fits = |index: &usize| {
            let account = &layout.accounts[*index];
            let sum = account.used.load(Ordering::Relaxed).checked_add(amount);
            sum.is_some_and(|sum| sum <= account.limit.load(Ordering::Relaxed))
        };
        if let Some(at) = indexes.iter().position(|index| !fits(index)) {
            let refused = self.refuse(indexes[at]);
            layout.lock.unlock();
            return Err((at, refused));
        }
        for index in indexes {
            let (account, held) = (&layout.accounts[*index], &layout.held[slot as usize][*index]);
            // The node may lower `used` meanwhile, without the lock: so it is added to, not set.
            let before = account.used.fetch_add(amount, Ordering::Relaxed);
            point();
            held.fetch_add(amount, Ordering::Relaxed);
            point();
            account.peak.fetch_max(before.saturating_add(amount), Ordering::Relaxed);
            point();
        }
        layout.lock.unlock();
        point();
        Ok(())
    }

    #[cold]
    fn refuse(&self, index: usize) -> Refused {
        let account = &self.layout().accounts[index];
        self.note_refusal(index);
        Refused { used: account.used.load(Ordering::Relaxed), limit: account.limit.load(Ordering::Relaxed) }
    }

    /// A charge that was refused before it came here.
    #[cold]
    pub(crate) fn note_refusal(&self, index: usize) {
        self.layout().accounts[index].refused.fetch_add(1, Ordering::Relaxed);
    }

    /// At most what this slot holds. A freed resource is returned sooner or later: this waits for the lock however
    /// long that takes. The process can end meanwhile, which returns everything.
    pub(crate) fn uncharge(&self, slot: u32, indexes: &[usize], amount: u64) {
        let layout = self.layout();
        while !layout.lock.lock(slot + 1, CHARGE_LOCK_TIMEOUT) {}
        point();
        for index in indexes {
            let (account, held) = (&layout.accounts[*index], &layout.held[slot as usize][*index]);
            let returned = amount.min(held.load(Ordering::Relaxed));
            held.fetch_sub(returned, Ordering::Relaxed);
            point();
            lower(&account.used, returned);
            point();
        }
        layout.lock.unlock();
        point();
    }

    /// Of an instantaneous resource that has a limit.
    pub(crate) fn consume(&self, index: usize, amount: u64) -> Result<(), Refused> {
        let account = &self.layout().accounts[index];
        let raised = |used: u64| {
            let limit = account.limit.load(Ordering::Relaxed);
            used.checked_add(amount).filter(|sum| *sum <= limit)
        };
        match account.used.fetch_update(Ordering::AcqRel, Ordering::Relaxed, raised) {
            Ok(before) => {
                account.peak.fetch_max(before + amount, Ordering::Relaxed);
                Ok(())
            }
            Err(_) => Err(self.refuse(index)),
        }
    }

    pub(crate) fn show_guest(&self, slot: u32, process: u32) {
        self.layout().guests[slot as usize].store(process, Ordering::Relaxed);
    }

    /// By process id; a program with several API servers counts once. Only slots with a guest are looked at: the rest of
    /// `held` costs no memory.
    pub(crate) fn process_uses(&self, name: &str, device: &str) -> Vec<ProcessUse> {
        let Some(index) = self.find(name, device) else { return Vec::new() };
        let layout = self.layout();
        let mut amounts = BTreeMap::<u32, u64>::new();
        for (guest, held) in layout.guests.iter().zip(&layout.held) {
            let process = guest.load(Ordering::Relaxed);
            let amount = if process == 0 { 0 } else { held[index].load(Ordering::Relaxed) };
            if amount != 0 {
                let sum = amounts.entry(process).or_default();
                *sum = sum.saturating_add(amount);
            }
        }
        amounts.into_iter().map(|(process, amount)| ProcessUse { amount, process }).collect()
    }

    // The node's part.

    /// Before a slot is given to an API server.
    pub fn note_slot(&self, slot: u32) {
        self.slots_in_use.fetch_max(slot.saturating_add(1), Ordering::Relaxed);
    }

    pub(crate) fn rows(&self) -> &[[AtomicU64; ACCOUNTS]] {
        &self.layout().held[..(self.slots_in_use.load(Ordering::Relaxed) as usize).min(SLOTS)]
    }

    /// From now on; `None` takes the limit away. What is held beyond a lower limit stays held.
    pub fn set_limit(&self, name: &str, limit: Option<u64>) -> Result<(), PageError> {
        let index = match self.find(name, "") {
            Some(index) => index,
            None if limit.is_none() => return Ok(()),
            None => self.register(NODE_OWNER, NODE_LOCK_TIMEOUT, name, "")?,
        };
        self.layout().accounts[index].limit.store(limit.unwrap_or(UNLIMITED), Ordering::Relaxed);
        Ok(())
    }

    /// On devices, from now on, also on those where nothing was allocated yet. `limits` are in order of their
    /// precedence.
    pub fn set_device_limits(&self, limits: &[DeviceLimit]) -> Result<(), PageError> {
        if limits.len() > DEVICE_LIMITS {
            return Err(PageError::ManyLimits);
        }
        let layout = self.layout();
        // An API server that makes an account at this moment takes either the old limit, which is replaced here, or the new one.
        if !layout.lock.lock(NODE_OWNER, NODE_LOCK_TIMEOUT) {
            return Err(PageError::Busy);
        }
        layout.device_limits.store(limits);
        for account in self.accounts().iter().filter(|account| !account.device.is("")) {
            let limit = layout.device_limits.find(&account.name.load(), &account.device.load());
            account.limit.store(limit.unwrap_or(UNLIMITED), Ordering::Relaxed);
        }
        layout.lock.unlock();
        Ok(())
    }

    /// Into a new page: what an earlier one of the same tenant had counted. Nothing is held.
    pub fn restore(&self, balances: &[Balance]) -> Result<(), PageError> {
        for balance in balances {
            let device = balance.device.as_deref().unwrap_or_default();
            let account =
                &self.layout().accounts[self.register(NODE_OWNER, NODE_LOCK_TIMEOUT, &balance.name, device)?];
            let (kind, used) = match balance.kind {
                None => (0, 0),
                Some(Kind::Continuous) => (1, 0),
                Some(Kind::Instantaneous) => (2, balance.used),
            };
            account.kind.store(kind, Ordering::Relaxed);
            account.used.store(used, Ordering::Relaxed);
            account.peak.store(balance.peak, Ordering::Relaxed);
            account.refused.store(balance.refused, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The API server of this slot is gone, reaped: what it held is free, and if it died with the lock, so is that.
    pub fn release(&self, slot: u32) {
        let layout = self.layout();
        let Some(held) = self.rows().get(slot as usize) else { return };
        self.show_guest(slot, 0);
        if layout.lock.owner() == slot + 1 {
            // No other process is between two stores: `used` can be added up.
            held.iter().for_each(|amount| amount.store(0, Ordering::Relaxed));
            let count = self.accounts().len();
            let mut sums = [0u64; ACCOUNTS];
            for row in self.rows() {
                for (sum, amount) in sums[..count].iter_mut().zip(row) {
                    *sum = sum.saturating_add(amount.load(Ordering::Relaxed));
                }
            }
            for (account, sum) in layout.accounts[..count].iter().zip(sums) {
                if account.kind.load(Ordering::Relaxed) == 1 {
                    account.used.store(sum, Ordering::Relaxed);
                }
            }
            layout.lock.unlock();
        } else {
            for (account, amount) in layout.accounts.iter().zip(held) {
                lower(&account.used, amount.swap(0, Ordering::Relaxed));
            }
        }
    }

    /// Everything that the API server of slot `from` holds is that of slot `to` from now on: its sessions have moved. What
    /// the tenant uses is the same before, meanwhile and after. An error has changed nothing.
    pub fn move_slot(&self, from: u32, to: u32) -> Result<(), PageError> {
        let layout = self.layout();
        let rows = (self.rows().get(from as usize), self.rows().get(to as usize));
        let (Some(source), Some(target)) = rows else { return Ok(()) };
        if from == to {
            return Ok(());
        }
        if !layout.lock.lock(NODE_OWNER, NODE_LOCK_TIMEOUT) {
            return Err(PageError::Busy);
        }
        for (source, target) in source.iter().zip(target) {
            target.fetch_add(source.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
        layout.lock.unlock();
        Ok(())
    }

    /// Refusals of which no line was written, told only once.
    pub fn take_untold(&self) -> u64 {
        self.layout().audit.take_untold()
    }

    pub fn balances(&self) -> Vec<Balance> {
        let sum = |index: usize| {
            let amounts = self.rows().iter().map(|row| row[index].load(Ordering::Relaxed));
            amounts.fold(0u64, u64::saturating_add)
        };
        let balance = |(index, account): (usize, &SharedAccount)| Balance {
            name: name_of(&account.name),
            device: Some(account.device.load()).filter(|device| !device.is_empty()),
            kind: match account.kind.load(Ordering::Relaxed) {
                1 => Some(Kind::Continuous),
                2 => Some(Kind::Instantaneous),
                _ => None,
            },
            limit: self.limit(index),
            used: account.used.load(Ordering::Relaxed),
            peak: account.peak.load(Ordering::Relaxed),
            refused: account.refused.load(Ordering::Relaxed),
            held: sum(index),
        };
        self.accounts().iter().enumerate().map(balance).collect()
    }
}

fn lower(account: &AtomicU64, amount: u64) {
    let _ = account.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| Some(used.saturating_sub(amount)));
}

/// Nothing but the characters that a resource's name can have.
fn name_of(name: &Text<RESOURCE_NAME_WORDS>) -> String {
    name.load().chars().filter(|letter| letter.is_ascii_alphanumeric() || *letter == '_').collect()
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
