//! Sessions with strands whose connections are cut, one, several and all, at every packet of them: what a program copies and calls
//! arrives once, in order and whole. With all threads of both ends, and the frames with which connections and strands come;
//! the test is the node, the guest and the API server.

use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aviary_transport::{
    Arena, ControlSocket, LaneEnd, Liveness, Region, RemoteAddress, Side, receive_greeting, send_greeting,
};
use aviary_wire::attach::welcome_status;
use aviary_wire::control::control_kind;
use aviary_wire::{Control, Hello, WIRE_VERSION, Welcome};

use crate::carry::carrier::Carrier;
use crate::carry::life::Reconnection;
use crate::carry::link::{Compression, Link};
use crate::dial::RelayOptions;
use crate::frames::frame::Kind;
use crate::keys::security::{ClientSecurity, NodeSecurity};
use crate::output::Output;
use crate::resuming::cutter::{Breakage, Cutter, Which};
use crate::resuming::handover::HandOvers;
use crate::resuming::redial::Redial;
use crate::resuming::resume::{Resume, Resumption, Ticket};
use crate::strands::pieces::PIECE_BYTES;

/// Longer than any of these tests.
const LONG: Duration = Duration::from_secs(600);
const STRANDS: usize = 3;
/// Carried by strands, in pieces of which the last one is short.
const BULK: usize = (1 << 20) + 300_000;
const ARENA_BYTES: usize = 8 << 20;
/// Places in the arena: of the lane, of what the guest sends, and of what the API server answers.
const LANE: (u64, usize) = (0, 64 << 10);
const ASKED: u64 = 1 << 20;
const ANSWERED: u64 = 4 << 20;
/// Calls without bulk data in a round.
const SMALL: u64 = 3;

/// What a round sends or answers.
fn content(round: u64, answer: bool) -> Vec<u8> {
    let salt = round * 2 + u64::from(answer);
    (0..BULK as u64).map(|at| (at * 31 + (at >> 8) * 7 + salt * 101) as u8).collect()
}

fn check(arena: &Arena, offset: u64, round: u64, answer: bool) {
    let mut bytes = Vec::new();
    arena.read(offset, BULK, &mut bytes).unwrap();
    let expected = content(round, answer);
    let wrong = bytes.iter().zip(&expected).position(|(is, should)| is != should);
    assert_eq!(wrong, None, "round {round}, answer {answer}");
}

/// Connections that come to the node: in the place of the gateway that accepts them, and of the node that passes them on.
fn accept_all(listener: &TcpListener, cutter: &Arc<Cutter>, node: &UnixStream) {
    // Until it is shut down.
    while let Ok((near, _)) = listener.accept() {
        // One that is cut meanwhile is nobody's.
        let _ = pass_on(cutter.through(near), node);
    }
}

fn pass_on(socket: std::net::TcpStream, node: &UnixStream) -> Result<(), Box<dyn std::error::Error>> {
    let mut link = Link::new(socket, None, LONG)?;
    let resume = Resume::from_bytes(&link.receive(Kind::Resume, Instant::now() + LONG)?)?;
    assert!(resume.proof.is_none());
    let welcome = Welcome { wire_version: WIRE_VERSION, status: welcome_status::OK, ..Welcome::default() };
    let (gateway, theirs) = UnixStream::pair()?;
    send_greeting(node, &Control::default().to_bytes(), &[theirs.as_fd()])?;
    send_greeting(&gateway, &Hello::default().to_bytes(), &[link.socket()?.as_fd()])?;
    receive_greeting(&gateway, LONG)?;
    Ok(link.send(Kind::Welcome, &welcome.to_bytes())?)
}

pub(super) struct World {
    cutter: Arc<Cutter>,
    guest: LaneEnd,
    arenas: [Arc<Arena>; 2],
    /// Relay and gateway.
    pub carriers: [Arc<Carrier>; 2],
    /// Relay and gateway, with the reason of their end.
    pub ends: [JoinHandle<std::io::Result<String>>; 2],
    api_server: JoinHandle<u64>,
    control: UnixStream,
    rounds: u64,
    pub listener: Arc<TcpListener>,
    pub resumption: Resumption,
    _report: UnixStream,
}

impl World {
    /// A session with all its strands.
    pub fn new() -> World {
        let mut world = World::begin();
        while world.carriers.iter().any(|carrier| carrier.outbox.pieces.strands() < STRANDS) {
            world.round();
        }
        world
    }

