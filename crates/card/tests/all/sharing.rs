//! Several accelerators on one simulated card: fairness, latency, the attackers `rogue` and `stuck`, and the shapes of the
//! IOTLB's model. All numbers are device cycles of the simulation.

use crate::common::sharing::*;
use crate::common::*;
use aviary_card::monitor::{Command, FaultKind, JobState};
use aviary_card::{Board, Monitor, Rights, Simulated};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

#[test]
fn tree_of_three_levels_adds_at_most_12_cycles_to_a_read() {
    for latency in [100, 400] {
        let nodes = 512;
        let Some(bypass) = bypass_cycles_per_node(latency, nodes) else { return };
        let Some(mut card) = card_with("ll8", |model| model.read_latency = latency) else { return };
        walk(&mut card, 0, nodes);
        let guarded = cycles_per_node(&mut card, 0, nodes);
        println!("base latency {latency}: {bypass:.2} cycles per node without a monitor, {guarded:.2} with one");
        assert!(guarded - bypass <= 12.0, "{bypass} {guarded}");
        assert!(guarded - bypass >= 5.0, "the comparison is broken: {bypass} {guarded}");
        assert_eq!(card.escaped(), 0);
    }
}

#[test]
fn eight_list_walkers_have_nearly_the_latency_of_one() {
    let nodes = 512;
    let Some(mut card) = crate::common::card("ll8") else { return };
    walk(&mut card, 0, nodes);
    let alone = cycles_per_node(&mut card, 0, nodes);
    let Some(mut card) = crate::common::card("ll8") else { return };
    for port in 0..8 {
        walk(&mut card, port, nodes);
    }
    let times: Vec<f64> = (0..8).map(|port| cycles_per_node(&mut card, port, nodes)).collect();
    println!("LL alone {alone:.2} cycles per node, eight at once {times:.2?}");
    assert!(times.iter().all(|time| *time <= 1.09 * alone), "{alone} {times:?}");
    assert_eq!(card.escaped(), 0);
}

#[test]
fn one_reader_behind_the_tree_has_the_throughput_of_pass_through() {
    let cycles = 50_000;
    let Some(mut bypass) = card("mb1-bypass") else { return };
    let client = Client::new(2 * MIB);
    bypass.map(GUEST, &client.memory, 0, 2 * MIB, Rights::ReadWrite).unwrap();
    Monitor(&mut bypass).release(0);
    read_for_ever(&mut bypass, 0, 0x7fff, GOLDEN);
    let direct = lines_read(&mut bypass, 1, cycles)[0];
    let Some(mut card) = card("mb8") else { return };
    attach(&mut card, 0, 0, &client);
    read_for_ever(&mut card, 0, 0x7fff, GOLDEN);
    let guarded = lines_read(&mut card, 1, cycles)[0];
    println!("MB: {direct} lines in {cycles} cycles without a monitor, {guarded} with one");
    assert!(guarded as f64 >= 0.99 * direct as f64);
}

#[test]
fn eight_readers_have_equal_shares_of_the_link() {
    let Some(mut card) = card("mb8") else { return };
    for port in 0..8 {
        let client = Client::new(16 * MIB);
        attach(&mut card, port, port as u64, &client);
        read_for_ever(&mut card, port, 0x3ffff, GOLDEN);
    }
    run(&mut card, 10_000);
    let lines = lines_read(&mut card, 8, 300_000);
    let (most, least) = (lines.iter().max().unwrap(), lines.iter().min().unwrap());
    let mean = lines.iter().sum::<u64>() as f64 / 8.0;
    println!("eight MB: {lines:?} lines, (max-min)/mean {:.6}", (most - least) as f64 / mean);
    assert!((most - least) as f64 <= 0.001 * mean, "{lines:?}");
    // The link carries 0.6 lines per cycle; reading the counters takes cycles, too.
    assert!(lines.iter().sum::<u64>() as f64 >= 0.96 * 0.6 * 300_000.0, "{lines:?}");
    assert_eq!(card.escaped(), 0);
}

#[test]
fn weights_divide_the_link() {
    let Some(mut card) = card("weighted4") else { return };
    for port in 0..4 {
        let client = Client::new(2 * MIB);
        attach(&mut card, port, port as u64, &client);
        Monitor(&mut card).set_weight(port, port as u8 + 1);
    }
    for port in 0..4 {
        read_for_ever(&mut card, port, 0x7fff, 1);
    }
    run(&mut card, 20_000);
    let lines = lines_read(&mut card, 4, 300_000);
    let all = lines.iter().sum::<u64>() as f64;
    println!("weights 1:2:3:4: {lines:?} lines");
    for (port, lines) in lines.iter().enumerate() {
        let (share, due) = (*lines as f64 / all, (port + 1) as f64 / 10.0);
        assert!((share - due).abs() <= 0.01 * due, "port {port}: {share} of {due}");
    }
    assert_eq!(card.escaped(), 0);
}

