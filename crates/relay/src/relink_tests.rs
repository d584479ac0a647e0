//! Two carriers over a fake connection that breaks at any byte: everything arrives once and in order. No threads, no clock.

use std::collections::VecDeque;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use aviary_transport::{Arena, ControlSocket, Region};

use crate::carry::carrier::Carrier;
use crate::carry::inbox::Parcel;
use crate::carry::link::{Compression, Intake, Link, NetReader};
use crate::carry::outbox::Next;
use crate::carry::pace::LEAST_PIECE;
use crate::frames::frame::{put_packet, put_signs};
use crate::output::Output;

/// Nothing takes messages out of its inbox but these tests.
const LANE: u32 = 0xffff_ff01;
const NO_TIME: Duration = Duration::ZERO;
const ARENA_BYTES: usize = 1 << 20;
const AHEAD: usize = 100;

struct End {
    carrier: Arc<Carrier>,
    reader: NetReader,
    /// Packets from this number on are sent again.
    again: Option<u64>,
    /// Bytes that were sent over the present connection and have not arrived.
    under_way: VecDeque<u8>,
    /// Messages that have arrived.
    messages: Vec<Vec<u8>>,
    _local: UnixStream,
}

impl End {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (control, local) = UnixStream::pair().unwrap();
        let arena = Arena::create(ARENA_BYTES).unwrap();
        let output = Output::sinks([None, None]);
        let carrier = Carrier::relay(arena, ControlSocket::new(control.into()), output, Duration::from_secs(60));
        let link = Link::new(listener.accept().unwrap().0, None, Duration::from_secs(5)).unwrap();
        let (reader, ..) = link.split(Compression::Off, Intake::default());
        End { carrier, reader, again: None, under_way: VecDeque::new(), messages: Vec::new(), _local: local }
    }

    /// A message whose region of the arena has this content. Half of a region of at least `AHEAD` bytes goes ahead.
    fn queue(&self, message: &[u8], offset: u64, content: &[u8]) {
        self.carrier.arena.write(offset, content).unwrap();
        let send = |message: &[u8], from: usize, to: usize| {
            let regions = vec![Region { offset: offset + from as u64, length: to - from }];
            let regions = if from < to { regions } else { Vec::new() };
            self.carrier.outbox.message(LANE, message, regions, true).unwrap();
        };
        let half = if content.len() < AHEAD { 0 } else { content.len() / 2 };
        if half > 0 {
            send(b"", 0, half);
        }
        send(message, half, content.len());
    }

    /// One packet more. False: there is none.
    fn send(&mut self) -> bool {
        let (mut signs, mut frames, mut packet) = (Vec::new(), Vec::new(), Vec::new());
        let outbox = &self.carrier.outbox;
        self.again = self.again.and_then(|at| outbox.again(at, &mut packet, &mut signs));
        if self.again.is_none() {
            if outbox.next(&self.carrier.arena, &mut signs, &mut frames, LEAST_PIECE, NO_TIME, NO_TIME) != Next::Packet
            {
                return false;
            }
            packet.clear();
            if !frames.is_empty() {
                put_packet(&mut packet, &frames, true);
                outbox.keep(&mut packet.clone());
            }
        }
        if !signs.is_empty() {
            let mut signed = Vec::new();
            put_signs(&mut signed, &signs);
            self.under_way.extend(signed);
        }
        self.under_way.extend(packet);
        true
    }

    /// These bytes arrive.
    fn arrive(&mut self, bytes: &[u8]) {
        self.reader.feed(bytes, &self.carrier).unwrap();
        let inbox = self.carrier.output.inbox(LANE).unwrap();
        while inbox.held() > 0 {
            match inbox.next().unwrap() {
                Parcel::Message(message) => self.messages.push(message),
                Parcel::Batch(batch) => self.messages.extend(batch.messages().map(<[u8]>::to_vec)),
                Parcel::Control(_) | Parcel::Pieces(_) => panic!("no message"),
            }
        }
    }

    fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.carrier.arena.read(offset, length, &mut bytes).unwrap();
        bytes
    }
}

/// Moves up to `bytes` bytes to the peer; says how many there were.
fn pass(from: &mut End, to: &mut End, bytes: usize) -> usize {
    let passed: Vec<u8> = from.under_way.drain(..bytes.min(from.under_way.len())).collect();
    to.arrive(&passed);
    passed.len()
}

