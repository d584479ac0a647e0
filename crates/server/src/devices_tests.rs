use super::habits::FULL;
use super::*;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use aviary_gate::NOT_YET;

/// A device of the tests' own: every submission takes so many microseconds once somebody waits for it.
static QUEUED_US: [AtomicU64; 24] = [const { AtomicU64::new(0) }; 24];
static DRAINS: [AtomicU32; 24] = [const { AtomicU32::new(0) }; 24];

unsafe extern "C" fn drain(asked: *const DrainRequest) -> c_int {
    let device = request(asked).device;
    DRAINS[device as usize].fetch_add(1, Ordering::SeqCst);
    let queued = QUEUED_US[device as usize].swap(0, Ordering::SeqCst);
    let until = Instant::now() + Duration::from_micros(queued);
    while Instant::now() < until {
        std::hint::spin_loop();
    }
    0
}

fn request(asked: *const DrainRequest) -> DrainRequest {
    // SAFETY: the code under test asks with a request that lives during the call.
    unsafe { asked.read() }
}

unsafe extern "C" fn name(_: u64) -> *const c_char {
    c"test device".as_ptr()
}

fn page() -> (GrantPage, Arc<Devices>) {
    let fd = GrantPage::create().unwrap();
    let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    let devices = Devices::new(Some(GrantPage::open(fd.as_fd()).unwrap()), Some(bell), 0);
    (GrantPage::open(fd.as_fd()).unwrap(), Arc::new(devices))
}

fn open(node: &GrantPage, to: u32, budget: Duration) {
    let seat = &node.seats()[0];
    seat.budget.store(budget.as_nanos() as u64, Ordering::SeqCst);
    seat.grant.store(to, Ordering::SeqCst);
    seat.wake();
}

/// A slice is real time, so a thread that is kept from its CPU uses it up without a call. Looks again, each time with pages
/// of its own, until one run shows what it should.
fn in_one_of_many_runs<R: std::fmt::Debug>(run: impl Fn() -> R, shows: impl Fn(&R) -> bool) {
    let mut found = Vec::new();
    for _ in 0..50 {
        found.push(run());
        if shows(&found[found.len() - 1]) {
            return;
        }
    }
    panic!("none of these is right: {found:?}");
}

fn call(devices: &Devices, device: u64, us: u64) {
    let stay = devices.occupy(device, drain, name, || false).unwrap().unwrap();
    QUEUED_US[device as usize].fetch_add(us, Ordering::SeqCst);
    devices.vacate(stay, None);
}

#[test]
fn a_call_waits_for_its_grant() {
    let (node, devices) = page();
    let theirs = devices.clone();
    let caller = std::thread::spawn(move || {
        let since = Instant::now();
        call(&theirs, 1, 0);
        since.elapsed()
    });
    while node.seats()[0].waiting.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(node.seats()[0].name().unwrap(), "test device");
    std::thread::sleep(Duration::from_millis(20));
    open(&node, grant::SLICE, Duration::from_secs(1));
    assert!(caller.join().unwrap() >= Duration::from_millis(20));
    assert_eq!(node.seats()[0].waiting.load(Ordering::SeqCst), 0);
    assert!(node.seats()[0].waited.load(Ordering::SeqCst) >= 20_000_000);
}

#[test]
fn slice_that_is_cut_is_measured_before_it_is_given_back() {
    let (node, devices) = page();
    let seat = &node.seats()[0];
    open(&node, grant::SLICE, Duration::from_secs(1000));
    // The last of these are not measured: many more would fit.
    (0..20).for_each(|_| call(&devices, 20, 100));
    assert!(QUEUED_US[20].load(Ordering::SeqCst) > 0);
    seat.budget.store(0, Ordering::SeqCst);
    call(&devices, 20, 100);
    assert_eq!((seat.grant.load(Ordering::SeqCst), QUEUED_US[20].load(Ordering::SeqCst)), (grant::ENDED, 0));
    assert!(seat.used.load(Ordering::SeqCst) >= 21 * 100_000);
}

