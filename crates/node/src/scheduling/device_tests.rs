use super::super::hurry::{Threads, tests::Simulated};
use super::*;
use crate::{Level, Log, scheduling::Scheduler};
use aviary_control::cpu::ThreadPolicy;
use aviary_gate::Manner;
use proptest::prelude::*;
use std::{os::fd::AsFd, time::Duration};

/// A device under `fair`, and sessions whose API servers are this test.
struct Bench {
    device: Device,
    pages: Vec<Arc<GrantPage>>,
    hurry: Hurry,
    /// Of all sessions: thread 2 may be hurried.
    threads: Arc<Simulated>,
}

impl Bench {
    /// Session `n` has so many seats of the device.
    fn new(seats: &[usize]) -> Bench {
        let mut device = Device::new(DeviceSettings::default(), DeviceKind::Exclusive).unwrap();
        let page = || Arc::new(GrantPage::open(GrantPage::create().unwrap().as_fd()).unwrap());
        let pages: Vec<_> = seats.iter().map(|_| page()).collect();
        let threads = Arc::new(Simulated::with(&[(1, ThreadPolicy::Normal), (2, ThreadPolicy::Normal)]));
        for (session, (count, page)) in seats.iter().zip(&pages).enumerate() {
            for seat in 0..*count {
                let tenant = format!("tenant {session}");
                let runner = Runner { tenant: tenant.as_str().into(), threads: threads.clone() };
                device.join(0, session as u64, &tenant, Share::default(), (page.clone(), seat), Some(runner));
            }
        }
        Bench { device, pages, hurry: Hurry::new(true, Log::new(Level::Error)), threads }
    }

    fn seat(&self, session: usize, seat: usize) -> &DeviceSeat {
        &self.pages[session].seats()[seat]
    }

    fn wait(&self, session: usize, seat: usize) {
        self.seat(session, seat).waiting.store(1, SeqCst);
    }

    fn look(&mut self, now: u64) -> Option<u64> {
        self.device.step(now, &mut self.hurry)
    }

