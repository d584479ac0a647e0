//! Random programs on devices that are too small for them, on a clock of their own, against a model that counts every byte.

use super::*;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

const MS: u64 = 1_000_000;
const PATIENCE: Patience = Patience { room: 3_000 * MS, leave: 10_000 * MS };
/// Bytes that are copied in a nanosecond's thousandth: all of a device in 10 ms.
const NS_PER_BYTE: u64 = 10_000;
const MEMORY: u64 = 1000;
/// Nobody waits for longer than this.
const LONGEST_WAIT: u64 = 8_000 * MS;
/// A session that refuses to leave is there for so long.
const STUCK: u64 = 30_000 * MS;

/// Numbers that repeat (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % n
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The program does the next thing.
    Acts(u64),
    HasLeft(u64),
    IsBack(u64),
    Stays(u64),
    /// The program ends.
    Ends(u64),
    Looks,
}

/// A program as the model knows it.
#[derive(Debug, Default)]
struct Program {
    /// By device.
    held: [u64; 2],
    is_out: bool,
    busy_until: u64,
    active_at: u64,
    /// Since when it waits: for room, or with a call for its memory.
    waits: Option<u64>,
    asked: Option<(u64, usize, u64)>,
    /// It has a call, which waits until its memory is back.
    called: bool,
    ordered_at: u64,
    /// Of its last return: when, and how long it took.
    came: Option<(u64, u64)>,
    came_for: u64,
    /// From then on it refuses to leave.
    stuck_at: Option<u64>,
    /// While it waits there was a time at which it had no room beside those that refuse.
    had_no_place: bool,
}

struct Model {
    now: u64,
    random: Random,
    residency: Residency,
    programs: HashMap<u64, Program>,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    devices: Vec<DeviceMemory>,
    evictions: u64,
    grants: u64,
    refusals: u64,
}

impl Model {
    fn new(seed: u64) -> Model {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let devices: Vec<DeviceMemory> = (0..1 + random.below(2))
            .map(|_| DeviceMemory { memory: MEMORY, most: MEMORY * (1 + random.below(3)) })
            .collect();
        let mut residency = Residency::new(PATIENCE);
        for device in &devices {
            residency.add_device(*device);
        }
        let mut model = Model {
            now: 0,
            residency,
            programs: HashMap::new(),
            events: BinaryHeap::new(),
            devices,
            evictions: 0,
            grants: 0,
            refusals: 0,
            random,
        };
        for session in 1..=2 + model.random.below(5) {
            let tenant = ["a", "b", "c"][session as usize % 3];
            let claim = Claim { weight: 1 + model.random.below(3) as u32, guarantee: model.random.below(400) };
            model.residency.set_claim(tenant, claim);
            model.residency.enter(session, tenant, 0);
            model.programs.insert(session, Program::default());
            model.at(model.random_gap(), Event::Acts(session));
        }
        if model.random.below(4) == 0 {
            let from = model.random.below(100 * MS);
            model.programs.get_mut(&1).unwrap().stuck_at = Some(from);
            model.at(STUCK, Event::Ends(1));
        }
        model
    }

    fn random_gap(&self) -> u64 {
        MS
    }

    fn at(&mut self, after: u64, event: Event) {
        self.events.push(Reverse((self.now + after, event)));
    }

    /// What is on the devices in truth: memory is there from the order to return to the report that it has left.
    fn check(&mut self) {
        for (number, device) in self.devices.iter().enumerate() {
            let there = self.programs.values().filter(|program| !program.is_out).map(|program| program.held[number]);
            let there: u64 = there.sum();
            assert!(there <= device.memory, "{there} bytes on device {number} at {}", self.now);
            assert_eq!(there, self.residency.occupied(number), "of the device at {}", self.now);
            let all: u64 = self.programs.values().map(|program| program.held[number]).sum();
            assert!(all <= device.most, "{all} bytes were given of device {number}");
        }
        self.check_waiters();
    }

    /// Those that have room beside the ones that refuse to leave wait for a limited time, whoever else waits.
    fn check_waiters(&mut self) {
        let stuck = |program: &&Program| program.stuck_at.is_some_and(|at| at <= self.now);
        let refusing: Vec<u64> = (0..self.devices.len())
            .map(|number| self.programs.values().filter(stuck).map(|program| program.held[number]).sum())
            .collect();
        for (session, program) in &mut self.programs {
            let Some(since) = program.waits else { continue };
            let is_stuck = program.stuck_at.is_some_and(|at| at <= self.now);
            let has_place = refusing.iter().enumerate().all(|(number, refused)| {
                let asked = program.asked.filter(|(_, device, _)| *device == number).map_or(0, |(_, _, bytes)| bytes);
                program.held[number] + asked + if is_stuck { 0 } else { *refused } <= MEMORY
            });
            program.had_no_place |= !has_place;
            let waited = self.now - since;
            assert!(program.had_no_place || waited <= LONGEST_WAIT, "{session} has waited for {} ms", waited / MS);
        }
    }

