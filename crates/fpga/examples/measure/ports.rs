//! The hardware without turns: added latency, throughput, copies at several ports, neighbours, weights and the rate limit.

use std::collections::VecDeque;

use aviary_card::{Board, Monitor, Simulated};

use crate::common::sharing::{bypass_cycles_per_node, cycles_per_node, lines_read, read_for_ever, walk};
use crate::common::{self, Client, attach, run};
use crate::load::{Load, MIB, WARM_UP, bypass, eight, generated, names};
use crate::{Measured, spread, tell};

const NODES: u64 = 512;

/// Cycles per node of one LL among eight ports.
fn behind(card: Option<Simulated>) -> Option<f64> {
    let mut card = card?;
    walk(&mut card, 0, NODES);
    let time = cycles_per_node(&mut card, 0, NODES);
    assert_eq!(card.escaped(), 0);
    Some(time)
}

/// Line 3, Figure 4a: cycles that the monitor adds to a read.
pub fn latency(_quick: bool) -> Measured {
    let mut added = Vec::new();
    for latency in [100, 200, 300, 400] {
        let direct = bypass_cycles_per_node(latency, NODES)?;
        let behind = behind(common::card_with("ll8", |model| model.read_latency = latency))?;
        added.push(behind - direct);
        tell(&format!("fpga.ll.added_cycles.{latency}"), behind - direct);
    }
    tell("fpga.ll.added_cycles", added.into_iter().fold(f64::MIN, f64::max));
    let direct = bypass_cycles_per_node(100, NODES)?;
    for arity in [4, 8] {
        let image = generated(&format!("ll8-arity{arity}"), "ll*8", &format!("arity = {arity}"));
        tell(&format!("fpga.ll.added_cycles.arity{arity}"), behind(image)? - direct);
    }
    Some(())
}

/// Copies of one accelerator at the first ports of eight.
struct Copies {
    /// Work per cycle of each.
    rates: Vec<f64>,
    /// Lines per cycle of all, read and written.
    lines: [f64; 2],
    /// Of requests, per cycle.
    translations: f64,
}

fn at_ports(name: &str, ports: usize, cycles: u64) -> Option<Copies> {
    let mut card = eight(name)?;
    let load = Load::of(&card, 0);
    (0..ports).for_each(|port| load.begin(&mut card, port, port as u64));
    run(&mut card, WARM_UP);
    let (began, before) = (card.now(), card.statistics());
    let rates = load.rates(&mut card, 0..ports, cycles);
    let (took, after) = ((card.now() - began) as f64, card.statistics());
    assert_eq!(card.escaped(), 0);
    let lines = [after.lines_read - before.lines_read, after.lines_written - before.lines_written];
    let translations = (after.tlb_hits + after.tlb_misses - before.tlb_hits - before.tlb_misses) as f64 / took;
    Some(Copies { rates, lines: lines.map(|lines| lines as f64 / took), translations })
}

/// Lines 3, 4 and 6; Figures 4b, 5 to 7, Table 3: throughput against the build without a monitor, and of 1 to 8 copies.
pub fn copies(quick: bool) -> Measured {
    let cycles = if quick { 100_000 } else { 400_000 };
    for name in names()? {
        let alone = at_ports(&name, 1, cycles)?;
        let own = alone.rates[0];
        if name != "ll" {
            let mut card = bypass(&name)?;
            let load = Load::of(&card, 0);
            load.begin(&mut card, 0, 0);
            run(&mut card, WARM_UP);
            let direct = load.rates(&mut card, 0..1, cycles)[0];
            tell(&format!("fpga.{name}.vs_passthrough"), own / direct);
        }
        // Copies that the link carries at their own speed: so many lines per cycle each way, and one translation per cycle.
        let model = common::card("pair")?.description().model;
        let [read, written] = alone.lines;
        let carried = (model.lines_per_1000_cycles as f64 / 1000.0 / read.max(written)).min(1.0 / alone.translations);
        let mut worst: f64 = 0.0;
        for ports in [1, 2, 4, 8] {
            let copies = if ports == 1 { &alone } else { &at_ports(&name, ports, cycles)? };
            let scale = copies.rates.iter().sum::<f64>() / own;
            tell(&format!("fpga.{name}.scale.{ports}"), scale);
            worst = worst.max((scale / carried.min(ports as f64) - 1.0).abs());
            if ports == 8 {
                tell(&format!("fpga.{name}.fair"), spread(&copies.rates));
                if name == "ll" {
                    let slowest = copies.rates.iter().copied().fold(f64::MAX, f64::min);
                    tell("fpga.ll.latency.8", own / slowest);
                }
            }
        }
        tell(&format!("fpga.{name}.scale_error"), worst);
    }
    Some(())
}

