//! Expected shares and latencies, exact but for what a turn more or less makes.

use super::*;

const EXCLUSIVE: DeviceKind = DeviceKind::Exclusive;
const PREEMPTIVE: DeviceKind = DeviceKind::Preemptive;

fn run(kind: DeviceKind, programs: Vec<Program>, until: u64) -> Simulation {
    let mut simulation = Simulation::new(settings(kind), fair(kind), programs);
    simulation.run(until);
    simulation
}

/// The parts of the device that the programs had.
fn shares(simulation: &Simulation) -> Vec<f64> {
    let used = simulation.used();
    used.iter().map(|used| *used as f64 / simulation.now as f64).collect()
}

#[test]
fn batches_share_by_weight() {
    for kind in [EXCLUSIVE, PREEMPTIVE] {
        for kernel in [21 * US, 207 * US, 500 * US, 1605 * US] {
            let programs = [("a", 1), ("b", 2), ("c", 3)].map(|(job, weight)| program(job, weight, kernel, 50));
            let simulation = run(kind, programs.to_vec(), 20 * S);
            assert!(
                simulation.min_max_ratio() > 0.99,
                "{kind:?} {kernel}: {:?} {:?}",
                shares(&simulation),
                simulation.charged()
            );
            let alone = run(kind, vec![program("a", 1, kernel, 50)], S).utilization();
            assert!(simulation.utilization() > 0.99 * alone, "{kind:?} {kernel}: {} {alone}", simulation.utilization());
        }
    }
}

#[test]
fn programs_that_wait_share_by_weight() {
    for kind in [EXCLUSIVE, PREEMPTIVE] {
        for kernel in [50 * US, 207 * US, 1605 * US] {
            let programs = [("a", 1), ("b", 2), ("c", 3)].map(|(job, weight)| program(job, weight, kernel, 1));
            let simulation = run(kind, programs.to_vec(), 20 * S);
            assert!(
                simulation.min_max_ratio() > 0.985,
                "{kind:?} {kernel}: {:?} {:?}",
                shares(&simulation),
                simulation.charged()
            );
        }
    }
}

#[test]
fn kernels_of_any_length_share_equally() {
    for kind in [EXCLUSIVE, PREEMPTIVE] {
        for kernel in [21 * US, 100 * US, 500 * US, 1605 * US, 100 * MS] {
            let batch = (10 * MS / kernel).max(1);
            let programs = vec![program("a", 1, 207 * US, 1), program("b", 1, kernel, batch)];
            let simulation = run(kind, programs, 40 * S);
            assert!(
                simulation.min_max_ratio() > 0.97,
                "{kind:?} {kernel}: {:?} {:?}",
                shares(&simulation),
                simulation.charged()
            );
        }
    }
}

#[test]
fn a_kernel_of_a_minute_is_paid_for() {
    let mut settings = settings(EXCLUSIVE);
    settings.hold_limit = 0;
    let programs = vec![program("a", 1, 60 * S, 1), program("b", 1, MS, 10)];
    let mut simulation = Simulation::new(settings, fair(EXCLUSIVE), programs);
    simulation.run(600 * S);
    assert!(simulation.min_max_ratio() > 0.75, "{:?}", shares(&simulation));
}

#[test]
fn a_newcomer_is_admitted_at_once_where_the_device_preempts() {
    for kernel in [5 * MS, 100 * MS, 500 * MS] {
        let small = Program { pause: 2 * MS, ..program("small", 9, 100 * US, 1) };
        let simulation = run(PREEMPTIVE, vec![small, program("long", 1, kernel, 4)], 20 * S);
        // The device gives it half while both have work: 200 us, and three threads wake up.
        assert!(simulation.latency(0, 99) < 400, "{kernel}: {} us", simulation.latency(0, 99));
        let had = shares(&simulation);
        assert!(had[1] > 0.9 * (1.0 - had[0]), "{kernel}: {had:?}");
        assert!(simulation.ended.is_empty());
    }
}

