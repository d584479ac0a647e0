use super::*;
use aviary_transport::AHEAD_BYTES;
use proptest::prelude::*;

use crate::carry::pace::LEAST_PIECE;
use crate::frames::frame::{Frame, MAX_PACKET, PACKET_HEADER, Packets, put_packet, put_signs};
use crate::frames::items::{ITEM_COST, MAX_UNSPLIT_BYTES};

const NO_TIME: Duration = Duration::ZERO;

fn arena() -> std::sync::Arc<Arena> {
    Arena::create(16 << 20).unwrap()
}

/// The frames in packets: kind, lane, payload, more.
fn content(stream: Vec<u8>) -> Vec<(Kind, u32, Vec<u8>, bool)> {
    let (mut packets, mut content) = (Packets::default(), Vec::new());
    *packets.buffer() = stream;
    while let Some(frames) = packets.next_packet().unwrap() {
        let owned = |f: Frame| (f.kind, f.lane, f.payload.to_vec(), f.more);
        content.extend(frames.map(|frame| owned(frame.unwrap())));
    }
    content
}

/// The frames that go next, signs first. An honest peer acknowledges them at once.
fn packet(outbox: &Outbox, arena: &Arena) -> Vec<(Kind, u32, Vec<u8>, bool)> {
    let (mut stream, numbered) = unacknowledged(outbox, arena);
    stream.extend_from_slice(&numbered);
    let sent = outbox.state().retained.sent();
    outbox.acknowledged(sent).unwrap();
    content(stream)
}

/// As [`packet`], where a variable has that name.
fn next_frames(outbox: &Outbox, arena: &Arena) -> Vec<(Kind, u32, Vec<u8>, bool)> {
    packet(outbox, arena)
}

/// The signs and the numbered packet that go next; either may be empty.
fn unacknowledged(outbox: &Outbox, arena: &Arena) -> (Vec<u8>, Vec<u8>) {
    let (mut signs, mut frames) = (Vec::new(), Vec::new());
    let (mut sent, mut numbered) = (Vec::new(), Vec::new());
    if outbox.next(arena, &mut signs, &mut frames, LEAST_PIECE, NO_TIME, NO_TIME) != Next::Packet {
        return (sent, numbered);
    }
    assert!(frames.len() <= MAX_PACKET);
    if !signs.is_empty() {
        put_signs(&mut sent, &signs);
    }
    if !frames.is_empty() {
        put_packet(&mut numbered, &frames, false);
        outbox.keep(&mut numbered.clone());
    }
    (sent, numbered)
}

fn region(offset: u64, length: usize) -> Region {
    Region { offset, length }
}

#[test]
fn regions_go_before_their_message_and_all_bytes_arrive() {
    let (outbox, arena) = (Outbox::default(), arena());
    let data: Vec<u8> = (0..300_000u32).map(|n| (n * 7) as u8).collect();
    arena.write(4096, &data).unwrap();
    outbox.message(3, b"first", Vec::new(), true).unwrap();
    outbox.message(3, b"second", vec![region(4096, data.len()), region(1 << 20, 10)], true).unwrap();
    outbox.message(3, b"third", Vec::new(), true).unwrap();
    let (mut seen, mut messages) = (vec![0; data.len()], Vec::new());
    loop {
        let frames = packet(&outbox, &arena);
        if frames.is_empty() {
            break;
        }
        for (kind, lane, payload, _) in frames {
            assert_eq!(lane, 3);
            let Kind::Region = kind else {
                messages.push(payload);
                continue;
            };
            assert_eq!(messages.len(), 1, "between the first message and the second");
            let at = u64::from_le_bytes(payload[..8].try_into().unwrap()) as usize;
            if at < 1 << 20 {
                seen[at - 4096..][..payload.len() - 8].copy_from_slice(&payload[8..]);
            }
        }
    }
    assert_eq!(messages, [&b"first"[..], b"second", b"third"]);
    assert!(seen == data);
}