#[test]
fn a_slice_ends_when_it_is_used_up() {
    let slice = || {
        let (node, devices) = page();
        let seat = &node.seats()[0];
        seat.take("test device");
        open(&node, grant::SLICE, Duration::from_millis(4));
        let (mut calls, before) = (0, DRAINS[2].load(Ordering::SeqCst));
        while seat.grant.load(Ordering::SeqCst) == grant::SLICE {
            call(&devices, 2, 500);
            calls += 1;
        }
        assert_eq!(seat.grant.load(Ordering::SeqCst), grant::ENDED);
        let used = seat.used.load(Ordering::SeqCst);
        assert!(used >= calls * 500_000, "{calls} calls, {used} ns");
        (calls, DRAINS[2].load(Ordering::SeqCst) - before)
    };
    // Five are measured one by one, the others together.
    in_one_of_many_runs(slice, |(calls, drains)| (5..=8).contains(calls) && *drains <= 7);
}

#[test]
fn long_sequences_are_measured_rarely() {
    let slice = || {
        let (node, devices) = page();
        let seat = &node.seats()[0];
        open(&node, grant::SLICE, Duration::from_millis(20));
        let (mut calls, before) = (0, DRAINS[3].load(Ordering::SeqCst));
        while seat.grant.load(Ordering::SeqCst) == grant::SLICE {
            call(&devices, 3, 50);
            calls += 1;
        }
        (calls, DRAINS[3].load(Ordering::SeqCst) - before)
    };
    in_one_of_many_runs(slice, |(calls, drains)| *calls > 100 && *drains < calls / 5);
}

#[test]
fn who_is_alone_goes_on_and_rests_without_giving_anything_back() {
    let (node, devices) = page();
    let seat = &node.seats()[0];
    open(&node, grant::ALONE, Duration::from_millis(1));
    (0..10).for_each(|_| call(&devices, 4, 300));
    assert_eq!(seat.grant.load(Ordering::SeqCst), grant::ALONE);
    devices.rest(|_| false);
    assert_eq!(seat.grant.load(Ordering::SeqCst), grant::IDLE);
    assert_eq!(QUEUED_US[4].load(Ordering::SeqCst), 0, "what was under way has been waited for");
    call(&devices, 4, 0);
    assert_eq!(seat.grant.load(Ordering::SeqCst), grant::ALONE);
}

#[test]
fn a_slice_without_work_is_given_back_unless_a_message_comes() {
    let (node, devices) = page();
    let seat = &node.seats()[0];
    open(&node, grant::SLICE, Duration::from_secs(1));
    call(&devices, 5, 0);
    devices.rest(|_| true);
    assert_eq!(seat.grant.load(Ordering::SeqCst), grant::SLICE);
    devices.rest(|_| false);
    assert_eq!(seat.grant.load(Ordering::SeqCst), grant::CLOSED);
}

#[test]
fn a_session_that_ends_waits_no_longer() {
    let (_node, devices) = page();
    assert!(devices.occupy(6, drain, name, || true).is_err());
}

#[test]
fn parts_give_way_when_the_slice_is_used_up() {
    let (node, devices) = page();
    let seat = &node.seats()[0];
    open(&node, grant::SLICE, Duration::from_millis(500));
    let stay = devices.occupy(7, drain, name, || false).unwrap().unwrap();
    devices.pause(7, || false);
    assert_eq!(seat.grant.load(Ordering::SeqCst), grant::SLICE, "a moment is no slice");
    std::thread::sleep(Duration::from_millis(501));
    let theirs = devices.clone();
    let worker = std::thread::spawn(move || theirs.pause(7, || false));
    while seat.waiting.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(seat.grant.load(Ordering::SeqCst), grant::ENDED);
    open(&node, grant::SLICE, Duration::from_millis(500));
    worker.join().unwrap();
    devices.vacate(stay, None);
    assert!(seat.used.load(Ordering::SeqCst) >= 501_000_000);
}