    /// Whoever got the device waits no longer.
    fn step(&mut self, now: u64) {
        self.look(now);
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
    assert_eq!(bench.look(since), Some(since + limit), "the next look");
    assert_eq!(bench.device.overdue(since + limit - 1), None);
    assert_eq!(bench.device.overdue(since + limit), Some((0, limit)));
    assert!(bench.seat(0, 0).change(grant::SLICE, grant::CLOSED));
    assert_eq!(bench.device.overdue(since + limit), None, "it was given back in time");
    bench.step(since + limit);
    assert_eq!(bench.grant(1, 0), grant::ALONE);
}

#[test]
fn what_nobody_waited_for_is_no_debt() {
    let mut bench = Bench::new(&[1, 1]);
    bench.wait(0, 0);
    bench.wait(1, 0);
    bench.step(0);
    // The first one keeps the second one waiting for long, and then both are content.
    bench.seat(0, 0).used.store(300_000_000, SeqCst);
    bench.seat(0, 0).change(grant::SLICE, grant::CLOSED);
    bench.step(300_000_000);
    bench.seat(1, 0).change(grant::ALONE, grant::IDLE);
    // The second one goes on without asking, and uses 20 ms of 400; what it is at then has not been charged.
    bench.seat(1, 0).change(grant::IDLE, grant::ALONE);
    bench.wait(0, 0);
    bench.step(700_000_000);
    bench.seat(1, 0).used.store(20_000_000, SeqCst);
    bench.seat(1, 0).change(grant::SLICE, grant::ENDED);
    bench.step(701_000_000);
    // It has had 60 ms, the other one 300: with the debt, it would have the device again.
    bench.seat(1, 0).used.store(60_000_000, SeqCst);
    bench.seat(1, 0).change(grant::SLICE, grant::ENDED);
    bench.step(702_000_000);
    assert_eq!([bench.grant(0, 0), bench.grant(1, 0)], [grant::SLICE, grant::CLOSED]);
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

/// Session 0 has the device and is at the last work of its slice until `ends_at`; session 1 waits.
fn at_its_last_work(ends_at: u64, remaining: u64) -> Bench {
    let mut bench = Bench::new(&[1, 1]);
    bench.wait(0, 0);
    bench.step(1);
    bench.wait(1, 0);
    bench.step(2);
    let seat = bench.seat(0, 0);
    seat.ends_at.store(ends_at, SeqCst);
    seat.remaining.store(remaining, SeqCst);
    seat.goes_on.store(1, SeqCst);
    assert!(seat.change(grant::SLICE, grant::LAST));
    bench
}

#[test]
fn the_next_session_queues_its_work_before_the_last_one_is_done() {
    let mut bench = at_its_last_work(5_000_000, 4_000_000);
    assert_eq!(bench.look(100), Some(5_000_000 - LEAD), "not long before");
    assert_eq!([bench.grant(0, 0), bench.grant(1, 0)], [grant::LAST, grant::CLOSED]);
    bench.step(5_000_000 - LEAD);
    assert_eq!([bench.grant(0, 0), bench.grant(1, 0)], [grant::LAST, grant::SLICE]);
    assert_eq!(bench.seat(1, 0).free_at.load(SeqCst), NOT_YET);
    let seat = bench.seat(0, 0);
    seat.freed_at.store(5_000_100, SeqCst);
    seat.used.store(4_100_000, SeqCst);
    seat.change(grant::LAST, grant::ENDED);
    bench.step(5_000_200);
    assert_eq!([bench.grant(0, 0), bench.grant(1, 0)], [grant::CLOSED, grant::ALONE]);
    assert_eq!(bench.seat(1, 0).free_at.load(SeqCst), 5_000_100);
    assert_eq!(bench.device.usage()[0].used_ns, 4_100_000);
}

#[test]
fn who_waits_for_its_last_work_gets_a_processor_at_its_end() {
    let mut bench = at_its_last_work(5_000_000, 4_000_000);
    bench.seat(0, 0).sleeper.store(2, SeqCst);
    bench.look(100);
    assert_eq!(bench.threads.pace(2).unwrap(), ThreadPolicy::Normal, "nobody comes behind it yet");
    bench.step(5_000_000 - LEAD);
    assert_eq!((bench.threads.pace(2).unwrap(), bench.seat(0, 0).hurried.load(SeqCst)), (ThreadPolicy::Boosted, 2));
}

#[test]
fn nobody_looks_for_who_does_not_come_back() {
    let mut bench = at_its_last_work(5_000_000, 4_000_000);
    bench.step(5_000_000 - LEAD);
    bench.seat(0, 0).change(grant::LAST, grant::ENDED);
    let lapse = 5_000_000 + bench.device.linger();
    assert!(bench.look(5_000_000).is_none_or(|at| at > lapse));
    assert!(bench.device.tenants[0].awake, "it is expected");
    bench.look(lapse);
    assert!(!bench.device.tenants[0].awake);
}

#[test]
fn what_was_charged_ahead_is_set_right() {
    let mut bench = at_its_last_work(5_000_000, 4_000_000);
    bench.seat(0, 0).used.store(1_000_000, SeqCst);
    bench.step(5_000_000);
    assert_eq!(bench.device.tenants[0].used, 5_000_000);
    assert_eq!(bench.device.usage()[0].used_ns, 1_000_000, "what it has used");
    // It took less.
    bench.seat(0, 0).used.store(3_000_000, SeqCst);
    bench.seat(0, 0).change(grant::LAST, grant::ENDED);
    bench.step(5_100_000);
    assert_eq!(bench.device.usage()[0].used_ns, 3_000_000);
    // The next work is paid for already.
    bench.seat(0, 0).used.store(5_500_000, SeqCst);
    bench.step(6_000_000);
    assert_eq!((bench.device.tenants[0].used, bench.device.usage()[0].used_ns), (5_500_000, 5_500_000));
}

#[test]
fn another_slice_can_follow_before_the_last_one_is_over() {
    let mut bench = at_its_last_work(5_000_000, 1_000_000);
    // The other one has had more.
    bench.seat(1, 0).used.store(50_000_000, SeqCst);
    bench.seat(0, 0).budget.store(0, SeqCst);
    bench.step(5_000_000);
    assert_eq!([bench.grant(0, 0), bench.grant(1, 0)], [grant::SLICE, grant::CLOSED]);
    assert_eq!(bench.seat(0, 0).budget.load(SeqCst), 6_000_000);
}

#[test]
fn who_needs_no_more_gets_no_other_slice() {
    let mut bench = at_its_last_work(5_000_000, 1_000_000);
    bench.seat(0, 0).goes_on.store(0, SeqCst);
    bench.seat(1, 0).used.store(50_000_000, SeqCst);
    bench.step(5_000_000);
    assert_eq!([bench.grant(0, 0), bench.grant(1, 0)], [grant::LAST, grant::ALONE]);
}

#[test]
fn only_one_comes_behind_another() {
    let mut bench = at_its_last_work(5_000_000, 4_000_000);
    bench.step(5_000_000);
    bench.seat(1, 0).ends_at.store(5_000_001, SeqCst);
    bench.seat(1, 0).change(grant::SLICE, grant::LAST);
    bench.wait(0, 0);
    bench.step(5_000_002);
    assert_eq!([bench.grant(0, 0), bench.grant(1, 0)], [grant::LAST, grant::LAST]);
    // Who came behind another and has no more work gives the device back, but the other one is still at it.
    bench.seat(1, 0).change(grant::LAST, grant::CLOSED);
    bench.step(5_000_003);
    assert_eq!([bench.grant(0, 0), bench.grant(1, 0)], [grant::LAST, grant::CLOSED]);
    bench.seat(0, 0).change(grant::LAST, grant::ENDED);
    bench.step(5_000_004);
    assert_eq!([bench.grant(0, 0), bench.grant(1, 0)], [grant::ALONE, grant::CLOSED]);
}

#[test]
fn who_does_not_finish_its_last_work_is_overdue_and_not_who_comes_behind_it() {
    let mut bench = at_its_last_work(5_000_000, 4_000_000);
    bench.step(5_000_000);
    let limit = 10_006_000_000;
    assert_eq!(bench.device.overdue(limit), None);
    assert_eq!(bench.device.take_overdue(limit + 2), Some((0, limit)));
    bench.device.leave(0, limit + 3);
    bench.step(limit + 4);
    assert_eq!(bench.seat(1, 0).free_at.load(SeqCst), limit + 3);
    assert_eq!((bench.grant(1, 0), bench.device.overdue(2 * limit)), (grant::ALONE, None));
}

#[test]
fn slice_after_slice_is_not_one_long_one() {
    let mut bench = Bench::new(&[1, 1]);
    let high = |priority| Share { weight: 1, priority };
    bench.device.configure(DeviceSettings { scheduler: Scheduler::Priority, ..DeviceSettings::default() }, 0);
    bench.device.set_share("tenant 0", high(1));
    bench.wait(0, 0);
    bench.step(1);
    bench.wait(1, 0);
    for now in (1..40).map(|n| n * 1_000_000_000) {
        bench.step(now);
        bench.seat(0, 0).ends_at.store(now, SeqCst);
        bench.seat(0, 0).goes_on.store(1, SeqCst);
        assert!(bench.seat(0, 0).change(grant::SLICE, grant::LAST), "{now}");
        bench.step(now + 1);
        assert_eq!(bench.device.overdue(now + 2), None);
    }
}

#[test]
fn who_dies_behind_another_pays_nothing() {
    let mut bench = at_its_last_work(5_000_000, 4_000_000);
    bench.step(5_000_000);
    bench.device.leave(1, 9_000_000_000);
    assert_eq!(bench.device.tenants[1].used, 0);
    bench.device.leave(0, 9_000_000_001);
    assert_eq!(bench.device.tenants[0].used, 9_000_000_001 - 2, "since others waited");
}

#[test]
fn who_is_at_its_last_work_goes_on_when_nobody_waits_any_more() {
    let mut bench = at_its_last_work(5_000_000, 4_000_000);
    bench.device.leave(1, 3);
    bench.step(4);
    assert_eq!(bench.grant(0, 0), grant::LAST, "somebody may still come");
    bench.step(5_000_000);
    assert_eq!(bench.grant(0, 0), grant::ALONE);
}

#[test]
fn who_is_between_two_calls_when_another_is_at_its_last_work_is_next_all_the_same() {
    let mut bench = at_its_last_work(5_000_000, 4_000_000);
    bench.seat(1, 0).waiting.store(0, SeqCst);
    bench.step(4);
    bench.wait(1, 0);
    bench.step(5);
    bench.step(5_000_000);
    assert_eq!([bench.grant(0, 0), bench.grant(1, 0)], [grant::LAST, grant::SLICE]);
}

/// A word as a hostile API server may choose it.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX), Just(u64::MAX - 1), Just(1 << 63), 0u64..1 << 33, any::<u64>()]
}

fn small_word() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..9, any::<u32>()]
}

