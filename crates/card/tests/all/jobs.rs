//! MB and LL behind the monitor of a simulated card: results, faults, preemption, MMIO.

use crate::common::*;
use aviary_card::monitor::{Command, FaultKind, JobState, PortFault, SliceError};
use aviary_card::{Board, Monitor, Rights, Simulated, Stop};

const MIB: u64 = 1 << 20;

/// Starts an LL at a port; returns the sum that it must have at the end.
fn walk(card: &mut Simulated, port: usize, number: u64, nodes: u64) -> u64 {
    let client = Client::new(2 * MIB);
    let (head, sum) = client.list(nodes, 2 * MIB);
    attach(card, port, number, &client);
    start(card, port, &[(LL_HEAD, head)]);
    sum
}

#[test]
fn list_walk_and_memory_hash_have_the_golden_results() {
    let Some(mut card) = card("pair") else { return };
    let sum = walk(&mut card, 0, 3, 300);
    let client = Client::new(4 * MIB);
    client.fill(7);
    attach(&mut card, 1, 1, &client);
    let (mask, count) = (0x7fff, 5000);
    let registers = [(MB_BASE, GUEST), (MB_MASK, mask), (MB_COUNT, count), (MB_STRIDE, GOLDEN), (MB_MODE, MB_READS)];
    start(&mut card, 1, &registers);
    assert_eq!(wait(&mut card, 1, 100_000), JobState::Done);
    assert_eq!(get(&mut card, 1, MB_HASH), client.hash(mask, count, GOLDEN));
    assert_eq!(get(&mut card, 1, MB_LINES), count);
    assert_eq!(wait(&mut card, 0, 100_000), JobState::Done);
    assert_eq!((get(&mut card, 0, LL_SUM), get(&mut card, 0, LL_VISITED)), (sum, 300));
    assert_eq!(card.take_interrupts(), 0x11);
    assert_eq!(card.escaped(), 0);
}

#[test]
fn bursts_write_each_line_at_its_place() {
    let Some(mut card) = card("pair") else { return };
    for lines in [1, 2, 4_u64] {
        let client = Client::new(2 * MIB);
        attach(&mut card, 1, lines, &client);
        let registers = [
            (MB_TARGET, GUEST),
            (MB_MASK, 0x3ff),
            (MB_COUNT, 1024 / lines),
            (MB_STRIDE, lines),
            (MB_MODE, MB_WRITES | (lines - 1)),
        ];
        start(&mut card, 1, &registers);
        assert_eq!(wait(&mut card, 1, 100_000), JobState::Done);
        for line in 0..1024 {
            let place = line / lines * lines;
            assert_eq!(client.get(line * 64 + 56), place << 32 | (line - place), "line {line} of bursts of {lines}");
        }
        assert_eq!(client.get(1024 * 64), 0);
        assert_eq!(Monitor(&mut card).counters(1).refused, 0);
        detach(&mut card, 1);
    }
    assert_eq!(card.escaped(), 0);
}

