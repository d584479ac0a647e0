//! A device, a driver and a node: all actions of a well-behaved guest.

use std::time::Duration;

use crate::support::Machine;
use crate::support::driver::{Event, SHIFT, header, kind, map_request, memfd};
use crate::support::node::{ARENA, hello, welcome};
use aviary_wire::attach::hello_flag;
use aviary_wire::control::control_kind;
use aviary_wire::{Control, Hello, Origin};
use rustix::fs::SealFlags;

const EPIPE: u32 = 32;
const ENODEV: u32 = 19;
const EVENT_DATA: u32 = 1;
const EVENT_WAKE: u32 = 2;
const EVENT_CLOSED: u32 = 3;
const EVENT_RESET: u32 = 4;

fn data(machine: &mut Machine, session: u32, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < length {
        let event = machine.driver.event().expect("data");
        assert_eq!((event.kind, event.session), (EVENT_DATA, session));
        bytes.extend(event.bytes);
    }
    bytes
}

#[test]
fn a_device_says_what_it_is() {
    let mut machine = Machine::new();
    let head = machine.driver.submit(&header(kind::IDENTIFY, 0, 0, 0, [0, 0, 7]));
    let (written, status, version, more) = machine.driver.raw_answer(head);
    assert_eq!((written, status, version), (48, 0, 1));
    let word = |at: usize| u64::from_le_bytes(more[at..at + 8].try_into().unwrap());
    assert_eq!((word(0), word(8) as u32, word(8) >> 32), (64 << 30, 1024, 1024));
    machine.driver.offer_events(1, 4096);
    let reset = Event { kind: EVENT_RESET, session: 0, value: word(16), bytes: vec![] };
    assert_eq!(machine.driver.event(), Some(reset));
    let short = machine.driver.submit_with_room(&header(kind::IDENTIFY, 0, 0, 0, [0, 0, 1]), 16).unwrap();
    assert_eq!(machine.driver.raw_answer(short).0, 16);
    assert_eq!(machine.driver.simple(kind::PING, 0, [0; 3]), Ok(0));
    machine.power_off().unwrap();
}

#[test]
fn a_session_talks_with_its_api_server() {
    let mut machine = Machine::new();
    machine.driver.offer_events(8, 64);
    assert_eq!(machine.driver.event().unwrap().kind, EVENT_RESET);
    machine.driver.open(5, 77, "clinfo").unwrap();
    let mut server = machine.node.accept();
    assert_eq!(server.origin(), Some(Origin { pid: 77, started: 5, program: "clinfo".into() }));
    let lane = Control { kind: control_kind::LANE_OPEN, lane: 3, offset: 4096, length: 8192, flags: 1 };
    let sent = [hello(), lane.to_bytes().to_vec()].concat();
    let (first, second) = sent.split_at(11);
    machine.driver.send(5, first).unwrap();
    machine.driver.send(5, second).unwrap();
    let greeting = server.greeting();
    let expected = Hello { flags: hello_flag::WINDOW, pid: 77, ..Hello::from_body(&hello()[8..]).unwrap() };
    assert_eq!(greeting, expected);
    let (control, files) = server.control();
    assert_eq!((control, files.len()), (lane, 0));
    // A buffer of 64 bytes holds 40 bytes of data.
    let closed = Control { kind: control_kind::LANE_CLOSED, lane: 3, ..Control::default() }.to_bytes().to_vec();
    server.send(&[welcome(), closed.clone()].concat());
    assert_eq!(data(&mut machine, 5, welcome().len() + 32), [welcome(), closed].concat());
    drop(server);
    machine.power_off().unwrap();
}

