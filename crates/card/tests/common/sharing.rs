//! Loads and figures of accelerators that share a simulated card, for tests and measurements. All numbers are device cycles.

use super::*;

const MIB: u64 = 1 << 20;

/// Starts an MB without end at a port.
pub fn read_for_ever(card: &mut Simulated, port: usize, mask: u64, stride: u64) {
    let registers = [(MB_BASE, GUEST), (MB_MASK, mask), (MB_STRIDE, stride), (MB_MODE, MB_READS)];
    start(card, port, &registers);
}

/// Lines that each port reads within some cycles.
pub fn lines_read(card: &mut Simulated, ports: usize, cycles: u64) -> Vec<u64> {
    let read =
        |card: &mut Simulated| (0..ports).map(|port| Monitor(card).counters(port).lines_read).collect::<Vec<_>>();
    let before = read(card);
    run(card, cycles);
    read(card).iter().zip(before).map(|(after, before)| after - before).collect()
}

/// Cycles per node of an LL that is the first job of its port.
pub fn cycles_per_node(card: &mut Simulated, port: usize, nodes: u64) -> f64 {
    assert_eq!(wait(card, port, nodes * 1000), JobState::Done);
    Monitor(card).counters(port).cycles as f64 / nodes as f64
}

pub fn walk(card: &mut Simulated, port: usize, nodes: u64) {
    let client = Client::new(2 * MIB);
    let (head, _) = client.list(nodes, 2 * MIB);
    attach(card, port, port as u64, &client);
    start(card, port, &[(LL_HEAD, head)]);
}

/// Cycles per node through the pass-through build, whose accelerator uses IO virtual addresses.
pub fn bypass_cycles_per_node(latency: u64, nodes: u64) -> Option<f64> {
    let mut card = card_with("ll1-bypass", |model| model.read_latency = latency)?;
    let client = Client::new(2 * MIB);
    let (head, _) = client.list(nodes, 2 * MIB);
    card.map(GUEST, &client.memory, 0, 2 * MIB, Rights::ReadWrite).unwrap();
    Monitor(&mut card).release(0);
    start(&mut card, 0, &[(LL_HEAD, head)]);
    // No counters without a monitor: the clock.
    let began = card.now();
    while card.advance(u64::MAX >> 1) == aviary_card::Stop::Elapsed {}
    Some((card.now() - began) as f64 / nodes as f64)
}

/// Lines per cycle of eight MB whose working sets of 128 MB lie at these IO virtual addresses.
pub fn eight_at(base: impl Fn(u64) -> u64) -> Option<f64> {
    let mut card = card("mb8")?;
    let client = Client::new(128 * MIB);
    for port in 0..8 {
        card.map(base(port), &client.memory, 0, 128 * MIB, Rights::Read).unwrap();
        place(&mut card, port as usize, base(port), 64 << 30);
        read_for_ever(&mut card, port as usize, 0x1f_ffff, GOLDEN);
    }
    run(&mut card, 50_000);
    let cycles = 200_000;
    let before = card.statistics().lines_read;
    run(&mut card, cycles);
    assert_eq!(card.escaped(), 0);
    Some((card.statistics().lines_read - before) as f64 / cycles as f64)
}