#[test]
fn regions_may_go_ahead_of_the_message_that_needs_them() {
    let (outbox, arena) = (Outbox::default(), arena());
    let whole = || {
        let packets = std::iter::from_fn(|| Some(packet(&outbox, &arena)).filter(|frames| !frames.is_empty()));
        packets.flatten().map(|(kind, lane, payload, _)| (kind, lane, payload.len())).collect::<Vec<_>>()
    };
    let ahead = |length| outbox.message(3, b"", vec![region(4096, length), region(1 << 20, 10)], true).unwrap();
    ahead(200_000);
    outbox.message(4, b"another lane's", Vec::new(), true).unwrap();
    let frames = whole();
    assert_eq!(frames[0], (Kind::Message, 4, 14));
    assert!(frames[1..].iter().all(|frame| (frame.0, frame.1) == (Kind::Region, 3)), "there is no message");
    assert_eq!(frames[1..].iter().map(|frame| frame.2 - 8).sum::<usize>(), 200_010);
    // Its credit is the message's.
    outbox.message(3, &vec![1; 1 << 20], Vec::new(), true).unwrap();
    whole();
    ahead(10);
    outbox.message(3, b"without credit", Vec::new(), true).unwrap();
    assert_eq!(whole(), [(Kind::Region, 3, 18), (Kind::Region, 3, 18)]);
    outbox.credit(3, 1 << 20);
    assert_eq!(whole(), [(Kind::Message, 3, 14)]);
    // By strands.
    outbox.pieces.begin(1);
    outbox.message(3, b"", vec![region(4096, AHEAD_BYTES)], true).unwrap();
    assert_eq!(whole(), [(Kind::Pieces, 3, 16)]);
    outbox.message(3, b"call", vec![region(4096, AHEAD_BYTES)], true).unwrap();
    assert_eq!(whole(), [(Kind::Pieces, 3, 16), (Kind::Message, 3, 4)]);
    assert!(outbox.state().turns.is_empty() && outbox.state().held == 0);
}

#[test]
fn a_small_message_passes_a_bulk_one() {
    let (outbox, arena) = (Outbox::default(), arena());
    outbox.message(1, b"bulk", vec![region(0, 8 << 20)], true).unwrap();
    for _ in 0..3 {
        assert_eq!(packet(&outbox, &arena).len(), 1);
    }
    outbox.message(2, b"small", Vec::new(), true).unwrap();
    let frames = packet(&outbox, &arena);
    assert_eq!((frames[0].1, &frames[0].2[..]), (2, &b"small"[..]));
    assert_eq!((frames[1].0, frames[1].1), (Kind::Region, 1), "and does not stop it");
}

#[test]
fn bulk_messages_take_turns() {
    let (outbox, arena) = (Outbox::default(), arena());
    for lane in [1, 2, 3] {
        outbox.message(lane, b"bulk", vec![region(0, 4 * LEAST_PIECE)], true).unwrap();
    }
    let lanes: Vec<u32> = (0..6).map(|_| packet(&outbox, &arena)[0].1).collect();
    assert_eq!(lanes, [1, 2, 3, 1, 2, 3]);
}

#[test]
fn a_lane_without_credit_waits_and_others_do_not() {
    let (outbox, arena) = (Outbox::default(), arena());
    let message = vec![7; MAX_UNSPLIT_BYTES];
    let send = |lane| outbox.message(lane, &message, Vec::new(), true);
    let sent = |lane: u32| {
        let mut bytes = 0;
        loop {
            let frames = packet(&outbox, &arena);
            if frames.is_empty() {
                return bytes;
            }
            bytes += frames.iter().filter(|f| f.1 == lane).map(|f| f.2.len()).sum::<usize>();
        }
    };
    let mut all = 0;
    for _ in 0..4 {
        (0..CREDIT_BYTES / MAX_UNSPLIT_BYTES / 2).for_each(|_| send(1).unwrap());
        all += sent(1);
    }
    assert!((CREDIT_BYTES..CREDIT_BYTES + 2 * MAX_GATHERED_BYTES + MAX_UNSPLIT_BYTES).contains(&all), "{all}");
    send(2).unwrap();
    assert_eq!(sent(2), MAX_UNSPLIT_BYTES);
    outbox.credit(1, all as u64);
    assert_eq!(sent(1), 2 * CREDIT_BYTES - all, "what was held back");
}