#[test]
fn a_higher_priority_waits_for_the_depth_of_a_lower_one() {
    for (kind, kernel) in [(EXCLUSIVE, 500 * US), (PREEMPTIVE, 500 * MS)] {
        let of = |priority| Share { priority, ..Share::default() };
        let high = Program { pause: 20 * MS, share: of(1), ..program("high", 1, MS, 1) };
        let low = Program { share: of(0), ..program("low", 1, kernel, 200) };
        let settings = Settings { latency: MS, ..settings(kind) };
        let discipline = Box::new(RoundRobin::by_priority(settings.quantum));
        let mut simulation = Simulation::new(settings, discipline, vec![high, low]);
        simulation.run(20 * S);
        // Its own millisecond, twice that where it is halved; the depth; and a kernel of the other.
        assert!(simulation.latency(0, 50) <= 2300, "{kind:?}: {} us", simulation.latency(0, 50));
        assert!(simulation.latency(0, 99) <= 2800, "{kind:?}: {} us", simulation.latency(0, 99));
        assert!(simulation.utilization() > 0.95, "{kind:?}: {}", simulation.utilization());
    }
}

#[test]
fn alone_costs_nothing_and_a_newcomer_waits_for_a_bounded_time() {
    for kind in [EXCLUSIVE, PREEMPTIVE] {
        let late = Program { from: 5 * S, pause: 100 * MS, ..program("late", 1, MS, 1) };
        let mut simulation = run(kind, vec![program("a", 1, 20 * US, 1000), late], 5 * S);
        assert!(simulation.utilization() > 0.99, "{}", simulation.utilization());
        let steps = simulation.steps;
        assert!(steps < 100, "the node sleeps while one is alone: {steps}");
        simulation.run(6 * S);
        assert!(simulation.latency(1, 100) < 30_000, "{kind:?}: {} us", simulation.latency(1, 100));
    }
}

#[test]
fn newcomer_waits_behind_work_of_unknown_length() {
    let late = Program { from: S, ..program("late", 1, 10 * US, 1) };
    let simulation = run(EXCLUSIVE, vec![program("a", 1, 15 * S, 1), late], 3 * S);
    let usage = simulation.arbiter.usage();
    assert_eq!(
        usage.iter().map(|usage| (usage.job.as_str(), usage.waiting)).collect::<Vec<_>>(),
        [("a", 0), ("late", 1)]
    );
}

#[test]
fn naps_are_made_up_for_and_sleep_is_not() {
    let naps = Program { pause: 3 * MS, ..program("naps", 1, 500 * US, 4) };
    let simulation = run(EXCLUSIVE, vec![naps, program("b", 1, 207 * US, 50)], 20 * S);
    assert!(simulation.utilization() > 0.97, "{}", simulation.utilization());
    // It sleeps for half of the time, then has half of the device, not more.
    let sleeper = Program { from: 5 * S, ..program("sleeper", 1, MS, 10) };
    let simulation = run(EXCLUSIVE, vec![program("a", 1, MS, 10), sleeper], 10 * S);
    assert!((shares(&simulation)[1] - 0.25).abs() < 0.01, "{:?}", shares(&simulation));
}

/// A turn that began while the other one paused is no longer than its part of a round once that is back.
#[test]
fn short_pauses_cost_little_share() {
    for (weight, batch, pause, least) in [(3, 10, 600 * US, 0.71), (3, 20, 3 * MS, 0.71), (1, 4, 600 * US, 0.47)] {
        let pauses = Program { pause, ..program("pauses", weight, 2 * MS, batch) };
        let simulation = run(PREEMPTIVE, vec![pauses, program("works", 1, 2 * MS, 40)], 20 * S);
        let had = shares(&simulation);
        assert!(had[0] > least && had[0] + had[1] > 0.99, "{weight} {batch} {pause}: {had:?}");
    }
}

#[test]
fn a_cap_holds_also_for_a_job_that_is_alone() {
    for kind in [EXCLUSIVE, PREEMPTIVE] {
        for kernel in [20 * US, 200 * US, 5 * MS] {
            let share = Share { cap: Some(300), ..Share::default() };
            let mut simulation = run(kind, vec![Program { share, ..program("a", 1, kernel, 50) }], 2 * S);
            let before = simulation.used()[0];
            simulation.run(12 * S);
            let had = (simulation.used()[0] - before) as f64 / (10 * S) as f64;
            assert!(
                (0.285..=0.303).contains(&had),
                "{kind:?} {kernel}: {had} {:?} {}",
                simulation.charged(),
                simulation.steps
            );
            simulation.set_share("a", Share::default());
            let before = simulation.used()[0];
            simulation.run(22 * S);
            let had = (simulation.used()[0] - before) as f64 / (10 * S) as f64;
            assert!(had > 0.96, "{kind:?} {kernel}: without it {had}");
        }
    }
}