/// All words of one seat that the node reads, and how long it takes until it looks next.
type Written = ([u64; 5], [u32; 4], u64);

fn written() -> impl Strategy<Value = Written> {
    let words = [word(), word(), word(), word(), word()];
    (words, [small_word(), small_word(), small_word(), small_word()], 0u64..5_000_000)
}

fn write(seat: &DeviceSeat, (words, small, _): &Written) {
    let [used, calls, ends_at, remaining, freed_at] = *words;
    let [grant, waiting, sleeper, goes_on] = *small;
    seat.used.store(used, SeqCst);
    seat.calls.store(calls, SeqCst);
    seat.ends_at.store(ends_at, SeqCst);
    seat.remaining.store(remaining, SeqCst);
    seat.freed_at.store(freed_at, SeqCst);
    seat.sleeper.store(sleeper, SeqCst);
    seat.goes_on.store(goes_on, SeqCst);
    // Often enough as an honest one would be: then it gets the device.
    if grant < 8 || grant & 1 == 1 {
        seat.grant.store(grant, SeqCst);
    }
    seat.waiting.store(waiting, SeqCst);
}

/// An API server that writes anything into its page, beside two honest ones that take turns. What they are charged is what
/// they used, and each of them gets the device, under every discipline. A loop over a number of the page would not end.
fn lives_with_a_liar(scheduler: Scheduler, steps: &[Written]) {
    let mut bench = Bench::new(&[1, 1, 1]);
    let limit = Duration::from_millis(10);
    bench.device.configure(DeviceSettings { scheduler, hold_limit: limit, ..DeviceSettings::default() }, 0);
    let (mut now, mut used, mut turns, mut liar, mut lives) = (0, [0u64; 2], [0; 2], 0, 1);
    for step in steps {
        write(bench.pages[0].seats().first().unwrap(), step);
        now += 1 + step.2;
        for honest in [1, 2] {
            let seat = &bench.pages[honest].seats()[0];
            match seat.grant.load(SeqCst) {
                grant::SLICE | grant::ALONE => {
                    used[honest - 1] += step.2.min(1_000_000);
                    turns[honest - 1] += 1;
                    seat.used.store(used[honest - 1], SeqCst);
                    seat.grant.store(grant::CLOSED, SeqCst);
                }
                _ => seat.waiting.store(1, SeqCst),
            }
        }
        bench.step(now);
        if let Some((session, _)) = bench.device.take_overdue(now) {
            assert_eq!(session, liar, "{scheduler:?}");
            bench.device.leave(session, now);
            // It attaches again.
            (liar, lives) = (now + 3, lives + 1);
            bench.pages[0] = Arc::new(GrantPage::open(GrantPage::create().unwrap().as_fd()).unwrap());
            bench.device.join(now, liar, "tenant 0", Share::default(), (bench.pages[0].clone(), 0), None);
        }
    }
    bench.device.leave(liar, now);
    for honest in [1, 2] {
        assert_eq!(bench.device.usage()[honest].used_ns, used[honest - 1], "{scheduler:?}");
        assert!(turns[honest - 1] > 0, "{scheduler:?}: no turn in {now} ns");
    }
    // In each of its lives it is charged for no more time than there was, slack, and what its last work may take at most.
    let most = now + lives * (100_000_000 + meter::LONGEST_REST);
    assert!(bench.device.tenants[0].used <= most, "{scheduler:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_page_of_lies_harms_nobody_else(steps in proptest::collection::vec(written(), 400..500)) {
        use Scheduler::*;
        for scheduler in [Fair, WfqPoll, WfqAimd, RoundRobin, Slices, Priority, Credit, StrictCoscheduling] {
            lives_with_a_liar(scheduler, &steps);
        }
    }
}