#[test]
fn a_message_longer_than_the_window_arrives_whole() {
    let (outbox, arena) = (Outbox::default(), arena());
    outbox.message(1, &vec![1; 3 * CREDIT_BYTES], Vec::new(), true).unwrap();
    let mut bytes = 0;
    loop {
        let frame = packet(&outbox, &arena).remove(0);
        bytes += frame.2.len();
        if !frame.3 {
            break;
        }
    }
    assert_eq!(bytes, 3 * CREDIT_BYTES);
}

#[test]
fn packet_without_a_waiter_lingers() {
    let (outbox, arena) = (Outbox::default(), arena());
    let long = Duration::from_secs(60);
    outbox.message(1, b"asynchronous", Vec::new(), false).unwrap();
    let (mut signs, mut frames) = (Vec::new(), Vec::new());
    assert_eq!(outbox.next(&arena, &mut signs, &mut frames, LEAST_PIECE, long, Duration::from_millis(5)), Next::Idle);
    outbox.message(1, b"synchronous", Vec::new(), true).unwrap();
    assert_eq!(outbox.next(&arena, &mut signs, &mut frames, LEAST_PIECE, long, long), Next::Packet);
    outbox.finish();
    frames.clear();
    assert_eq!(outbox.next(&arena, &mut signs, &mut frames, LEAST_PIECE, long, long), Next::Finished);
    assert_eq!(outbox.message(1, b"late", Vec::new(), true), Err(Over));
}

#[test]
fn pings_and_credits_without_end_wait_as_one() {
    let (outbox, arena) = (Outbox::default(), arena());
    for time in 0..100_000 {
        outbox.pong(time, time + 1);
        outbox.ping(time);
        outbox.grant(time as u32 % 2, 5);
        outbox.farewell(&"why ".repeat(1000));
    }
    assert!(outbox.held() < 300, "{}", outbox.held());
    let frames = packet(&outbox, &arena);
    let last = 99_999u64.to_le_bytes().to_vec();
    let credit = 250_000u64.to_le_bytes().to_vec();
    let received = 100_000u64.to_le_bytes().to_vec();
    assert_eq!(frames[..2], [(Kind::Ping, 0, last.clone(), false), (Kind::Pong, 0, last, false)]);
    assert_eq!(frames[2], (Kind::Ack, 0, received, false));
    assert_eq!(frames[3..5], [(Kind::Credit, 0, credit.clone(), false), (Kind::Credit, 1, credit, false)]);
    assert_eq!((frames.len(), frames[5].0, frames[5].2.len()), (6, Kind::Bye, 200));
    assert_eq!((packet(&outbox, &arena), outbox.held()), (Vec::new(), 0));
}

#[test]
fn lanes_that_are_over_leave_nothing() {
    let (outbox, arena) = (Outbox::default(), arena());
    for lane in 1..1000 {
        outbox.message(lane, b"the last", Vec::new(), true).unwrap();
        outbox.message(lane, b"with a region", vec![region(0, 10)], true).unwrap();
        outbox.grant(lane, 7);
        outbox.control(lane, &[0; 32]).unwrap();
        outbox.forget(lane);
    }
    assert!(outbox.held() > 1000 * ITEM_COST);
    let (mut messages, mut controls) = (0, 0);
    loop {
        let frames = packet(&outbox, &arena);
        messages += frames.iter().filter(|frame| frame.0 == Kind::Message).count();
        controls += frames.iter().filter(|frame| frame.0 == Kind::Control).count();
        assert!(frames.iter().all(|frame| frame.0 != Kind::Credit));
        if frames.is_empty() {
            break;
        }
    }
    assert_eq!((messages, controls, outbox.held()), (2 * 999, 999, 0));
}