#[test]
fn an_api_server_that_lies_gains_a_bounded_time() {
    for kind in [EXCLUSIVE, PREEMPTIVE] {
        for lies in [Lie::Nothing, Lie::Waits] {
            let liar = Program { lies, ..program("liar", 1, 500 * US, 20) };
            let simulation = run(kind, vec![liar, program("b", 1, 500 * US, 20)], 20 * S);
            // The time for which the other one waited is paid for, three quarters of it.
            let had = shares(&simulation);
            assert!(had[1] > 0.41, "{kind:?} {lies:?}: {had:?}");
        }
    }
}

#[test]
fn reports_that_contradict_each_other_gain_nothing_under_any_discipline() {
    for kind in [EXCLUSIVE, PREEMPTIVE] {
        let quantum = settings(kind).quantum;
        let disciplines: [fn(u64) -> Box<dyn Discipline>; 8] = [
            |quantum| Box::new(Fair::new(quantum)),
            |quantum| Box::new(Fair::in_rounds(quantum)),
            |quantum| Box::new(Wfq::polling(quantum)),
            |quantum| Box::new(Wfq::adaptive(quantum)),
            |quantum| Box::new(RoundRobin::equal(quantum)),
            |quantum| Box::new(RoundRobin::weighted(quantum)),
            |quantum| Box::new(RoundRobin::by_priority(quantum)),
            |quantum| Box::new(Credit::new(quantum, false)),
        ];
        for (number, discipline) in disciplines.iter().enumerate() {
            for (kernel, batch) in [(500 * US, 20), (1605 * US, 1), (207 * US, 50)] {
                let had = |lies| {
                    let first = Program { lies, ..program("first", 1, kernel, batch) };
                    let programs = vec![first, program("b", 1, kernel, batch)];
                    let mut simulation = Simulation::new(settings(kind), discipline(quantum), programs);
                    simulation.run(20 * S);
                    shares(&simulation)
                };
                let (honest, beside) = (had(Lie::No), had(Lie::Flickers));
                let told = format!("{kind:?} {number} {kernel} {batch}: {honest:?} {beside:?}");
                assert!(beside[1] > 0.95 * honest[1], "{told}");
            }
        }
    }
}

#[test]
fn sessions_of_a_job_may_wait_for_each_other() {
    for kind in [EXCLUSIVE, PREEMPTIVE] {
        for beside_another in [false, true] {
            let waits = Program { waits_for: Some((1, 3)), batches: 1, ..program("job", 1, 0, 2) };
            let other = Program { from: S, batches: 3, ..program("job", 1, MS, 1) };
            let mut programs = vec![waits, other];
            if beside_another {
                programs.push(program("another", 1, 500 * US, 20));
            }
            let simulation = run(kind, programs, 20 * S);
            assert!(simulation.ended.is_empty(), "{kind:?}, beside another: {beside_another}");
            let over = [0, 1].map(|id| simulation.is_over(id));
            assert_eq!(over, [true; 2], "{kind:?}, beside another: {beside_another} {simulation:?}");
        }
    }
}

#[test]
fn a_session_that_keeps_the_device_from_others_is_ended() {
    let hangs = || program("hangs", 1, 3600 * S, 1);
    let simulation = run(EXCLUSIVE, vec![hangs(), program("b", 1, MS, 1)], 20 * S);
    assert_eq!(simulation.ended, [0]);
    assert!(shares(&simulation)[1] > 0.7, "{:?}", shares(&simulation));
    let simulation = run(EXCLUSIVE, vec![hangs()], 60 * S);
    assert!(simulation.ended.is_empty(), "but not while it is alone");
    let simulation = run(PREEMPTIVE, vec![hangs(), program("b", 1, MS, 1)], 60 * S);
    assert!(simulation.ended.is_empty(), "nor while others get on");
    let simulation = run(PREEMPTIVE, vec![hangs(), Program { job: "too", from: S, ..hangs() }], 20 * S);
    assert_eq!(simulation.ended, [0], "the first of two that stand still");
}

