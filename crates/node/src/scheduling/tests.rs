//! The disciplines on a simulated device that cannot be preempted.

use super::discipline::{DeviceSettings, Discipline, Pick, Scheduler, Share, Spent, Tenant};
use std::time::Duration;

const US: u64 = 1000;
const MS: u64 = 1000 * US;

/// A tenant that wants the device from `from` to `to`, with calls of `call` nanoseconds.
#[derive(Clone, Copy)]
struct Load {
    share: Share,
    call: u64,
    from: u64,
    to: u64,
}

fn load(weight: u32, call: u64) -> Load {
    Load { share: Share { weight, priority: 0 }, call, from: 0, to: u64::MAX }
}

/// Device time of each tenant, and time for which the device stood still although somebody wanted it.
fn simulate(scheduler: Scheduler, loads: &[Load], duration: u64) -> (Vec<u64>, u64) {
    simulate_on(scheduler, 6, loads, duration)
}

fn simulate_on(scheduler: Scheduler, slice_ms: u64, loads: &[Load], duration: u64) -> (Vec<u64>, u64) {
    let settings = DeviceSettings { scheduler, slice: Duration::from_millis(slice_ms), ..DeviceSettings::default() };
    let mut discipline = settings.discipline().unwrap();
    let mut awake = vec![false; loads.len()];
    let (mut used, mut wasted, mut now) = (vec![0; loads.len()], 0, 0);
    loads.iter().enumerate().for_each(|(tenant, load)| discipline.set_share(tenant, load.share));
    while now < duration {
        for (tenant, load) in loads.iter().enumerate() {
            let wants = load.from <= now && now < load.to;
            match (awake[tenant], wants) {
                (false, true) => discipline.wakes(tenant, now),
                (true, false) => discipline.rests(tenant),
                _ => {}
            }
            awake[tenant] = wants;
        }
        let wanting: Vec<Tenant> = (0..loads.len()).filter(|t| awake[*t]).collect();
        if wanting.is_empty() {
            now += MS;
            continue;
        }
        match discipline.pick(&wanting, now) {
            Pick::Grant(tenant, budget) => {
                let mut slice = 0;
                while slice < budget {
                    slice += loads[tenant].call;
                }
                now += slice;
                used[tenant] += slice;
                discipline.charge(tenant, Spent { used: slice, held: slice, calls: 1 }, now);
            }
            Pick::Nobody { until } => {
                assert!(until > now, "the scheduler would turn on the spot");
                wasted += until - now;
                now = until;
            }
        }
    }
    (used, wasted)
}

fn min_max_ratio(used: &[u64], loads: &[Load]) -> f64 {
    let normalized = used.iter().zip(loads).map(|(used, load)| *used as f64 / f64::from(load.share.weight));
    let (low, high) = normalized.fold((f64::MAX, 0f64), |(low, high), x| (low.min(x), high.max(x)));
    low / high
}

#[test]
fn fair_shares_follow_the_weights_whatever_the_calls_cost() {
    let loads = [load(1, 21 * US), load(2, 100 * MS), load(2, 3 * MS), load(3, 500 * US), load(4, 7 * MS)];
    let (used, wasted) = simulate(Scheduler::Fair, &loads, 60_000 * MS);
    assert!(min_max_ratio(&used, &loads) > 0.99, "{used:?}");
    assert_eq!(wasted, 0);
}

#[test]
fn fair_queueing_gives_no_credit_for_sleep() {
    // The second sleeps for half of the time, then has half of the device, not more.
    let loads = [load(1, MS), Load { from: 5000 * MS, ..load(1, MS) }];
    let (used, _) = simulate(Scheduler::Fair, &loads, 10_000 * MS);
    assert!(used[1].abs_diff(2500 * MS) < 20 * MS, "{used:?}");
}

#[test]
fn a_nap_does_not_forgive_an_overrun() {
    let mut fair = DeviceSettings::default().discipline().unwrap();
    (0..2).for_each(|tenant| fair.set_share(tenant, Share::default()));
    fair.wakes(0, 0);
    fair.wakes(1, 0);
    fair.charge(0, Spent { used: 60_000 * MS, ..Spent::default() }, 0);
    fair.rests(0);
    fair.wakes(0, 1);
    assert!(matches!(fair.pick(&[0, 1], 2), Pick::Grant(1, _)));
    fair.charge(1, Spent { used: 59_000 * MS, ..Spent::default() }, 2);
    assert!(matches!(fair.pick(&[0, 1], 3), Pick::Grant(1, _)));
}

