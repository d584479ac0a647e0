//! Objects with bytes changed at random: accepted or refused, never a crash; an accepted one
//! behaves alike in both engines.

use aviary_policy::{Context, Policy};
use std::path::Path;

fn objects() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds/object");
    std::fs::read_dir(folder).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect()
}

#[test]
fn changed_objects_do_no_harm() {
    let rounds: usize =
        std::env::var("AVIARY_POLICY_MUTATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(20_000);
    let objects = objects();
    assert!(objects.len() >= 5);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as usize % below
    };
    let mut accepted = 0;
    for _ in 0..rounds {
        let mut object = objects[random(objects.len())].clone();
        for _ in 0..1 + random(3) {
            // Mostly in the code and shortly behind it.
            let at = if random(3) == 0 { random(object.len()) } else { 64 + random(512.min(object.len() - 64)) };
            object[at] = match random(3) {
                0 => object[at] ^ 1 << random(8),
                1 => random(256) as u8,
                _ => [0, 1, 0xff, 0x7f, 0x80][random(5)],
            };
        }
        let (Ok(machine), Ok(interpreted)) = (Policy::from_object(&object), Policy::from_object(&object)) else {
            continue;
        };
        accepted += 1;
        let interpreted = interpreted.interpreted();
        for edge in [0, 3, 1 << 32, u64::MAX] {
            let context =
                Context { tenant: edge, session: edge, weight: edge, queued: edge, now_ns: edge, ..Context::default() };
            machine.consume(&context);
            interpreted.consume(&context);
            assert_eq!(machine.schedule(&context), interpreted.schedule(&context));
        }
    }
    println!("{accepted} of {rounds} accepted");
    assert!(accepted > rounds / 50 && accepted < rounds, "{accepted} of {rounds} accepted");
}