#[test]
fn nobody_waits_for_a_slice_to_end_that_is_not_wanted_any_more() {
    let (node, devices) = page();
    let seat = &node.seats()[0];
    open(&node, grant::SLICE, Duration::from_millis(1));
    let long = devices.occupy(8, drain, name, || false).unwrap().unwrap();
    call(&devices, 8, 2000);
    // The slice is used up and ends with `long`; meanwhile the others have gone.
    let theirs = devices.clone();
    let caller = std::thread::spawn(move || call(&theirs, 8, 0));
    while seat.waiting.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    assert!(seat.change(grant::SLICE, grant::ALONE));
    caller.join().unwrap();
    devices.vacate(long, None);
    assert_eq!(seat.grant.load(Ordering::SeqCst), grant::ALONE);
}

#[test]
fn who_waits_for_one_device_keeps_no_other() {
    let (node, devices) = page();
    open(&node, grant::SLICE, Duration::from_secs(1));
    (0..10).for_each(|_| call(&devices, 9, 100));
    QUEUED_US[9].store(100, Ordering::SeqCst);
    let theirs = devices.clone();
    let caller = std::thread::spawn(move || call(&theirs, 10, 0));
    while node.seats()[0].grant.load(Ordering::SeqCst) == grant::SLICE {
        std::thread::yield_now();
    }
    assert_eq!(node.seats()[0].grant.load(Ordering::SeqCst), grant::CLOSED);
    let second = &node.seats()[1];
    assert_eq!((second.waiting.load(Ordering::SeqCst), second.grant.load(Ordering::SeqCst)), (1, grant::CLOSED));
    second.budget.store(1_000_000_000, Ordering::SeqCst);
    assert!(second.change(grant::CLOSED, grant::SLICE));
    caller.join().unwrap();
}

#[test]
fn a_slice_that_follows_before_the_last_one_is_over_needs_no_samples() {
    static NODE: std::sync::OnceLock<GrantPage> = std::sync::OnceLock::new();
    static LATER_SLICES: AtomicU32 = AtomicU32::new(0);
    /// What the node does while the device is at the last work of a slice.
    unsafe extern "C" fn drain_and_grant(asked: *const DrainRequest) -> c_int {
        let seat = &NODE.get().expect("set by the test").seats()[0];
        if LATER_SLICES.load(Ordering::SeqCst) < 3 && seat.grant.load(Ordering::SeqCst) == grant::LAST {
            let remaining = seat.remaining.load(Ordering::SeqCst);
            assert!((10_000_000..110_000_000).contains(&remaining), "{remaining}");
            let ends_in = seat.ends_at.load(Ordering::SeqCst).saturating_sub(monotonic());
            assert!(ends_in <= remaining, "{ends_in} {remaining}");
            assert!(seat.change(grant::LAST, grant::SLICE));
            LATER_SLICES.fetch_add(1, Ordering::SeqCst);
        }
        // SAFETY: this is how it is called by the code under test.
        unsafe { drain(asked) }
    }
    let (node, devices) = page();
    // Long enough for a busy machine to make no difference.
    open(&node, grant::SLICE, Duration::from_millis(100));
    NODE.set(node).expect("only here");
    let seat = &NODE.get().expect("just set").seats()[0];
    let mut calls = 0;
    while seat.grant.load(Ordering::SeqCst) == grant::SLICE {
        let stay = devices.occupy(11, drain_and_grant, name, || false).unwrap().unwrap();
        QUEUED_US[11].fetch_add(5000, Ordering::SeqCst);
        devices.vacate(stay, None);
        calls += 1;
    }
    assert_eq!((LATER_SLICES.load(Ordering::SeqCst), seat.grant.load(Ordering::SeqCst)), (3, grant::ENDED));
    // The first five calls, and one wait at the end of each slice.
    let drains = DRAINS[11].load(Ordering::SeqCst);
    assert!(drains <= 5 + 4 && calls > 20, "{drains} waits, {calls} calls");
    assert!(seat.used.load(Ordering::SeqCst) >= calls * 5_000_000);
}