#[test]
fn a_peer_that_does_not_read_stops_every_sender() {
    const MOST: usize = 64 << 10;
    const FRAMES: usize = 5000;
    const LANES: u32 = 50;
    const ALL_LANES: usize = LANES as usize * size_of::<OutboxLane>();
    let (outbox, arena) = (std::sync::Arc::new(Outbox::holding(MOST, None)), arena());
    let senders = [0u32, 1].map(|sender| {
        let outbox = outbox.clone();
        std::thread::spawn(move || {
            for n in 0..FRAMES as u32 {
                match sender {
                    // Of lanes that nobody knows.
                    0 => outbox.control(n, &[0; 32]).unwrap(),
                    _ => outbox.message((1 << 30) | (n % LANES), &[0; 1000], Vec::new(), true).unwrap(),
                }
            }
        })
    });
    let mut sent = 0;
    while sent < 2 * FRAMES {
        let held = outbox.held();
        // The entries of lanes are counted here, too.
        assert!(
            held < MOST + 2 * (ITEM_COST + 2000) + MOST / ITEM_COST * size_of::<OutboxLane>() + ALL_LANES,
            "{held}"
        );
        let (mut signs, mut frames) = (Vec::new(), Vec::new());
        outbox.next(&arena, &mut signs, &mut frames, LEAST_PIECE, NO_TIME, Duration::from_millis(1));
        let (mut packets, mut stream) = (Packets::default(), Vec::new());
        put_packet(&mut stream, &frames, false);
        packets.buffer().extend_from_slice(&stream);
        sent += packets.next_packet().unwrap().unwrap().count();
    }
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    assert!(outbox.held() <= ALL_LANES, "of the other lanes nothing is remembered");
}

#[test]
fn a_peer_that_acknowledges_nothing_stops_the_sender_and_gets_signs() {
    let arena = arena();
    let outbox = Outbox::holding(ALL_QUEUED, Some(1 << 20));
    outbox.message(1, b"bulk", vec![region(0, 8 << 20)], true).unwrap();
    let mut packets = 0;
    while !unacknowledged(&outbox, &arena).1.is_empty() {
        packets += 1;
    }
    assert!((10..16).contains(&packets), "{packets}");
    assert!(outbox.held() <= (1 << 20) + ITEM_COST * 3, "{}", outbox.held());
    // It must not wait for the acknowledgement of the peer, which may wait for this one.
    outbox.pong(7, 9);
    let (signs, numbered) = unacknowledged(&outbox, &arena);
    assert!(numbered.is_empty() && content(signs).len() == 2);
    outbox.acknowledged(packets).unwrap();
    while !unacknowledged(&outbox, &arena).1.is_empty() {}
    // The end of a session waits for nothing.
    outbox.let_go();
    outbox.finish();
    let mut rest = 0;
    while !unacknowledged(&outbox, &arena).1.is_empty() {
        rest += 1;
    }
    assert!(rest > 90, "{rest}");
}

#[test]
fn what_was_sent_is_sent_again_on_another_connection() {
    let (outbox, arena) = (Outbox::default(), arena());
    let mut sent = Vec::new();
    for n in 0..5u8 {
        outbox.message(1, &[n], Vec::new(), true).unwrap();
        sent.push(unacknowledged(&outbox, &arena).1);
    }
    outbox.acknowledged(1).unwrap();
    outbox.pong(5, 5);
    outbox.sever();
    let (mut signs, mut frames) = (Vec::new(), Vec::new());
    assert_eq!(outbox.next(&arena, &mut signs, &mut frames, LEAST_PIECE, NO_TIME, NO_TIME), Next::Severed);
    assert_eq!(outbox.again(0, &mut frames, &mut signs), None, "there is no connection");
    outbox.message(1, b"queued meanwhile", Vec::new(), true).unwrap();
    assert_eq!(outbox.relink(0), Err(AckError::Forgotten(0, 1)));
    assert_eq!(outbox.relink(6), Err(AckError::NeverSent(6, 5)));
    outbox.relink(2).unwrap();
    let (mut at, mut again) = (2, Vec::new());
    while let Some(next) = outbox.again(at, &mut frames, &mut signs) {
        again.push(frames.clone());
        at = next;
    }
    assert_eq!(again, sent[2..]);
    assert!(signs.is_empty(), "those of the connection that is gone");
    assert_eq!(packet(&outbox, &arena)[0].2, b"queued meanwhile");
}

