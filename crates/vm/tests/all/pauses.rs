//! A VM that is paused, goes on, or is reset meanwhile; and a VMM that lies about it.

use std::time::Duration;

use crate::support::Machine;
use crate::support::driver::{Driver, header, kind, map_request};
use crate::support::node::{Server, hello, welcome};
use aviary_wire::Control;
use aviary_wire::control::control_kind;
use vm_memory::{Bytes, GuestAddress};

const ENODEV: u32 = 19;
const EVENT_DATA: u32 = 1;
const EVENT_WAKE: u32 = 2;
const EVENT_CLOSED: u32 = 3;
const EVENT_RESET: u32 = 4;
const ENOUGH_BUFFERS: usize = 16;

/// A VM whose VMM tells resets from pauses, as it does before the guest's kernel runs.
fn machine() -> Machine {
    let mut machine = Machine::powered_off();
    machine.driver.negotiate();
    machine.driver.announce_reset();
    assert!(machine.driver.share_memory());
    machine.driver.start_queues();
    machine.driver.offer_events(ENOUGH_BUFFERS, 4096);
    assert_eq!(machine.driver.event().unwrap().kind, EVENT_RESET);
    machine
}

/// A session that has greeted and was welcomed.
fn session(machine: &mut Machine, number: u32) -> Server {
    let server = machine.greeted(number);
    let event = machine.driver.event().unwrap();
    assert_eq!((event.kind, event.bytes), (EVENT_DATA, welcome()));
    server
}

/// The session's lanes open, messages pass in both directions, memory comes and goes.
fn works(machine: &mut Machine, number: u32, server: &mut Server) {
    let open = Control { kind: control_kind::LANE_OPEN, lane: 3, offset: 4096, length: 8192, flags: 1 };
    machine.driver.send(number, &open.to_bytes()).unwrap();
    assert_eq!(server.control().0, open);
    server.wake(64);
    let event = machine.driver.event().unwrap();
    assert_eq!((event.kind, event.session, event.value), (EVENT_WAKE, number, 64));
    machine.driver.offer_events(1, 4096);
    machine.driver.ring_bell(number, 128);
    assert_eq!(server.control().0.offset, 128);
    let map = machine.driver.submit(&map_request(number, 0x10_0000, 1, &[(0x8000, 0x1000)]));
    server.mapping();
    server.done(0x10_0000, 0);
    assert_eq!(machine.driver.answer(map), Ok(0));
    let unmap = machine.driver.submit(&header(kind::UNMAP, number, 0, 0, [0x10_0000, 0x1000, 0]));
    assert_eq!(server.control().0.kind, control_kind::MEMORY_UNMAP);
    server.done(0x10_0000, 0);
    assert_eq!(machine.driver.answer(unmap), Ok(0));
}

/// Bytes of the queues that only the device writes.
fn used_rings(driver: &Driver) -> Vec<u8> {
    let mut bytes = vec![0; 3 * 0x800];
    for (ring, part) in [&driver.control, &driver.events, &driver.bells].into_iter().zip(bytes.chunks_mut(0x800)) {
        driver.memory.read_slice(part, GuestAddress(ring.used)).unwrap();
    }
    bytes
}

/// Time in which a device that writes to stopped queues would do so. Too short a time only hides that.
const MEANWHILE: Duration = Duration::from_millis(20);

#[test]
fn pause_keeps_sessions_and_messages_in_flight() {
    let mut machine = machine();
    let mut server = session(&mut machine, 1);
    works(&mut machine, 1, &mut server);
    for round in 0..10 {
        let other = session(&mut machine, 100 + round);
        let offset = u64::from(round) << 16;
        let map = machine.driver.submit(&map_request(1, offset, 1, &[(0x8000, 0x1000)]));
        server.mapping();
        let bases = machine.driver.pause_queues();
        let before = used_rings(&machine.driver);
        server.done(offset, 0);
        server.wake(64);
        drop(other);
        // The driver's side of the queues may be ahead of the pause.
        let ping = machine.driver.submit(&header(kind::PING, 0, 0, 0, [0; 3]));
        std::thread::sleep(MEANWHILE);
        assert!(used_rings(&machine.driver) == before, "a stopped queue was written to");
        machine.driver.start_queues_at(bases);
        assert_eq!((machine.driver.answer(map), machine.driver.answer(ping)), (Ok(0), Ok(0)));
        let mut events: Vec<(u32, u32)> =
            (0..2).map(|_| machine.driver.event().unwrap()).map(|event| (event.kind, event.session)).collect();
        events.sort_unstable();
        assert_eq!(events, [(EVENT_WAKE, 1), (EVENT_CLOSED, 100 + round)]);
        machine.driver.offer_events(3, 4096);
        works(&mut machine, 1, &mut server);
    }
    machine.power_off().unwrap();
}