#[test]
fn who_came_behind_another_is_charged_from_that_ones_end() {
    let (node, devices) = page();
    let seat = &node.seats()[0];
    seat.free_at.store(NOT_YET, Ordering::SeqCst);
    open(&node, grant::SLICE, Duration::from_secs(1));
    let since = monotonic();
    // The device is at the other one's work for 20 ms, and at this one's for 10.
    call(&devices, 12, 30_000);
    assert_eq!(DRAINS[12].load(Ordering::SeqCst), 0, "nothing could be learned from waiting now");
    seat.free_at.store(since + 20_000_000, Ordering::SeqCst);
    call(&devices, 12, 0);
    let (used, took) = (seat.used.load(Ordering::SeqCst), monotonic() - since);
    assert!(used >= 9_000_000 && used <= took - 20_000_000, "{used} of {took}");
}

#[test]
fn little_comes_behind_anothers_last_work() {
    // Waits for the device before and after the last of `calls` calls of `us` microseconds in the other session's time.
    let waits = |device: u64, us: u64, calls: u64| {
        let (node, devices) = page();
        let seat = &node.seats()[0];
        let drains = || DRAINS[device as usize].load(Ordering::SeqCst);
        open(&node, grant::SLICE, Duration::from_micros(20 * us));
        while seat.grant.load(Ordering::SeqCst) == grant::SLICE {
            call(&devices, device, us);
        }
        seat.free_at.store(NOT_YET, Ordering::SeqCst);
        open(&node, grant::SLICE, Duration::from_secs(1));
        let before = drains();
        (1..calls).for_each(|_| call(&devices, device, us));
        let early = drains() - before;
        call(&devices, device, us);
        (early, drains() - before - early)
    };
    // It may do all that in the other one's time, but would stand still before the next call if it waited earlier.
    in_one_of_many_runs(|| waits(18, 5000, 1), |(early, late)| *early == 0 && *late > 0);
    in_one_of_many_runs(|| waits(19, 20, 5), |(early, late)| *early == 0 && *late > 0);
}

#[test]
fn who_is_at_its_last_work_can_be_hurried_while_it_waits() {
    static NODE: std::sync::OnceLock<GrantPage> = std::sync::OnceLock::new();
    static SLEEPER: AtomicU32 = AtomicU32::new(0);
    /// The node hurries whoever says that it waits for the slice's last work.
    unsafe extern "C" fn drain_and_hurry(asked: *const DrainRequest) -> c_int {
        let seat = &NODE.get().expect("set before anything").seats()[0];
        if seat.grant.load(Ordering::SeqCst) == grant::LAST {
            let sleeper = seat.sleeper.load(Ordering::SeqCst);
            SLEEPER.store(sleeper, Ordering::SeqCst);
            seat.hurried.store(sleeper, Ordering::SeqCst);
        }
        // SAFETY: as this one.
        unsafe { drain(asked) }
    }
    let (node, devices) = page();
    open(&node, grant::SLICE, Duration::from_millis(100));
    NODE.set(node).expect("only here");
    let seat = &NODE.get().expect("just set").seats()[0];
    let last = || (seat.sleeper.load(Ordering::SeqCst), seat.hurried.load(Ordering::SeqCst));
    while seat.grant.load(Ordering::SeqCst) == grant::SLICE {
        let stay = devices.occupy(15, drain_and_hurry, name, || false).unwrap().unwrap();
        QUEUED_US[15].fetch_add(10_000, Ordering::SeqCst);
        devices.vacate(stay, None);
        assert_eq!(last(), (0, 0), "it has seen that, and waits no longer");
    }
    assert_eq!(SLEEPER.load(Ordering::SeqCst), cpu::current_tid());
}