#[test]
fn address_outside_the_slice_is_refused_at_both_ends() {
    let Some(mut card) = card("pair") else { return };
    let neighbour = Client::new(2 * MIB);
    neighbour.fill(1);
    let before = neighbour.bytes();
    // The neighbour's memory surrounds the slice on both sides.
    let base = 16 << 30;
    card.map(base - 2 * MIB, &neighbour.memory, 0, 2 * MIB, Rights::ReadWrite).unwrap();
    card.map(base + 2 * MIB, &neighbour.memory, 0, 2 * MIB, Rights::ReadWrite).unwrap();
    let client = Client::new(2 * MIB);
    card.map(base, &client.memory, 0, 2 * MIB, Rights::ReadWrite).unwrap();
    let last = GUEST + 2 * MIB - 64;
    // Base, lines - 1, what becomes of it.
    let cases = [
        (GUEST - 64, 0, Some(FaultKind::Below)),
        (last, 0, None),
        (last + 64, 0, Some(FaultKind::Above)),
        (last - 64, 1, None),
        (last - 192, 3, None),
        (GUEST, 2, Some(FaultKind::Shape)),
        (GUEST + 64, 1, Some(FaultKind::Shape)),
        (GUEST + 128, 3, Some(FaultKind::Shape)),
        // The offset wraps these to the end of the address space, and to its beginning.
        (GUEST - base - 64, 0, Some(FaultKind::Above)),
        (GUEST.wrapping_sub(base), 0, Some(FaultKind::Below)),
    ];
    for (address, lines, kind) in cases {
        for (mode, register, write) in [(MB_READS, MB_BASE, false), (MB_WRITES, MB_TARGET, true)] {
            place(&mut card, 1, base, 2 * MIB);
            Monitor(&mut card).clear_fault(1);
            start(&mut card, 1, &[(register, address), (MB_COUNT, 1), (MB_STRIDE, 1), (MB_MODE, mode | lines)]);
            let state = wait(&mut card, 1, 10_000);
            let fault = Monitor(&mut card).fault(1);
            let expected =
                kind.map(|kind| PortFault { kind, write, lines: lines as u8 + 1, address: address & ((1 << 48) - 1) });
            assert_eq!(fault, expected, "{address:#x}, {lines}, {write}");
            assert_eq!(state, if kind.is_some() { JobState::Error } else { JobState::Done }, "{address:#x}, {lines}");
            assert_eq!(Monitor(&mut card).counters(1).refused, u64::from(kind.is_some()));
            detach(&mut card, 1);
        }
    }
    assert!(neighbour.bytes() == before);
    assert_eq!(card.escaped(), 0);
}

#[test]
fn port_without_a_slice_reaches_no_memory() {
    let Some(mut card) = card("pair") else { return };
    Monitor(&mut card).release(0);
    start(&mut card, 0, &[(LL_HEAD, GUEST)]);
    assert_eq!(wait(&mut card, 0, 10_000), JobState::Error);
    assert_eq!(Monitor(&mut card).fault(0).map(|fault| fault.kind), Some(FaultKind::Disabled));
    assert_eq!(card.statistics().lines_read, 0);
}

#[test]
fn monitor_refuses_to_change_the_slice_of_a_port_that_is_not_drained() {
    let Some(mut card) = card("pair") else { return };
    let client = Client::new(2 * MIB);
    attach(&mut card, 1, 1, &client);
    // Without end.
    start(&mut card, 1, &[(MB_BASE, GUEST), (MB_MASK, 0xff), (MB_STRIDE, 1), (MB_MODE, MB_READS)]);
    assert_eq!(Monitor(&mut card).set_slice(1, GUEST, 0, 4096), Err(SliceError::Busy(1)));
    assert_eq!(Monitor(&mut card).clear_slice(1), Err(SliceError::Busy(1)));
    run(&mut card, 1000);
    Monitor(&mut card).reset(1);
    while !Monitor(&mut card).is_drained(1) {}
    let before = card.statistics().lines_read;
    run(&mut card, 1000);
    assert_eq!(card.statistics().lines_read, before);
    assert_eq!(Monitor(&mut card).set_slice(1, GUEST, 0, 4096), Ok(()));
    assert_eq!(card.escaped(), 0);
}

