//! One exact 64-bit account.

use crate::amounts::{Kind, Refused};
use crate::shared::session_limits::KnownLimit;
use crate::slot::TenantSlot;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// How much of one resource a session has, wherever it lies or on one device.
///
/// Without a tenant's page the limit is this account's own: every change is one compare-and-swap on `used`, so that
/// concurrent charges can neither overshoot nor lose an update. With a page the limit, and what counts against it,
/// are the tenant's; the numbers here say which part of it is this session's, which never exceeds the limit that the node has told
/// the session itself.
#[derive(Debug)]
pub struct Account {
    name: String,
    device: Option<String>,
    kind: Kind,
    limit: Option<u64>,
    used: AtomicU64,
    peak: AtomicU64,
    refused: AtomicU64,
    /// The tenant's account, by its number in the page.
    tenant: Option<(TenantSlot, usize)>,
    /// Of the session itself.
    known: Mutex<KnownLimit>,
}

impl Account {
    pub fn new(name: &str, kind: Kind, limit: Option<u64>) -> Account {
        let zero = || AtomicU64::new(0);
        let (name, device, tenant, known) = (name.to_owned(), None, None, Mutex::default());
        Account { name, device, kind, limit, used: zero(), peak: zero(), refused: zero(), tenant, known }
    }

    /// A part of the tenant's account with this number.
    pub(crate) fn of_tenant(name: &str, kind: Kind, seat: TenantSlot, number: usize) -> Account {
        Account { tenant: Some((seat, number)), ..Account::new(name, kind, None) }
    }

    pub(crate) fn on(self, device: &str) -> Account {
        Account { device: Some(device.to_owned()), ..self }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// On which device; `None`: wherever, all together.
    pub fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub fn limit(&self) -> Option<u64> {
        match &self.tenant {
            Some((seat, number)) => seat.page.limit(*number),
            None => self.limit,
        }
    }

    /// What this session may have by itself, whatever the tenant's page says.
    fn own_limit(&self) -> u64 {
        let Some((seat, _)) = &self.tenant else { return self.limit.unwrap_or(u64::MAX) };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        seat.own_limit(&self.name, self.device.as_deref().unwrap_or_default(), &mut known).unwrap_or(u64::MAX)
    }

    /// Whether the session may have so much more by itself.
    fn check(&self, amount: u64) -> Result<(), Refused> {
        let (limit, used) = (self.own_limit(), self.used());
        if used.saturating_add(amount) <= limit { Ok(()) } else { Err(Refused { used, limit }) }
    }

    /// Held now (continuous) or used up so far (instantaneous).
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// How many charges were refused.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// The tenant's account, by its number in the page.
    pub(crate) fn number(&self) -> Option<usize> {
        self.tenant.as_ref().map(|(_, number)| *number)
    }

    /// Takes `amount` as far as the session is concerned.
    pub(crate) fn raise(&self, amount: u64) -> Result<(), Refused> {
        let limit = self.own_limit();
        let raised = |used: u64| used.checked_add(amount).filter(|sum| *sum <= limit);
        match self.used.fetch_update(Ordering::AcqRel, Ordering::Relaxed, raised) {
            Ok(before) => {
                self.peak.fetch_max(before + amount, Ordering::Relaxed);
                Ok(())
            }
            Err(used) => {
                self.note_refusal();
                Err(Refused { used, limit })
            }
        }
    }

    pub(crate) fn note_refusal(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Callers return only what a holding proves was charged; the clamp keeps
    /// a mistake from turning into an account near 2^64.
    pub(crate) fn lower(&self, amount: u64) {
        let lowered = |used: u64| Some(used.saturating_sub(amount));
        let _ = self.used.fetch_update(Ordering::AcqRel, Ordering::Relaxed, lowered);
    }

    /// An unlimited total only counts, in the session, and saturates: it must not refuse a call after centuries.
    pub(crate) fn consume(&self, amount: u64) -> Result<(), Refused> {
        match &self.tenant {
            Some((seat, number)) => {
                if seat.page.limit(*number).is_some() {
                    seat.page.consume(*number, amount).inspect_err(|_| self.note_refusal())?;
                }
                if let Err(refused) = self.check(amount) {
                    self.note_refusal();
                    seat.page.note_refusal(*number);
                    return Err(refused);
                }
            }
            None if self.limit.is_some() => return self.raise(amount),
            _ => {}
        }
        let raised = |used: u64| Some(used.saturating_add(amount));
        let _ = self.used.fetch_update(Ordering::AcqRel, Ordering::Relaxed, raised);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    #[test]
    fn the_last_byte_is_granted_and_the_next_is_refused() {
        let account = Account::new("memory", Kind::Continuous, Some(10));
        account.raise(10).unwrap();
        assert_eq!(account.raise(1), Err(Refused { used: 10, limit: 10 }));
        account.raise(0).unwrap();
        account.lower(1);
        account.raise(1).unwrap();
        assert_eq!((account.used(), account.peak(), account.refused()), (10, 10, 1));
    }

    #[test]
    fn a_sum_beyond_64_bits_is_refused_not_wrapped() {
        let account = Account::new("memory", Kind::Continuous, None);
        account.raise(u64::MAX).unwrap();
        assert!(account.raise(1).is_err());
        assert_eq!(account.used(), u64::MAX);
    }

    #[test]
    fn consumption_without_a_limit_never_refuses() {
        let account = Account::new("time", Kind::Instantaneous, None);
        account.consume(u64::MAX).unwrap();
        account.consume(5).unwrap();
        assert_eq!(account.used(), u64::MAX);
    }

    #[test]
    fn threads_never_pass_the_limit_together() {
        let account = Arc::new(Account::new("memory", Kind::Continuous, Some(1000)));
        let workers: Vec<_> = (0..4)
            .map(|seed: u64| {
                let account = account.clone();
                std::thread::spawn(move || {
                    let mut held = 0;
                    for step in 0..if cfg!(miri) { 200 } else { 20_000u64 } {
                        let amount = (step * 31 + seed * 17) % 300;
                        if held > 0 && step % 3 == 0 {
                            account.lower(held);
                            held = 0;
                        } else if account.raise(amount).is_ok() {
                            held += amount;
                        }
                        assert!(account.used() <= 1000);
                    }
                    account.lower(held);
                })
            })
            .collect();
        workers.into_iter().for_each(|w| w.join().unwrap());
        assert_eq!(account.used(), 0);
        assert!(account.peak() <= 1000);
    }

    proptest! {
        #[test]
        fn never_over_the_limit_and_no_drift(limit in 0u64..1 << 40, steps in prop::collection::vec((any::<bool>(), 0u64..1 << 39), 0..200)) {
            let account = Account::new("memory", Kind::Continuous, Some(limit));
            let mut held: Vec<u64> = Vec::new();
            for (take, amount) in steps {
                if take {
                    let fits = held.iter().sum::<u64>() + amount <= limit;
                    prop_assert_eq!(account.raise(amount).is_ok(), fits);
                    if fits { held.push(amount); }
                } else if let Some(amount) = held.pop() {
                    account.lower(amount);
                }
                prop_assert_eq!(account.used(), held.iter().sum::<u64>());
                prop_assert!(account.peak() <= limit);
            }
        }
    }
}
