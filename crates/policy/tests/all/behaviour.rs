//! The policies of `policies/` on a simulated device, one command at a time, chosen by the policy:
//! each must keep the promise of its first lines.

use aviary_policy::{Context, HOLD, Policy, PolicySlot, resource_id};
use std::path::Path;

fn load(name: &str) -> Policy {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../policies").join(name);
    Policy::load(&path).unwrap_or_else(|error| panic!("{error}"))
}

#[derive(Clone, Copy)]
struct Tenant {
    weight: u64,
    priority: u64,
    /// Device time of one of the tenant's commands, in ns.
    cost: u64,
    /// Time in ns from which the tenant always has commands.
    from: u64,
    used: u64,
    waiting_since: u64,
    longest_wait: u64,
    commands: u64,
}

fn tenant(weight: u64, priority: u64, cost: u64) -> Tenant {
    Tenant { weight, priority, cost, from: 0, used: 0, waiting_since: 1, longest_wait: 0, commands: 0 }
}

const MS: u64 = 1_000_000;

/// Runs the tenants' commands for `duration`; returns the time that the device was idle, both in
/// ns.
fn simulate(policy: &Policy, tenants: &mut [Tenant], duration: u64) -> u64 {
    let (mut now, mut idle) = (1, 0);
    while now < duration {
        let context = |number: usize, tenant: &Tenant, now: u64| Context {
            tenant: number as u64 + 1,
            session: number as u64 + 1,
            weight: tenant.weight,
            priority: tenant.priority,
            now_ns: now,
            device_time_ns: tenant.used,
            waiting_since_ns: tenant.waiting_since.max(tenant.from),
            expected_ns: tenant.cost,
            queued: 1,
            ..Context::default()
        };
        let ready = tenants.iter().enumerate().filter(|(_, tenant)| tenant.from <= now);
        let best = ready
            .map(|(number, tenant)| (policy.schedule(&context(number, tenant, now)), number))
            .filter(|(answer, _)| *answer != HOLD)
            // Among equals, the one that has waited longest.
            .max_by_key(|(answer, number)| (*answer, u64::MAX - tenants[*number].waiting_since));
        let Some((_, chosen)) = best else {
            now += MS / 10;
            idle += MS / 10;
            continue;
        };
        let cost = tenants[chosen].cost;
        let waited = now - tenants[chosen].waiting_since.max(tenants[chosen].from);
        now += cost;
        let mut report = context(chosen, &tenants[chosen], now);
        report.add(resource_id("device_time"), cost);
        report.add(resource_id("kernel_calls"), 1);
        policy.consume(&report);
        let tenant = &mut tenants[chosen];
        tenant.used += cost;
        tenant.commands += 1;
        tenant.longest_wait = tenant.longest_wait.max(waited);
        tenant.waiting_since = now;
    }
    idle
}

fn near(value: f64, expected: f64, tolerance: f64) {
    assert!((value - expected).abs() <= tolerance * expected, "{value} is not {expected}");
}

#[test]
fn token_bucket_limits_the_rate() {
    // A quarter of the device for a unit of weight; one tenant could use all of it.
    let mut tenants = [tenant(1, 0, MS), tenant(2, 0, 2 * MS)];
    let duration = 4_000 * MS;
    let idle = simulate(&load("token_bucket.c"), &mut tenants, duration);
    near(tenants[0].used as f64, duration as f64 * 0.25, 0.02);
    near(tenants[1].used as f64, duration as f64 * 0.5, 0.02);
    near(idle as f64, duration as f64 * 0.25, 0.05);
}

#[test]
fn token_bucket_allows_a_burst_after_a_pause() {
    let policy = load("token_bucket.c");
    let mut context = Context { tenant: 1, weight: 1, now_ns: 10_000 * MS, ..Context::default() };
    let mut burst = 0;
    while policy.schedule(&context) != HOLD {
        let mut report = context;
        report.add(resource_id("device_time"), MS);
        policy.consume(&report);
        burst += 1;
        assert!(burst < 100);
    }
    assert_eq!(burst, 20, "20 ms of tokens");
    context.now_ns += 3 * MS;
    assert_eq!(policy.schedule(&context), 750_000);
}

#[test]
fn proportional_share_follows_the_weights_at_any_command_cost() {
    let mut tenants = [tenant(1, 0, 5 * MS), tenant(2, 0, MS), tenant(3, 0, MS / 3)];
    let duration = 6_000 * MS;
    assert_eq!(simulate(&load("proportional_share.c"), &mut tenants, duration), 0, "it is work-conserving");
    for (tenant, part) in tenants.iter().zip([1.0, 2.0, 3.0]) {
        near(tenant.used as f64, duration as f64 * part / 6.0, 0.01);
    }
}

#[test]
fn proportional_share_gives_no_credit_for_absence() {
    let mut tenants = [tenant(1, 0, MS), tenant(1, 0, MS)];
    tenants[1].from = 2_000 * MS;
    simulate(&load("proportional_share.c"), &mut tenants, 4_000 * MS);
    near(tenants[1].used as f64, 1_000.0 * MS as f64, 0.01);
    near(tenants[0].used as f64, 3_000.0 * MS as f64, 0.01);
}

