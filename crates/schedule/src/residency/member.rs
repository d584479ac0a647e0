//! One session, as the arbiter of memory knows it.

use super::place::Place;
use std::collections::BTreeMap;

/// The least and the longest time, in nanoseconds, after which a session that stayed is asked again.
const FIRST_GAP: u64 = 20_000_000;
const LONGEST_GAP: u64 = 1_000_000_000;

/// The part of a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    pub weight: u32,
    /// Bytes of each device that its sessions keep while others have more than theirs.
    pub guarantee: u64,
}

impl Default for Claim {
    fn default() -> Self {
        Claim { weight: 1, guarantee: 0 }
    }
}

/// An allocation that waits for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    pub request: u64,
    pub device: usize,
    pub bytes: u64,
    pub since: u64,
}

#[derive(Debug)]
pub struct Resident {
    pub tenant: String,
    pub place: Place,
    /// Of the place.
    pub since: u64,
    /// By device: what it has, wherever that is.
    pub held: BTreeMap<usize, u64>,
    /// While it is out: what of that is still on the device.
    pub kept: BTreeMap<usize, u64>,
    pub ask: Option<Ask>,
    /// By device: bytes that others must give up before it is tried again, although there seemed to be room: the vendor's library had
    /// none.
    pub short: BTreeMap<usize, u64>,
    /// Since when it is wanted on its devices.
    pub wanted: Option<u64>,
    /// For whom it leaves.
    pub leaves_for: Option<u64>,
    /// Time that copies have taken which bring it in or make room for it, since its last turn began.
    pub exchange: u64,
    /// Until then nobody turns it out.
    pub turn_until: u64,
    /// A session that has had nothing to do for so long gives up the rest of its turn.
    pub patience: u64,
    /// Time that exchanges for it have taken.
    pub exchanged: u64,
    pub active_at: u64,
    pub busy: bool,
    /// It stayed, and is not asked before.
    pub not_before: u64,
    pub stays: u32,
}

impl Resident {
    pub fn new(tenant: &str, now: u64) -> Resident {
        Resident {
            tenant: tenant.to_owned(),
            place: Place::In,
            since: now,
            held: BTreeMap::new(),
            kept: BTreeMap::new(),
            ask: None,
            short: BTreeMap::new(),
            wanted: None,
            leaves_for: None,
            exchange: 0,
            turn_until: 0,
            patience: 0,
            exchanged: 0,
            active_at: now,
            busy: false,
            not_before: 0,
            stays: 0,
        }
    }

    pub fn held_on(&self, device: usize) -> u64 {
        self.held.get(&device).copied().unwrap_or(0)
    }

    /// Bytes that are on the device, or may be.
    pub fn occupies(&self, device: usize) -> u64 {
        match self.place {
            Place::Out => self.kept.get(&device).copied().unwrap_or(0),
            Place::In | Place::GoingOut | Place::ComingIn => self.held_on(device),
        }
    }

    /// Since when it waits, if it does.
    pub fn waits_since(&self) -> Option<u64> {
        self.ask.map(|ask| ask.since).into_iter().chain(self.wanted).min()
    }

    /// What has to be free, by device, before it goes on.
    pub fn need(&self) -> BTreeMap<usize, u64> {
        let mut need = BTreeMap::new();
        if self.place == Place::Out {
            need.extend(self.held.keys().map(|device| (*device, self.held_on(*device) - self.occupies(*device))));
        }
        if let Some(ask) = self.ask {
            *need.entry(ask.device).or_default() += ask.bytes;
        }
        need
    }

    /// Others have left for it, and so much has come free.
    pub fn note_freed(&mut self, freed: &[(usize, u64)]) {
        for (device, bytes) in freed {
            self.short.entry(*device).and_modify(|short| *short = short.saturating_sub(*bytes));
        }
        self.short.retain(|_, short| *short > 0);
    }

    /// A copy has ended that brings it in or makes room for it.
    pub fn pay(&mut self, time: u64) {
        self.exchange = self.exchange.saturating_add(time);
        self.exchanged = self.exchanged.saturating_add(time);
    }

    /// What was exchanged for it is there: others wait for `turns` times as long as that took, or until it has had nothing to do
    /// for as long as that took. So an idle session costs others at most as much as its leaving too early would cost itself.
    pub fn begin_turn(&mut self, turns: u64, now: u64) {
        let exchange = std::mem::take(&mut self.exchange);
        let until = now.saturating_add(exchange.saturating_mul(turns));
        self.patience = if self.turn_until > now { self.patience.max(exchange) } else { exchange };
        self.turn_until = self.turn_until.max(until);
        self.active_at = now;
    }

    /// When others may have its memory; `u64::MAX`: not before it has ended.
    pub fn turn_ends(&self) -> u64 {
        let idle = if self.busy { u64::MAX } else { self.active_at.saturating_add(self.patience) };
        if self.turn_until == u64::MAX { u64::MAX } else { self.turn_until.min(idle) }
    }

    /// It is out, and all that it has is on its devices as before.
    pub fn is_fruitless(&self) -> bool {
        self.held.values().any(|held| *held > 0) && self.kept == self.held
    }

    pub fn note_stay(&mut self, now: u64) {
        let gap = FIRST_GAP.saturating_mul(1 << self.stays.min(10)).min(LONGEST_GAP);
        self.stays = self.stays.saturating_add(1);
        self.not_before = now.saturating_add(gap);
    }
}