    fn begin() -> World {
        let cutter = Arc::new(Cutter::default());
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
        let node: RemoteAddress = listener.local_addr().unwrap().to_string().parse().unwrap();
        let (report, node_end) = UnixStream::pair().unwrap();
        std::thread::spawn({
            let (listener, cutter, node_end) = (listener.clone(), cutter.clone(), node_end.try_clone().unwrap());
            move || accept_all(&listener, &cutter, &node_end)
        });
        let resumption = Resumption {
            session: [5; 16],
            ticket: Ticket::random().unwrap(),
            strands: Ticket::random().unwrap(),
            grace: LONG,
        };
        let way = HandOvers::new(report.into(), NodeSecurity::plain(), String::new(), resumption, LONG);
        let options = RelayOptions {
            node,
            security: ClientSecurity::plain(),
            patience: LONG,
            compression: Compression::Off,
            strands: Some(STRANDS + 1),
            verbose: false,
            dialer: None,
        };
        let (one, other) = cutter.connection();
        let arenas = [(); 2].map(|()| Arena::create(ARENA_BYTES).unwrap());
        arenas.iter().for_each(|arena| arena.set_carried());
        let (relay_control, control) = UnixStream::pair().unwrap();
        let (gateway_control, server) = UnixStream::pair().unwrap();
        let output = || Output::sinks([None, None]);
        let relay = ControlSocket::new(relay_control.into());
        let relay = Carrier::relay(arenas[0].clone(), relay, output(), LONG);
        let gateway = ControlSocket::new(gateway_control.into());
        let gateway = Carrier::gateway(arenas[1].clone(), ARENA_BYTES, gateway, output(), LONG);
        let carriers = [relay, gateway];
        let start = |carrier: &Arc<Carrier>, socket, way: Box<dyn Reconnection>| {
            let (link, carrier) = (Link::new(socket, None, LONG).unwrap(), carrier.clone());
            std::thread::spawn(move || carrier.run(link, Compression::Off, way))
        };
        let ends = [
            start(&carriers[0], one, Box::new(Redial::new(Arc::new(options), resumption))),
            start(&carriers[1], other, Box::new(way)),
        ];
        let api_server = std::thread::spawn({
            let arena = arenas[1].clone();
            move || answer_all(&arena, server)
        });
        LaneEnd::clear(&arenas[0], LANE.0, LANE.1).unwrap();
        let liveness = Arc::new(Liveness::notified());
        let guest = LaneEnd::shared(&arenas[0], LANE.0, LANE.1, Side::Guest, &liveness).unwrap();
        let open = Control { kind: control_kind::LANE_OPEN, lane: 1, offset: LANE.0, length: LANE.1 as u64, flags: 0 };
        std::io::Write::write_all(&mut &control, &open.to_bytes()).unwrap();
        World {
            cutter,
            guest,
            arenas,
            carriers,
            ends,
            api_server,
            control,
            rounds: 0,
            listener,
            resumption,
            _report: node_end,
        }
    }

    /// Calls and two copies.
    pub fn round(&mut self) {
        let (round, mut answer) = (self.rounds, Vec::new());
        self.rounds += 1;
        let call = |n: u64| [(round * (SMALL + 1) + n).to_le_bytes(), [1; 8]].concat();
        for n in 0..SMALL {
            self.guest.ask(&call(n), &[]).unwrap();
        }
        self.arenas[0].write(ASKED, &content(round, false)).unwrap();
        self.guest.ask(&call(SMALL), &[Region { offset: ASKED, length: BULK }]).unwrap();
        for n in 0..=SMALL {
            self.guest.receive(&mut answer).unwrap();
            assert_eq!(answer, call(n));
        }
        check(&self.arenas[0], ANSWERED, round, true);
    }

    /// The guest ends: how many calls there were.
    fn end(self) -> u64 {
        let World { guest, ends: [relay, gateway], api_server, control, listener, .. } = self;
        rustix::net::shutdown(&*listener, rustix::net::Shutdown::Both).unwrap();
        drop((guest, control));
        assert_eq!(relay.join().unwrap().unwrap(), "the guest has ended");
        assert_eq!(gateway.join().unwrap().unwrap(), "the peer ended the session");
        api_server.join().unwrap()
    }
}

