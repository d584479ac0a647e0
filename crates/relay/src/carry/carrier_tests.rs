use std::net::TcpListener;
use std::os::unix::net::UnixStream;

use aviary_transport::AHEAD_BYTES;
use aviary_wire::ReplyHeader;

use super::*;
use crate::carry::link::{Compression, Intake, Link, NetReader};
use crate::carry::outbox::Next;
use crate::frames::frame::{FRAME_HEADER, Kind, MAX_PACKET, Packets, put_frame, put_packet, put_signs};
use std::net::TcpStream;

const MEMORY: usize = 4 << 20;
const GRACE: Duration = Duration::from_secs(60);

/// The carrier that stands on a node for a guest of another machine; the API server's end of the control socket is
/// never read.
struct Gateway {
    carrier: Arc<Carrier>,
    reader: NetReader,
    api_server: Option<UnixStream>,
    _peer: TcpStream,
}

impl Gateway {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        let (control, api_server) = UnixStream::pair().unwrap();
        let output = Output::sources([None, None]);
        let control = ControlSocket::new(control.into());
        let carrier = Carrier::gateway(Arena::create(1 << 30).unwrap(), MEMORY, control, output, GRACE);
        let (reader, ..) =
            Link::new(socket, None, Duration::from_secs(5)).unwrap().split(Compression::Off, Intake::default());
        Gateway { carrier, reader, api_server: Some(api_server), _peer: peer }
    }

    /// The peer sends as many of this frame as fit a packet, compressed.
    fn feed_many(&mut self, kind: Kind, lane: u32, payload: &[u8]) -> Result<usize, String> {
        let mut frames = Vec::new();
        while frames.len() + FRAME_HEADER + payload.len() <= MAX_PACKET {
            put_frame(&mut frames, kind, lane, payload);
        }
        let fed = if kind.is_sign() { self.feed_signs(&frames) } else { self.feed(&frames) };
        fed.map(|()| frames.len() / (FRAME_HEADER + payload.len()))
    }

    fn feed(&mut self, frames: &[u8]) -> Result<(), String> {
        let mut packet = Vec::new();
        put_packet(&mut packet, frames, true);
        self.feed_bytes(&packet)
    }

    fn feed_signs(&mut self, frames: &[u8]) -> Result<(), String> {
        let mut packet = Vec::new();
        put_signs(&mut packet, frames);
        self.feed_bytes(&packet)
    }

    fn feed_bytes(&mut self, packet: &[u8]) -> Result<(), String> {
        self.reader.feed(packet, &self.carrier).map(|ended| assert_eq!(ended, None))
    }

    fn feed_one(&mut self, kind: Kind, lane: u32, payload: &[u8]) -> Result<(), String> {
        let mut frames = Vec::new();
        put_frame(&mut frames, kind, lane, payload);
        self.feed(&frames)
    }

    fn open_lane(&mut self, lane: u32, offset: u64, length: u64) -> Result<(), String> {
        let open = Control { kind: control_kind::LANE_OPEN, lane, offset, length, flags: 0 };
        self.feed_one(Kind::Control, lane, &open.to_bytes())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), String> {
        self.feed_one(Kind::Region, 0, &[&offset.to_le_bytes(), bytes].concat())
    }

    /// Bytes of memory behind the arena.
    fn arena_bytes(&self) -> u64 {
        rustix::fs::fstat(self.carrier.arena.file().unwrap()).unwrap().st_blocks as u64 * 512
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        drop(self.api_server.take());
        locked(&self.carrier.lanes).values().for_each(|lane| lane.inbox.finish());
        for (_, mut lane) in locked(&self.carrier.lanes).drain() {
            lane.end();
        }
    }
}

#[test]
fn a_peer_that_sends_pings_and_never_reads_costs_nothing() {
    let mut gateway = Gateway::new();
    let mut pings = 0;
    while pings < 1_000_000 {
        pings += gateway.feed_many(Kind::Ping, 0, &7u64.to_le_bytes()).unwrap();
        assert!(gateway.carrier.outbox.held() <= 64, "{}", gateway.carrier.outbox.held());
    }
    assert_eq!(gateway.carrier.output.total.get(), 0);
}