#[test]
fn a_grant_that_the_node_did_not_give_is_closed() {
    for claimed in [grant::SLICE, grant::ALONE, grant::IDLE, grant::FREE, grant::LAST, 99, u32::MAX] {
        let mut bench = Bench::new(&[1, 1]);
        bench.wait(0, 0);
        bench.seat(0, 0).grant.store(claimed, SeqCst);
        bench.wait(1, 0);
        bench.step(1);
        assert_eq!([bench.grant(0, 0), bench.grant(1, 0)], [grant::SLICE, grant::CLOSED], "{claimed}");
    }
}

#[test]
fn who_shows_another_grant_than_it_has_is_overdue_too() {
    for shown in [grant::ALONE, grant::FREE, 99] {
        let mut bench = Bench::new(&[1, 1]);
        bench.wait(0, 0);
        bench.step(1);
        bench.wait(1, 0);
        bench.look(2);
        bench.seat(0, 0).grant.store(shown, SeqCst);
        let limit = 10_006_000_002;
        let look = bench.look(limit);
        let closed = bench.grant(1, 0) == grant::ALONE;
        assert!(closed || (bench.device.overdue(limit).is_some() && look.is_some_and(|at| at > limit)), "{shown}");
    }
}

#[test]
fn the_next_one_does_not_pay_for_what_came_before_its_turn() {
    let mut bench = at_its_last_work(5_000_000, 4_000_000);
    bench.step(5_000_000 - LEAD);
    bench.seat(0, 0).freed_at.store(1, SeqCst);
    bench.seat(0, 0).change(grant::LAST, grant::ENDED);
    bench.step(5_000_000);
    assert_eq!(bench.seat(1, 0).free_at.load(SeqCst), 5_000_000 - LEAD);
}
