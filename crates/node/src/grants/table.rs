//! The grants of a node: those that are in force, and those that are being taken back. No I/O.

use super::{
    entry::GrantEntry,
    request::{Grant, GrantEntrance, RevokeReport, Via},
};
use crate::tenants::tenant::Tenant;
use aviary_control::Foreign;
use aviary_wire::tenant::GRANT_KEY;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant, SystemTime},
};

/// Grants of a node at a time: each with a socket costs a descriptor.
pub(super) const MOST_GRANTS: usize = 4096;
/// Answers of revocations that nobody has asked for yet.
pub(super) const MOST_UNASKED: usize = 1024;
/// The longest time between two looks at the wall clock while a grant expires at some time: somebody may set it.
pub(super) const CLOCK_INTERVAL: Duration = Duration::from_secs(30);

/// A grant that is in force.
#[derive(Debug)]
pub(super) struct Held {
    pub grant: Grant,
    pub place: u64,
    /// `None`: its guests show a key.
    pub listener: Option<Foreign>,
}

/// A grant that was taken back, until nothing of it is left and somebody has asked.
#[derive(Debug)]
pub(super) struct Leaving {
    /// With its limits until then.
    pub tenant: Tenant,
    pub report: RevokeReport,
}

/// The grants that are in force, and those that are being taken back.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    pub(super) held: BTreeMap<String, Held>,
    pub(super) leaving: BTreeMap<String, Leaving>,
    /// Names by key.
    keys: BTreeMap<String, String>,
    last_place: u64,
}

impl Grants {
    pub fn has(&self, name: &str) -> bool {
        self.held.contains_key(name)
    }

    /// In force, or something of it is left.
    pub fn knows(&self, name: &str) -> bool {
        self.has(name) || self.leaving.get(name).is_some_and(|leaving| !leaving.report.done)
    }

    /// True if this is the same grant as when the guest came.
    pub fn admits(&self, entry: &GrantEntry) -> bool {
        self.held.get(&entry.name).is_some_and(|held| held.place == entry.place)
    }

    /// By which a guest comes at this place's socket.
    pub fn at(&self, place: u64) -> Option<GrantEntry> {
        let (name, _) = self.held.iter().find(|(_, held)| held.place == place)?;
        Some(GrantEntry { name: name.clone(), place, key: None })
    }

    /// The grant at this place, if its guests are carried to another node.
    pub fn way_out(&self, place: u64) -> Option<(Grant, Via)> {
        let held = self.held.values().find(|held| held.place == place)?;
        Some((held.grant.clone(), held.grant.via.clone()?))
    }

    /// Of a session that this node has had since before its program was replaced.
    pub fn again(&self, name: &str) -> GrantEntry {
        let place = self.held.get(name).map_or(0, |held| held.place);
        GrantEntry { name: name.to_owned(), place, key: None }
    }

    /// `shown`: what a gateway reports of a guest with a key.
    pub fn of_key(&self, shown: &str) -> Option<GrantEntry> {
        let name = self.keys.get(shown.strip_prefix(GRANT_KEY)?)?;
        let place = self.held.get(name)?.place;
        Some(GrantEntry { name: name.clone(), place, key: Some(shown.to_owned()) })
    }

    /// Name, place and socket of those with sockets.
    pub fn listeners(&self) -> impl Iterator<Item = (&str, u64, &Foreign)> {
        self.held.iter().filter_map(|(name, held)| Some((name.as_str(), held.place, held.listener.as_ref()?)))
    }

    pub fn listener_at(&self, place: u64) -> Option<&Foreign> {
        self.listeners().find(|(_, at, _)| *at == place).map(|(_, _, socket)| socket)
    }

    /// Of a tenant's metrics.
    pub fn labels(&self, tenant: &str) -> BTreeMap<String, String> {
        self.held.get(tenant).map_or_else(BTreeMap::new, |held| held.grant.labels.clone())
    }

    pub fn are_leaving(&self) -> bool {
        self.leaving.values().any(|leaving| !leaving.report.done)
    }

    /// Tenants of all grants of which something is there.
    pub fn tenants(&self) -> impl Iterator<Item = Tenant> {
        self.held.values().map(|held| held.grant.tenant()).chain(self.leaving_tenants())
    }

    /// Tenants of grants that are being taken back.
    pub fn leaving_tenants(&self) -> impl Iterator<Item = Tenant> {
        self.leaving.values().filter(|leaving| !leaving.report.done).map(|leaving| leaving.tenant.clone())
    }

    /// Adds a grant, or replaces the one of its name, which keeps its place. Answers the place.
    pub(super) fn put(&mut self, grant: Grant, listener: Option<Foreign>) -> u64 {
        self.leaving.remove(&grant.name);
        if let GrantEntrance::Key(key) = &grant.entrance {
            self.keys.insert(key.clone(), grant.name.clone());
        }
        if let Some(held) = self.held.get_mut(&grant.name) {
            held.grant = grant;
            return held.place;
        }
        self.last_place += 1;
        let place = self.last_place;
        self.held.insert(grant.name.clone(), Held { grant, place, listener });
        place
    }

    /// It is not in force from here on. `None`: it was not.
    pub(super) fn begin_to_leave(&mut self, name: &str, report: RevokeReport) -> Option<Held> {
        let held = self.held.remove(name)?;
        self.keys.retain(|_, other| other != name);
        let unasked = self.leaving.iter().filter(|(_, leaving)| leaving.report.done).map(|(name, _)| name.clone());
        if let (Some(oldest), true) = (unasked.min(), self.leaving.len() >= MOST_UNASKED) {
            self.leaving.remove(&oldest);
        }
        self.leaving.insert(name.to_owned(), Leaving { tenant: held.grant.tenant(), report });
        Some(held)
    }

    /// Names of those whose time is over.
    pub(super) fn expired(&self, now: SystemTime) -> Vec<String> {
        let over = |held: &&Held| held.grant.is_over(now);
        self.held.values().filter(over).map(|held| held.grant.name.clone()).collect()
    }

    /// When the next one may be over. `now`, on both clocks.
    pub fn next_look(&self, now: Instant, wall: SystemTime) -> Option<Instant> {
        let next = self.held.values().filter_map(|held| held.grant.expiry()).min()?;
        let left = next.duration_since(wall).unwrap_or_default();
        // A look that is late by a step of the clock does not turn in circles.
        Some(now + left.clamp(Duration::from_millis(10), CLOCK_INTERVAL))
    }

    /// How far the revocation of a grant is that is not in force. The last answer is given once.
    pub(super) fn ask(&mut self, name: &str) -> RevokeReport {
        let Some(leaving) = self.leaving.get(name) else { return RevokeReport::of_none(name) };
        let report = leaving.report.clone();
        if report.done {
            self.leaving.remove(name);
        }
        report
    }
}