/// The connection breaks; what was under way is lost, and another one comes.
fn relink(one: &mut End, other: &mut End) {
    for end in [&mut *one, &mut *other] {
        end.carrier.outbox.sever();
        end.again = None;
        assert!(!end.send(), "nothing goes without a connection");
        end.under_way.clear();
    }
    let (at_one, at_other) = (one.reader.relink(), other.reader.relink());
    for (end, received) in [(&mut *one, at_other), (other, at_one)] {
        end.carrier.outbox.relink(received).unwrap();
        end.again = Some(received);
    }
}

/// Until nothing is under way any more.
fn settle(one: &mut End, other: &mut End) {
    while one.send() | other.send() | (pass(one, other, usize::MAX) + pass(other, one, usize::MAX) > 0) {}
}

fn content(n: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + n * 7) as u8 ^ (at >> 8) as u8).collect()
}

/// A message, its region's offset and content.
type Job = (Vec<u8>, u64, Vec<u8>);

/// Jobs with messages and regions of these lengths. Regions are used again, as a program uses its buffers again.
fn jobs(lengths: &[(usize, usize)]) -> Vec<Job> {
    let job = |(n, (message, region)): (usize, &(usize, usize))| {
        (content(n, *message), (n % 3 * (ARENA_BYTES / 4)) as u64, content(n + 100, *region))
    };
    lengths.iter().enumerate().map(job).collect()
}

/// Does all jobs, one after the other, in both directions. The connection is cut each time that so many bytes of it have
/// arrived, as often as there are cuts.
fn run(jobs: &[Job], cuts: &[usize]) {
    let (mut one, mut other) = (End::new(), End::new());
    let mut cuts = cuts.iter();
    for (message, offset, region) in jobs {
        one.queue(message, *offset, region);
        other.queue(message, *offset, &[]);
        one.carrier.outbox.ping(1);
        // The sender waits for an answer before it uses the region again.
        let expected = one.messages.len() + 1;
        while one.messages.len() < expected || other.messages.len() < expected {
            let Some(cut) = cuts.next() else {
                settle(&mut one, &mut other);
                continue;
            };
            let mut left = *cut;
            while left > 0 {
                let sent = one.send() | other.send();
                let before = left;
                left -= pass(&mut one, &mut other, left);
                left -= pass(&mut other, &mut one, left);
                if !sent && left == before {
                    break;
                }
            }
            relink(&mut one, &mut other);
        }
        assert_eq!(other.read(*offset, region.len()), *region);
    }
    settle(&mut one, &mut other);
    let sent: Vec<&Vec<u8>> = jobs.iter().map(|(message, ..)| message).collect();
    for end in [&one, &other] {
        assert!(end.messages.iter().collect::<Vec<_>>() == sent, "{} messages", end.messages.len());
    }
}

/// Bytes of both directions where nothing is cut.
fn length(jobs: &[Job]) -> usize {
    let (mut one, mut other, mut bytes) = (End::new(), End::new(), 0);
    for (message, offset, region) in jobs {
        one.queue(message, *offset, region);
        other.queue(message, *offset, &[]);
        one.carrier.outbox.ping(1);
        while one.send() | other.send() {}
        bytes += one.under_way.len() + other.under_way.len();
        settle(&mut one, &mut other);
    }
    bytes
}

#[test]
fn small_messages_survive_a_cut_at_every_byte() {
    let jobs = jobs(&[(10, 0), (1, 20), (300, 0), (40, 100), (7, 0)]);
    let whole = length(&jobs);
    assert!(whole > 800, "{whole}");
    (0..=whole).for_each(|cut| run(&jobs, &[cut]));
}

#[test]
fn bulk_survives_cuts_within_its_pieces() {
    let jobs = jobs(&[(150_000, 0), (10, 200_000), (100_000, 70_000), (5, 0)]);
    let whole = length(&jobs);
    (0..whole).step_by(whole / 150).for_each(|cut| run(&jobs, &[cut]));
    // Around the ends of pieces.
    for piece in (0..whole).step_by(64 << 10) {
        (piece..piece + 60).step_by(7).for_each(|cut| run(&jobs, &[cut]));
    }
}

#[test]
fn connections_that_break_again_and_again_lose_nothing() {
    let jobs = jobs(&[(10, 0), (20_000, 3000), (40, 100), (90_000, 0), (0, 0), (70, 100_000)]);
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut next = |bound: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % bound
    };
    for _ in 0..100 {
        let most = [40, 400, 40_000, 300_000][next(4) as usize];
        let cuts: Vec<usize> = (0..next(30)).map(|_| next(most) as usize).collect();
        run(&jobs, &cuts);
    }
}

#[test]
fn a_connection_that_breaks_before_anything_came_changes_nothing() {
    run(&jobs(&[(10, 50), (20, 0)]), &[0; 100]);
}