#[test]
fn time_that_nobody_wanted_pays_back_what_a_tenant_had_too_much() {
    for (stood_still, ahead) in [(0, 300 * MS), (100 * MS, 200 * MS), (400 * MS, 12 * MS)] {
        let mut fair = DeviceSettings::default().discipline().unwrap();
        (0..2).for_each(|tenant| fair.set_share(tenant, Share::default()));
        (0..2).for_each(|tenant| fair.wakes(tenant, 0));
        fair.charge(0, Spent { used: 300 * MS, ..Spent::default() }, 0);
        (0..2).for_each(|tenant| fair.rests(tenant));
        fair.stood_still(stood_still);
        (0..2).rev().for_each(|tenant| fair.wakes(tenant, 1000 * MS));
        let goes_first = |fair: &mut dyn Discipline, used| {
            fair.charge(1, Spent { used, ..Spent::default() }, 1000 * MS);
            fair.pick(&[0, 1], 1000 * MS)
        };
        assert!(matches!(goes_first(&mut *fair, ahead - 1), Pick::Grant(1, _)), "{stood_still}");
        assert!(matches!(goes_first(&mut *fair, 2), Pick::Grant(0, _)), "{stood_still}");
    }
}

#[test]
fn what_a_turn_left_is_made_up_but_for_no_more_than_a_slice() {
    let settings = DeviceSettings { scheduler: Scheduler::RoundRobin, ..DeviceSettings::default() };
    let mut turns = settings.discipline().unwrap();
    (0..2).for_each(|tenant| turns.set_share(tenant, Share::default()));
    let slice = 6 * MS;
    // The first one's turns, and what it uses of them before it sleeps for a while.
    for (turn, used) in [(slice, 2 * MS), (10 * MS, 0), (12 * MS, 0), (12 * MS, 12 * MS), (slice, 7 * MS), (5 * MS, 0)]
    {
        assert_eq!(turns.pick(&[0, 1], 0), Pick::Grant(0, turn));
        turns.charge(0, Spent { used, ..Spent::default() }, 0);
        turns.rests(0);
        assert_eq!(turns.pick(&[1], 0), Pick::Grant(1, slice));
        turns.charge(1, Spent { used: slice, ..Spent::default() }, 0);
        turns.wakes(0, 0);
    }
}

#[test]
fn turns_are_exact_over_time() {
    for count in 1..=16 {
        // Calls that do not divide the slice.
        let loads: Vec<Load> = (0..count).map(|i| load(1 + i % 3, (700 + 37 * u64::from(i)) * US)).collect();
        for (scheduler, weighted) in [(Scheduler::Slices, true), (Scheduler::RoundRobin, false)] {
            let (used, _) = simulate_on(scheduler, 10, &loads, 120_000 * MS);
            let weight = |l: &Load| if weighted { f64::from(l.share.weight) } else { 1.0 };
            let weights: f64 = loads.iter().map(weight).sum();
            let whole: u64 = used.iter().sum();
            let error: f64 = used
                .iter()
                .zip(&loads)
                .map(|(used, load)| (*used as f64 / (whole as f64 * weight(load) / weights) - 1.0).abs())
                .sum();
            let average = error / f64::from(count);
            assert!(average < 0.003, "{count} tenants: {average}");
        }
    }
}

#[test]
fn the_highest_priority_goes_first() {
    let high = Load { share: Share { weight: 1, priority: 5 }, to: 2000 * MS, ..load(1, MS) };
    let (used, _) = simulate(Scheduler::Priority, &[load(1, MS), high, load(1, MS)], 4000 * MS);
    assert!(used[1] >= 1990 * MS, "{used:?}");
    assert!(used[0].abs_diff(used[2]) <= 7 * MS, "{used:?}");
}

#[test]
fn postponing_holds_shares_in_every_window() {
    for scheduler in [Scheduler::WfqPoll, Scheduler::WfqAimd] {
        let loads = [load(1, MS), load(1, 20 * MS)];
        let (used, wasted) = simulate(scheduler, &loads, 60_000 * MS);
        assert!(min_max_ratio(&used, &loads) > 0.98, "{scheduler:?} {used:?}");
        assert!(wasted < 60_000 * MS / 20, "{scheduler:?} {wasted}");
    }
}

#[test]
fn credit_is_fair_only_where_nobody_overruns() {
    let loads = [load(1, MS), load(2, MS), load(3, MS)];
    let (used, _) = simulate(Scheduler::Credit, &loads, 60_000 * MS);
    assert!(min_max_ratio(&used, &loads) > 0.9, "{used:?}");
}

#[test]
fn credit_charges_the_time_for_which_the_device_was_held() {
    // Calls that overrun every slice by 50 us.
    let loads = [load(1, 6050 * US), load(2, 6050 * US), load(3, 6050 * US)];
    let (used, _) = simulate(Scheduler::Credit, &loads, 60_000 * MS);
    assert!(min_max_ratio(&used, &loads) > 0.9, "{used:?}");
}

#[test]
fn names_of_schedulers() {
    assert_eq!("wfq-aimd".parse(), Ok(Scheduler::WfqAimd));
    let error = "fairest".parse::<Scheduler>().unwrap_err();
    assert!(error.contains("fairest") && error.contains("wfq-poll"), "{error}");
}
