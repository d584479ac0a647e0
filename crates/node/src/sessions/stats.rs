//! Reading a session's counters out of the page that its API server writes.

use aviary_control::stats::{MAGIC, ResourceStats, StatsPage};
use std::{
    collections::BTreeMap,
    sync::atomic::Ordering::{Acquire, Relaxed},
};

/// Counters by name; those of resource `r` are `r.used`, `r.peak` and, if there is one, `r.limit`; those of `r` on a
/// device `r@DEVICE.used` and `r@DEVICE.peak`.
///
/// An API server is not trusted: a page that lies shows wrong numbers of its own session, and no decision depends on them.
pub fn read(page: &StatsPage) -> BTreeMap<String, u64> {
    if page.magic.load(Acquire) != MAGIC {
        return BTreeMap::new();
    }
    let counters = [
        ("calls", &page.calls),
        ("async_calls", &page.async_calls),
        ("callbacks", &page.callbacks),
        ("bytes_in", &page.bytes_in),
        ("bytes_out", &page.bytes_out),
        ("bytes_copied", &page.bytes_copied),
        ("bytes_pinned", &page.bytes_pinned),
        ("vendor_ns", &page.vendor_ns),
        ("device_ns", &page.device_ns),
        ("refused", &page.refused),
        ("handles", &page.handles),
    ];
    let mut all: BTreeMap<String, u64> = counters.map(|(name, value)| (name.to_owned(), value.load(Relaxed))).into();
    all.insert("lanes".into(), page.lanes.load(Relaxed).into());
    page.resources.iter().for_each(|resource| add_resource(&mut all, resource));
    all
}

/// A number that changes with each call of a session. It decides whether an idle session is parked: an API server that lies
/// is parked too early or never, and both are its own session's concern.
pub fn activity(page: &StatsPage) -> u64 {
    let counters = [&page.calls, &page.async_calls, &page.callbacks];
    counters.iter().fold(0, |sum, counter| sum.wrapping_add(counter.load(Relaxed)))
}

/// The counters of a session that is parked: it holds nothing.
pub fn read_parked(page: &StatsPage) -> BTreeMap<String, u64> {
    let mut all = read(page);
    let continuous = page.resources.iter().filter(|resource| resource.kind.load(Relaxed) == 0);
    for name in continuous.filter_map(name_of) {
        all.insert(format!("{name}.used"), 0);
    }
    all.insert("lanes".into(), 0);
    all
}

/// As it is shown, with its device; `None`: there is no such resource.
fn name_of(resource: &ResourceStats) -> Option<String> {
    // Nothing but the characters that a resource's name can have.
    let mut name = resource.name.load();
    name.retain(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    let device = resource.device.load();
    let whole = if device.is_empty() { name.clone() } else { format!("{name}@{device}") };
    (!name.is_empty()).then_some(whole)
}

fn add_resource(all: &mut BTreeMap<String, u64>, resource: &ResourceStats) {
    let Some(name) = name_of(resource) else { return };
    all.insert(format!("{name}.used"), resource.used.load(Relaxed));
    all.insert(format!("{name}.peak"), resource.peak.load(Relaxed));
    let limit = resource.limit.load(Relaxed);
    if limit != u64::MAX && resource.device.is("") {
        all.insert(format!("{name}.limit"), limit);
    }
}

#[cfg(test)]
mod tests {
    use crate::sessions::stats::*;
    use aviary_gate::{Gate, Kind, Resource};
    use std::os::fd::AsFd;

    #[test]
    fn shows_what_an_api_server_counts() {
        let gate = Gate::new([Resource { name: "memory", kind: Kind::Continuous }], |_| Some(7));
        let descriptor = StatsPage::create().unwrap();
        let page = StatsPage::publish(descriptor.as_fd(), &gate).unwrap();
        page.calls.fetch_add(3, Relaxed);
        gate.charge(0, 5).unwrap();
        page.show_account(0, &gate.accounts()[0]);
        gate.charge(gate.residency(0, &["a card".into()]).unwrap(), 2).unwrap();
        page.show_device_accounts(&gate);
        let counters = read(&StatsPage::open(descriptor.as_fd()).unwrap());
        assert_eq!(counters["memory@a card.used"], 2);
        assert_eq!((counters["calls"], counters["memory.used"], counters["memory.limit"]), (3, 5, 7));
        assert!(!counters.contains_key(".used"));
        let parked = read_parked(&StatsPage::open(descriptor.as_fd()).unwrap());
        assert_eq!((parked["memory@a card.used"], parked["memory.used"], parked["calls"]), (0, 0, 3));
        assert_eq!(activity(&page), 3);
    }

    #[test]
    fn a_new_page_shows_nothing() {
        let descriptor = StatsPage::create().unwrap();
        assert!(read(&StatsPage::open(descriptor.as_fd()).unwrap()).is_empty());
    }
}