#[test]
fn control_messages_are_counted_and_end_the_link() {
    let mut gateway = Gateway::new();
    gateway.open_lane(1, 4096, 64 << 10).unwrap();
    let close = Control { kind: control_kind::LANE_CLOSE, lane: 1, offset: 0, length: 0, flags: 0 }.to_bytes();
    let mut messages = 0;
    let ended = loop {
        assert!(messages < 3_000_000, "without end");
        match gateway.feed_many(Kind::Control, 1, &close) {
            Ok(more) => messages += more,
            Err(why) => break why,
        }
        assert!(gateway.carrier.output.total.get() <= LANE_HELD + 200);
    };
    assert_eq!(ended, "the peer sent more messages than its credit allows");
}

#[test]
fn messages_of_no_bytes_are_counted() {
    let mut gateway = Gateway::new();
    // Nothing takes them out in this test.
    let lane = 0xffff_ff01;
    let messages = gateway.feed_many(Kind::Message, lane, &[]).unwrap();
    let one = gateway.carrier.output.total.get();
    assert!(one >= 4 * messages && one < 5 * messages, "{one} bytes for {messages}");
    gateway.feed_many(Kind::Message, lane, &[]).unwrap();
    assert!(gateway.carrier.output.total.get() >= 2 * 4 * messages);
    gateway.carrier.output.inbox(lane).unwrap().next().unwrap();
    assert_eq!(gateway.carrier.output.total.get(), one, "what was taken out is not counted");
}

#[test]
fn regions_fill_no_more_memory_than_the_node_allows() {
    let mut gateway = Gateway::new();
    let piece = vec![1; 60 << 10];
    let mut at = 0;
    let ended = loop {
        assert!(at < 1 << 30, "without end");
        if let Err(why) = gateway.write(at, &piece) {
            break why;
        }
        at += piece.len() as u64;
    };
    assert!(ended.contains("--remote-memory"), "{ended}");
    assert!(gateway.arena_bytes() <= MEMORY as u64 + 4096, "{}", gateway.arena_bytes());
}

#[test]
fn one_byte_a_page_counts_as_the_page() {
    let mut gateway = Gateway::new();
    let written = (0..).take_while(|page| gateway.write(page * 4096, &[1]).is_ok()).count();
    assert_eq!(written, MEMORY / 4096);
}

#[test]
fn lanes_count_as_memory_and_are_limited() {
    let mut gateway = Gateway::new();
    assert!(gateway.open_lane(1, 0, 1 << 20).is_ok());
    let why = gateway.open_lane(2, 1 << 20, 512 << 20).unwrap_err();
    assert!(why.contains("--remote-memory"), "{why}");
}

#[test]
fn the_network_reader_puts_a_message_into_its_ring_and_waits_for_none() {
    const LANE: u32 = 7;
    const LENGTH: usize = 64 << 10;
    let mut gateway = Gateway::new();
    gateway.open_lane(LANE, 0, LENGTH as u64).unwrap();
    let liveness = Arc::new(Liveness::notified());
    let arena = &gateway.carrier.arena.clone();
    let mut api_server = LaneEnd::shared(arena, 0, LENGTH, Side::Server, &liveness).unwrap();
    let mut got = Vec::new();
    for n in 0..100u8 {
        gateway.feed_one(Kind::Message, LANE, &[n; 100]).unwrap();
        // No other thread was needed for it.
        assert_eq!((api_server.try_receive(&mut got).unwrap(), &got[..]), (true, &[n; 100][..]));
    }
    let has_thread = |gateway: &Gateway| locked(&gateway.carrier.lanes)[&LANE].delivery.is_some();
    assert!(!has_thread(&gateway), "a lane whose ring has room needs no thread");
    // More than the ring holds.
    let mut sent = 0u32;
    while sent < 2000 {
        let mut frames = Vec::new();
        for _ in 0..10 {
            put_frame(&mut frames, Kind::Message, LANE, &[sent.to_le_bytes().as_slice(), &[0; 96]].concat());
            sent += 1;
        }
        gateway.feed(&frames).unwrap();
    }
    assert!(gateway.carrier.output.total.get() > 0 && has_thread(&gateway), "some wait");
    for n in 0..sent {
        api_server.receive(&mut got).unwrap();
        assert_eq!((got.len(), &got[..4]), (100, &n.to_le_bytes()[..]));
    }
    // Nothing waits any more, so the next one goes directly again.
    let inbox = locked(&gateway.carrier.lanes)[&LANE].inbox.clone();
    assert!(inbox.settle(Instant::now() + Duration::from_secs(600)));
    gateway.feed_one(Kind::Message, LANE, b"the last").unwrap();
    assert!(api_server.try_receive(&mut got).unwrap() && got == b"the last");
}