#[test]
fn nobody_is_woken_who_does_not_wait() {
    let (outbox, arena) = (Outbox::default(), arena());
    for _ in 0..10 {
        outbox.message(1, b"small", Vec::new(), true).unwrap();
        outbox.grant(1, 5);
        assert!(!packet(&outbox, &arena).is_empty());
    }
    assert_eq!((outbox.room.woken(), outbox.ready.woken()), (0, 0));
}

/// What the threads of lanes and the peer do with an outbox.
#[derive(Debug, Clone)]
enum Deed {
    Message { lane: u32, length: usize, region: usize, urgent: bool, full: bool },
    Control(u32),
    Credit(u32, u64),
    Grant(u32),
    Writer,
}

fn deed() -> impl Strategy<Value = Deed> {
    let (lane, length) = (0u32..3, prop_oneof![0usize..200, 0usize..40_000]);
    let message = (lane.clone(), length, prop_oneof![Just(0usize), 0usize..200_000], any::<bool>(), any::<bool>());
    let message =
        message.prop_map(|(lane, length, region, urgent, full)| Deed::Message { lane, length, region, urgent, full });
    prop_oneof![
        6 => message,
        1 => lane.clone().prop_map(Deed::Control),
        1 => (lane.clone(), 0u64..100_000).prop_map(|(lane, bytes)| Deed::Credit(lane, bytes)),
        1 => lane.prop_map(Deed::Grant),
        2 => Just(Deed::Writer),
    ]
}

/// An outbox and everything that it has sent.
struct Sending {
    outbox: Outbox,
    /// Threads of lanes send, too.
    combines: bool,
    numbered: Vec<Vec<u8>>,
    signs: Vec<u8>,
}

impl Sending {
    fn new(combines: bool) -> Self {
        Sending {
            outbox: Outbox::holding(ALL_QUEUED, Some(64 << 20)),
            combines,
            numbered: Vec::new(),
            signs: Vec::new(),
        }
    }

    /// The writer, until it would wait.
    fn writer(&mut self, arena: &Arena) {
        let (mut signs, mut frames) = (Vec::new(), Vec::new());
        while self.outbox.next(arena, &mut signs, &mut frames, LEAST_PIECE, NO_TIME, NO_TIME) == Next::Packet {
            let mut encoded = Vec::new();
            if !frames.is_empty() {
                put_packet(&mut encoded, &frames, false);
                self.numbered.push(encoded.clone());
                self.outbox.keep(&mut encoded);
            }
            self.signs.append(&mut signs);
            frames.clear();
        }
        if self.combines {
            self.outbox.state().sending.free();
        }
    }

    fn message(&mut self, arena: &Arena, lane: u32, message: &[u8], regions: Vec<Region>, urgent: bool, full: bool) {
        if !self.combines {
            return self.outbox.message(lane, message, regions, urgent).unwrap();
        }
        let mut packet = Packet::default();
        let mut mine = self.outbox.send_message(lane, message, regions, urgent, arena, &mut packet).unwrap();
        while mine {
            if packet.has_frames() {
                put_packet(&mut packet.encoded, &packet.frames[PACKET_HEADER..], false);
                self.numbered.push(packet.encoded.clone());
            }
            self.signs.append(&mut packet.signs);
            mine = self.outbox.sent(arena, &mut packet, full);
            if full {
                let next = self.outbox.next(arena, &mut Vec::new(), &mut Vec::new(), LEAST_PIECE, NO_TIME, NO_TIME);
                assert_eq!(next, Next::Rest);
                self.writer(arena);
            }
        }
    }