#[test]
fn who_never_comes_back_in_time_gives_the_device_back_at_once() {
    let (node, devices) = page();
    let seat = &node.seats()[0];
    let linger = Duration::from_secs(60);
    seat.linger.store(linger.as_nanos() as u64, Ordering::SeqCst);
    let rests = |comes: bool| {
        open(&node, grant::SLICE, Duration::from_secs(1));
        call(&devices, 13, 0);
        let mut waited = false;
        devices.rest(|_| {
            waited = true;
            comes
        });
        let closed = seat.grant.load(Ordering::SeqCst) == grant::CLOSED;
        assert_eq!(closed, !waited || !comes);
        waited
    };
    let lingered = (0..100).filter(|_| rests(false)).count();
    // Each new call comes at once, as this test has no pauses: about every third wait is worth it.
    assert!((16..80).contains(&lingered), "{lingered}");
    assert!(rests(true) || rests(true), "it learns from calls that come soon");
    seat.linger.store(0, Ordering::SeqCst);
    let lingered = (0..100).filter(|_| rests(false)).count();
    assert!(lingered <= 16, "{lingered}");
    assert!(!rests(false));
}

#[test]
fn who_never_goes_on_after_a_wait_lets_the_next_one_in_while_it_waits() {
    let (node, devices) = page();
    let seat = &node.seats()[0];
    open(&node, grant::SLICE, Duration::from_secs(1000));
    // Waits for the device, and what the node saw meanwhile.
    let waits = || {
        (0..6).for_each(|_| call(&devices, 14, 200));
        QUEUED_US[14].fetch_add(200, Ordering::SeqCst);
        let wait = devices.begin_wait(1).expect("work is under way");
        let meanwhile = seat.grant.load(Ordering::SeqCst);
        devices.end_wait(wait, 1);
        meanwhile
    };
    // No linger: nobody comes back in time.
    for _ in 0..FULL {
        assert_eq!((waits(), seat.grant.load(Ordering::SeqCst)), (grant::SLICE, grant::SLICE));
    }
    let since = monotonic();
    assert_eq!((waits(), seat.grant.load(Ordering::SeqCst)), (grant::LAST, grant::CLOSED));
    assert!(seat.freed_at.load(Ordering::SeqCst) >= since);
    // The node wants nobody else in.
    open(&node, grant::ALONE, Duration::from_secs(1000));
    assert_eq!((waits(), seat.grant.load(Ordering::SeqCst)), (grant::ALONE, grant::ALONE));
    // As before, once it does come back in time.
    seat.linger.store(1_000_000_000, Ordering::SeqCst);
    assert_eq!(waits(), grant::ALONE);
    open(&node, grant::SLICE, Duration::from_secs(1000));
    assert_eq!((waits(), seat.grant.load(Ordering::SeqCst)), (grant::SLICE, grant::SLICE));
}

#[test]
fn who_waits_with_a_short_rest_of_its_slice_lets_the_next_one_in_and_is_expected_back() {
    let (node, devices) = page();
    let seat = &node.seats()[0];
    seat.linger.store(1_000_000_000, Ordering::SeqCst);
    // What the node sees while a program waits for so many calls of 10 ms, and afterwards.
    let waits = |calls: u64| {
        open(&node, grant::SLICE, Duration::from_millis(120));
        (0..calls).for_each(|_| call(&devices, 17, 10_000));
        let wait = devices.begin_wait(1);
        let meanwhile = seat.grant.load(Ordering::SeqCst);
        wait.into_iter().for_each(|at| devices.end_wait(at, 1));
        (meanwhile, seat.grant.load(Ordering::SeqCst))
    };
    // All are measured, so none is under way when the program waits.
    assert_eq!(waits(5), (grant::SLICE, grant::SLICE));
    devices.rest(|_| false);
    assert_eq!(waits(4), (grant::SLICE, grant::SLICE), "much is left");
    devices.rest(|_| false);
    assert_eq!(waits(9), (grant::LAST, grant::ENDED));
    assert_eq!(seat.goes_on.load(Ordering::SeqCst), 1, "the node may grant it the next slice, too");
}

/// A device that is at its work as long as nobody takes the time to wait for it.
unsafe extern "C" fn busy(asked: *const DrainRequest) -> c_int {
    // SAFETY: without requirements.
    if request(asked).patience_ns == 0 { -1 } else { unsafe { drain(asked) } }
}

