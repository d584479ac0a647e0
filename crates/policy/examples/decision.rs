//! Measures the cost of a decision: `decision POLICY.c...`, one line per figure.

use aviary_policy::{Context, Policy, PolicySlot, resource_id};
use std::hint::black_box;
use std::time::Instant;

const DECISIONS: u32 = 200_000;
const ROUNDS: usize = 15;

/// The median of the rounds, in nanoseconds for one decision.
fn measure(mut decide: impl FnMut(&Context)) -> f64 {
    let mut context = Context { weight: 1, device: 1, ..Context::default() };
    context.add(resource_id("kernel_calls"), 1);
    context.add(resource_id("device_time"), 1000);
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begin = Instant::now();
            for decision in 0..DECISIONS {
                context.tenant = u64::from(decision % 64) + 1;
                context.now_ns += 1000;
                decide(black_box(&context));
            }
            begin.elapsed().as_nanos() as f64 / f64::from(DECISIONS)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

fn main() -> Result<(), aviary_policy::PolicyError> {
    for path in std::env::args().skip(1) {
        let name = std::path::Path::new(&path).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let begin = Instant::now();
        let object = Policy::object(&path)?;
        println!("{name}.compile_ms {:.3}", begin.elapsed().as_secs_f64() * 1e3);
        let begin = Instant::now();
        let policy = Policy::from_object(&object)?;
        println!("{name}.verify_ms {:.3}", begin.elapsed().as_secs_f64() * 1e3);
        println!("{name}.schedule_ns {:.1}", measure(|context| _ = black_box(policy.schedule(context))));
        println!("{name}.consume_ns {:.1}", measure(|context| policy.consume(context)));
        let slot = PolicySlot::new(policy);
        println!("{name}.slot_schedule_ns {:.1}", measure(|context| _ = black_box(slot.schedule(context))));
        let policy = Policy::from_object(&object)?.interpreted();
        println!("{name}.interpreted_schedule_ns {:.1}", measure(|context| _ = black_box(policy.schedule(context))));
    }
    Ok(())
}