#[test]
fn memory_appears_and_disappears() {
    let mut machine = Machine::new();
    let mut server = machine.greeted(1);
    // Across the border of two regions, and in a third one whose bytes do not begin at the start of
    // its file.
    let extents = [(0xf_f000, 0x2000), (0x10_1000, 0x1000), ((1 << 30) + 0x3000, 0x1000), ((1 << 30) + 0x1000, 0x1000)];
    let head = machine.driver.submit(&map_request(1, 0x4_0000, 3, &extents));
    let mut seen = Vec::new();
    for (offset, length) in [(0x4_0000, 0x1000), (0x4_1000, 0x2000), (0x4_3000, 0x2000)] {
        let mapping = server.mapping();
        let Control { offset: at, length: bytes, flags, .. } = mapping.control;
        assert_eq!((at, bytes, flags), (offset, length, 3));
        seen.push((machine.driver.file_number(&mapping.file).unwrap(), mapping.extents));
    }
    let third = vec![(SHIFT + 0x3000, 0x1000), (SHIFT + 0x1000, 0x1000)];
    assert_eq!(seen, [(0, vec![(0xf_f000, 0x1000)]), (1, vec![(0, 0x2000)]), (2, third)]);
    server.done(0x4_0000, 0);
    server.done(0x4_1000, 0);
    std::thread::sleep(Duration::from_millis(20));
    assert!(!machine.driver.answered(head), "answered before all of it was mapped");
    server.done(0x4_3000, 0);
    assert_eq!(machine.driver.answer(head), Ok(0));

    // A second range beside it; both are unmapped at once.
    let head = machine.driver.submit(&map_request(1, 0x4_5000, 0, &[(0x8000, 0x1000)]));
    let mapping = server.mapping();
    assert_eq!((mapping.control.flags, mapping.extents), (0, vec![(0x8000, 0x1000)]));
    server.done(0x4_5000, 0);
    assert_eq!(machine.driver.answer(head), Ok(0));
    let head = machine.driver.submit(&header(kind::UNMAP, 1, 0, 0, [0x4_0000, 0x6000, 0]));
    let unmap = Control { kind: control_kind::MEMORY_UNMAP, offset: 0x4_0000, length: 0x6000, ..Control::default() };
    assert_eq!(server.control().0, unmap);
    assert!(!machine.driver.answered(head));
    server.done(0x4_0000, 0);
    assert_eq!(machine.driver.answer(head), Ok(0));
    let head = machine.driver.submit(&map_request(1, 0x4_0000, 1, &[(0x8000, 0x1000)]));
    server.mapping();
    server.done(0x4_0000, 0);
    assert_eq!(machine.driver.answer(head), Ok(0));
}

#[test]
fn a_mapping_that_fails_leaves_nothing() {
    let mut machine = Machine::new();
    let mut server = machine.greeted(1);
    let request = map_request(1, 0, 1, &[(0xf_f000, 0x2000)]);
    let head = machine.driver.submit(&request);
    server.mapping();
    server.mapping();
    server.done(0, 0);
    server.done(0x1000, 12);
    let undo = Control { kind: control_kind::MEMORY_UNMAP, offset: 0, length: 0x2000, ..Control::default() };
    assert_eq!(server.control().0, undo);
    assert!(!machine.driver.answered(head), "answered while its first part was mapped");
    server.done(0, 0);
    assert_eq!(machine.driver.answer(head), Err(12));
    let head = machine.driver.submit(&request);
    server.mapping();
    server.done(0, 0);
    server.done(0x1000, 0);
    assert_eq!(machine.driver.answer(head), Ok(0));
}

#[test]
fn sleepers_are_woken_on_both_sides() {
    let mut machine = Machine::new();
    let mut server = machine.greeted(1);
    machine.driver.ring_bell(1, 0x1_0040);
    let wake = Control { kind: control_kind::WAKE, offset: 0x1_0040, ..Control::default() };
    assert_eq!(server.control().0, wake);
    // No sleeper is at these words.
    for (session, offset) in [(2, 64), (1, ARENA), (1, 3), (1, u64::MAX - 3)] {
        machine.driver.ring_bell(session, offset);
    }
    machine.driver.ring_bell(1, ARENA - 4);
    assert_eq!(server.control().0.offset, ARENA - 4);

    // Without buffers each word is kept once, and so is the end of the session.
    for offset in [64, 128, 64, 128, 64] {
        server.wake(offset);
    }
    // Answered when the device has received all earlier messages.
    let map = machine.driver.submit(&map_request(1, 0, 1, &[(0x8000, 0x1000)]));
    drop(server);
    assert_eq!(machine.driver.answer(map), Err(EPIPE));
    machine.driver.offer_events(8, 4096);
    let kinds: Vec<(u32, u64)> = (0..5)
        .filter_map(|_| machine.driver.event())
        .map(|event| (event.kind, if event.kind == EVENT_RESET { 0 } else { event.value }))
        .collect();
    let expected = [(EVENT_RESET, 0), (EVENT_WAKE, 64), (EVENT_WAKE, 128), (EVENT_DATA, 0), (EVENT_CLOSED, 0)];
    assert_eq!(kinds, expected);
}

