//! A driver that lies: every sentence of "Lies" in docs/virtio-aviary.md, and a session with a
//! false greeting.

use crate::support::Machine;
use crate::support::driver::{HANG_TIMEOUT, header, kind, map_request};
use crate::support::node::{ARENA, Server, hello, welcome};
use crate::support::ring::Buffer;
use aviary_wire::control::control_kind;
use aviary_wire::{Control, Hello, Welcome};
use vm_memory::{Bytes, GuestAddress};

const EINVAL: u32 = 22;
const EFAULT: u32 = 14;
const EEXIST: u32 = 17;
const EBUSY: u32 = 16;
const EPIPE: u32 = 32;
const ENODEV: u32 = 19;
const EUSERS: u32 = 87;
const PAGE: u64 = 4096;

fn session(machine: &mut Machine, number: u32) -> Server {
    machine.driver.open(number, 1, "liar").unwrap();
    let mut server = machine.node.accept();
    machine.driver.send(number, &hello()).unwrap();
    server.greeting();
    server.send(&welcome());
    server
}

/// Checks that the device works for another session.
fn works(machine: &mut Machine) {
    assert_eq!(machine.driver.simple(kind::PING, 0, [0; 3]), Ok(0));
}

#[test]
fn extents_outside_the_memory_are_refused() {
    let mut machine = Machine::new();
    let mut server = session(&mut machine, 1);
    let wrong = [(2 << 20, PAGE), ((2 << 20) - PAGE, 2 * PAGE), ((1 << 30) - PAGE, PAGE), (1 << 63, PAGE)];
    for (address, length) in wrong {
        let extents = [(0x8000, PAGE), (address, length)];
        assert_eq!(machine.driver.request(&map_request(1, 0, 1, &extents)), Err(EFAULT), "{address:#x}");
    }
    for extents in [&[(1, PAGE)][..], &[(0, PAGE - 1)], &[(0, 0)], &[(u64::MAX - PAGE + 1, PAGE)], &[(0, 1 << 63); 2]] {
        let mut request = map_request(1, 0, 1, &[]);
        request[12..16].copy_from_slice(&(extents.len() as u32).to_le_bytes());
        request[24..32].copy_from_slice(&PAGE.to_le_bytes());
        let words = extents.iter().flat_map(|(address, length)| [*address, *length]);
        request.extend(words.flat_map(u64::to_le_bytes));
        assert_eq!(machine.driver.request(&request), Err(EINVAL), "{extents:x?}");
    }
    // No part of it has reached the API server.
    let head = machine.driver.submit(&map_request(1, 0, 1, &[(0x8000, PAGE)]));
    assert_eq!(server.mapping().control.offset, 0);
    server.done(0, 0);
    assert_eq!(machine.driver.answer(head), Ok(0));
}

#[test]
fn ranges_do_not_overlap_and_are_unmapped_whole() {
    let mut machine = Machine::new();
    let mut server = session(&mut machine, 1);
    let head = machine.driver.submit(&map_request(1, 8 * PAGE, 1, &[(0x8000, 2 * PAGE)]));
    server.mapping();
    let unmap =
        |machine: &mut Machine, offset, pages| machine.driver.simple(kind::UNMAP, 1, [offset * PAGE, pages * PAGE, 0]);
    assert_eq!(unmap(&mut machine, 8, 2), Err(EBUSY), "its mapping has no answer yet");
    server.done(8 * PAGE, 0);
    assert_eq!(machine.driver.answer(head), Ok(0));
    for (offset, pages) in [(8, 2), (9, 1), (7, 2), (0, 100)] {
        let request = map_request(1, offset * PAGE, 1, &[(0x8000, pages * PAGE)]);
        assert_eq!(machine.driver.request(&request), Err(EEXIST));
        if (offset, pages) != (8, 2) {
            assert_eq!(unmap(&mut machine, offset, pages), Err(EINVAL));
        }
    }
    let beyond = map_request(1, ARENA, 1, &[(0x8000, PAGE)]);
    assert_eq!(machine.driver.request(&beyond), Err(EINVAL), "the arena's end");
    // A guest may map the same memory at two offsets.
    let head = machine.driver.submit(&map_request(1, 0, 1, &[(0x8000, PAGE), (0x8000, PAGE)]));
    assert_eq!(server.mapping().extents, [(0x8000, PAGE), (0x8000, PAGE)]);
    server.done(0, 0);
    assert_eq!(machine.driver.answer(head), Ok(0));
}

