//! A driver that writes anything into queues and requests, and API servers that send anything: the
//! device survives.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::Machine;
use crate::support::driver::{HANG_TIMEOUT, header, kind, map_request};
use crate::support::node::{Server, hello, welcome};
use aviary_wire::Control;
use aviary_wire::control::control_kind;
use vm_memory::{Bytes, GuestAddress};

const REQUESTS: usize = 100_000;
const SESSIONS: u32 = 12;
const PAGE: u64 = 4096;
/// Requests about memory that API servers have carried out.
static CARRIED_OUT: AtomicUsize = AtomicUsize::new(0);

/// xorshift64*, with a fixed seed.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    fn bytes(&mut self, count: u64) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }

    /// A number, mostly of pages.
    fn number(&mut self, pages: u64) -> u64 {
        match self.below(1000) {
            0 => self.next(),
            1 => u64::MAX - self.below(3 * PAGE),
            2 => self.below(pages * PAGE),
            _ => self.below(pages) * PAGE,
        }
    }
}

/// A mostly valid request, so that sessions live long enough for a lie. `greeted`: sessions that
/// have said hello.
fn random_request(random: &mut Random, greeted: &mut HashSet<u32>) -> Vec<u8> {
    let session = random.below(u64::from(SESSIONS)) as u32;
    match random.below(32) {
        0 => {
            let length = random.below(200);
            random.bytes(length)
        }
        1 | 2 => {
            let name = random.bytes(5);
            let mut bytes = header(kind::OPEN, session, 0, name.len() as u32, [0, 0, random.below(1 << 33)]);
            bytes.extend(name);
            bytes
        }
        3 if random.one_in(3) => {
            greeted.remove(&session);
            header(kind::CLOSE, session, 0, 0, [0; 3])
        }
        4..7 => {
            let sent = match random.below(100) {
                0 => random.bytes(64),
                1 => {
                    let kind = random.below(10) as u32;
                    Control { kind, lane: 1, ..Control::default() }.to_bytes().to_vec()
                }
                _ if greeted.insert(session) => hello(),
                _ => Control { kind: control_kind::LANE_OPEN, lane: 1, ..Control::default() }.to_bytes().to_vec(),
            };
            let mut bytes = header(kind::SEND, session, 0, sent.len() as u32, [0; 3]);
            bytes.extend(sent);
            bytes
        }
        7..24 => {
            let extents: Vec<(u64, u64)> = (0..1 + random.below(30))
                .map(|_| (random.number(512), if random.one_in(1000) { random.next() } else { PAGE }))
                .collect();
            let mut bytes = header(kind::MAP, session, random.below(4) as u32, extents.len() as u32, [0; 3]);
            let length = extents.iter().fold(0u64, |sum, (_, length)| sum.wrapping_add(*length));
            bytes[16..24].copy_from_slice(&random.number(4000).to_le_bytes());
            bytes[24..32].copy_from_slice(&length.to_le_bytes());
            bytes.extend(extents.iter().flat_map(|(at, length)| [at.to_le_bytes(), length.to_le_bytes()].concat()));
            bytes
        }
        24..30 => header(kind::UNMAP, session, 0, 0, [random.number(4000), random.number(40), 0]),
        30 => header(random.below(10) as u32, session, random.next() as u32, random.next() as u32, [0, PAGE, 1]),
        _ => header(kind::PING, 0, 0, 0, [0; 3]),
    }
}

/// Acts as an API server for a moment. False: it has ended.
fn live(server: &mut Server, random: &mut Random) -> bool {
    let Some((control, _)) = server.try_control() else { return false };
    match control.kind {
        control_kind::MEMORY_MAP | control_kind::MEMORY_UNMAP => {
            let extents = if control.kind == control_kind::MEMORY_MAP { control.lane as usize } else { 0 };
            let mut rest = vec![0; extents * 16];
            if extents > 0 && server.try_receive(&mut rest).is_none() {
                return false;
            }
            let errno = if random.one_in(20) { random.below(5000) as u32 } else { 0 };
            CARRIED_OUT.fetch_add(usize::from(errno == 0), Ordering::Relaxed);
            let done = Control { kind: control_kind::MEMORY_DONE, lane: errno, ..control };
            if !server.try_send(&done.to_bytes()) {
                return false;
            }
        }
        _ => {}
    }
    match random.below(2000) {
        0 => server.try_send(&random.bytes(32)),
        1 => server.try_send(&Control { kind: control_kind::MEMORY_DONE, ..Control::default() }.to_bytes()),
        2 => false,
        3..300 => {
            let offset = random.below(1 << 20);
            server.try_send(&Control { kind: control_kind::WAKE, offset, ..Control::default() }.to_bytes())
        }
        _ => true,
    }
}

