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
/// Parts in which memory leaves.
const PARTS: u64 = 4;
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
    /// One of [`PARTS`] of its memory has left.
    LeavesOn(u64),
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
    /// While it is out, by device: what is there all the same.
    kept: [u64; 2],
    /// While it is leaving, by device: what leaves, and what of that has left.
    leaves: [u64; 2],
    gone: [u64; 2],
    /// While it comes as others leave: its credit.
    credit: Option<u64>,
    /// Of its last return: when, and how long it took.
    came: Option<(u64, u64)>,
    came_for: u64,
    /// From then on it refuses to leave.
    stuck_at: Option<u64>,
    /// While it waits there was a time at which it had no room beside those that refuse.
    had_no_place: bool,
}

impl Program {
    /// Bytes that come when it returns.
    fn comes(&self) -> u64 {
        [0, 1].map(|device| self.held[device] - self.kept[device]).iter().sum()
    }
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
    /// Returns that were begun while another session was still leaving.
    overlapped: u64,
    /// Evictions of which a part was enough, and of sessions that were out in part.
    in_part: u64,
    further: u64,
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
            overlapped: 0,
            in_part: 0,
            further: 0,
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
            let there = self.programs.values().map(|program| match program.credit {
                _ if program.is_out => program.kept[number] - program.gone[number],
                Some(credit) => (program.kept[number] + credit).min(program.held[number]),
                None => program.held[number] - program.gone[number],
            });
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
            if matches!(place, Place::Out | Place::GoingFurther) {
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
            Order::Evict { session, part } => {
                self.evictions += 1;
                self.in_part += u64::from(part.is_some());
                // Some takes more than it was told to.
                let (refuses, more) = (self.random.below(30) == 0, self.random.below(50));
                let program = self.programs.get_mut(&session).unwrap();
                let is_further = program.is_out;
                // One that is out has no work that could keep it.
                let refuses = refuses || !is_further && program.stuck_at.is_some_and(|at| at <= now);
                self.further += u64::from(is_further);
                program.leaves = if is_further { program.kept } else { program.held };
                if let Some(part) = part {
                    let only = program.leaves.iter_mut().filter(|bytes| **bytes > 0).collect::<Vec<_>>();
                    let [only] = &only[..] else { panic!("a part of several devices: {program:?}") };
                    assert!(part > 0 && part < **only, "{part} of {only}");
                    let bytes = (part + more).min(**only);
                    program.leaves = program.leaves.map(|there| there.min(bytes));
                }
                if let Some((came, took)) = program.came.filter(|_| !is_further) {
                    let is_idle = program.busy_until <= now && now - program.active_at.max(came) >= took / 32;
                    assert!(now - came >= TURNS * took || is_idle, "session {session} had no turn after {took} ns");
                }
                let bytes: u64 = program.leaves.iter().sum();
                let drains = if is_further { 0 } else { program.busy_until.saturating_sub(now) };
                if refuses {
                    return self.at(MS, Event::Stays(session));
                }
                for part in 1..PARTS {
                    self.at(drains + bytes * NS_PER_BYTE * part / PARTS, Event::LeavesOn(session));
                }
                self.at(drains + bytes * NS_PER_BYTE, Event::HasLeft(session));
            }
            Order::Return { session } => {
                let fails = self.random.below(30) == 0;
                let program = self.programs.get_mut(&session).unwrap();
                assert!(program.is_out);
                (program.is_out, program.ordered_at) = (false, now);
                program.credit = self.residency.credit(session);
                let bytes = program.comes();
                match program.credit {
                    // What it has no credit for comes later.
                    Some(credit) if !fails => {
                        assert!(credit > 0 && credit < bytes, "{credit} of {bytes} bytes");
                        self.overlapped += 1;
                    }
                    _ => {
                        self.at(bytes * NS_PER_BYTE, if fails { Event::Stays(session) } else { Event::IsBack(session) })
                    }
                }
            }
            Order::Credit { session } => {
                let credit = self.residency.credit(session).unwrap();
                let program = self.programs.get_mut(&session).unwrap();
                let before = program.credit.replace(credit).unwrap();
                let bytes = program.comes();
                assert!(credit > before && credit <= bytes, "{before}, {credit} of {bytes} bytes");
                let ends = self.events.iter().any(|Reverse((_, event))| *event == Event::Stays(session));
                if credit == bytes && !ends {
                    self.at((credit - before) * NS_PER_BYTE, Event::IsBack(session));
                }
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
            Event::LeavesOn(session) if !self.programs.contains_key(&session) => {}
            Event::LeavesOn(session) => {
                let (program, devices) = (self.programs.get_mut(&session).unwrap(), self.devices.len());
                for device in 0..devices {
                    program.gone[device] += program.leaves[device] / PARTS;
                }
                let gone: Vec<(usize, u64)> = program.gone.iter().copied().enumerate().take(devices).collect();
                self.residency.leaving(session, &gone).unwrap();
            }
            Event::Acts(session) | Event::HasLeft(session) | Event::IsBack(session) | Event::Stays(session)
                if !self.programs.contains_key(&session) => {}
            Event::Acts(session) => self.acts(session),
            Event::HasLeft(session) => {
                let program = self.programs.get_mut(&session).unwrap();
                let leaves: Vec<(usize, u64)> =
                    program.leaves.iter().copied().enumerate().take(self.devices.len()).collect();
                let freed: Vec<(usize, u64)> = leaves.into_iter().filter(|(_, bytes)| *bytes > 0).collect();
                let there = if program.is_out { program.kept } else { program.held };
                program.kept = [0, 1].map(|device| there[device] - program.leaves[device]);
                let rest: u64 = program.kept.iter().sum();
                self.residency.left(session, &freed, Some(rest), now).unwrap();
                (program.is_out, program.gone, program.leaves) = (true, [0; 2], [0; 2]);
                if program.called {
                    self.residency.want(session, now);
                }
            }
            Event::IsBack(session) => {
                self.residency.back(session, now).unwrap();
                let program = self.programs.get_mut(&session).unwrap();
                let took = now - program.ordered_at;
                program.came = Some((now, took));
                if program.credit.take().is_none() {
                    program.came_for += took;
                }
                assert!(self.residency.exchanged(session) >= program.came_for, "nobody pays for the exchange");
                if std::mem::take(&mut program.called) && program.asked.is_none() {
                    self.goes_on(session);
                }
            }
            Event::Stays(session) => {
                let was_in = self.residency.place(session) == Some(Place::GoingOut);
                self.residency.stayed(session, now).unwrap();
                let program = self.programs.get_mut(&session).unwrap();
                (program.is_out, program.credit, program.leaves) = (!was_in, None, [0; 2]);
                if was_in && std::mem::take(&mut program.called) && program.asked.is_none() {
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
    let (mut evictions, mut grants, mut refusals, mut overlapped) = (0, 0, 0, 0);
    let (mut in_part, mut further) = (0, 0);
    for seed in 0..10_000 {
        let mut model = Model::new(seed);
        model.run(300 * MS);
        (evictions, grants) = (evictions + model.evictions, grants + model.grants);
        (refusals, overlapped) = (refusals + model.refusals, overlapped + model.overlapped);
        (in_part, further) = (in_part + model.in_part, further + model.further);
    }
    assert!(overlapped > 1_000 && in_part > 10_000 && further > 1_000, "{overlapped}, {in_part}, {further}");
    assert!(evictions > 50_000 && grants > 100_000 && refusals > 1_000, "{evictions}, {grants}, {refusals}");
}