    fn acts(&mut self, session: u64) {
        let place = self.residency.place(session).unwrap();
        let (now, kind, devices) = (self.now, self.random.below(10), self.devices.len() as u64);
        let (device, bytes) = (self.random.below(devices) as usize, 1 + self.random.below(700));
        let work = self.random.below(5 * MS);
        let program = self.programs.get_mut(&session).unwrap();
        if place != Place::In {
            program.called = true;
            program.waits.get_or_insert(now);
            if place == Place::Out {
                self.residency.want(session, now);
            }
            return;
        }
        match kind {
            0..=2 => {
                program.asked = Some((now, device, bytes));
                (program.waits, program.active_at) = (Some(now), now);
                self.residency.ask(session, now, (device, bytes), now).unwrap();
                // Goes on with the answer.
            }
            3..=4 => {
                let bytes = bytes.min(program.held[device]);
                if bytes > 0 {
                    program.held[device] -= bytes;
                    self.residency.give_back(session, device, bytes).unwrap();
                }
                self.at(work, Event::Acts(session));
            }
            5..=8 => {
                (program.busy_until, program.active_at) = (now + work, now);
                self.residency.note_activity(session, true, true, now);
                self.at(work, Event::Acts(session));
            }
            _ => {
                self.residency.note_activity(session, false, false, now);
                self.at(20 * work, Event::Acts(session));
            }
        }
    }

    fn has_waited(&mut self, session: u64) {
        let now = self.now;
        let program = self.programs.get_mut(&session).unwrap();
        let had_no_place = std::mem::take(&mut program.had_no_place);
        if let Some(since) = program.waits.take() {
            let waited = now - since;
            assert!(had_no_place || waited <= LONGEST_WAIT, "session {session} has waited for {} ms", waited / MS);
        }
    }

    fn obey(&mut self, order: Order) {
        let now = self.now;
        match order {
            Order::Evict { session } => {
                self.evictions += 1;
                let refuses = self.random.below(30) == 0;
                let program = self.programs.get_mut(&session).unwrap();
                let refuses = refuses || program.stuck_at.is_some_and(|at| at <= now);
                if let Some((came, took)) = program.came {
                    let is_idle = program.busy_until <= now && now - program.active_at.max(came) >= took;
                    assert!(now - came >= TURNS * took || is_idle, "session {session} had no turn after {took} ns");
                }
                let bytes: u64 = program.held.iter().sum();
                let drains = program.busy_until.saturating_sub(now);
                match refuses {
                    true => self.at(MS, Event::Stays(session)),
                    false => self.at(drains + bytes * NS_PER_BYTE, Event::HasLeft(session)),
                }
            }
            Order::Return { session } => {
                let fails = self.random.below(30) == 0;
                let program = self.programs.get_mut(&session).unwrap();
                assert!(program.is_out);
                (program.is_out, program.ordered_at) = (false, now);
                let bytes: u64 = program.held.iter().sum();
                self.at(bytes * NS_PER_BYTE, if fails { Event::Stays(session) } else { Event::IsBack(session) });
            }
            Order::Grant { session, request } => {
                self.grants += 1;
                let program = self.programs.get_mut(&session).unwrap();
                let (asked, device, bytes) = program.asked.take().unwrap();
                assert!(request == asked && !program.is_out);
                program.held[device] += bytes;
                self.goes_on(session);
            }
            Order::Refuse { session, request } => {
                self.refusals += 1;
                let program = self.programs.get_mut(&session).unwrap();
                let (asked, device, bytes) = program.asked.take().unwrap();
                assert_eq!(request, asked);
                let alone = program.held[device] + bytes > MEMORY;
                let all: u64 = self.programs.values().map(|program| program.held[device]).sum();
                let never = alone || all + bytes > self.devices[device].most;
                assert!(never || now - asked >= PATIENCE.room, "refused after {} ms", (now - asked) / MS);
                if self.residency.place(session) == Some(Place::In) {
                    self.goes_on(session);
                } else {
                    self.programs.get_mut(&session).unwrap().called = true;
                }
            }
        }
    }

    fn goes_on(&mut self, session: u64) {
        self.has_waited(session);
        let gap = self.random.below(3 * MS);
        self.at(gap, Event::Acts(session));
    }