#[test]
fn hundred_thousand_lies_are_survived() {
    let mut machine = Machine::new();
    let (stop, mut random) = (Arc::new(AtomicBool::new(false)), Random(0x5eed));
    let node = machine.node.listener().try_clone().unwrap();
    let acceptor = std::thread::spawn({
        let (stop, mut random) = (stop.clone(), Random(77));
        move || {
            let mut threads = Vec::new();
            for stream in node.incoming().map_while(Result::ok) {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                let (mut server, mut random) = (Server { stream }, Random(random.next() | 1));
                threads.push(std::thread::spawn(move || {
                    if server.try_greeting().is_some() && server.try_send(&welcome()) {
                        while live(&mut server, &mut random) {}
                    }
                }));
            }
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        }
    });
    let (mut waiting, mut greeted, mut sent) = (HashSet::new(), HashSet::new(), 0);
    while sent < REQUESTS {
        let request = random_request(&mut random, &mut greeted);
        let room = if random.one_in(50) { random.below(20) as u32 } else { 64 };
        if let Some(head) = machine.driver.submit_with_room(&request, room) {
            waiting.insert(head);
            sent += 1;
        }
        match random.below(40) {
            0 => {
                let (session, offset) = (random.below(u64::from(SESSIONS)) as u32, random.next() % (1 << 31));
                machine.driver.ring_bell(session, offset);
            }
            1 => scribble(&mut machine, &mut random),
            2 => {
                if machine.driver.events_offered() < 30 {
                    machine.driver.offer_events(1, 64 + random.below(500) as u32);
                }
                machine.driver.event_within(Duration::from_micros(100));
            }
            _ => {}
        }
        machine.driver.collect();
        waiting.retain(|head| !machine.driver.forget(*head));
        if waiting.len() > 30 {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    // All sessions close: all pending requests are answered, and the device is as good as new.
    for session in 0..SESSIONS {
        let close = header(kind::CLOSE, session, 0, 0, [0; 3]);
        loop {
            if let Some(head) = machine.driver.submit_with_room(&close, 64) {
                waiting.insert(head);
                break;
            }
            machine.driver.collect();
            waiting.retain(|head| !machine.driver.forget(*head));
        }
    }
    let until = std::time::Instant::now() + HANG_TIMEOUT;
    while !waiting.is_empty() {
        assert!(std::time::Instant::now() < until, "{} requests are never answered", waiting.len());
        machine.driver.collect();
        waiting.retain(|head| !machine.driver.forget(*head));
    }
    assert_eq!(machine.driver.simple(kind::PING, 0, [0; 3]), Ok(0));
    let carried_out = CARRIED_OUT.load(Ordering::Relaxed);
    assert!(carried_out > REQUESTS / 100, "only {carried_out} requests have reached an API server");
    println!("{carried_out} of {REQUESTS} requests reached an API server and were carried out");
    stop.store(true, Ordering::SeqCst);
    machine.driver.open(1, 1, "last").unwrap();
    machine.driver.simple(kind::CLOSE, 1, [0; 3]).unwrap();
    acceptor.join().unwrap();
    machine.driver.send(1, &map_request(1, 0, 1, &[])).unwrap_err();
    machine.power_off().unwrap();
}

/// Writes random chains into the doorbell queue. They may lead anywhere but into the queues
/// themselves.
fn scribble(machine: &mut Machine, random: &mut Random) {
    let driver = &mut machine.driver;
    for index in 0..4 {
        let address = if random.one_in(3) { random.next() | 1 << 40 } else { 0x10_0000 + random.below(0x10_0000) };
        let (length, flags, next) = (random.next() as u32 >> random.below(32), random.below(8) as u16, random.below(6));
        driver.bells.write_descriptor(&driver.memory, 60 + index, address, length, flags, 60 + next as u16);
    }
    let table = random.bytes(64);
    driver.memory.write_slice(&table, GuestAddress(0x1_9000)).unwrap();
    driver.bells.offer(&driver.memory, 60);
    driver.bells.kick();
    assert!(driver.bells.wait_used(&driver.memory, HANG_TIMEOUT).is_some(), "a chain is never given back");
}
