use super::*;
use crate::scheduling::Scheduler;
use aviary_gate::Manner;
use std::{os::fd::AsFd, time::Duration};

/// A device under `fair`, and sessions whose API servers are this test.
struct Bench {
    device: Device,
    pages: Vec<Arc<GrantPage>>,
}

impl Bench {
    /// Session `n` has so many seats of the device.
    fn new(seats: &[usize]) -> Bench {
        let mut device = Device::new(DeviceSettings::default()).unwrap();
        let page = || Arc::new(GrantPage::open(GrantPage::create().unwrap().as_fd()).unwrap());
        let pages: Vec<_> = seats.iter().map(|_| page()).collect();
        for (session, (count, page)) in seats.iter().zip(&pages).enumerate() {
            for seat in 0..*count {
                device.join(session as u64, &format!("tenant {session}"), Share::default(), page.clone(), seat);
            }
        }
        Bench { device, pages }
    }

    fn seat(&self, session: usize, seat: usize) -> &DeviceSeat {
        &self.pages[session].seats()[seat]
    }

    fn wait(&self, session: usize, seat: usize) {
        self.seat(session, seat).waiting.store(1, SeqCst);
    }

    /// Whoever got the device waits no longer.
    fn step(&mut self, now: u64) {
        self.device.step(now);
        let open = |seat: &&DeviceSeat| matches!(seat.grant.load(SeqCst), grant::SLICE | grant::ALONE);
        let seats = self.pages.iter().flat_map(|page| page.seats());
        seats.filter(open).for_each(|seat| seat.waiting.store(0, SeqCst));
    }

    fn grant(&self, session: usize, seat: usize) -> u32 {
        self.seat(session, seat).grant.load(SeqCst)
    }
}

#[test]
fn a_session_with_two_seats_holds_the_device_with_one() {
    let mut bench = Bench::new(&[2, 1]);
    bench.wait(0, 1);
    bench.step(1);
    assert_eq!(bench.grant(0, 1), grant::ALONE);
    bench.wait(0, 0);
    bench.wait(1, 0);
    for now in 2..5 {
        bench.step(now);
        let grants = [bench.grant(0, 1), bench.grant(0, 0), bench.grant(1, 0)];
        assert_eq!(grants, [grant::SLICE, grant::CLOSED, grant::CLOSED]);
    }
    assert!(bench.seat(0, 1).change(grant::SLICE, grant::CLOSED));
    bench.step(5);
    let open = |(session, seat)| bench.grant(session, seat) == grant::SLICE;
    assert_eq!([(0, 0), (0, 1), (1, 0)].into_iter().filter(|place| open(*place)).count(), 1);
}

#[test]
fn who_keeps_the_device_from_others_is_overdue_after_its_limit() {
    let mut bench = Bench::new(&[1, 1]);
    let limit = Duration::from_secs(10) + Duration::from_millis(6);
    let limit = u64::try_from(limit.as_nanos()).unwrap();
    bench.wait(0, 0);
    bench.step(1);
    bench.step(1_000_000_000_000);
    assert_eq!(bench.device.overdue(1_000_000_000_000), None, "nobody else wants it");
    bench.wait(1, 0);
    let since = 2_000_000_000_000;
    assert_eq!(bench.device.step(since), Some(since + limit), "the next look");
    assert_eq!(bench.device.overdue(since + limit - 1), None);
    assert_eq!(bench.device.overdue(since + limit), Some((0, limit)));
    assert!(bench.seat(0, 0).change(grant::SLICE, grant::CLOSED));
    assert_eq!(bench.device.overdue(since + limit), None, "it was given back in time");
    bench.step(since + limit);
    assert_eq!(bench.grant(1, 0), grant::ALONE);
}

#[test]
fn another_discipline_takes_over_between_two_slices() {
    let mut bench = Bench::new(&[1, 1]);
    bench.wait(0, 0);
    bench.step(1);
    bench.wait(1, 0);
    let settings = DeviceSettings { scheduler: Scheduler::Credit, ..DeviceSettings::default() };
    bench.device.configure(DeviceSettings { linger: Duration::from_millis(9), ..settings }, 2);
    assert_eq!((bench.seat(0, 0).manner(), bench.seat(1, 0).linger.load(SeqCst)), (Manner::Blind, 9_000_000));
    bench.step(3);
    assert_eq!([bench.grant(0, 0), bench.grant(1, 0)], [grant::SLICE, grant::CLOSED], "the slice goes on");
    bench.seat(0, 0).change(grant::SLICE, grant::CLOSED);
    bench.step(4);
    assert_eq!(bench.grant(1, 0), grant::ALONE);
}

#[test]
fn a_device_that_nobody_schedules_any_longer_is_free_for_all() {
    let mut bench = Bench::new(&[1, 1]);
    bench.wait(0, 0);
    bench.step(1);
    bench.device.set_free();
    assert_eq!([bench.grant(0, 0), bench.grant(1, 0)], [grant::FREE, grant::FREE]);
}

#[test]
fn who_dies_with_the_device_is_charged_for_what_others_waited() {
    let used = |others: bool, told: u64| {
        let mut bench = Bench::new(&[1, 1]);
        bench.wait(0, 0);
        bench.step(1);
        if others {
            bench.wait(1, 0);
        }
        bench.step(10);
        bench.seat(0, 0).used.store(told, SeqCst);
        bench.step(2_000_000);
        bench.device.leave(0, 5_000_010);
        bench.device.usage()[0].used_ns
    };
    assert_eq!(used(true, 0), 5_000_000);
    assert_eq!(used(true, 1_000_000), 5_000_000, "what was told is part of it");
    assert_eq!(used(false, 1_000_000), 1_000_000, "alone it kept nobody from anything");
}

#[test]
fn who_is_overdue_is_told_again_only_later() {
    let mut bench = Bench::new(&[1, 1]);
    bench.wait(0, 0);
    bench.step(1);
    bench.wait(1, 0);
    bench.step(2);
    let limit = 10_006_000_000;
    assert_eq!(bench.device.take_overdue(limit + 2), Some((0, limit)));
    bench.step(limit + 3);
    assert_eq!(bench.device.take_overdue(limit + 4), None);
    assert_eq!(bench.device.take_overdue(2 * limit + 2), Some((0, 2 * limit)));
}