#[test]
fn idle_tenants_cost_nothing() {
    let programs = || vec![program("a", 1, 207 * US, 1), program("b", 1, 207 * US, 1)];
    let few = run(EXCLUSIVE, programs(), S);
    const NAMES: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
    let idle = NAMES.map(|job| Program { batches: 1, ..program(job, 1, US, 1) });
    let many = run(EXCLUSIVE, programs().into_iter().chain(idle).collect(), S);
    assert!(many.steps < few.steps + 100, "{} {}", many.steps, few.steps);
}

#[test]
fn stopped_api_server_is_passed_over() {
    for kind in [EXCLUSIVE, PREEMPTIVE] {
        for wanted in [false, true] {
            let stops = Program { lies: if wanted { Lie::Wants } else { Lie::Waits }, ..program("stops", 1, MS, 1) };
            let simulation = run(kind, vec![stops, program("b", 1, 500 * US, 20)], 20 * S);
            assert!(shares(&simulation)[1] > 0.95, "{kind:?} {wanted}: {:?}", shares(&simulation));
            assert!(simulation.ended.is_empty());
        }
    }
}

#[test]
fn program_that_is_entitled_waits_for_no_node() {
    // The node's thread is slow; the small program does not notice.
    for kernel in [5 * MS, 500 * MS] {
        let small = Program { pause: 2 * MS, ..program("small", 9, 100 * US, 1) };
        let mut simulation =
            Simulation::new(settings(PREEMPTIVE), fair(PREEMPTIVE), vec![small, program("long", 1, kernel, 4)]);
        simulation.node_delay = 500 * US;
        simulation.run(20 * S);
        assert!(simulation.latency(0, 99) < 400, "{kernel}: {} us", simulation.latency(0, 99));
    }
}

#[test]
fn newcomers_take_little_from_a_job_that_was_alone() {
    for kind in [EXCLUSIVE, PREEMPTIVE] {
        let newcomer = |job, weight| Program { from: S, ..program(job, weight, 500 * US, 50) };
        let programs = vec![program("a", 3, 500 * US, 50), newcomer("b", 1), newcomer("c", 2)];
        let mut simulation = run(kind, programs, S);
        let before = simulation.used()[0];
        simulation.run(2 * S);
        let had = (simulation.used()[0] - before) as f64 / S as f64;
        assert!((0.45..0.55).contains(&had), "{kind:?}: {had}");
    }
}

/// Four tenants of 30 GB on 80 GB that always work, in turns of a second: shares within 3%, and almost the throughput of a device that
/// has room for all.
#[test]
fn tenants_with_more_memory_than_the_device_share_it() {
    const GB: u64 = 1_000_000_000;
    for (kind, weights) in [(EXCLUSIVE, [1; 4]), (PREEMPTIVE, [1; 4]), (PREEMPTIVE, [2, 1, 1, 1])] {
        let tenants: Vec<(&str, u32)> = ["a", "b", "c", "d"].into_iter().zip(weights).collect();
        let run = |memory: u64| {
            let settings = Settings { quantum: S, ..settings(kind) };
            let programs = tenants.iter().map(|(job, weight)| program(job, *weight, 5 * MS, 10)).collect();
            let mut simulation = Simulation::new(settings, Box::new(Fair::new(S)), programs);
            simulation.memory = Some(Memory::new(&tenants, 30 * GB, memory));
            simulation.run(400 * S);
            simulation
        };
        let (small, large) = (run(80 * GB), run(120 * GB));
        let exchanges = |simulation: &Simulation| simulation.memory.as_ref().map_or(0, |memory| memory.exchanges);
        let told = format!("{kind:?} {weights:?}: {:?}, {} exchanges", shares(&small), exchanges(&small));
        assert!(exchanges(&small) > 100 && exchanges(&large) == 0, "{told}");
        assert!(small.min_max_ratio() > if weights == [1; 4] { 0.97 } else { 0.95 }, "{told}");
        assert!(small.utilization() > 0.85 * large.utilization(), "{told}");
    }
}