#[test]
fn a_call_that_does_not_wait_for_the_device_leaves_the_slice_as_it_is() {
    // The grant in each of the waits of a slice.
    let slice = || {
        let (node, devices) = page();
        let seat = &node.seats()[0];
        seat.linger.store(1_000_000_000, Ordering::SeqCst);
        open(&node, grant::SLICE, Duration::from_millis(120));
        let wait = |_| {
            let stay = devices.occupy(16, busy, name, || seat.grant.load(Ordering::SeqCst) != grant::SLICE).ok()??;
            QUEUED_US[16].fetch_add(10_000, Ordering::SeqCst);
            devices.vacate(stay, None);
            let wait = devices.begin_wait(2)?;
            let meanwhile = seat.grant.load(Ordering::SeqCst);
            devices.end_wait(wait, 2);
            Some(meanwhile)
        };
        (1..10).map_while(wait).collect::<Vec<_>>()
    };
    in_one_of_many_runs(slice, |grants| *grants == [grant::SLICE; 9]);
}

/// When the device with this number is through, after that many questions.
static QUESTIONS: [AtomicU32; 16] = [const { AtomicU32::new(0) }; 16];
/// For how many microseconds it was last asked to wait.
static PATIENT_US: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

unsafe extern "C" fn ask(asked: *const DrainRequest) -> c_int {
    let DrainRequest { device, patience_ns, .. } = request(asked);
    PATIENT_US[device as usize].store(patience_ns / 1000, Ordering::SeqCst);
    let less = |left: u32| left.checked_sub(1);
    match QUESTIONS[device as usize].fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) {
        Ok(_) => -1,
        Err(_) => 0,
    }
}

fn long_call(devices: &Devices, device: u64, questions: u32) {
    let stay = devices.occupy(device, ask, name, || false).unwrap().unwrap();
    QUESTIONS[device as usize].store(questions, Ordering::SeqCst);
    devices.vacate(stay, None);
}

#[test]
fn a_device_that_is_late_does_not_keep_the_thread_and_keeps_the_slice() {
    let (node, devices) = page();
    let seat = &node.seats()[0];
    open(&node, grant::SLICE, Duration::from_micros(1));
    let asked = || (QUESTIONS[10].load(Ordering::SeqCst), PATIENT_US[10].load(Ordering::SeqCst));
    long_call(&devices, 10, 5);
    assert_eq!(asked(), (4, 0), "it was asked once, not to wait: nothing is behind that yet");
    long_call(&devices, 10, 5);
    let patient = asked();
    assert!(
        patient.0 == 4 && (1..=1000).contains(&patient.1),
        "{patient:?}: to wait for a while, as more is behind it"
    );
    // A message comes: the thread has other things to do.
    devices.rest(|_| true);
    assert_eq!(asked(), (3, 0), "not to wait: the thread waits for messages");
    assert_eq!(seat.grant.load(Ordering::SeqCst), grant::SLICE, "the device is at work");
    // There is none any more.
    devices.rest(|_| false);
    assert_eq!(QUESTIONS[10].load(Ordering::SeqCst), 0);
    assert_ne!(seat.grant.load(Ordering::SeqCst), grant::SLICE, "nothing is under way");
}

/// A device that has done what it was given when a wait began, once somebody really waits.
static GIVEN: AtomicU64 = AtomicU64::new(0);
static WAIT: Mutex<Waited> = Mutex::new(Waited { number: 0, for_calls: 0, behind: Vec::new() });

struct Waited {
    number: u64,
    for_calls: u64,
    /// How many more calls the device had whenever it was waited for.
    behind: Vec<u64>,
}

unsafe extern "C" fn reach(asked: *const DrainRequest) -> c_int {
    let asked = request(asked);
    let (mut wait, given) = (WAIT.lock().unwrap(), GIVEN.load(Ordering::SeqCst));
    if wait.number != asked.wait {
        (wait.number, wait.for_calls) = (asked.wait, given);
    }
    if asked.patience_ns == 0 {
        return -1;
    }
    let behind = given - wait.for_calls;
    wait.behind.push(behind);
    0
}