#[test]
fn data_waits_for_buffers() {
    let mut machine = Machine::new();
    let mut server = machine.greeted(1);
    let mut sent = welcome();
    for lane in 0..20_000 {
        sent.extend(Control { kind: control_kind::LANE_CLOSED, lane, ..Control::default() }.to_bytes());
    }
    let rest = sent[welcome().len()..].to_vec();
    let writer = std::thread::spawn(move || {
        server.send(&rest);
        server
    });
    std::thread::sleep(Duration::from_millis(100));
    assert!(!writer.is_finished(), "the device has taken it all without a buffer");
    machine.driver.offer_events(1, 64);
    assert_eq!(machine.driver.event().unwrap().kind, EVENT_RESET);
    let mut received = Vec::new();
    while received.len() < sent.len() {
        machine.driver.offer_events(1, 1024);
        received.extend(machine.driver.event().expect("more data").bytes);
    }
    assert!(received == sent, "bytes are lost or in disorder");
    writer.join().unwrap();
}

#[test]
fn end_of_an_api_server_ends_its_session() {
    let mut machine = Machine::new();
    machine.driver.offer_events(8, 4096);
    machine.driver.event();
    let server = machine.greeted(1);
    data(&mut machine, 1, welcome().len());
    let map = machine.driver.submit(&map_request(1, 0, 1, &[(0x8000, 0x1000)]));
    std::thread::sleep(Duration::from_millis(20));
    drop(server);
    assert_eq!(machine.driver.answer(map), Err(EPIPE));
    let event = machine.driver.event().unwrap();
    assert_eq!((event.kind, event.session), (EVENT_CLOSED, 1));
    assert_eq!(machine.driver.send(1, &[0; 32]), Err(EPIPE));
    assert_eq!(machine.driver.request(&map_request(1, 0, 1, &[(0x8000, 0x1000)])), Err(EPIPE));
    assert_eq!(machine.driver.simple(kind::UNMAP, 1, [0, 4096, 0]), Err(EPIPE));
    assert_eq!(machine.driver.simple(kind::CLOSE, 1, [0; 3]), Ok(0));
    assert_eq!(machine.driver.simple(kind::CLOSE, 1, [0; 3]), Err(ENODEV));
    assert_eq!(machine.driver.event_within(Duration::from_millis(50)), None);
}

#[test]
fn close_is_answered_when_the_memory_is_unused() {
    let mut machine = Machine::new();
    let mut server = machine.greeted(1);
    let map = machine.driver.submit(&map_request(1, 0, 1, &[(0x8000, 0x1000)]));
    server.mapping();
    let close = machine.driver.submit(&header(kind::CLOSE, 1, 0, 0, [0; 3]));
    assert!(server.is_told_the_end());
    std::thread::sleep(Duration::from_millis(50));
    assert!(!machine.driver.answered(close) && !machine.driver.answered(map));
    assert_eq!(machine.driver.simple(kind::PING, 0, [0; 3]), Ok(0), "another request waited for the close");
    drop(server);
    assert_eq!((machine.driver.answer(map), machine.driver.answer(close)), (Err(EPIPE), Ok(0)));
}

#[test]
fn reset_ends_all_sessions() {
    let mut machine = Machine::new();
    machine.driver.offer_events(1, 64);
    let first = machine.driver.event().unwrap();
    let mut server = machine.greeted(1);
    let ending = std::thread::spawn(move || {
        let told = server.is_told_the_end();
        std::thread::sleep(Duration::from_millis(100));
        // Taken before: the reset may go on before this thread runs again.
        let let_go = std::time::Instant::now();
        drop(server);
        (told, let_go)
    });
    machine.driver.stop_queues();
    let stopped = std::time::Instant::now();
    let (told, let_go) = ending.join().unwrap();
    assert!(told && stopped >= let_go, "the reset was confirmed while an API server had the memory");
    machine.driver.start_queues();
    machine.driver.offer_events(1, 64);
    let second = machine.driver.event().unwrap();
    assert_eq!((first.kind, second.kind), (EVENT_RESET, EVENT_RESET));
    assert_ne!(first.value, second.value);
    assert_eq!(machine.driver.simple(kind::CLOSE, 1, [0; 3]), Err(ENODEV));
    machine.greeted(1);
}

#[test]
fn end_of_a_vm_ends_its_sessions() {
    let mut machine = Machine::new();
    let mut server = machine.greeted(1);
    let gone = std::thread::spawn(move || server.is_told_the_end());
    machine.power_off().unwrap();
    assert!(gone.join().unwrap());
}

#[test]
fn memory_that_can_shrink_is_refused() {
    let mut machine = Machine::powered_off();
    machine.driver.files[1] = memfd(1 << 20, SealFlags::GROW);
    machine.driver.negotiate();
    assert!(!machine.driver.share_memory());
    assert!(machine.power_off().is_err());
}
