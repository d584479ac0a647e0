use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const LIMIT: usize = 1 << 30;

fn record(log: &mut Log, effect: Effect, function: u32, owners: &[Owner], inputs: &[u64], key: &[u64]) -> Record {
    let made = if effect == Effect::Makes { owners.iter().filter_map(|o| o.object()).collect() } else { Vec::new() };
    Record {
        function,
        effect,
        owners: owners.to_vec(),
        key: key.to_vec(),
        inputs: inputs.to_vec(),
        outputs: made,
        request: log.content(&[function as u8; 64]),
        blocks: Vec::new(),
        same: Vec::new(),
        callbacks: Vec::new(),
        current: 0,
    }
}

fn keep(log: &mut Log, effect: Effect, function: u32, object: u64, inputs: &[u64]) {
    let record = record(log, effect, function, &[Owner::Object(object)], inputs, &[]);
    assert!(log.keep(record));
}

fn functions(log: &Log) -> Vec<u32> {
    log.records().map(|record| record.function).collect()
}

#[test]
fn the_calls_of_an_object_go_with_it() {
    let mut log = Log::new(LIMIT);
    keep(&mut log, Effect::Makes, 1, 10, &[]);
    keep(&mut log, Effect::Makes, 2, 11, &[]);
    keep(&mut log, Effect::Changes, 3, 10, &[]);
    keep(&mut log, Effect::Retains, 4, 10, &[]);
    log.object_ended(10);
    assert_eq!(functions(&log), [2]);
    log.object_ended(11);
    log.object_ended(11);
    assert_eq!(log.size(), LogSize::default());
}

#[test]
fn objects_that_a_live_one_needs_are_kept_with_the_call_that_ended_them() {
    let mut log = Log::new(LIMIT);
    keep(&mut log, Effect::Makes, 1, 10, &[]);
    keep(&mut log, Effect::Makes, 2, 20, &[10]);
    keep(&mut log, Effect::Ends, 3, 10, &[]);
    log.object_ended(10);
    assert_eq!(functions(&log), [1, 2, 3]);
    keep(&mut log, Effect::Ends, 3, 20, &[]);
    log.object_ended(20);
    assert_eq!(log.size(), LogSize::default());
}

#[test]
fn objects_of_one_call_are_made_and_ended_again_together() {
    let mut log = Log::new(LIMIT);
    let owners = [Owner::Object(1), Owner::Object(2)];
    let both = record(&mut log, Effect::Makes, 1, &owners, &[], &[]);
    assert!(log.keep(both));
    keep(&mut log, Effect::Ends, 2, 1, &[]);
    log.object_ended(1);
    assert_eq!(functions(&log), [1, 2], "the first has to be ended again");
    log.object_ended(2);
    assert_eq!(log.size(), LogSize::default());
}

#[test]
fn the_last_call_of_a_function_object_and_key_is_kept() {
    let mut log = Log::new(LIMIT);
    keep(&mut log, Effect::Makes, 1, 10, &[]);
    keep(&mut log, Effect::Makes, 2, 20, &[]);
    for (key, input) in [(0, 10), (1, 10), (0, 10)] {
        let change = record(&mut log, Effect::Changes, 3, &[Owner::Object(20)], &[input], &[key]);
        assert!(log.keep(change));
    }
    assert_eq!(functions(&log), [1, 2, 3, 3]);
    assert_eq!(log.records().filter(|r| r.function == 3).map(|r| r.key[0]).collect::<Vec<_>>(), [1, 0]);
    for lane in [1, 2, 1] {
        let current = record(&mut log, Effect::Changes, 4, &[Owner::Thread(lane)], &[10], &[]);
        assert!(log.keep(current));
    }
    assert_eq!(functions(&log), [1, 2, 3, 3, 4, 4]);
    log.thread_ended(1);
    log.thread_ended(2);
    assert_eq!(functions(&log), [1, 2, 3, 3]);
}

