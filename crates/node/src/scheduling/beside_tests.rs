//! Sessions beside the holder: of its tenant, and of others where the device preempts.

use super::*;
use crate::scheduling::hurry::{Hurry, Runner, Threads, tests::Simulated};
use crate::scheduling::{DeviceSettings, Scheduler, Share};
use crate::{Level, Log};
use aviary_control::cpu::ThreadPolicy;
use aviary_gate::{DeviceSeat, GrantPage};
use std::os::fd::AsFd;
use std::sync::Arc;

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;

struct Shared {
    device: Device,
    pages: Vec<Arc<GrantPage>>,
    hurry: Hurry,
}

impl Shared {
    /// A session of each of these tenants, with its weight and priority.
    fn new(kind: DeviceKind, scheduler: Scheduler, tenants: &[(&str, u32, i32)]) -> Shared {
        let settings = DeviceSettings { scheduler, ..DeviceSettings::default() };
        let mut device = Device::new(settings, kind).unwrap();
        let page = || Arc::new(GrantPage::open(GrantPage::create().unwrap().as_fd()).unwrap());
        let pages: Vec<_> = tenants.iter().map(|_| page()).collect();
        let threads: Arc<dyn Threads> = Arc::new(Simulated::with(&[(1, ThreadPolicy::Normal)]));
        for (session, ((tenant, weight, priority), page)) in tenants.iter().zip(&pages).enumerate() {
            let share = Share { weight: *weight, priority: *priority };
            let runner = Runner { tenant: (*tenant).into(), threads: threads.clone() };
            device.join(0, session as u64, tenant, share, (page.clone(), 0), Some(runner));
        }
        Shared { device, pages, hurry: Hurry::new(true, Log::new(Level::Error)) }
    }

    fn seat(&self, session: usize) -> &DeviceSeat {
        &self.pages[session].seats()[0]
    }

    fn grant(&self, session: usize) -> u32 {
        self.seat(session).grant.load(SeqCst)
    }

    fn budget(&self, session: usize) -> u64 {
        self.seat(session).budget.load(SeqCst)
    }

    /// The node looks; who has the device then waits no longer.
    fn step(&mut self, now: u64) -> Option<u64> {
        let look = self.device.step(now, &mut self.hurry);
        let open = |seat: &&DeviceSeat| matches!(seat.grant.load(SeqCst), grant::SLICE | grant::ALONE);
        let seats = self.pages.iter().map(|page| &page.seats()[0]);
        seats.filter(open).for_each(|seat| seat.waiting.store(0, SeqCst));
        look
    }

    fn wait(&mut self, session: usize, now: u64) -> Option<u64> {
        self.seat(session).waiting.store(1, SeqCst);
        self.step(now)
    }

    fn give_back(&mut self, session: usize, used: u64, now: u64) {
        let seat = self.seat(session);
        seat.used.fetch_add(used, SeqCst);
        seat.calls.fetch_add(1, SeqCst);
        assert!([grant::SLICE, grant::ALONE, grant::LAST].iter().any(|from| seat.change(*from, grant::CLOSED)));
        self.step(now);
    }

    fn used(&self, tenant: &str) -> u64 {
        self.device.usage().iter().filter(|usage| usage.tenant == tenant).map(|usage| usage.used_ns).sum()
    }
}

#[test]
fn sessions_of_a_tenant_that_is_alone_may_wait_for_each_other() {
    for kind in [DeviceKind::Exclusive, DeviceKind::Preemptive] {
        let mut shared = Shared::new(kind, Scheduler::Fair, &[("one", 1, 0), ("one", 1, 0)]);
        shared.wait(0, 1);
        // The second one waits for the first one's device, and the first one for the second one's work.
        let due = shared.wait(1, S).unwrap();
        assert_eq!((shared.grant(1), due), (grant::CLOSED, S + 56 * MS));
        shared.step(due);
        assert_eq!([shared.grant(0), shared.grant(1)], [grant::SLICE, grant::SLICE], "{kind:?}");
        shared.give_back(1, MS, due + MS);
        assert_eq!(shared.grant(1), grant::CLOSED);
        shared.wait(1, due + 2 * MS);
        assert_eq!(shared.grant(1), grant::SLICE, "at once, as the same slice lasts too long");
        shared.step(1000 * S);
        assert_eq!(shared.device.overdue(1000 * S), None, "no other tenant waits");
        shared.give_back(0, 999 * S, 1000 * S);
        assert_eq!((shared.grant(1), shared.device.holder), (grant::ALONE, Some((1, 0))), "it has the device now");
    }
}

#[test]
fn work_beside_another_session_of_the_tenant_is_charged_once() {
    let tenants = [("one", 1, 0), ("one", 1, 0), ("two", 1, 0)];
    let mut shared = Shared::new(DeviceKind::Exclusive, Scheduler::Fair, &tenants);
    shared.wait(0, 1);
    shared.wait(1, 2);
    shared.wait(2, 3);
    shared.step(S);
    assert_eq!([0, 1, 2].map(|session| shared.grant(session)), [grant::SLICE, grant::SLICE, grant::CLOSED]);
    shared.give_back(1, S / 2, S + 1);
    shared.give_back(0, S, S + 2);
    assert_eq!((shared.used("one"), shared.grant(2)), (S, grant::ALONE));
}

