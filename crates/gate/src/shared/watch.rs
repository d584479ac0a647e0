//! The node's own record of a tenant's page, by which it finds and repairs what no honest API server writes.
//!
//! Each API server of the tenant can write any word of the page at any time. What an account is (its name, device, kind), what
//! limits it, and what it has counted in all is the node's word: the page only shows that to the API servers. The node compares
//! now and then and before each new API server, so that a lie in the page lasts as long as that, and says what it found.
//!
//! What each slot holds cannot be known better than the page says. But nobody can come to hold more than a limit: who holds more
//! than before while all together are over the limit took it without asking.

use crate::device_limits::{DeviceLimit, limit_on};
use crate::shared::page::{ACCOUNTS, Balance, MAGIC, NODE_OWNER, SharedAccount, TenantPage, UNLIMITED};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

/// A resource may be counted so much more often from one look to the next; more than this nobody can count.
const MOST_GROWTH: u64 = 1 << 40;

/// An honest API server has the lock for some ten instructions; with none of its threads running for so many looks it is stopped.
const LOCKED_LOOKS: u32 = 15;

/// What the node knows of one account.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    name: String,
    /// Empty: of all devices together.
    device: String,
    /// 0 until an API server has said it first.
    kind: u32,
    used: u64,
    peak: u64,
    refused: u64,
}

impl Known {
    /// Takes over what the account has counted since, or puts back what is not possible. True: something was not.
    fn counts(&mut self, account: &SharedAccount, limit: u64) -> bool {
        let is_total = self.kind == 2;
        let used = account.used.load(Ordering::Relaxed);
        let (peak, refused) = (account.peak.load(Ordering::Relaxed), account.refused.load(Ordering::Relaxed));
        let grows = |before: u64, now: u64| now >= before && now - before <= MOST_GROWTH;
        // A limit that was lowered leaves the peak where it was.
        let right = (!is_total || grows(self.used, used))
            && (peak == self.peak || peak > self.peak && peak <= limit)
            && grows(self.refused, refused);
        if right {
            (self.used, self.peak, self.refused) = (used, peak, refused);
            return false;
        }
        if is_total {
            account.used.store(self.used, Ordering::Relaxed);
        }
        account.peak.store(self.peak, Ordering::Relaxed);
        account.refused.store(self.refused, Ordering::Relaxed);
        true
    }
}

/// The limits of a tenant and the names that its accounts can have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    pub limits: BTreeMap<String, u64>,
    /// In order of their precedence.
    pub device_limits: Vec<DeviceLimit>,
    /// What the specifications of the node's APIs declare; `None`: nobody has told, and any name may be one.
    pub declared: Option<BTreeSet<String>>,
}

impl Rules {
    fn limit(&self, name: &str, device: &str) -> u64 {
        let found = match device.is_empty() {
            true => self.limits.get(name).copied(),
            false => limit_on(&self.device_limits, name, device),
        };
        found.unwrap_or(UNLIMITED)
    }

    /// True for a name of which the node keeps and shows an account.
    pub fn allows(&self, name: &str) -> bool {
        let plain = |letter: u8| letter.is_ascii_alphanumeric() || letter == b'_';
        let shaped = !name.is_empty() && name.bytes().all(plain);
        shaped && (self.limits.contains_key(name) || self.declared.as_ref().is_none_or(|all| all.contains(name)))
    }
}

/// What the node knows of a page.
#[derive(Debug, Default)]
pub struct Watch {
    rules: Rules,
    accounts: Vec<Known>,
    /// What each slot held at the last look.
    held: BTreeMap<u32, Vec<u64>>,
    /// Who had the lock at the last looks, and at how many in a row.
    locked: (u32, u32),
}

/// What a look has found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// The page showed something that only the node writes and had not written, or totals that had fallen.
    pub rewritten: Option<&'static str>,
    /// Slots that hold more than before while their tenant is over a limit, and the resource.
    pub takers: Vec<(u32, String)>,
    /// The slot that keeps the page's lock.
    pub keeper: Option<u32>,
}

impl Watch {
    /// From now on these rules hold; the page has them already.
    pub fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// Refusals of all accounts: more than so many lines about them cannot be missing.
    pub fn refusals(&self) -> u64 {
        self.accounts.iter().fold(0, |sum, account| sum.saturating_add(account.refused))
    }