#[test]
fn ended_objects_that_name_each_other_are_found() {
    let mut log = Log::new(LIMIT);
    for at in 0..10_000 {
        let (a, b) = (2 * at, 2 * at + 1);
        keep(&mut log, Effect::Makes, 1, a, &[]);
        keep(&mut log, Effect::Makes, 1, b, &[]);
        keep(&mut log, Effect::Changes, 2, a, &[b]);
        keep(&mut log, Effect::Changes, 2, b, &[a]);
        log.object_ended(a);
        log.object_ended(b);
        assert!(log.size().records <= 4 * (MIN_ENDED + 2), "{:?}", log.size());
    }
    log.collect();
    assert_eq!(log.size(), LogSize::default());
}

#[test]
fn a_log_beyond_its_limit_forgets_everything_and_says_so_once() {
    let mut log = Log::new(4096);
    let mut told = 0;
    for id in 0..100 {
        let new = record(&mut log, Effect::Makes, 1, &[Owner::Object(id)], &[], &[]);
        told += usize::from(!log.keep(new));
    }
    assert_eq!((told, log.is_overflown(), log.size()), (1, true, LogSize::default()));
}

#[test]
fn a_closed_log_keeps_nothing_and_is_not_too_large() {
    let mut log = Log::new(LIMIT);
    keep(&mut log, Effect::Makes, 1, 10, &[]);
    log.close();
    keep(&mut log, Effect::Makes, 1, 11, &[10]);
    keep(&mut log, Effect::Ends, 2, 11, &[]);
    log.object_ended(11);
    assert_eq!((log.size(), log.is_overflown(), log.makes(11)), (LogSize::default(), false, false));
}

/// Random steps, chosen by small numbers: the objects are picked among the live ones.
#[derive(Debug, Clone)]
enum Step {
    Make { count: usize, inputs: Vec<usize> },
    Change { object: usize, input: usize, key: u64, function: u32 },
    End { object: usize },
    Retain { object: usize },
    Thread { lane: u32, input: usize },
    CloseThread { lane: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..4usize, prop::collection::vec(any::<usize>(), 0..3)).prop_map(|(count, inputs)| Step::Make { count, inputs }),
        6 => (any::<usize>(), any::<usize>(), 0..3u64, 100..102u32)
            .prop_map(|(object, input, key, function)| Step::Change { object, input, key, function }),
        3 => any::<usize>().prop_map(|object| Step::End { object }),
        2 => any::<usize>().prop_map(|object| Step::Retain { object }),
        1 => (0..3u32, any::<usize>()).prop_map(|(lane, input)| Step::Thread { lane, input }),
        1 => (0..3u32).prop_map(|lane| Step::CloseThread { lane }),
    ]
}

/// The state that calls lead to: by function, object or thread, and key the input of the last call, of the live ones only.
#[derive(Debug, Default, PartialEq, Eq)]
struct World {
    live: BTreeSet<u64>,
    values: BTreeMap<(u32, Owner, Vec<u64>), u64>,
}

impl World {
    fn end(&mut self, id: u64) {
        self.live.remove(&id);
        self.values.retain(|(_, owner, _), _| *owner != Owner::Object(id));
    }

    /// Makes the calls of a log in an empty world. Every object that a call names must be there.
    fn replay(log: &Log) -> World {
        let mut world = World::default();
        for record in log.records() {
            let missing = record.inputs.iter().find(|id| !world.live.contains(id));
            assert_eq!(missing, None, "{record:?}");
            match (record.effect, record.owners.as_slice()) {
                (Effect::Makes, _) => world.live.extend(&record.outputs),
                (Effect::Changes, [owner]) => {
                    assert!(owner.object().is_none_or(|id| world.live.contains(&id)), "{record:?}");
                    world.values.insert((record.function, *owner, record.key.clone()), record.inputs[0]);
                }
                (Effect::Ends, [Owner::Object(id)]) => world.end(*id),
                _ => {}
            }
        }
        world
    }
}

fn picked(world: &World, number: usize) -> Option<u64> {
    let at = number.checked_rem(world.live.len())?;
    world.live.iter().nth(at).copied()
}