#[test]
fn a_device_has_another_call_while_one_is_measured() {
    let (node, devices) = page();
    open(&node, grant::SLICE, Duration::from_millis(400));
    let mut calls = 0;
    while node.seats()[0].grant.load(Ordering::SeqCst) == grant::SLICE {
        let stay = devices.occupy(13, reach, name, || false).unwrap().unwrap();
        GIVEN.fetch_add(1, Ordering::SeqCst);
        calls += 1;
        std::thread::sleep(Duration::from_millis(5));
        devices.vacate(stay, None);
    }
    let behind = std::mem::take(&mut WAIT.lock().unwrap().behind);
    assert!(behind.len() >= 5 && calls > behind.len(), "{behind:?} of {calls}");
    let (last, others) = behind.split_last().expect("checked");
    assert!(others.iter().all(|&more| more > 0), "the device never stood still: {behind:?}");
    assert_eq!(*last, 0, "all of the slice's work was waited for: {behind:?}");
}

#[test]
fn parts_go_on_although_the_device_is_late_with_them() {
    for granted in [grant::SLICE, grant::LAST] {
        let (node, devices) = page();
        let seat = &node.seats()[0];
        open(&node, grant::SLICE, Duration::from_millis(1));
        (0..2).for_each(|_| long_call(&devices, 9, u32::MAX));
        seat.grant.store(granted, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(2));
        let theirs = devices.clone();
        let worker = std::thread::spawn(move || theirs.pause(9, || false));
        while seat.waiting.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(seat.grant.load(Ordering::SeqCst), grant::ENDED, "the others have their turn");
        open(&node, grant::SLICE, Duration::from_millis(1));
        // The device is through once the parts are done, and not before.
        worker.join().unwrap();
        assert_ne!(QUESTIONS[9].load(Ordering::SeqCst), 0);
    }
}

#[test]
fn nothing_comes_behind_what_a_device_is_late_with() {
    let (node, devices) = page();
    let seat = &node.seats()[0];
    open(&node, grant::SLICE, Duration::from_micros(1));
    (0..2).for_each(|_| long_call(&devices, 11, 50));
    let theirs = devices.clone();
    let caller = std::thread::spawn(move || call(&theirs, 11, 0));
    while seat.waiting.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(QUESTIONS[11].load(Ordering::SeqCst), 0, "the next call has asked until the device was through");
    assert_eq!(seat.grant.load(Ordering::SeqCst), grant::ENDED, "and given the slice back");
    open(&node, grant::SLICE, Duration::from_secs(1));
    caller.join().unwrap();
}

/// The waits that a device was asked about by somebody who had time. It was not through the first time.
static PATIENT_WAITS: Mutex<Vec<u64>> = Mutex::new(Vec::new());

unsafe extern "C" fn late_once(asked: *const DrainRequest) -> c_int {
    let asked = request(asked);
    if asked.patience_ns == 0 {
        return -1;
    }
    let mut waits = PATIENT_WAITS.lock().unwrap();
    waits.push(asked.wait);
    if waits.len() > 1 { 0 } else { -1 }
}

#[test]
fn a_call_comes_behind_others_once_the_device_is_through_with_what_it_is_late_with() {
    let (node, devices) = page();
    open(&node, grant::SLICE, Duration::from_secs(1));
    let occupy = || devices.occupy(14, late_once, name, || false).unwrap().unwrap();
    // The second comes while the first is measured, which takes too long.
    (0..2).for_each(|_| devices.vacate(occupy(), None));
    occupy();
    let waits = PATIENT_WAITS.lock().unwrap();
    assert!(waits.len() == 2 && waits[0] == waits[1], "for the first again, and not for the second: {waits:?}");
}

#[test]
fn who_is_alone_gets_in_although_the_device_is_late() {
    let (node, devices) = page();
    open(&node, grant::ALONE, Duration::from_secs(1));
    for _ in 0..10 {
        long_call(&devices, 12, u32::MAX);
    }
    assert_eq!(PATIENT_US[12].load(Ordering::SeqCst), 0, "it is asked, not waited for");
    std::thread::sleep(AHEAD);
    let since = Instant::now();
    long_call(&devices, 12, u32::MAX);
    assert!(since.elapsed() >= ENOUGH, "it may be through at any moment");
}