/// A piece's frame.
fn piece(number: u64, offset: u64, bytes: &[u8]) -> Vec<u8> {
    [&number.to_le_bytes()[..], &offset.to_le_bytes(), bytes].concat()
}

fn numbers(first: u64, end: u64) -> Vec<u8> {
    [first.to_le_bytes(), end.to_le_bytes()].concat()
}

#[test]
fn pieces_lie_in_the_arena_and_count_as_its_memory() {
    let mut gateway = Gateway::new();
    gateway.feed_one(Kind::Piece, 0, &piece(0, 4096, b"here")).unwrap();
    let mut bytes = Vec::new();
    gateway.carrier.arena.read(4096, 4, &mut bytes).unwrap();
    assert_eq!(bytes, b"here");
    // The same again, with other bytes: what is there stays.
    gateway.feed_one(Kind::Piece, 0, &piece(0, 4096, b"gone")).unwrap();
    bytes.clear();
    gateway.carrier.arena.read(4096, 4, &mut bytes).unwrap();
    assert_eq!(bytes, b"here");
    for (number, offset) in [(1, 1 << 30), (2, u64::MAX), (3, (1 << 30) - 3)] {
        assert!(gateway.feed_one(Kind::Piece, 0, &piece(number, offset, b"beyond")).is_err(), "{offset}");
    }
    for short in [&[0; 7][..], &[0; 15]] {
        assert!(gateway.feed_one(Kind::Piece, 0, short).is_err());
    }
    let mut gateway = Gateway::new();
    let full = (0..).take_while(|n| gateway.feed_one(Kind::Piece, 0, &piece(*n, n * 65_536, &[1; 60_000])).is_ok());
    assert!(full.count() * 60_000 <= MEMORY);
    assert!(gateway.arena_bytes() <= MEMORY as u64 + 4096);
}

#[test]
fn pieces_without_a_message_and_messages_without_pieces_cost_little() {
    let mut gateway = Gateway::new();
    gateway.open_lane(1, 4096, 64 << 10).unwrap();
    // All in one place, of no message.
    let ended = (0..).find_map(|n| gateway.feed_one(Kind::Piece, 0, &piece(n * 2 + 1, 0, b"x")).err()).unwrap();
    assert!(ended.contains("while piece 0 had not arrived"), "{ended}");
    let mut gateway = Gateway::new();
    gateway.open_lane(1, 4096, 64 << 10).unwrap();
    for wrong in [numbers(4, 4), numbers(9, 3), numbers(0, u64::MAX), vec![0; 8], vec![0; 17], Vec::new()] {
        assert!(gateway.feed_one(Kind::Pieces, 1, &wrong).is_err(), "{wrong:?}");
    }
    // A lane that nobody has opened.
    gateway.feed_one(Kind::Pieces, 2, &numbers(0, 5)).unwrap();
    gateway.feed_one(Kind::Pieces, 1, &numbers(0, 5)).unwrap();
    gateway.feed_one(Kind::Message, 1, b"waits").unwrap();
    let inbox = locked(&gateway.carrier.lanes)[&1].inbox.clone();
    assert!(!inbox.settle(Instant::now() + Duration::from_millis(20)), "its pieces are not there");
    (0..5).for_each(|n| gateway.feed_one(Kind::Piece, 0, &piece(n, n * 4096, b"x")).unwrap());
    assert!(inbox.settle(Instant::now() + Duration::from_secs(600)), "the last of them delivers it");
    // The test ends with one that never comes.
    gateway.feed_one(Kind::Pieces, 1, &numbers(50, 60)).unwrap();
    gateway.feed_one(Kind::Message, 1, b"never").unwrap();
}