/// The API server: checks every call, and answers it. How many there were.
fn answer_all(arena: &Arc<Arena>, control: UnixStream) -> u64 {
    let control = ControlSocket::new(control.into());
    let Ok(Some((open, _))) = control.receive() else { return 0 };
    assert_eq!(open.kind, control_kind::LANE_OPEN);
    let liveness = Arc::new(Liveness::notified());
    let mut lane = LaneEnd::shared(arena, open.offset, open.length as usize, Side::Server, &liveness).unwrap();
    let waker = lane.waker();
    let hearing = std::thread::spawn(move || {
        while let Ok(Some(_)) = control.receive() {}
        liveness.kill();
        waker.wake();
    });
    let (mut call, mut calls) = (Vec::new(), 0u64);
    while lane.receive(&mut call).is_ok() {
        assert_eq!(call[..8], calls.to_le_bytes(), "once, and in order");
        let round = calls / (SMALL + 1);
        let region = if calls % (SMALL + 1) == SMALL {
            check(arena, ASKED, round, false);
            arena.write(ANSWERED, &content(round, true)).unwrap();
            vec![Region { offset: ANSWERED, length: BULK }]
        } else {
            Vec::new()
        };
        calls += 1;
        lane.send(&call, &region).unwrap();
    }
    hearing.join().unwrap();
    calls
}

/// A session that is cut so. How often it was.
fn run(cuts: &[Breakage], rounds: u64) -> usize {
    let mut world = World::new();
    world.cutter.arm(cuts);
    (0..rounds).for_each(|_| world.round());
    // The peer of a session that ends without a connection learns it after the grace period only.
    world.cutter.arm(&[]);
    world.round();
    let (calls, done) = (world.rounds * (SMALL + 1), world.cutter.done());
    assert_eq!(world.end(), calls, "{cuts:?}");
    done
}

/// Cuts at every packet of these connections, in both directions, until a session has no such packet any more: before a
/// packet, and within it. How many sessions were cut.
fn cut_at_every_packet(seen: Which, which: Which) -> usize {
    let mut cut = 0;
    for up in [false, true] {
        for packets in 0.. {
            let done = [0, 21].map(|bytes| run(&[Breakage { seen, up, packets, bytes, which }], 2));
            cut += done.iter().sum::<usize>();
            if done == [0, 0] {
                break;
            }
        }
    }
    cut
}

/// Messages and what belongs to them are more packets than this.
const PACKETS: usize = 20;
/// Strands carry so many pieces in two rounds, in either direction.
const PIECES: usize = 2 * BULK.div_ceil(PIECE_BYTES);

#[test]
fn the_first_connection_is_cut_at_every_packet() {
    let cut = cut_at_every_packet(Which::One(0), Which::Seen);
    assert!(cut > PACKETS, "{cut}");
}

#[test]
fn a_strand_is_cut_at_every_packet() {
    let cut = cut_at_every_packet(Which::From(1), Which::Seen);
    assert!(cut >= 2 * 2 * PIECES, "{cut}");
}

#[test]
fn the_first_connection_and_strands_are_cut_at_every_packet() {
    // The newest strand is the one that takes the first connection's place.
    for which in [Which::These(&[0, 3]), Which::These(&[0, 1, 2])] {
        let cut = cut_at_every_packet(Which::One(0), which);
        assert!(cut > PACKETS, "{cut} {which:?}");
    }
}

#[test]
fn all_connections_are_cut_at_every_packet() {
    let cut = cut_at_every_packet(Which::All, Which::All);
    assert!(cut >= 2 * 2 * PIECES + PACKETS, "{cut}");
}

#[test]
fn a_strand_is_cut_while_it_takes_the_first_connections_place() {
    for up in [false, true] {
        for packets in 0..4 {
            let first = Breakage { seen: Which::One(0), up: true, packets: 1, bytes: 0, which: Which::Seen };
            let leading = Breakage { seen: Which::One(3), up, packets, bytes: 9, which: Which::Seen };
            let next = Breakage { seen: Which::One(2), up, packets: 1, bytes: 0, which: Which::Seen };
            assert!(run(&[first, leading, next], 3) > 0);
        }
    }
}

#[test]
fn connections_that_break_again_and_again_lose_nothing() {
    let mut world = World::new();
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut chance = |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % bound as u64) as usize
    };
    for _ in 0..150 {
        let which = [Which::All, Which::Seen, Which::Seen, Which::Seen][chance(4)];
        let cut = Breakage { seen: Which::All, up: chance(2) == 0, packets: chance(12), bytes: chance(100_000), which };
        world.cutter.arm(&[cut]);
        (0..1 + chance(3)).for_each(|_| world.round());
    }
    assert!(world.cutter.done() > 100, "{}", world.cutter.done());
    world.cutter.arm(&[]);
    world.round();
    let calls = world.rounds * (SMALL + 1);
    assert_eq!(world.end(), calls);
}