    fn happens(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Ends(session) => {
                self.programs.remove(&session);
                self.residency.leave(session);
            }
            Event::Acts(session) | Event::HasLeft(session) | Event::IsBack(session) | Event::Stays(session)
                if !self.programs.contains_key(&session) => {}
            Event::Acts(session) => self.acts(session),
            Event::HasLeft(session) => {
                let program = self.programs.get_mut(&session).unwrap();
                let held: Vec<(usize, u64)> =
                    program.held.iter().copied().enumerate().take(self.devices.len()).collect();
                let freed: Vec<(usize, u64)> = held.into_iter().filter(|(_, bytes)| *bytes > 0).collect();
                self.residency.left(session, &freed, now).unwrap();
                program.is_out = true;
                if program.called {
                    self.residency.want(session, now);
                }
            }
            Event::IsBack(session) => {
                self.residency.back(session, now).unwrap();
                let program = self.programs.get_mut(&session).unwrap();
                let took = now - program.ordered_at;
                program.came = Some((now, took));
                program.came_for += took;
                assert!(self.residency.exchanged(session) >= program.came_for, "nobody pays for the exchange");
                if std::mem::take(&mut program.called) && program.asked.is_none() {
                    self.goes_on(session);
                }
            }
            Event::Stays(session) => {
                let was_coming = self.residency.place(session) == Some(Place::ComingIn);
                self.residency.stayed(session, now).unwrap();
                let program = self.programs.get_mut(&session).unwrap();
                program.is_out = was_coming;
                if !was_coming && std::mem::take(&mut program.called) && program.asked.is_none() {
                    self.goes_on(session);
                }
            }
            Event::Looks => {}
        }
    }

    /// Until `end`; programs that have nothing to do then wait for nothing more.
    fn run(&mut self, end: u64) {
        while let Some(Reverse((at, event))) = self.events.pop() {
            self.now = at;
            if matches!(event, Event::Acts(_)) && at > end {
                continue;
            }
            self.happens(event);
            self.check();
            let orders = self.residency.decide(self.now);
            let sessions: BTreeSet<_> = orders.iter().map(|order| format!("{order:?}")).collect();
            assert_eq!(sessions.len(), orders.len());
            orders.into_iter().for_each(|order| self.obey(order));
            self.check();
            assert!(self.residency.late(self.now).is_empty());
            if let Some(at) = self.residency.next_look(self.now) {
                assert!(at > self.now);
                let looks_already =
                    self.events.iter().any(|Reverse((when, event))| *event == Event::Looks && *when <= at);
                if !looks_already {
                    self.at(at - self.now, Event::Looks);
                }
            }
        }
        let waiting: Vec<_> = self.programs.iter().filter(|(_, program)| program.waits.is_some()).collect();
        assert!(waiting.is_empty(), "nothing happens any more, and {waiting:?} wait");
    }
}

#[test]
fn random_programs_share_devices_that_are_too_small() {
    let (mut evictions, mut grants, mut refusals) = (0, 0, 0);
    for seed in 0..10_000 {
        let mut model = Model::new(seed);
        model.run(300 * MS);
        (evictions, grants) = (evictions + model.evictions, grants + model.grants);
        refusals += model.refusals;
    }
    assert!(evictions > 50_000 && grants > 100_000 && refusals > 1_000, "{evictions}, {grants}, {refusals}");
}

/// Of one device with `memory` bytes, of which sessions may have twice as many.
fn shared(memory: u64) -> Residency {
    let mut residency = Residency::new(PATIENCE);
    residency.add_device(DeviceMemory { memory, most: 2 * memory });
    residency
}

fn has(residency: &mut Residency, session: u64, tenant: &str, bytes: u64) {
    residency.enter(session, tenant, 0);
    residency.ask(session, 1, (0, bytes), 0).unwrap();
    assert_eq!(residency.decide(0), [Order::Grant { session, request: 1 }]);
}

#[test]
fn allocation_turns_out_who_is_idle_for_longest() {
    let mut residency = shared(100);
    has(&mut residency, 1, "a", 40);
    has(&mut residency, 2, "b", 40);
    residency.enter(3, "c", 0);
    residency.note_activity(1, true, false, 5_000 * MS);
    residency.ask(3, 7, (0, 50), 5_000 * MS).unwrap();
    assert_eq!(residency.decide(5_000 * MS), [Order::Evict { session: 2 }]);
    assert_eq!(residency.decide(5_001 * MS), [], "it is on its way");
    residency.left(2, &[(0, 40)], 5_010 * MS).unwrap();
    assert_eq!(residency.decide(5_010 * MS), [Order::Grant { session: 3, request: 7 }]);
    assert_eq!((residency.occupied(0), residency.resident(2), residency.held(2)), (90, vec![(0, 0)], vec![(0, 40)]));
    // The exchange took 10 ms: the one that came has 50.
    residency.note_activity(1, true, true, 5_011 * MS);
    residency.want(2, 5_011 * MS);
    assert_eq!(residency.decide(5_011 * MS), [Order::Evict { session: 1 }]);
}