#[test]
fn aging_prevents_starvation_and_priority_still_counts() {
    let mut tenants = [tenant(1, 0, MS), tenant(1, 8, MS), tenant(1, 8, MS)];
    simulate(&load("priority_aging.c"), &mut tenants, 4_000 * MS);
    // 8 steps of 10 ms, and the command in flight.
    assert!(tenants[0].longest_wait <= 83 * MS, "waited {} ms", tenants[0].longest_wait / MS);
    assert!(tenants[0].commands >= 40, "{} commands", tenants[0].commands);
    assert!(tenants[1].commands > 30 * tenants[0].commands, "{} commands", tenants[1].commands);
}

#[test]
fn deadlines_are_met_while_the_load_allows() {
    // Deadlines after 64, 8 and 2 ms.
    let mut tenants = [tenant(1, 0, MS), tenant(1, 3, MS / 4), tenant(1, 5, MS / 4)];
    simulate(&load("deadline.c"), &mut tenants, 4_000 * MS);
    for (tenant, period) in tenants.iter().zip([64, 8, 2]) {
        assert!(tenant.longest_wait <= (period + 1) * MS, "waited {} us", tenant.longest_wait / 1000);
        assert!(tenant.commands > 30, "{} commands", tenant.commands);
    }
}

#[test]
fn figure_7_shares_commands_by_weight() {
    let policy = load("figure7.c");
    let mut tenants = [tenant(1, 0, MS), tenant(3, 0, MS)];
    simulate(&policy, &mut tenants, 4_000 * MS);
    near(tenants[0].commands as f64, 1_000.0, 0.02);
    near(tenants[1].commands as f64, 3_000.0, 0.02);
    assert_eq!(policy.entry("cmd_cnt", 1, 0), Some(vec![tenants[0].commands + tenants[1].commands]));
    assert_eq!(policy.entry("priority", 1, 0), Some(vec![4]));
}

#[test]
fn answers_are_the_same_without_machine_code() {
    for name in ["token_bucket.c", "proportional_share.c", "priority_aging.c", "deadline.c", "figure7.c"] {
        let run = |policy: Policy| {
            let mut tenants = [tenant(1, 0, MS), tenant(2, 3, MS / 2), tenant(5, 1, MS / 7)];
            simulate(&policy, &mut tenants, 300 * MS);
            tenants.map(|tenant| (tenant.used, tenant.longest_wait))
        };
        assert_eq!(run(load(name)), run(load(name).interpreted()), "{name}");
    }
}

#[test]
fn negative_int_is_negative() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("int.c");
    let source = "#include \"aviary_policy.h\"\nint schedule(__sk_buff *skb) { return -(int)skb->priority; }\n";
    std::fs::write(&path, source).unwrap();
    let context = Context { tenant: 1, priority: 3, ..Context::default() };
    assert_eq!(Policy::load(&path).unwrap().schedule(&context), -3);
}

#[test]
fn resources_have_the_numbers_that_the_header_computes() {
    for name in ["kernel_calls", "device_time", "a", "a_name_that_is_longer_than_32_bytes_in_all"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("id.c");
        let source = format!(
            "#include \"aviary_policy.h\"\ns64 schedule(__sk_buff *skb) {{ return ava_get_rc_id(\"{name}\"); }}\n"
        );
        std::fs::write(&path, source).unwrap();
        assert_eq!(Policy::load(&path).unwrap().schedule(&Context::default()), i64::from(resource_id(name)), "{name}");
    }
}

#[test]
fn per_tenant_entries_end_with_the_tenant() {
    let policy = load("token_bucket.c");
    let mut report = Context { tenant: 9, weight: 1, now_ns: MS, ..Context::default() };
    report.add(resource_id("device_time"), 50 * MS);
    policy.consume(&report);
    assert_eq!(policy.schedule(&Context { tenant: 9, weight: 1, now_ns: MS, ..Context::default() }), HOLD);
    policy.forget(9);
    assert_ne!(policy.schedule(&Context { tenant: 9, weight: 1, now_ns: MS, ..Context::default() }), HOLD);
}

/// Several threads report while policies are replaced: no report is lost, no decision waits long.
#[test]
fn policy_is_replaced_under_load() {
    let object = Policy::object(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../policies/figure7.c")).unwrap();
    let slot = PolicySlot::new(Policy::from_object(&object).unwrap());
    const THREADS: u64 = 4;
    const REPORTS: u64 = 100_000;
    const SWAPS: u64 = 200;
    std::thread::scope(|scope| {
        for number in 1..=THREADS {
            let slot = &slot;
            scope.spawn(move || {
                let mut context = Context { tenant: number, weight: number, ..Context::default() };
                context.add(resource_id("kernel_calls"), 1);
                for _ in 0..REPORTS {
                    slot.consume(&context);
                    let answer = slot.schedule(&context);
                    assert!(answer == 0 || answer == 1);
                }
            });
        }
        scope.spawn(|| {
            for swap in 0..SWAPS {
                let next = Policy::from_object(&object).unwrap();
                slot.swap(if swap % 2 == 0 { next } else { next.interpreted() });
            }
        });
    });
    assert_eq!(slot.entry("cmd_cnt", 1, 0), Some(vec![THREADS * REPORTS]));
    // A map with another declaration starts empty.
    slot.swap(load("token_bucket.c"));
    assert_eq!(slot.entry("cmd_cnt", 1, 0), None);
}
