//! A driver that sends any requests, and API servers that send any answers: every request is
//! answered exactly once, at the latest when the API servers are gone, and no session is left.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use crate::log::Log;
use crate::request::kind;
use crate::sessions::{Interest, Node, Sessions, Watch};
use aviary_wire::control::control_kind;
use aviary_wire::{Control, Hello, Origin, Welcome};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

const SESSIONS: u32 = 4;
const PAGE: u64 = 4096;

type Servers = Arc<Mutex<Vec<UnixStream>>>;

struct Pairs(Servers);

impl Node for Pairs {
    fn connect(&mut self, _origin: &Origin) -> Result<OwnedFd, Errno> {
        let (ours, theirs) = UnixStream::pair().map_err(|_| Errno::MFILE)?;
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        self.0.lock().unwrap().push(theirs);
        Ok(ours.into())
    }
}

struct NoWatch;

impl Watch for NoWatch {
    fn change(&self, _: BorrowedFd<'_>, _: usize, before: Interest, after: Interest) -> std::io::Result<()> {
        assert_ne!(before, after);
        Ok(())
    }
}

fn guest_memory() -> GuestMemoryMmap {
    let regions = [0, 16 * PAGE].map(|start| {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, 16 * PAGE).unwrap();
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        let mapped = MmapRegion::from_file(FileOffset::new(file.into(), 0), 16 * PAGE as usize).unwrap();
        GuestRegionMmap::new(mapped, GuestAddress(start)).unwrap()
    });
    GuestMemoryMmap::from_regions(regions.into()).unwrap()
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

fn header(kind: u32, session: u32, flags: u32, count: u32, words: [u64; 3]) -> Vec<u8> {
    let mut bytes: Vec<u8> = [kind, session, flags, count].iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    bytes
}

fn request(input: &mut Input, session: u32) -> Vec<u8> {
    match input.byte() % 7 {
        0 => {
            let length = usize::from(input.byte()) * 2;
            input.bytes(length).to_vec()
        }
        1 => header(kind::OPEN, session, 0, 0, [0, 0, 1]),
        2 => header(kind::CLOSE, session, 0, 0, [0; 3]),
        3 => {
            let length = usize::from(input.byte());
            let sent = input.bytes(length);
            [header(kind::SEND, session, 0, sent.len() as u32, [0; 3]), sent.to_vec()].concat()
        }
        4 => {
            let hello = Hello { wire_version: 3, arena_size: 64 * PAGE, ..Hello::default() }.to_bytes();
            [header(kind::SEND, session, 0, hello.len() as u32, [0; 3]), hello].concat()
        }
        5 => {
            let (offset, count) = (u64::from(input.byte()) * PAGE, u32::from(input.byte() % 4) + 1);
            let extents: Vec<(u64, u64)> = (0..count)
                .map(|_| (u64::from(input.byte() % 40) * PAGE, u64::from(input.byte() % 20) * PAGE))
                .collect();
            let length = extents.iter().map(|(_, length)| length).sum();
            let mut bytes = header(kind::MAP, session, 1, count, [offset, length, 0]);
            bytes.extend(extents.iter().flat_map(|(at, length)| [at.to_le_bytes(), length.to_le_bytes()].concat()));
            bytes
        }
        _ => {
            let (offset, length) = (u64::from(input.byte()) * PAGE, u64::from(input.byte()) * PAGE);
            header(kind::UNMAP, session, 0, 0, [offset, length, 0])
        }
    }
}

struct Bench {
    sessions: Sessions,
    servers: Servers,
    memory: GuestMemoryMmap,
    tickets: u64,
    open: HashSet<u64>,
}

impl Bench {
    fn ask(&mut self, bytes: &[u8]) {
        self.tickets += 1;
        self.open.insert(self.tickets);
        if self.sessions.request(self.tickets, bytes, &self.memory).is_some() {
            assert!(self.open.remove(&self.tickets), "answered twice");
        }
        self.collect();
    }

    fn collect(&mut self) {
        for answer in self.sessions.take_answers() {
            assert!(self.open.remove(&answer.ticket), "answered twice, or never asked");
        }
    }

    fn look(&mut self) {
        (0..SESSIONS as usize + 2).for_each(|place| self.sessions.ready(place));
        self.collect();
    }

    fn server(&mut self, input: &mut Input) {
        let (what, which) = (input.byte(), usize::from(input.byte()));
        let mut servers = self.servers.lock().unwrap();
        if servers.is_empty() {
            return;
        }
        let which = which % servers.len();
        let said = match what % 6 {
            0 => input.bytes(usize::from(what)).to_vec(),
            1 => Welcome { wire_version: 3, ..Welcome::default() }.to_bytes(),
            2 => {
                let lane = u32::from(input.byte() % 2) * 12;
                Control { kind: control_kind::MEMORY_DONE, lane, ..Control::default() }.to_bytes().to_vec()
            }
            3 => {
                let offset = u64::from(input.byte());
                Control { kind: control_kind::WAKE, offset, ..Control::default() }.to_bytes().to_vec()
            }
            4 => {
                let _ = servers[which].read(&mut [0; 4096]);
                return;
            }
            _ => return drop(servers.swap_remove(which)),
        };
        let _ = servers[which].write(&said);
    }
}

pub fn run(bytes: &[u8]) {
    let (mut input, servers) = (Input(bytes), Servers::default());
    let sessions = Sessions::new(Box::new(Pairs(servers.clone())), Box::new(NoWatch), Log::new("fuzz"));
    let mut bench = Bench { sessions, servers, memory: guest_memory(), tickets: 0, open: HashSet::new() };
    while !input.0.is_empty() {
        let session = u32::from(input.byte()) % SESSIONS;
        match input.byte() % 8 {
            0..5 => bench.ask(&request(&mut input, session)),
            5 => bench.server(&mut input),
            6 => {
                let _ = bench.sessions.next_event(usize::from(input.byte()) + 40);
                bench.collect();
            }
            _ => {
                let offset = u64::from(input.byte()) * 64;
                bench.sessions.ring(&[u64::from(session).to_le_bytes(), offset.to_le_bytes()].concat());
            }
        }
        bench.look();
    }
    bench.servers.lock().unwrap().clear();
    // The last messages of API servers may wait for buffers.
    for _ in 0..100 {
        bench.look();
        while bench.sessions.next_event(4072).is_some() {}
    }
    assert!(bench.open.is_empty(), "never answered: {:?}", bench.open);
    (0..SESSIONS).for_each(|session| bench.ask(&header(kind::CLOSE, session, 0, 0, [0; 3])));
    assert!(bench.open.is_empty() && !bench.sessions.has_events());
    (1..SESSIONS).for_each(|session| bench.ask(&header(kind::OPEN, session, 0, 0, [0, 0, 1])));
    assert_eq!(bench.servers.lock().unwrap().len(), SESSIONS as usize - 1, "a session stayed");
    bench.servers.lock().unwrap().clear();
    bench.sessions.end_all();
}