/// The carrier of a guest that has one lane, of which the test has the guest's end.
struct Relay {
    carrier: Arc<Carrier>,
    reader: NetReader,
    guest: LaneEnd,
    _sockets: (TcpStream, UnixStream),
}

const RELAYED: u32 = 5;

impl Relay {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (control, local) = UnixStream::pair().unwrap();
        let arena = Arena::create(64 << 20).unwrap();
        arena.set_carried();
        let control = ControlSocket::new(control.into());
        let carrier = Carrier::relay(arena.clone(), control, Output::sinks([None, None]), GRACE);
        let link = Link::new(listener.accept().unwrap().0, None, Duration::from_secs(5)).unwrap();
        let (reader, ..) = link.split(Compression::Off, Intake::default());
        let (offset, length) = (4096, 64 << 10);
        LaneEnd::clear(&arena, offset, length as usize).unwrap();
        let open = Control { kind: control_kind::LANE_OPEN, lane: RELAYED, offset, length, flags: 0 };
        carrier.heard(open).unwrap();
        let liveness = Arc::new(Liveness::notified());
        let guest = LaneEnd::shared(&arena, offset, length as usize, Side::Guest, &liveness).unwrap();
        Relay { carrier, reader, guest, _sockets: (peer, local) }
    }

    fn feed(&mut self, kind: Kind, lane: u32, payload: &[u8]) {
        let (mut frames, mut packet) = (Vec::new(), Vec::new());
        put_frame(&mut frames, kind, lane, payload);
        put_packet(&mut packet, &frames, false);
        assert_eq!(self.reader.feed(&packet, &self.carrier), Ok(None));
    }

    /// Parts that the guest was told of so far.
    fn told(&mut self) -> Vec<(u64, u64)> {
        let (mut message, mut told) = (Vec::new(), Vec::new());
        while self.guest.try_receive(&mut message).unwrap() {
            let (header, body) = ReplyHeader::parse(&message).unwrap();
            assert_eq!(header.kind, kind::ARRIVED);
            let words: Vec<u64> = body.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
            told.extend(words.chunks(2).map(|pair| (pair[0], pair[1])));
        }
        told
    }

    fn message(&mut self) -> Vec<u8> {
        let mut message = Vec::new();
        self.guest.receive(&mut message).unwrap();
        message
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.carrier.end_lanes();
    }
}

#[test]
fn a_guest_is_told_of_long_outputs_that_have_come_and_of_no_short_ones() {
    const PIECE: usize = 200 << 10;
    const ENOUGH: usize = AHEAD_BYTES.div_ceil(PIECE);
    let at = |n: usize| (1 << 20) + (n * PIECE) as u64;
    let region = |n: usize| [&at(n).to_le_bytes()[..], &[7; PIECE]].concat();
    let mut relay = Relay::new();
    for _ in 0..2 {
        (0..2 * ENOUGH).for_each(|n| relay.feed(Kind::Region, RELAYED, &region(n)));
        assert_eq!(relay.told(), [], "an old guest");
        relay.feed(Kind::Message, RELAYED, b"answer");
        assert_eq!(relay.message(), b"answer");
    }
    relay.carrier.set_early();
    (0..ENOUGH - 1).for_each(|n| relay.feed(Kind::Region, RELAYED, &region(n)));
    assert_eq!(relay.told(), []);
    relay.feed(Kind::Message, RELAYED, b"short");
    assert_eq!(relay.message(), b"short");
    // What was before a message is forgotten with it.
    (0..ENOUGH - 1).for_each(|n| relay.feed(Kind::Region, RELAYED, &region(n)));
    assert_eq!(relay.told(), []);
    relay.feed(Kind::Region, 77, &region(0));
    relay.feed(Kind::Region, RELAYED, &region(ENOUGH + 3));
    let expected = [(at(0), (PIECE * (ENOUGH - 1)) as u64), (at(ENOUGH + 3), PIECE as u64)];
    assert_eq!(relay.told(), expected);
    relay.feed(Kind::Message, RELAYED, b"long");
    assert_eq!(relay.message(), b"long");
}