    /// True for an account that stays when its tenant has no API server any more: of a declared resource as such, or on a device
    /// that the tenant's limits name. How often another device was used is no total that anybody is charged for.
    pub fn keeps(&self, name: &str, device: Option<&str>) -> bool {
        let named = |device| limit_on(&self.rules.device_limits, name, device).is_some();
        self.rules.allows(name) && device.is_none_or(named)
    }

    /// Compares the page, repairs it, and learns what API servers have added. `taken`: the slots that have an API server.
    pub fn look(&mut self, page: &TenantPage, taken: &BTreeSet<u32>) -> Findings {
        let mut findings = Findings::default();
        let layout = page.layout();
        if layout.magic.swap(MAGIC, Ordering::AcqRel) != MAGIC {
            findings.rewritten = Some("the mark of the page");
        }
        if !layout.lock.try_lock(NODE_OWNER) && !self.take_over(page, taken, &mut findings) {
            return findings;
        }
        self.locked = (0, 0);
        self.repair_known(page, &mut findings);
        self.learn(page, &mut findings);
        self.compare_limits(page, &mut findings);
        self.sum_up(page, taken, &mut findings);
        layout.lock.unlock();
        findings
    }

    /// The lock is an API server's that is in the middle of a change, or keeps it: then no other one can charge anything. That of
    /// nobody who is there is the node's at once; who keeps it for [`LOCKED_LOOKS`] is told.
    fn take_over(&mut self, page: &TenantPage, taken: &BTreeSet<u32>, findings: &mut Findings) -> bool {
        let lock = &page.layout().lock;
        let owner = lock.owner();
        let slot = owner.checked_sub(1).filter(|slot| taken.contains(slot));
        let Some(slot) = slot else {
            // 0: it was given back a moment ago.
            if owner != 0 {
                findings.rewritten = Some("the lock");
                lock.unlock();
            }
            return lock.try_lock(NODE_OWNER);
        };
        let looks = if self.locked.0 == owner { self.locked.1 + 1 } else { 1 };
        self.locked = (owner, looks);
        if looks == LOCKED_LOOKS {
            findings.keeper = Some(slot);
        }
        false
    }

    /// Accounts that were there before are what they were.
    fn repair_known(&mut self, page: &TenantPage, findings: &mut Findings) {
        let layout = page.layout();
        let count = layout.count.load(Ordering::Acquire) as usize;
        if count < self.accounts.len() || count > ACCOUNTS {
            findings.rewritten = Some("the number of accounts");
            layout.count.store(self.accounts.len() as u32, Ordering::Release);
        }
        for (known, account) in self.accounts.iter_mut().zip(&layout.accounts) {
            if !account.name.is(&known.name) || !account.device.is(&known.device) {
                findings.rewritten = Some("the name of an account");
                account.name.store(&known.name);
                account.device.store(&known.device);
            }
            let kind = account.kind.load(Ordering::Acquire);
            match (known.kind, kind) {
                (0, 1 | 2) => known.kind = kind,
                (known, kind) if known == kind => {}
                (known, _) => {
                    findings.rewritten = Some("the kind of an account");
                    account.kind.store(known, Ordering::Release);
                }
            }
            if known.counts(account, self.rules.limit(&known.name, &known.device)) {
                findings.rewritten = Some("a total");
            }
        }
    }

    /// Accounts that API servers have added since. Where there is no room for more, those at the end go that are none of any
    /// API: they would keep all programs of the tenant away.
    fn learn(&mut self, page: &TenantPage, findings: &mut Findings) {
        let layout = page.layout();
        let all = page.accounts();
        self.accounts.extend(all[self.accounts.len().min(all.len())..].iter().map(known));
        if self.accounts.len() < ACCOUNTS {
            return;
        }
        while self.accounts.last().is_some_and(|one| !self.rules.allows(&one.name)) {
            findings.rewritten = Some("accounts of resources that no API has");
            self.accounts.pop();
        }
        layout.count.store(self.accounts.len() as u32, Ordering::Release);
    }

    fn compare_limits(&self, page: &TenantPage, findings: &mut Findings) {
        for (known, account) in self.accounts.iter().zip(page.accounts()) {
            let limit = self.rules.limit(&known.name, &known.device);
            if account.limit.load(Ordering::Relaxed) != limit {
                findings.rewritten = Some("a limit");
                account.limit.store(limit, Ordering::Relaxed);
            }
        }
        let table = &page.layout().device_limits;
        if !table.has(&self.rules.device_limits) {
            findings.rewritten = Some("the limits on devices");
            table.store(&self.rules.device_limits);
        }
    }