#[test]
fn weights_count_lines_and_not_requests() {
    let Some(mut card) = card("weighted4") else { return };
    for port in 0..2 {
        let client = Client::new(2 * MIB);
        attach(&mut card, port, port as u64, &client);
    }
    // One asks for four lines at a time, the other for one.
    let registers = [(MB_BASE, GUEST), (MB_MASK, 0x7fff), (MB_STRIDE, 4), (MB_MODE, MB_READS | 3)];
    start(&mut card, 0, &registers);
    read_for_ever(&mut card, 1, 0x7fff, 1);
    run(&mut card, 20_000);
    let lines = lines_read(&mut card, 2, 100_000);
    println!("bursts of four beside single lines, same weight: {lines:?} lines");
    assert!(lines[0].abs_diff(lines[1]) as f64 <= 0.01 * lines[0] as f64, "{lines:?}");
}

#[test]
fn rate_limit_is_not_exceeded() {
    let Some(mut card) = card("mb8") else { return };
    let client = Client::new(2 * MIB);
    attach(&mut card, 0, 0, &client);
    let rate = 100;
    Monitor(&mut card).set_rate(0, rate);
    read_for_ever(&mut card, 0, 0x7fff, 1);
    run(&mut card, 5000);
    for _ in 0..200 {
        let before = card.statistics().lines_read;
        run(&mut card, 1024);
        let read = card.statistics().lines_read - before;
        assert!(read <= u64::from(rate) + 4, "{read}");
        assert!(read + 4 >= u64::from(rate), "{read}");
    }
    Monitor(&mut card).set_rate(0, 0);
    run(&mut card, 5000);
    let before = card.statistics().lines_read;
    run(&mut card, 1024);
    assert!(card.statistics().lines_read - before > 500);
}

/// The first requests of `rogue`, as its generators make them: address, lines, write; in the order in which they are judged.
fn first_of_rogue() -> u64 {
    let mut a = 0x9e37_79b9_7f4a_7c15_u64;
    while a >> 60 & 1 == 0 {
        a ^= a << 13;
        a ^= a >> 7;
        a ^= a << 17;
    }
    (a & ((1 << 42) - 1)) * 64
}

#[test]
fn attackers_reach_nothing_and_delay_their_neighbours_no_more_than_an_honest_one() {
    // Ports: rogue, four LL, two MB, stuck.
    let nodes = 2000;
    let neighbours = |card: &mut Simulated| {
        for port in 1..5 {
            walk(card, port, nodes);
        }
    };
    let times = |card: &mut Simulated| (1..5).map(|port| cycles_per_node(card, port, nodes)).collect::<Vec<f64>>();

    let Some(mut honest) = card("rogue") else { return };
    neighbours(&mut honest);
    let client = Client::new(2 * MIB);
    attach(&mut honest, 5, 5, &client);
    read_for_ever(&mut honest, 5, 0x7fff, GOLDEN);
    let beside_honest = times(&mut honest);

    let Some(mut card) = card("rogue") else { return };
    neighbours(&mut card);
    let prey = Client::new(2 * MIB);
    prey.fill(5);
    let before = prey.bytes();
    attach(&mut card, 6, 6, &prey);
    // The attacker's own slice is small, and its neighbours' memory lies all around.
    let own = Client::new(2 * MIB);
    card.map(10 * SLICE_STRIDE, &own.memory, 0, 2 * MIB, Rights::ReadWrite).unwrap();
    place(&mut card, 0, 10 * SLICE_STRIDE, 2 * MIB);
    // `stuck` begins a burst and stops in its middle.
    let client = Client::new(2 * MIB);
    attach(&mut card, 7, 7, &client);
    start(&mut card, 7, &[(0x40, GUEST)]);
    let beside_rogue = times(&mut card);
    println!("LL beside an honest MB {beside_honest:.2?} cycles per node, beside rogue and stuck {beside_rogue:.2?}");
    for (honest, rogue) in beside_honest.iter().zip(&beside_rogue) {
        assert!(*rogue <= 1.1 * honest, "{beside_honest:?} {beside_rogue:?}");
    }
    run(&mut card, 500_000);
    assert!(prey.bytes() == before);
    assert_eq!(card.escaped(), 0, "{:?}", card.first_escape());
    let fault = Monitor(&mut card).fault(0).unwrap();
    assert_eq!((fault.address, fault.write), (first_of_rogue(), false), "{fault:?}");
    assert!(Monitor(&mut card).counters(0).refused > 10_000);
    assert!(Monitor(&mut card).counters(1).refused == 0);

    // The stuck one says "saving" for ever; a reset ends it, with its burst half collected, and the port is drained.
    Monitor(&mut card).command(7, Command::Pause).unwrap();
    run(&mut card, 20_000);
    assert_eq!(Monitor(&mut card).job(7), JobState::Saving);
    detach(&mut card, 7);
    detach(&mut card, 0);
    assert_eq!(client.get(0), 0);
    Monitor(&mut card).set_slice(7, GUEST, 0, 4096).unwrap();
    assert_eq!(card.escaped(), 0);
}