    fn act(&mut self, arena: &Arena, number: u8, deed: &Deed) {
        match *deed {
            Deed::Message { lane, length, region, urgent, full } => {
                let regions = if region == 0 { Vec::new() } else { vec![Region { offset: 4096, length: region }] };
                self.message(arena, lane, &vec![number; length], regions, urgent, full);
            }
            Deed::Control(lane) => self.outbox.control(lane, &[number; 32]).unwrap(),
            Deed::Credit(lane, bytes) => self.outbox.credit(lane, bytes),
            Deed::Grant(lane) => self.outbox.grant(lane, 1),
            Deed::Writer => self.writer(arena),
        }
        // More than a sender may queue alone would make this thread wait.
        let waits = self.outbox.state().lanes.values().any(|lane| lane.queued > 500_000);
        if waits {
            self.writer(arena);
            (0..3).for_each(|lane| self.outbox.credit(lane, 1 << 20));
            self.writer(arena);
        }
    }

    /// Kind, payload and continuation of the frames of one lane, credits apart: those may be sent in one or in several.
    fn of_lane(&self, wanted: u32) -> (Vec<(Kind, Vec<u8>, bool)>, u64) {
        let frames = content(self.numbered.concat()).into_iter().filter(|frame| frame.1 == wanted);
        let (credits, rest): (Vec<_>, Vec<_>) = frames.partition(|frame| frame.0 == Kind::Credit);
        let granted = credits.iter().map(|frame| u64::from_le_bytes(frame.2[..].try_into().unwrap())).sum();
        (rest.into_iter().map(|(kind, _, payload, more)| (kind, payload, more)).collect(), granted)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn lanes_that_send_themselves_send_what_the_writer_alone_sends(deeds in prop::collection::vec(deed(), 1..60)) {
        let (arena, mut both) = (arena(), [Sending::new(true), Sending::new(false)]);
        for sending in &mut both {
            sending.writer(&arena);
            for (number, deed) in deeds.iter().enumerate() {
                sending.act(&arena, number as u8, deed);
            }
            for _ in 0..4 {
                sending.writer(&arena);
                (0..3).for_each(|lane| sending.outbox.credit(lane, 1 << 20));
            }
            sending.writer(&arena);
        }
        let [mine, alone] = &both;
        for lane in 0..3 {
            prop_assert_eq!(mine.of_lane(lane), alone.of_lane(lane));
        }
        // What is kept for another connection is what was sent, in its order.
        let state = mine.outbox.state();
        prop_assert_eq!(state.retained.sent(), mine.numbered.len() as u64);
        for (number, packet) in mine.numbered.iter().enumerate() {
            prop_assert_eq!(state.retained.from(number as u64), Some((number as u64, &packet[..])));
        }
        prop_assert!(state.turns.is_empty() && !state.first.waits() && state.held == 0);
    }
}

#[test]
fn a_lane_leaves_to_the_writer_what_it_may_not_wait_for() {
    let (outbox, arena) = (Outbox::default(), arena());
    let mut packet = Packet::default();
    let mut send = |message: &[u8], regions, urgent| {
        outbox.send_message(1, message, regions, urgent, &arena, &mut packet).unwrap()
    };
    assert!(!send(b"before the connection is ready", Vec::new(), true));
    let drain = || while !next_frames(&outbox, &arena).is_empty() {};
    drain();
    outbox.state().sending.free();
    assert!(!send(b"nobody waits for this one", Vec::new(), false), "it lingers");
    assert!(send(b"for this one", vec![region(4096, 10)], true));
    assert!(!send(b"somebody sends", Vec::new(), true));
    let frames = |packet: &Packet| {
        let mut stream = Vec::new();
        put_packet(&mut stream, &packet.frames[PACKET_HEADER..], false);
        content(stream).into_iter().map(|frame| (frame.0, frame.2.len())).collect::<Vec<_>>()
    };
    // A message and its small region are one packet.
    assert_eq!(frames(&packet), [(Kind::Message, 25), (Kind::Region, 18), (Kind::Message, 12)]);
    assert!(outbox.sent(&arena, &mut packet, false), "looks once more");
    assert_eq!(frames(&packet), [(Kind::Message, 14)]);
    outbox.sever();
    assert!(!outbox.sent(&arena, &mut packet, false));
    assert!(!outbox.send_message(1, b"no connection", Vec::new(), true, &arena, &mut packet).unwrap());
}