#[test]
fn preempted_jobs_end_with_the_results_of_uninterrupted_ones() {
    let Some(mut card) = card("rogue") else { return };
    // Two LL and two MB; the last 64 bytes of each memory are for the state.
    let (lists, hashes) = ([1, 2], [5, 6]);
    let walker = Client::new(2 * MIB);
    let (head, sum) = walker.list(2000, MIB);
    let reader = Client::new(4 * MIB);
    reader.fill(3);
    let (mask, count) = (0x7fff, 40_000);
    let (mut list_port, mut hash_port) = (lists[0], hashes[0]);
    let list_registers = [(LL_HEAD, head)];
    let hash_registers = [
        (MB_BASE, GUEST),
        (MB_MASK, mask),
        (MB_COUNT, count),
        (MB_STRIDE, GOLDEN),
        // Reads and writes of single lines; the writes go to the second half.
        (MB_MODE, MB_READS | MB_WRITES),
        (MB_TARGET, GUEST + 2 * MIB),
    ];
    let expected = reader.hash(mask, count, GOLDEN);
    card.map(SLICE_STRIDE, &walker.memory, 0, 2 * MIB, Rights::ReadWrite).unwrap();
    card.map(2 * SLICE_STRIDE, &reader.memory, 0, 4 * MIB, Rights::ReadWrite).unwrap();
    place(&mut card, list_port, SLICE_STRIDE, 64 << 30);
    place(&mut card, hash_port, 2 * SLICE_STRIDE, 64 << 30);
    start(&mut card, list_port, &list_registers);
    start(&mut card, hash_port, &hash_registers);
    let state = GUEST + 2 * MIB - 64;
    let mut seed = 12_345_u64;
    let (mut list_done, mut hash_done, mut switches) = (false, false, 0);
    while !(list_done && hash_done) {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        run(&mut card, 500 + seed % 3000);
        for (port, done, ports, registers, base, state) in [
            (&mut list_port, &mut list_done, lists, &list_registers[..], SLICE_STRIDE, state),
            (&mut hash_port, &mut hash_done, hashes, &hash_registers[..], 2 * SLICE_STRIDE, state + 2 * MIB),
        ] {
            if *done {
                continue;
            }
            set(&mut card, *port, &[(aviary_card::monitor::STATE_ADDRESS, state)]);
            Monitor(&mut card).command(*port, Command::Pause).unwrap();
            match wait(&mut card, *port, 100_000) {
                JobState::Done => *done = true,
                JobState::Saved => {
                    // On to the other port of the kind.
                    detach(&mut card, *port);
                    *port = ports[usize::from(*port == ports[0])];
                    place(&mut card, *port, base, 64 << 30);
                    set(&mut card, *port, registers);
                    set(&mut card, *port, &[(aviary_card::monitor::STATE_ADDRESS, state)]);
                    Monitor(&mut card).command(*port, Command::Resume).unwrap();
                    switches += 1;
                }
                state => panic!("{state:?}"),
            }
        }
    }
    assert!(switches > 50, "{switches}");
    assert_eq!((get(&mut card, list_port, LL_SUM), get(&mut card, list_port, LL_VISITED)), (sum, 2000));
    assert_eq!((get(&mut card, hash_port, MB_HASH), get(&mut card, hash_port, MB_LINES)), (expected, count));
    assert_eq!(get(&mut card, hash_port, MB_WRITTEN), count);
    assert_eq!(card.escaped(), 0);
}

#[test]
fn noise_as_saved_state_stays_in_the_slice() {
    let Some(mut card) = card("pair") else { return };
    let client = Client::new(2 * MIB);
    client.fill(99);
    attach(&mut card, 0, 1, &client);
    attach(&mut card, 1, 2, &client);
    for i in 0..50 {
        for port in [0, 1] {
            set(&mut card, port, &[(MB_MODE, MB_READS | MB_WRITES), (MB_MASK, u64::MAX)]);
            set(&mut card, port, &[(aviary_card::monitor::STATE_ADDRESS, GUEST + i * 64)]);
            Monitor(&mut card).command(port, Command::Resume).unwrap();
        }
        run(&mut card, 2000);
        for port in [0, 1] {
            detach(&mut card, port);
            place(&mut card, port, (port as u64 + 1) * SLICE_STRIDE, 64 << 30);
        }
    }
    assert_eq!(card.escaped(), 0);
}

#[test]
fn unmapped_memory_is_not_touched_any_more() {
    let Some(mut card) = card("pair") else { return };
    let client = Client::new(2 * MIB);
    attach(&mut card, 1, 1, &client);
    let registers = [(MB_TARGET, GUEST), (MB_MASK, 0x7fff), (MB_STRIDE, GOLDEN), (MB_MODE, MB_WRITES)];
    start(&mut card, 1, &registers);
    run(&mut card, 20_000);
    assert_eq!(Monitor(&mut card).job(1), JobState::Running);
    card.unmap(SLICE_STRIDE, 2 * MIB).unwrap();
    client.put(0, &vec![0x55; (2 * MIB / 8) as usize]);
    run(&mut card, 20_000);
    assert!(client.bytes().chunks(8).all(|word| word == 0x55_u64.to_le_bytes()));
    assert_eq!(Monitor(&mut card).job(1), JobState::Error);
    let (faults, count) = card.take_io_faults();
    assert!(count > 0 && faults[0].write && faults[0].port == 1 && !faults[0].read_only);
    // A page that is mapped to read only is refused, too.
    let address = SLICE_STRIDE + 4 * MIB;
    card.map(address, &client.memory, 0, 2 * MIB, Rights::Read).unwrap();
    start(&mut card, 1, &[(MB_TARGET, GUEST + 4 * MIB), (MB_COUNT, 1)]);
    assert_eq!(wait(&mut card, 1, 10_000), JobState::Error);
    assert!(card.take_io_faults().0[0].read_only);
    assert!(client.bytes().chunks(8).all(|word| word == 0x55_u64.to_le_bytes()));
}