/// Owners take turns at one port, and each leaves with requests under way. The one that is away finds its memory untouched.
fn take_turns(turns: u64) {
    let Some(mut card) = card("mb8") else { return };
    let clients: Vec<Client> = (0..2).map(|_| Client::new(2 * MIB)).collect();
    for (number, client) in clients.iter().enumerate() {
        card.map(number as u64 * SLICE_STRIDE, &client.memory, 0, 2 * MIB, Rights::ReadWrite).unwrap();
    }
    for turn in 0..turns {
        let owner = turn % 2;
        let away = &clients[1 - owner as usize];
        away.put(0, &[turn; 1024]);
        place(&mut card, 0, owner * SLICE_STRIDE, 2 * MIB);
        let registers = [
            (MB_BASE, GUEST),
            (MB_TARGET, GUEST),
            (MB_MASK, 0x7f),
            (MB_STRIDE, 1),
            (MB_MODE, MB_READS | MB_WRITES | (3 * (turn / 2 % 2))),
        ];
        start(&mut card, 0, &registers);
        run(&mut card, 100 + turn % 500);
        detach(&mut card, 0);
        assert!((0..1024).all(|word| away.get(word * 8) == turn), "turn {turn}");
    }
    assert_eq!(card.escaped(), 0);
    assert_eq!(Monitor(&mut card).counters(0).refused, 0);
}

#[test]
fn reset_in_the_middle_of_traffic_leaks_nothing_into_the_next_slice() {
    take_turns(200);
}

#[test]
#[ignore = "takes minutes: 10,000 resets; the test above makes 200"]
fn ten_thousand_resets_in_the_middle_of_traffic_leak_nothing() {
    take_turns(10_000);
}

#[test]
#[ignore = "takes minutes: 5 million cycles of eight accelerators"]
fn attacker_beside_seven_list_walkers_reaches_nothing_in_five_million_cycles() {
    let Some(mut card) = card("rogue7") else { return };
    let nodes = 30_000;
    for port in 1..8 {
        walk(&mut card, port, nodes);
    }
    let own = Client::new(2 * MIB);
    card.map(10 * SLICE_STRIDE, &own.memory, 0, 2 * MIB, Rights::ReadWrite).unwrap();
    place(&mut card, 0, 10 * SLICE_STRIDE, 2 * MIB);
    let times: Vec<f64> = (1..8).map(|port| cycles_per_node(&mut card, port, nodes)).collect();
    let rest = 5_000_000_u64.saturating_sub(card.now());
    run(&mut card, rest);
    let refused = Monitor(&mut card).counters(0).refused;
    println!("seven LL beside rogue: {times:.2?} cycles per node; {refused} requests refused in {} cycles", card.now());
    assert!(times.iter().all(|time| *time <= 1.1 * 114.3), "{times:?}");
    assert_eq!(Monitor(&mut card).fault(0).unwrap().address, first_of_rogue());
    assert_eq!(card.escaped(), 0, "{:?}", card.first_escape());
}

#[test]
fn gap_between_slices_keeps_them_from_evicting_each_other() {
    let Some(without) = eight_at(|port| port * 64 * GIB) else { return };
    let Some(with) = eight_at(|port| port * 65 * GIB + port * GIB / 8) else { return };
    println!(
        "eight MB in 128 MB each: {without:.3} lines per cycle without a gap, {with:.3} with one (model of the IOTLB)"
    );
    assert!(with >= 15.0 * without, "{without} {with}");
}

#[test]
fn fault_kind_of_a_disabled_port_is_recorded_for_an_attacker_too() {
    let Some(mut card) = card("rogue") else { return };
    Monitor(&mut card).release(0);
    run(&mut card, 1000);
    assert_eq!(Monitor(&mut card).fault(0).map(|fault| fault.kind), Some(FaultKind::Disabled));
    assert_eq!((card.statistics().lines_read, card.statistics().lines_written), (0, 0));
}