#[test]
fn turn_is_kept_and_then_the_one_that_waits_comes() {
    let mut residency = shared(100);
    has(&mut residency, 1, "a", 80);
    residency.evict(1, MS).unwrap();
    residency.left(1, &[(0, 80)], 2 * MS).unwrap();
    has(&mut residency, 2, "b", 80);
    residency.want(1, 10 * MS);
    assert_eq!(residency.decide(10 * MS), [Order::Evict { session: 2 }]);
    residency.left(2, &[(0, 80)], 20 * MS).unwrap();
    assert_eq!(residency.decide(20 * MS), [Order::Return { session: 1 }]);
    residency.back(1, 30 * MS).unwrap();
    residency.note_activity(1, true, true, 30 * MS);
    residency.want(2, 31 * MS);
    assert_eq!(residency.decide(31 * MS), []);
    assert_eq!(residency.next_look(31 * MS), Some(130 * MS), "5 times 20 ms after 30 ms");
    assert_eq!(residency.decide(130 * MS), [Order::Evict { session: 1 }]);
    assert_eq!(residency.exchanged(1), 20 * MS);
}

#[test]
fn turn_ends_for_a_session_that_is_idle_for_as_long_as_its_exchange_took() {
    let mut residency = shared(100);
    has(&mut residency, 1, "a", 80);
    residency.evict(1, 0).unwrap();
    residency.left(1, &[(0, 80)], 0).unwrap();
    residency.want(1, 0);
    assert_eq!(residency.decide(0), [Order::Return { session: 1 }]);
    residency.back(1, 10 * MS).unwrap();
    residency.enter(2, "b", 10 * MS);
    residency.ask(2, 1, (0, 80), 10 * MS).unwrap();
    residency.note_activity(1, true, false, 15 * MS);
    assert_eq!((residency.decide(24 * MS), residency.next_look(24 * MS)), (vec![], Some(25 * MS)));
    residency.note_activity(1, true, false, 24 * MS);
    assert_eq!(residency.decide(33 * MS), []);
    assert_eq!(residency.decide(34 * MS), [Order::Evict { session: 1 }]);
}

#[test]
fn what_was_never_granted_counts_for_nothing() {
    let mut residency = shared(100);
    has(&mut residency, 1, "a", 10);
    residency.give_back(1, 0, 4).unwrap();
    assert_eq!((residency.give_back(1, 0, 50), residency.held(1)), (Ok(()), vec![(0, 0)]));
    has(&mut residency, 2, "b", 10);
    residency.evict(2, 0).unwrap();
    assert_eq!(residency.left(2, &[(0, 500), (7, 9)], 0), Ok(()));
    assert_eq!((residency.occupied(0), residency.held(2)), (0, vec![(0, 10)]));
}

#[test]
fn session_of_which_nothing_can_leave_is_asked_in_growing_gaps() {
    let mut residency = shared(100);
    has(&mut residency, 1, "a", 90);
    residency.enter(2, "b", 0);
    residency.ask(2, 1, (0, 90), 0).unwrap();
    let mut now = 0;
    for gap in [20, 40, 80, 160] {
        assert_eq!(residency.decide(now), [Order::Evict { session: 1 }]);
        residency.left(1, &[], now).unwrap();
        residency.want(1, now);
        assert_eq!(residency.decide(now), [Order::Return { session: 1 }]);
        residency.back(1, now).unwrap();
        assert_eq!(residency.decide(now + gap * MS - 1), []);
        now += gap * MS;
    }
}

#[test]
fn one_that_cannot_come_any_more_keeps_nobody_waiting() {
    let mut residency = shared(100);
    has(&mut residency, 1, "a", 90);
    residency.evict(1, 0).unwrap();
    residency.left(1, &[(0, 90)], 0).unwrap();
    residency.resize(0, DeviceMemory { memory: 50, most: 200 });
    residency.want(1, 0);
    assert_eq!(residency.decide(0), []);
    has(&mut residency, 2, "b", 40);
}