#[test]
fn unknown_sessions_are_refused() {
    let mut machine = Machine::new();
    for kind in [kind::CLOSE, kind::SEND] {
        assert_eq!(machine.driver.simple(kind, 9, [0; 3]), Err(ENODEV));
    }
    assert_eq!(machine.driver.simple(kind::UNMAP, 9, [0, PAGE, 0]), Err(ENODEV));
    assert_eq!(machine.driver.request(&map_request(9, 0, 0, &[(0, PAGE)])), Err(ENODEV));
    assert_eq!(machine.driver.open(0, 1, "x"), Err(EINVAL));
    assert_eq!(machine.driver.open(1, 1 << 32, "x"), Err(EINVAL));
    assert_eq!(machine.driver.open(1, 1, &"x".repeat(65)), Err(EINVAL));
    machine.driver.open(1, 1, "").unwrap();
    assert_eq!(machine.driver.open(1, 1, ""), Err(EEXIST));
    assert_eq!(machine.driver.request(&map_request(1, 0, 0, &[(0, PAGE)])), Err(EINVAL), "before the greeting");
    for unknown in [0, 8, u32::MAX] {
        assert_eq!(machine.driver.simple(unknown, 1, [0; 3]), Err(EINVAL));
    }
    assert_eq!(machine.driver.request(&[0; 39]), Err(EINVAL));
}

#[test]
fn guest_that_sends_the_devices_messages_is_ended() {
    let mut machine = Machine::new();
    let map = Control { kind: control_kind::MEMORY_MAP, lane: 1, length: PAGE, ..Control::default() };
    let huge = Hello { arena_size: u64::MAX, ..Hello::from_body(&hello()[8..]).unwrap() };
    let lies = [
        [hello(), map.to_bytes().to_vec()].concat(),
        [hello(), Control { kind: control_kind::WAKE, ..map }.to_bytes().to_vec()].concat(),
        Welcome::default().to_bytes(),
        huge.to_bytes(),
        vec![0xff; 16 << 10],
    ];
    for (number, lie) in lies.iter().enumerate() {
        let number = number as u32 + 1;
        machine.driver.open(number, 1, "liar").unwrap();
        let mut server = machine.node.accept();
        assert_eq!(machine.driver.send(number, lie), Err(EINVAL));
        assert_eq!(machine.driver.send(number, &hello()), Err(EPIPE));
        assert!(server.is_told_the_end());
        drop(server);
        assert_eq!(machine.driver.simple(kind::CLOSE, number, [0; 3]), Ok(0));
    }
    works(&mut machine);
}

#[test]
fn lying_api_server_loses_its_session() {
    let mut machine = Machine::new();
    let done = Control { kind: control_kind::MEMORY_DONE, ..Control::default() }.to_bytes().to_vec();
    let mut server = session(&mut machine, 1);
    server.send(&done);
    assert!(server.is_told_the_end());
    machine.driver.open(2, 1, "x").unwrap();
    let mut server = machine.node.accept();
    server.send(b"not a welcome");
    assert!(server.is_told_the_end());
    works(&mut machine);
}

