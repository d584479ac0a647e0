//! Any bytes are a policy or are refused; an accepted policy runs without a fault, with equal
//! results interpreted and as machine code.

use aviary_policy::{Context, Policy};

pub fn run(bytes: &[u8]) {
    let (Ok(machine), Ok(interpreted)) = (Policy::from_object(bytes), Policy::from_object(bytes)) else { return };
    let interpreted = interpreted.interpreted();
    for number in 0..8u64 {
        let edge = [0, 1, 7, 16, 1 << 31, 1 << 32, 1 << 63, u64::MAX][number as usize];
        let context =
            Context { tenant: number, session: edge, weight: edge, queued: edge, now_ns: edge, ..Context::default() };
        machine.consume(&context);
        interpreted.consume(&context);
        assert_eq!(machine.schedule(&context), interpreted.schedule(&context));
    }
}