#[test]
fn pause_keeps_sessions_that_begin_or_end() {
    let mut machine = machine();
    // Opened; half of its greeting; not welcomed yet.
    let mut servers: Vec<Server> = (1..=3)
        .map(|number| {
            machine.driver.open(number, 77, "program").unwrap();
            machine.node.accept()
        })
        .collect();
    let greeting = hello();
    let (half, rest) = greeting.split_at(11);
    machine.driver.send(2, half).unwrap();
    machine.driver.send(3, &greeting).unwrap();
    let mut ending = session(&mut machine, 4);
    let close = machine.driver.submit(&header(kind::CLOSE, 4, 0, 0, [0; 3]));
    assert!(ending.is_told_the_end());
    let bases = machine.driver.pause_queues();
    drop(ending);
    std::thread::sleep(MEANWHILE);
    assert!(!machine.driver.answered(close));
    machine.driver.start_queues_at(bases);
    assert_eq!(machine.driver.answer(close), Ok(0));
    machine.driver.send(1, &greeting).unwrap();
    machine.driver.send(2, rest).unwrap();
    for (server, number) in servers.iter_mut().zip(1..) {
        server.greeting();
        server.send(&welcome());
        assert_eq!(machine.driver.event().unwrap().bytes, welcome());
        machine.driver.offer_events(2, 4096);
        works(&mut machine, number, server);
    }
}

#[test]
fn reset_in_a_pause_ends_sessions_and_takes_the_memory_first() {
    let mut machine = machine();
    let mut server = session(&mut machine, 1);
    let map = machine.driver.submit(&map_request(1, 0, 1, &[(0x8000, 0x1000)]));
    server.mapping();
    machine.driver.pause_queues();
    let told = std::thread::spawn(move || {
        let (last, _) = server.control();
        (last.kind, server.is_told_the_end())
    });
    machine.driver.announce_reset();
    assert_eq!(told.join().unwrap(), (control_kind::WINDOW_CLOSE, true));
    machine.driver.forget_queues();
    machine.driver.start_queues();
    assert!(!machine.driver.answered(map), "the answer of another driver's request");
    machine.driver.offer_events(8, 4096);
    assert_eq!(machine.driver.event().unwrap().kind, EVENT_RESET);
    assert_eq!(machine.driver.simple(kind::CLOSE, 1, [0; 3]), Err(ENODEV));
    let mut server = session(&mut machine, 1);
    works(&mut machine, 1, &mut server);
}

#[test]
fn reset_without_a_pause_ends_sessions() {
    let mut machine = machine();
    let mut server = session(&mut machine, 1);
    let told = std::thread::spawn(move || server.is_told_the_end());
    machine.driver.stop_queues();
    machine.driver.announce_reset();
    assert!(told.join().unwrap());
    machine.driver.start_queues();
    assert_eq!(machine.driver.simple(kind::CLOSE, 1, [0; 3]), Err(ENODEV));
}

#[test]
fn queue_that_goes_on_elsewhere_is_another_drivers() {
    // Of a driver that begins anew; and seen only after another pause.
    for pauses in [1, 2] {
        let mut machine = machine();
        let mut server = session(&mut machine, 1);
        let told = std::thread::spawn(move || server.is_told_the_end());
        machine.driver.stop_queues();
        machine.driver.start_queues();
        for _ in 1..pauses {
            let bases = machine.driver.pause_queues();
            machine.driver.start_queues_at(bases);
        }
        assert!(told.join().unwrap());
        machine.driver.offer_events(1, 4096);
        assert_eq!(machine.driver.event().unwrap().kind, EVENT_RESET);
        assert_eq!(machine.driver.simple(kind::CLOSE, 1, [0; 3]), Err(ENODEV));
    }
}

#[test]
fn device_survives_any_places_that_a_vmm_names() {
    let mut machine = machine();
    for bases in [[u16::MAX; 3], [1, 0, 0], [0x8000, 1, 7], [3, 0xfff0, 0x1234], [65, 64, 63]] {
        let mut server = session(&mut machine, 1);
        let map = machine.driver.submit(&map_request(1, 0, 1, &[(0x8000, 0x1000)]));
        server.mapping();
        let told = std::thread::spawn(move || server.is_told_the_end());
        machine.driver.pause_queues();
        machine.driver.start_queues_at(bases);
        machine.driver.control.kick();
        std::thread::sleep(MEANWHILE);
        machine.driver.pause_queues();
        machine.driver.announce_reset();
        assert!(told.join().unwrap());
        machine.driver.forget(map);
        machine.driver.forget_queues();
        machine.driver.start_queues();
        machine.driver.offer_events(ENOUGH_BUFFERS, 4096);
        assert_eq!(machine.driver.event().unwrap().kind, EVENT_RESET);
        assert_eq!(machine.driver.simple(kind::PING, 0, [0; 3]), Ok(0));
    }
}

#[test]
fn end_of_a_paused_vm_ends_its_sessions() {
    let mut machine = machine();
    let mut server = session(&mut machine, 1);
    machine.driver.pause_queues();
    let told = std::thread::spawn(move || server.is_told_the_end());
    machine.power_off().unwrap();
    assert!(told.join().unwrap());
}