/// Line 6, Table 4: MB beside each accelerator, against alone.
pub fn colocated(quick: bool) -> Measured {
    let cycles = if quick { 50_000 } else { 200_000 };
    let beside = |neighbour: Option<usize>| {
        let mut card = common::card("all")?;
        let mb = card.description().ports.iter().position(|port| port.name == "mb")?;
        let load = Load::of(&card, mb);
        load.begin(&mut card, mb, 0);
        if let Some(port) = neighbour {
            let other = Load::of(&card, port);
            other.begin(&mut card, port, 1);
        }
        run(&mut card, WARM_UP);
        let rate = load.rates(&mut card, mb..mb + 1, cycles)[0];
        if let Some(port) = neighbour {
            assert_eq!(Monitor(&mut card).job(port), aviary_card::monitor::JobState::Running, "port {port}");
        }
        assert_eq!(card.escaped(), 0);
        Some(rate)
    };
    let alone = beside(None)?;
    for name in names()? {
        let rate = if name == "mb" { pair_of_mb(cycles)? } else { beside(port_of(&name)?)? / alone };
        tell(&format!("fpga.{name}.colocated"), rate);
    }
    Some(())
}

fn port_of(name: &str) -> Option<Option<usize>> {
    let card = common::card("all")?;
    Some(card.description().ports.iter().position(|port| port.name == name))
}

/// MB beside a second MB, against alone: `all` has only one.
fn pair_of_mb(cycles: u64) -> Option<f64> {
    Some(at_ports("mb", 2, cycles)?.rates[0] / at_ports("mb", 1, cycles)?.rates[0])
}

/// Line 6: weights 1:2:3:4 of ports, the largest relative error of a share; lines above a rate limit in any 1,024 cycles.
pub fn weights(quick: bool) -> Measured {
    let cycles = if quick { 100_000 } else { 1_000_000 };
    let mut card = common::card("weighted4")?;
    for port in 0..4 {
        attach(&mut card, port, port as u64, &Client::new(2 * MIB));
        Monitor(&mut card).set_weight(port, port as u8 + 1);
    }
    (0..4).for_each(|port| read_for_ever(&mut card, port, 0x7fff, 1));
    run(&mut card, WARM_UP);
    let lines = lines_read(&mut card, 4, cycles);
    let all = lines.iter().sum::<u64>() as f64;
    let errors = lines.iter().zip(1..).map(|(lines, due)| (*lines as f64 / all * 10.0 / f64::from(due) - 1.0).abs());
    tell("fpga.weights_error", errors.fold(0.0, f64::max));
    assert_eq!(card.escaped(), 0);

    let mut excess = i64::MIN;
    for rate in [1, 100, 511] {
        excess = excess.max(most_in_1024_cycles(rate, cycles / 4)? as i64 - i64::from(rate));
    }
    tell("fpga.rate_excess", excess as f64);
    Some(())
}

/// The most lines in any 1,024 cycles of an MB with bursts of four lines and this limit.
fn most_in_1024_cycles(rate: u16, cycles: u64) -> Option<u64> {
    let mut card = common::card("mb8")?;
    attach(&mut card, 0, 0, &Client::new(2 * MIB));
    Monitor(&mut card).set_rate(0, rate);
    let registers = [
        (common::MB_BASE, common::GUEST),
        (common::MB_MASK, 0x7fff),
        (common::MB_STRIDE, 4),
        (common::MB_MODE, common::MB_READS | 3),
    ];
    common::start(&mut card, 0, &registers);
    let mut window = VecDeque::from([card.statistics().lines_read]);
    let mut most = 0;
    for _ in 0..cycles {
        run(&mut card, 1);
        let lines = card.statistics().lines_read;
        window.push_back(lines);
        if window.len() > 1025 {
            window.pop_front();
        }
        most = most.max(lines - window[0]);
    }
    Some(most)
}