#[test]
fn mmio_that_nothing_answers_reads_as_all_ones() {
    let Some(mut card) = card("rogue") else { return };
    Monitor(&mut card).release(0);
    // A page outside, a port in reset, a register that is never answered; then the whole page is silent until a reset.
    assert_eq!(card.read(9 << 12), u64::MAX);
    assert_eq!(card.read(aviary_card::monitor::OUTSIDE), 1);
    assert_eq!(get(&mut card, 1, 0), u64::MAX);
    assert_ne!(get(&mut card, 0, 0x08), u64::MAX);
    assert_eq!(get(&mut card, 0, 0xff8), u64::MAX);
    assert_eq!(get(&mut card, 0, 0x08), u64::MAX);
    assert_eq!(card.read(aviary_card::monitor::SILENT), 1);
    assert!(card.write(1 << 12, 0).is_err());
    assert!(card.write(9 << 12, 0).is_err());
    assert!(card.write(aviary_card::monitor::DRAINED, 0).is_err());
    detach(&mut card, 0);
    Monitor(&mut card).release(0);
    assert_ne!(get(&mut card, 0, 0x08), u64::MAX);
    assert_eq!(card.escaped(), 0);
}

#[test]
fn halves_of_a_register_are_written_alone() {
    let Some(mut card) = card("pair") else { return };
    Monitor(&mut card).release(0);
    let address = Monitor(&mut card).of_accelerator(0, LL_HEAD);
    card.write(address, 0x1111_1111_2222_2222).unwrap();
    card.write_half(address + 4, 0x3333_3333).unwrap();
    assert_eq!(card.read(address), 0x3333_3333_2222_2222);
    card.write_half(address, 0x4444_4444).unwrap();
    assert_eq!(card.read(address + 4), 0x3333_3333_4444_4444);
    // The VCU's registers are written as a whole.
    assert!(card.write_half(aviary_card::monitor::RESET, 0).is_err());
}

#[test]
fn interrupt_at_the_end_of_a_job_comes_before_the_clock_stands_still() {
    let Some(mut card) = card("pair") else { return };
    walk(&mut card, 0, 0, 100);
    assert_eq!(card.advance(1_000_000), Stop::Interrupt);
    assert_eq!(card.take_interrupts(), 1);
    assert_eq!(card.advance(1_000_000), Stop::Idle);
}

#[test]
fn clock_of_an_idle_card_stands_still() {
    let Some(mut card) = card("pair") else { return };
    let sum = walk(&mut card, 0, 0, 100);
    assert_eq!(wait(&mut card, 0, 100_000), JobState::Done);
    assert_eq!(get(&mut card, 0, LL_SUM), sum);
    let before = card.statistics();
    assert_eq!(card.advance(1_000_000_000_000), Stop::Idle);
    assert_eq!(card.statistics(), before);
}

#[test]
fn same_calls_take_the_same_cycles() {
    let Some(path) = image("pair") else { return };
    let history = || {
        let mut card = Simulated::start(&path).unwrap();
        walk(&mut card, 0, 5, 200);
        let client = Client::new(2 * MIB);
        client.fill(1);
        attach(&mut card, 1, 2, &client);
        let registers = [(MB_BASE, GUEST), (MB_MASK, 0x7fff), (MB_STRIDE, GOLDEN), (MB_MODE, MB_READS)];
        start(&mut card, 1, &registers);
        run(&mut card, 20_000);
        wait(&mut card, 0, 100_000);
        let counters = [0, 1].map(|port| Monitor(&mut card).counters(port));
        (card.now(), card.statistics(), counters, get(&mut card, 1, MB_HASH))
    };
    assert_eq!(history(), history());
}