#[test]
fn one_that_never_leaves_keeps_the_room_from_those_alone_that_need_its_own() {
    let mut residency = shared(100);
    has(&mut residency, 1, "a", 60);
    for (session, bytes) in [(2, 60), (3, 30)] {
        residency.enter(session, "b", 0);
        residency.members.get_mut(&session).unwrap().place = Place::Out;
        residency.members.get_mut(&session).unwrap().held.insert(0, bytes);
        residency.members.get_mut(&session).unwrap().kept.insert(0, 0);
        residency.want(session, session);
    }
    assert_eq!(residency.decide(10), [Order::Evict { session: 1 }], "the third waits: the second may come");
    residency.stayed(1, 20).unwrap();
    assert_eq!(residency.decide(20), [Order::Return { session: 3 }], "40 bytes are free");
    residency.back(3, 30).unwrap();
    // And it comes when the first one leaves after all, which is asked before the third leaves for nothing.
    assert_eq!(residency.decide(21 * MS), [Order::Evict { session: 1 }]);
    residency.stayed(1, 22 * MS).unwrap();
    assert_eq!(residency.decide(100 * MS), [Order::Evict { session: 1 }]);
    residency.left(1, &[(0, 60)], 101 * MS).unwrap();
    assert_eq!(residency.decide(101 * MS), [Order::Return { session: 2 }]);
}

#[test]
fn guarantee_keeps_sessions_where_others_have_more() {
    let mut residency = shared(100);
    residency.set_claim("a", Claim { weight: 1, guarantee: 50 });
    has(&mut residency, 1, "a", 50);
    has(&mut residency, 2, "b", 50);
    residency.note_activity(2, true, false, 9_000 * MS);
    residency.enter(3, "c", 0);
    residency.ask(3, 1, (0, 20), 9_000 * MS).unwrap();
    assert_eq!(residency.decide(9_000 * MS), [Order::Evict { session: 2 }], "although the other one is idle");
}

#[test]
fn session_that_is_over_keeps_what_it_has_and_waits_for_nothing() {
    let mut residency = shared(100);
    has(&mut residency, 1, "a", 60);
    has(&mut residency, 2, "a", 40);
    residency.evict(1, 0).unwrap();
    residency.left(1, &[(0, 50)], 0).unwrap();
    residency.ask(2, 2, (0, 60), 0).unwrap();
    residency.want(1, 0);
    residency.retire(1);
    assert_eq!((residency.occupied(0), residency.place(1)), (50, Some(Place::In)));
    assert_eq!((residency.decide(0), residency.next_look(0)), (vec![], Some(PATIENCE.room)), "nobody can leave");
    residency.leave(1);
    assert_eq!(residency.decide(0), [Order::Grant { session: 2, request: 2 }]);
}

#[test]
fn more_than_a_device_or_than_all_may_have_is_refused_at_once() {
    let mut residency = shared(100);
    has(&mut residency, 1, "a", 90);
    residency.ask(1, 2, (0, 11), 0).unwrap();
    assert_eq!(residency.ask(1, 3, (0, 1), 0), Err(Impossible), "one at a time");
    assert_eq!(residency.decide(0), [Order::Refuse { session: 1, request: 2 }]);
    residency.enter(2, "b", 0);
    residency.ask(2, 1, (0, 100), 0).unwrap();
    assert_eq!(residency.decide(0), [Order::Evict { session: 1 }]);
    residency.enter(3, "c", 0);
    residency.ask(3, 1, (0, 111), 0).unwrap();
    assert_eq!(residency.decide(0), [Order::Refuse { session: 3, request: 1 }]);
}

#[test]
fn session_that_does_not_answer_is_late_and_one_that_stays_is_asked_in_growing_gaps() {
    let mut residency = shared(100);
    has(&mut residency, 1, "a", 90);
    residency.enter(2, "b", 0);
    residency.ask(2, 1, (0, 90), 0).unwrap();
    let mut now = 0;
    for gap in [20, 40, 80, 160, 320, 640, 1000] {
        assert_eq!(residency.decide(now), [Order::Evict { session: 1 }]);
        residency.stayed(1, now).unwrap();
        assert_eq!((residency.decide(now), residency.next_look(now).map(|at| at - now)), (vec![], Some(gap * MS)));
        now += gap * MS;
    }
    assert_eq!(residency.decide(PATIENCE.room), [Order::Refuse { session: 2, request: 1 }]);
    residency.evict(1, now).unwrap();
    // A nanosecond for each of its 90 bytes.
    let late = now + PATIENCE.leave + 90;
    assert_eq!(residency.next_look(now), Some(late));
    assert_eq!((residency.late(late - 1), residency.late(late)), (vec![], vec![1]));
    residency.leave(1);
    assert_eq!((residency.occupied(0), residency.late(u64::MAX), residency.evict(1, 0)), (0, vec![], Err(Impossible)));
}