#[test]
fn holder_is_overdue_for_other_tenants_only() {
    let tenants = [("one", 1, 0), ("one", 1, 0), ("two", 1, 0)];
    let mut shared = Shared::new(DeviceKind::Exclusive, Scheduler::Fair, &tenants);
    shared.wait(0, 1);
    shared.wait(1, 2);
    shared.step(100 * S);
    assert_eq!(shared.device.overdue(100 * S), None);
    shared.wait(2, 100 * S);
    shared.step(110 * S);
    assert_eq!(shared.device.overdue(110 * S), None);
    assert!(shared.device.overdue(110 * S + 6 * MS).is_some_and(|(session, _)| session == 0));
}

#[test]
fn newcomer_is_admitted_at_once_where_the_device_preempts() {
    let tenants = [("long", 1, 0), ("small", 9, 0)];
    let mut shared = Shared::new(DeviceKind::Preemptive, Scheduler::Fair, &tenants);
    shared.wait(0, 1);
    let mut now = S;
    for _ in 0..100 {
        // A kernel of the first one is there all the time.
        shared.wait(1, now);
        assert_eq!([shared.grant(0), shared.grant(1)], [grant::SLICE, grant::SLICE]);
        assert_eq!((shared.budget(0), shared.budget(1)), (0, 6 * MS), "the first one gives the device no more");
        shared.give_back(1, MS / 2, now + MS / 2);
        assert_eq!([shared.grant(0), shared.grant(1)], [grant::ALONE, grant::CLOSED]);
        assert_eq!(shared.budget(0), 6 * MS, "and goes on as before");
        now += 3 * MS;
    }
    let mut shared = Shared::new(DeviceKind::Exclusive, Scheduler::Fair, &tenants);
    shared.wait(0, 1);
    shared.wait(1, S);
    shared.step(2 * S);
    assert_eq!(shared.grant(1), grant::CLOSED, "where it does not, it waits");
}

#[test]
fn tenant_that_had_its_share_waits_for_a_long_slice_at_most() {
    let mut shared = Shared::new(DeviceKind::Preemptive, Scheduler::Fair, &[("one", 1, 0), ("two", 1, 0)]);
    shared.wait(0, 1);
    shared.wait(1, 2);
    shared.give_back(0, 6 * MS, 6 * MS);
    assert_eq!(shared.grant(1), grant::ALONE);
    let due = shared.wait(0, 7 * MS).unwrap();
    assert_eq!((due, shared.grant(0)), (36 * MS, grant::CLOSED));
    shared.step(due);
    assert_eq!([shared.grant(0), shared.grant(1)], [grant::SLICE, grant::SLICE]);
    // The second one's long kernel ends: the first one goes on with what it has.
    shared.give_back(1, 60 * MS, 66 * MS);
    assert_eq!(shared.device.holder, Some((0, 0)));
}

#[test]
fn session_is_ended_on_a_device_that_preempts_if_no_tenant_gets_on() {
    let mut shared = Shared::new(DeviceKind::Preemptive, Scheduler::Fair, &[("one", 1, 0), ("two", 1, 0)]);
    shared.wait(0, 1);
    shared.wait(1, S);
    shared.step(2 * S);
    assert_eq!([shared.grant(0), shared.grant(1)], [grant::SLICE, grant::SLICE]);
    for second in 3..100 {
        shared.seat(1).calls.fetch_add(1, SeqCst);
        shared.seat(1).used.fetch_add(S, SeqCst);
        shared.step(second * S);
        assert_eq!(shared.device.overdue(second * S), None, "the other one gets on");
    }
    shared.step(110 * S);
    assert!(shared.device.overdue(110 * S).is_some_and(|(session, _)| session == 0));
}

#[test]
fn higher_priority_ends_a_slice_or_is_admitted_beside_it() {
    let tenants = [("low", 1, 0), ("high", 1, 1), ("lower", 1, -1)];
    let mut shared = Shared::new(DeviceKind::Exclusive, Scheduler::Priority, &tenants);
    shared.wait(0, 1);
    shared.wait(2, MS);
    assert_eq!(shared.budget(0), 6 * MS, "a lower one waits for its end");
    shared.wait(1, 2 * MS);
    assert_eq!([shared.grant(0), shared.grant(1)], [grant::SLICE, grant::CLOSED]);
    assert_eq!(shared.budget(0), 0);
    shared.give_back(0, 3 * MS, 3 * MS);
    assert_eq!([shared.grant(1), shared.grant(2)], [grant::SLICE, grant::CLOSED]);
    let mut shared = Shared::new(DeviceKind::Preemptive, Scheduler::Priority, &tenants);
    shared.wait(0, 1);
    shared.wait(1, 2 * MS);
    assert_eq!([shared.grant(0), shared.grant(1)], [grant::SLICE, grant::SLICE]);
}

#[test]
fn sessions_beside_the_holder_end_like_others() {
    let mut shared = Shared::new(DeviceKind::Preemptive, Scheduler::Fair, &[("one", 1, 0), ("two", 9, 0)]);
    shared.wait(0, 1);
    shared.wait(1, S);
    assert_eq!(shared.grant(1), grant::SLICE);
    shared.device.leave(1, S + MS);
    shared.step(S + MS);
    assert_eq!((shared.grant(0), shared.device.beside.len()), (grant::ALONE, 0));
}

#[test]
fn work_in_flight_is_bounded_where_a_tenant_can_come_first() {
    for (scheduler, depth) in [(Scheduler::Fair, 0), (Scheduler::Priority, MS), (Scheduler::Slices, 0)] {
        let shared = Shared::new(DeviceKind::Exclusive, scheduler, &[("one", 1, 0)]);
        assert_eq!(shared.seat(0).depth.load(SeqCst), depth, "{scheduler:?}");
    }
}