    fn sum_up(&mut self, page: &TenantPage, taken: &BTreeSet<u32>, findings: &mut Findings) {
        let mut held: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        let mut sums = vec![0u64; self.accounts.len()];
        for (slot, row) in (0u32..).zip(page.rows()) {
            let amounts = row.iter().take(self.accounts.len());
            if !taken.contains(&slot) {
                for amount in amounts.filter(|amount| amount.load(Ordering::Relaxed) != 0) {
                    findings.rewritten = Some("an amount of no API server");
                    amount.store(0, Ordering::Relaxed);
                }
                continue;
            }
            let amounts: Vec<u64> = amounts.map(|amount| amount.load(Ordering::Relaxed)).collect();
            sums.iter_mut().zip(&amounts).for_each(|(sum, amount)| *sum = sum.saturating_add(*amount));
            held.insert(slot, amounts);
        }
        let mut before = vec![0u64; self.accounts.len()];
        for row in self.held.values() {
            before.iter_mut().zip(row).for_each(|(sum, amount)| *sum = sum.saturating_add(*amount));
        }
        for (index, (known, account)) in self.accounts.iter().zip(page.accounts()).enumerate() {
            // What is used up is in no slot.
            if known.kind != 1 {
                continue;
            }
            if account.used.load(Ordering::Relaxed) != sums[index] {
                findings.rewritten = Some("a sum");
                account.used.store(sums[index], Ordering::Relaxed);
            }
            if sums[index] > self.rules.limit(&known.name, &known.device) && sums[index] > before[index] {
                let grown = held.iter().filter(|(slot, row)| row[index] > self.held_before(**slot, index));
                findings.takers.extend(grown.map(|(slot, _)| (*slot, known.name.clone())));
            }
        }
        self.held = held;
    }

    fn held_before(&self, slot: u32, index: usize) -> u64 {
        self.held.get(&slot).and_then(|row| row.get(index)).copied().unwrap_or(0)
    }

    /// The balances that stay when the last API server of the tenant was reaped: nobody changes the page any more, whatever its
    /// lock says.
    pub fn rest(&mut self, page: &TenantPage) -> Vec<Balance> {
        page.layout().lock.unlock();
        let _ = self.look(page, &BTreeSet::new());
        let mut balances = self.shown(page);
        balances.retain(|balance| self.keeps(&balance.name, balance.device.as_deref()));
        balances
    }

    /// For people: without accounts of what no API has.
    pub fn shown(&self, page: &TenantPage) -> Vec<Balance> {
        let mut balances = page.balances();
        balances.retain(|balance| self.rules.allows(&balance.name));
        balances
    }

    /// What is held now may be beyond the limits, which are lower from now on: called when the page has them.
    pub fn begin_anew(&mut self, page: &TenantPage, taken: &BTreeSet<u32>) {
        let all = page.accounts();
        self.accounts.extend(all[self.accounts.len().min(all.len())..].iter().map(known));
        for (known, account) in self.accounts.iter_mut().zip(all) {
            // A peak may be above the lower limit, too.
            let counters = [
                (&mut known.used, &account.used),
                (&mut known.peak, &account.peak),
                (&mut known.refused, &account.refused),
            ];
            counters.into_iter().for_each(|(before, now)| *before = (*before).max(now.load(Ordering::Relaxed)));
        }
        let count = self.accounts.len();
        let rows = (0u32..).zip(page.rows()).filter(|(slot, _)| taken.contains(slot));
        let amounts =
            |row: &[AtomicU64; ACCOUNTS]| row.iter().take(count).map(|amount| amount.load(Ordering::Relaxed)).collect();
        self.held = rows.map(|(slot, row)| (slot, amounts(row))).collect();
    }
}

fn known(account: &SharedAccount) -> Known {
    Known {
        name: account.name.load(),
        device: account.device.load(),
        kind: account.kind.load(Ordering::Acquire).min(2),
        used: account.used.load(Ordering::Relaxed),
        peak: account.peak.load(Ordering::Relaxed),
        refused: account.refused.load(Ordering::Relaxed),
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