#[test]
fn a_guest_is_told_of_pieces_of_strands_before_their_message_and_once() {
    const BYTES: usize = 200 << 10;
    let mut relay = Relay::new();
    relay.carrier.set_early();
    let at = |n: u64| (1 << 20) + n * BYTES as u64;
    let come = |relay: &mut Relay, n: u64| relay.feed(Kind::Piece, 0, &piece(n, at(n), &[3; BYTES]));
    // Before it is known whose it is.
    come(&mut relay, 11);
    relay.feed(Kind::Pieces, RELAYED, &numbers(0, 12));
    relay.feed(Kind::Message, RELAYED, b"answer");
    for n in [0, 0, 3, 3, 2, 9, 8, 4, 1, 1] {
        come(&mut relay, n);
    }
    let told = relay.told();
    assert_eq!(told, [0, 3, 2, 9, 8, 4].map(|n| (at(n), BYTES as u64)), "each once, and no more than are worth it");
    for n in [5, 6, 7, 10] {
        assert_eq!(relay.told(), []);
        come(&mut relay, n);
    }
    assert_eq!(relay.message(), b"answer", "all are there");
    assert_eq!(relay.told(), []);
}

#[test]
fn a_guest_sends_regions_ahead_and_none_outside_of_the_arena() {
    let mut relay = Relay::new();
    let region = |offset, length| Region { offset, length };
    relay.guest.send(b"", &[region(1 << 20, 100)]).unwrap();
    relay.guest.send(b"call", &[region(2 << 20, 50)]).unwrap();
    let (mut kinds, until, no_time) = (Vec::new(), Instant::now() + Duration::from_secs(600), Duration::ZERO);
    while !kinds.contains(&(Kind::Message, 4)) {
        assert!(Instant::now() < until, "{kinds:?}");
        let (mut signs, mut frames) = (Vec::new(), Vec::new());
        // Whoever does not wait keeps the turn to send: the lane's thread leaves everything to this one.
        let next = relay.carrier.outbox.next(&relay.carrier.arena, &mut signs, &mut frames, 1 << 16, no_time, no_time);
        if next != Next::Packet {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let (mut packets, mut packet) = (Packets::default(), Vec::new());
        put_packet(&mut packet, &frames, false);
        *packets.buffer() = packet;
        let frames = packets.next_packet().unwrap().unwrap();
        kinds.extend(frames.map(|frame| frame.map(|frame| (frame.kind, frame.payload.len())).unwrap()));
    }
    let expected =
        [(Kind::Control, Control::CONTROL_BYTES), (Kind::Region, 108), (Kind::Region, 58), (Kind::Message, 4)];
    assert_eq!(kinds, expected);
    for wrong in [region(64 << 20, 1), region(u64::MAX, 2), region((64 << 20) - 1, 2), region(0, usize::MAX)] {
        let mut relay = Relay::new();
        relay.guest.send(b"", &[wrong]).unwrap();
        let ended = || relay.carrier.outbox.message(9, b"x", Vec::new(), true) == Err(Over);
        let until = Instant::now() + Duration::from_secs(600);
        while !ended() {
            assert!(Instant::now() < until, "{wrong:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