fn perform(log: &mut Log, world: &mut World, next: &mut u64, step: Step) {
    match step {
        Step::Make { count, inputs } => {
            let inputs: BTreeSet<u64> = inputs.into_iter().filter_map(|input| picked(world, input)).collect();
            let made: Vec<u64> = (*next..*next + count as u64).collect();
            *next += count as u64;
            let owners: Vec<Owner> = made.iter().map(|id| Owner::Object(*id)).collect();
            let new = record(log, Effect::Makes, 1, &owners, &inputs.into_iter().collect::<Vec<_>>(), &[]);
            assert!(log.keep(new));
            world.live.extend(made);
        }
        Step::Change { object, input, key, function } => {
            let (Some(object), Some(input)) = (picked(world, object), picked(world, input)) else { return };
            if object == input {
                return;
            }
            let owner = Owner::Object(object);
            let change = record(log, Effect::Changes, function, &[owner], &[input], &[key]);
            assert!(log.keep(change));
            world.values.insert((function, owner, vec![key]), input);
        }
        Step::End { object } => {
            let Some(object) = picked(world, object) else { return };
            keep(log, Effect::Ends, 2, object, &[]);
            log.object_ended(object);
            world.end(object);
        }
        Step::Retain { object } => {
            let Some(object) = picked(world, object) else { return };
            keep(log, Effect::Retains, 3, object, &[]);
        }
        Step::Thread { lane, input } => {
            let Some(input) = picked(world, input) else { return };
            let owner = Owner::Thread(lane);
            let current = record(log, Effect::Changes, 4, &[owner], &[input], &[]);
            assert!(log.keep(current));
            world.values.insert((4, owner, Vec::new()), input);
        }
        Step::CloseThread { lane } => {
            log.thread_ended(lane);
            world.values.retain(|(_, owner, _), _| *owner != Owner::Thread(lane));
        }
    }
}

proptest! {
    #[test]
    fn a_log_leads_to_the_same_world(steps in prop::collection::vec(step(), 0..400)) {
        let (mut log, mut world, mut next) = (Log::new(LIMIT), World::default(), 1);
        for step in steps {
            perform(&mut log, &mut world, &mut next, step);
        }
        let replayed = World::replay(&log);
        // Ended objects whose call of the end nobody needs are not ended again: nothing names them.
        prop_assert_eq!(&replayed.live, &world.live);
        prop_assert_eq!(&replayed.values, &world.values);
        log.collect();
        prop_assert_eq!(World::replay(&log), world);
        let live: Vec<u64> = replayed.live.into_iter().collect();
        (0..3).for_each(|lane| log.thread_ended(lane));
        live.into_iter().for_each(|id| log.object_ended(id));
        log.collect();
        prop_assert_eq!(log.size(), LogSize::default());
    }

    #[test]
    fn the_log_is_bounded_by_what_lives(seed in any::<u64>()) {
        const CALLS: u64 = 20_000;
        let mut log = Log::new(LIMIT);
        bounded_calls(&mut log, CALLS, seed);
    }
}

/// Eight live objects of four keys each, made anew all the time.
fn bounded_calls(log: &mut Log, calls: u64, seed: u64) {
    const LIVE: u64 = 8;
    let mut state = seed | 1;
    let mut ids: Vec<u64> = (0..LIVE).collect();
    let mut next = LIVE;
    ids.iter().for_each(|id| keep(log, Effect::Makes, 1, *id, &[]));
    for _ in 0..calls {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let (at, other) = ((state >> 33) % LIVE, (state >> 40) % LIVE);
        if state >> 61 == 0 {
            let old = std::mem::replace(&mut ids[at as usize], next);
            keep(log, Effect::Makes, 1, next, &[]);
            keep(log, Effect::Ends, 2, old, &[]);
            log.object_ended(old);
            next += 1;
        } else if at != other {
            let inputs = [ids[other as usize]];
            let change =
                record(log, Effect::Changes, 3, &[Owner::Object(ids[at as usize])], &inputs, &[state >> 50 & 3]);
            assert!(log.keep(change));
        }
    }
    let size = log.size();
    // An ended object may be named by a key of a live one: each of those has a maker, an end, and keys of its own.
    assert!(size.records <= 2000, "{size:?} after {calls} calls");
}

#[test]
#[ignore = "10 million calls: `./x bench` and people run it"]
fn ten_million_calls_leave_a_bounded_log() {
    let mut log = Log::new(LIMIT);
    bounded_calls(&mut log, 10_000_000, 7);
}