#[test]
fn malformed_chains_are_returned_empty() {
    let mut machine = Machine::new();
    let driver = &mut machine.driver;
    let place = 0x2_0000;
    driver.memory.write_slice(&header(kind::PING, 0, 0, 0, [0; 3]), GuestAddress(place)).unwrap();
    let readable = |address, length| Buffer { address, length, writable: false };
    let writable = |address, length| Buffer { address, length, writable: true };
    for chain in [
        vec![readable(place, 40)],
        vec![readable(place, 40), writable(place + 64, 15)],
        vec![readable(place, 40), writable(1 << 40, 64)],
        vec![readable(1 << 40, 40), writable(place + 64, 64)],
        vec![readable(place, 40), writable((2 << 20) - 8, 64)],
        vec![readable(place, 40), readable(u64::MAX - 3, 8), writable(place + 64, 64)],
        vec![writable(place, u32::MAX), writable(place, u32::MAX)],
    ] {
        let head = driver.control.add(&driver.memory, &chain).unwrap();
        driver.control.kick();
        assert_eq!(driver.control.wait_used(&driver.memory, HANG_TIMEOUT), Some((head, 0)), "{chain:x?}");
    }
    // A chain that names itself, one that leads outside the table, an indirect table that names
    // itself, or no table.
    for (address, length, flags, next) in
        [(place, 40, 1, 60), (place, 40, 1, 600), (place + 0x100, 16, 4, 0), (1 << 40, 16, 4, 0), (place, 15, 4, 0)]
    {
        let table: Vec<u8> = [place, u64::from(4u32 << 16) << 16].iter().flat_map(|word| word.to_le_bytes()).collect();
        driver.memory.write_slice(&table, GuestAddress(place + 0x100)).unwrap();
        driver.control.write_descriptor(&driver.memory, 60, address, length, flags, next);
        driver.control.offer(&driver.memory, 60);
        driver.control.kick();
        assert_eq!(driver.control.wait_used(&driver.memory, HANG_TIMEOUT), Some((60, 0)), "{address:x} {flags} {next}");
    }
    // Longer than any valid request.
    let long = [readable(place, 64 << 10), readable(place, 64 << 10), writable(place + 64, 64)];
    driver.control.add(&driver.memory, &long).unwrap();
    driver.control.kick();
    assert_eq!(driver.control.wait_used(&driver.memory, HANG_TIMEOUT).map(|(_, written)| written), Some(16));
    works(&mut machine);
}

#[test]
fn small_event_buffers_are_returned_empty() {
    let mut machine = Machine::new();
    machine.driver.offer_events(3, 63);
    for _ in 0..3 {
        let used = machine.driver.events.wait_used(&machine.driver.memory, HANG_TIMEOUT).unwrap();
        assert_eq!(used.1, 0);
    }
    works(&mut machine);
}

#[test]
fn device_survives_invalid_heads_and_indices() {
    let mut machine = Machine::new();
    let driver = &mut machine.driver;
    driver.control.offer(&driver.memory, 5000);
    driver.control.kick();
    assert_eq!(driver.request(&header(kind::PING, 0, 0, 0, [0; 3])), Ok(0), "the queue goes on");
    driver.memory.write_obj(20_000u16, GuestAddress(driver.control.available + 2)).unwrap();
    driver.control.kick();
    std::thread::sleep(std::time::Duration::from_millis(50));
    driver.stop_queues();
    driver.start_queues();
    works(&mut machine);
}

#[test]
fn sessions_are_bounded_to_1024() {
    let mut machine = Machine::new();
    let servers: Vec<Server> = (1..=1024)
        .map(|number| {
            machine.driver.open(number, 1, "many").unwrap();
            machine.node.accept()
        })
        .collect();
    assert_eq!(machine.driver.open(2000, 1, "one more"), Err(EUSERS));
    drop(servers);
    for number in 1..=1024 {
        assert_eq!(machine.driver.simple(kind::CLOSE, number, [0; 3]), Ok(0));
    }
    machine.driver.open(2000, 1, "now").unwrap();
}

#[test]
fn missing_node_is_reported() {
    let mut machine = Machine::new();
    let path = machine.node.listener().local_addr().unwrap().as_pathname().unwrap().to_owned();
    std::fs::remove_file(path).unwrap();
    assert_eq!(machine.driver.open(1, 1, "early"), Err(2));
    assert_eq!(machine.driver.simple(kind::CLOSE, 1, [0; 3]), Err(ENODEV));
}
