//! A guest that lies: its session ends, with a reason, and nothing else happens.

use std::sync::atomic::Ordering;

use crate::support::api::*;
use crate::support::{ARENA, Guest, Lane, fields};
use aviary_wire::attach::welcome_status;
use aviary_wire::control::control_kind;
use aviary_wire::{Control, Encoder, HandleId, Hello, RequestHeader, WIRE_VERSION, kind, status};
use proptest::prelude::*;

fn both(test: impl Fn(Guest)) {
    for mirrored in [false, true] {
        test(Guest::connect(mirrored));
    }
}

/// Sends a call with this body and expects the end of the session.
fn breaks(function: u32, body: impl Fn(&mut Encoder)) {
    both(|mut guest| {
        let mut lane = guest.lane();
        assert_eq!(lane.call(ADD, fields(|e| (e.word(1), e.word(1)).1)).word(), 2);
        lane.send(RequestHeader { kind: kind::CALL, function, ..Default::default() }, fields(&body), &[]);
        guest.expect_end();
        guest.leave();
    });
}

#[test]
fn missing_and_surplus_fields_end_the_session() {
    breaks(ADD, |e| e.word(1));
    breaks(ADD, |e| (e.word(1), e.word(1), e.word(1)).2);
    breaks(GET, |_| ());
}

#[test]
fn unknown_functions_and_kinds_end_the_session() {
    breaks(10_000, |_| ());
    breaks(u32::MAX, |_| ());
    both(|mut guest| {
        let mut lane = guest.lane();
        lane.send(RequestHeader { kind: 99, ..Default::default() }, fields(|_| ()), &[]);
        guest.expect_end();
        guest.leave();
    });
}

#[test]
fn buffers_outside_the_arena_end_the_session() {
    for (offset, length) in [(ARENA as u64, 1), (ARENA as u64 - 1, 2), (u64::MAX, 1), (u64::MAX - 7, 16), (1 << 63, 8)]
    {
        breaks(FILL, |e| (e.word(1), e.buffer_arena(offset, length)).1);
        breaks(START, |e| e.buffer_arena(offset, length));
    }
    breaks(FILL, |e| (e.word(1), e.buffer_arena(0, (1 << 60) - 1)).1);
}

#[test]
fn parts_of_memory_that_is_not_there_end_the_session() {
    let whole = |e: &mut Encoder| (e.word(0), e.buffer_inline(&[7; 64])).1;
    for private in [0, 1] {
        let begin = |e: &mut Encoder| (e.word(private), e.word(0)).1;
        for (offset, length) in [(0, 65), (64, 1), (usize::MAX, 1), (usize::MAX, 2), (1, (1 << 60) - 1), (1 << 63, 8)] {
            breaks(SHIFT, |e| (begin(e), e.buffer_part(length, 0, offset), whole(e), e.buffer_part(1, 0, 0)).3);
            breaks(SHIFT, |e| (begin(e), e.buffer_part(1, 0, 0), whole(e), e.buffer_part(length, 0, offset)).3);
        }
        for number in [1, 2, usize::MAX] {
            breaks(SHIFT, |e| (begin(e), e.buffer_part(1, number, 0), whole(e), e.buffer_part(1, 0, 0)).3);
        }
        breaks(SHIFT, |e| (begin(e), e.buffer_part(1, 0, 0), whole(e), e.buffer_part(1, 2, 0)).3);
        // Memory without content, outside the arena, or that is a part itself.
        breaks(SHIFT, |e| (begin(e), e.buffer_part(1, 0, 0), e.word(0), e.buffer_null(), e.buffer_part(1, 0, 0)).4);
        breaks(SHIFT, |e| {
            (begin(e), e.buffer_part(1, 0, 0), e.word(0), e.buffer_reserved(9), e.buffer_part(1, 0, 0)).4
        });
        breaks(SHIFT, |e| {
            (begin(e), e.buffer_part(1, 0, 0), e.word(0), e.buffer_arena(ARENA as u64, 1), e.buffer_part(1, 0, 0)).4
        });
        breaks(SHIFT, |e| {
            (begin(e), e.buffer_part(1, 0, 0), e.word(0), e.buffer_part(1, 0, 0), e.word(0), e.buffer_inline(&[1])).5
        });
        breaks(SHIFT, |e| (begin(e), e.buffer_part(1, 0, 0)).1);
    }
    // It stays in use, and is not in the arena.
    breaks(BOUND, |e| (e.buffer_part(8, 0, 0), whole(e), e.buffer_part(8, 0, 0)).2);
}

#[test]
fn sizes_that_contradict_the_specification_end_the_session() {
    breaks(SUM, |e| (e.word(5), e.buffer_inline(&[0; 4])).1);
    breaks(SUM, |e| (e.word(4), e.buffer_arena(4096, 5)).1);
    breaks(SUM, |e| (e.word(u64::MAX), e.buffer_inline(&[0; 4])).1);
}

#[test]
fn constants_that_the_specification_does_not_have_end_the_session() {
    for value in [1, 3, u64::MAX - 1, 0x7fff_0000_1000] {
        breaks(POINT, |e| (e.word(value), e.buffer_inline(&[0; 4])).1);
    }
}

#[test]
fn a_pointer_of_the_library_is_told_as_a_place_in_an_argument_or_not_at_all() {
    both(|mut guest| {
        let mut lane = guest.lane();
        let mut point =
            |distance, bytes: &[u8]| lane.call(POINT, fields(|e| (e.word(distance), e.buffer_inline(bytes)).1));
        assert_eq!(point(0, &[0; 4]).word(), 1);
        assert_eq!(point(4, &[0; 4]).word(), 5);
        assert_eq!(point(5, &[0; 4]).header.status, status::REFUSED);
        assert_eq!(point(u64::MAX, &[0; 4]).header.status, status::REFUSED);
        assert_eq!(lane.call(POINT, fields(|e| (e.word(0), e.buffer_null()).1)).word(), 0);
        guest.leave();
    });
}

#[test]
fn chains_that_no_guest_library_sends_end_the_session() {
    for index in [3, u64::MAX, 1 << 32] {
        breaks(CHAIN, |e| (e.word(index), e.bytes(&[0; 16]), e.word(0)).2);
    }
    for bytes in [0, 15, 17, 24, 4096] {
        breaks(CHAIN, |e| (e.word(1), e.bytes(&vec![0; bytes]), e.word(0)).2);
    }
    // No end, and more links than there may be.
    breaks(CHAIN, |e| (e.word(1), e.bytes(&[0; 16])).1);
    breaks(CHAIN, |e| {
        (0..66).for_each(|_| (e.word(1), e.bytes(&[0; 16])).1);
        e.word(0);
    });
}

#[test]
fn strings_without_an_end_and_late_outputs_in_the_message_end_the_session() {
    breaks(LENGTH, |e| e.buffer_inline(b"four"));
    breaks(LENGTH, |e| e.buffer_inline(b""));
    breaks(START, |e| e.buffer_inline(b"12345678"));
    breaks(UNMAP, |e| e.word(77));
}

#[test]
fn ids_that_the_guest_may_not_choose_end_the_session() {
    let id = |ty: u32, generation, index| HandleId { ty: ty as u8, generation, index }.to_word();
    let good = id(OBJECT, 1, HandleId::MINTED);
    let spawn = |a: u64| move |e: &mut Encoder| (e.word(a), e.word(0), e.word(1)).2;
    breaks(SPAWN, spawn(id(OBJECT, 1, 0)));
    breaks(SPAWN, spawn(id(OBJECT, 1, 5000)));
    breaks(SPAWN, spawn(id(OTHER, 1, HandleId::MINTED)));
    breaks(SPAWN, spawn(id(OBJECT, 1, HandleId::MINTED + HandleId::MAX_GUEST_IDS)));
    breaks(SPAWN, spawn(id(OBJECT, 1, HandleId::MAX_INDEX)));
    for word in [1, 1 << 31, good & 0xffff_ffff, u64::MAX, 1 << 56] {
        breaks(SPAWN, spawn(word));
    }
    // Not newer than what has had its index, whether that has ended or not.
    for generation in [1, 2] {
        both(|mut guest| {
            let mut lane = guest.lane();
            lane.call(SPAWN, fields(spawn(id(OBJECT, 2, HandleId::MINTED))));
            lane.call(DESTROY, fields(|e| e.word(id(OBJECT, generation, HandleId::MINTED))));
            let body = fields(spawn(id(OBJECT, generation, HandleId::MINTED)));
            lane.send(RequestHeader { kind: kind::CALL, function: SPAWN, ..Default::default() }, body, &[]);
            guest.expect_end();
            guest.leave();
        });
    }
}

#[test]
fn one_id_twice_is_one_object() {
    both(|mut guest| {
        let mut lane = guest.lane();
        let id = HandleId { ty: OBJECT as u8, generation: 1, index: HandleId::MINTED | 3 }.to_word();
        lane.call(SPAWN, fields(|e| (e.word(id), e.word(id), e.word(7)).2));
        assert_eq!(lane.call(GET, fields(|e| e.word(id))).header.status, status::OK);
        lane.call(DESTROY, fields(|e| e.word(id)));
        assert_eq!(lane.call(GET, fields(|e| e.word(id))).header.status, status::INVALID_HANDLE);
        guest.leave();
    });
}

#[test]
fn a_panic_in_a_handler_ends_its_session_only() {
    let mut other = Guest::connect(false);
    let mut lane = other.lane();
    breaks(PANIC, |_| ());
    assert_eq!(lane.call(ADD, fields(|e| (e.word(1), e.word(1)).1)).word(), 2);
    other.leave();
}

#[test]
fn a_reserved_buffer_of_impossible_size_is_refused_without_memory() {
    both(|mut guest| {
        let mut lane = guest.lane();
        let reply = lane.call(FILL, fields(|e| (e.word(1), e.buffer_reserved((1 << 61) - 1)).1));
        assert_eq!(reply.header.status, status::REFUSED);
        guest.leave();
    });
}

#[test]
fn a_fetch_beyond_a_mapping_or_of_none_ends_the_session() {
    for (id, offset, bytes) in [(99, 1 << 18, 1), (1, 1 << 18, 17), (1, ARENA as u64, 1)] {
        both(|mut guest| {
            let mut lane = guest.lane();
            lane.call(MAP, fields(|_| ()));
            let header = RequestHeader { kind: kind::FETCH, ..Default::default() };
            lane.send(header, fields(|e| (e.word(id), e.word(offset), e.word(bytes)).2), &[]);
            guest.expect_end();
            guest.leave();
        });
    }
}

#[test]
fn a_callback_answered_by_the_wrong_message_ends_the_session() {
    both(|mut guest| {
        let mut lane = guest.lane();
        lane.send(
            RequestHeader { kind: kind::CALL, function: APPLY, ..Default::default() },
            fields(|e| (e.word(1), e.word(5)).1),
            &[],
        );
        lane.receive();
        lane.send(RequestHeader { kind: 42, ..Default::default() }, fields(|_| ()), &[]);
        guest.expect_end();
        guest.leave();
    });
}

#[test]
fn callbacks_cannot_nest_for_ever() {
    let mut guest = Guest::connect(false);
    let mut lane = guest.lane();
    let apply = |lane: &mut Lane| {
        let header = RequestHeader { kind: kind::CALL, function: APPLY, ..Default::default() };
        lane.send(header, fields(|e| (e.word(1), e.word(5)).1), &[]);
    };
    apply(&mut lane);
    for _ in 0..64 {
        lane.receive();
        apply(&mut lane);
    }
    guest.expect_end();
    guest.leave();
}

#[test]
fn rings_full_of_noise_end_the_session() {
    for seed in 0..20u64 {
        let mut guest = Guest::connect(false);
        let _lane = guest.lane();
        // The lane's block, index lines included.
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .take(64 << 10)
        .collect();
        guest.put((1 << 20) + (128 << 10), &noise);
        // Noise alone wakes nobody; the hang-up does, and the server must come through the drain.
        guest.leave();
    }
}

#[test]
fn impossible_lanes_end_the_session() {
    let open = |lane, offset, length| Control { kind: control_kind::LANE_OPEN, lane, offset, length, flags: 0 };
    let cases = [
        open(1, ARENA as u64, 65536),
        open(1, u64::MAX, 65536),
        open(1, 1 << 20, u64::MAX),
        open(1, 1 << 20, 0),
        open(1, (1 << 20) + 3, 65536),
        Control { kind: 77, ..Control::default() },
    ];
    for message in cases {
        let guest = Guest::connect(false);
        guest.control().send(message, None).unwrap();
        guest.expect_end();
        guest.leave();
    }
    let guest = Guest::connect(true);
    guest.control().send(open(1, 0, 0), None).unwrap();
    guest.expect_end();
    guest.leave();
}

#[test]
fn lanes_are_bounded() {
    let guest = Guest::connect(false);
    for lane in 0..1100u32 {
        let offset = (1 << 20) + u64::from(lane) * 16384;
        let message = Control { kind: control_kind::LANE_OPEN, lane, offset, length: 16384, flags: 0 };
        if guest.control().send(message, None).is_err() {
            break;
        }
    }
    guest.expect_end();
    assert!(guest.stats.lanes.load(Ordering::Relaxed) <= 1024);
    guest.leave();
}

#[test]
fn strangers_are_turned_away_with_a_reason() {
    let arena = || aviary_transport::Arena::create(ARENA).unwrap();
    let hello = |wire, hash, size| Hello {
        wire_version: wire,
        spec_hash: hash,
        arena_size: size,
        api: "fake".into(),
        ..Hello::default()
    };
    let attempt = |hello| {
        let guest = Guest::greet(arena(), hello, r#"{"session": 3, "arena": 100000000}"#);
        let welcome = guest.welcome.clone();
        guest.leave();
        assert!(!welcome.text.is_empty());
        welcome.status
    };
    assert_eq!(attempt(hello(WIRE_VERSION + 1, 0x1234, ARENA as u64)), welcome_status::WIRE_VERSION);
    assert_eq!(attempt(hello(WIRE_VERSION, 0x1235, ARENA as u64)), welcome_status::API);
    assert_eq!(attempt(hello(WIRE_VERSION, 0x1234, 1 << 36)), welcome_status::REFUSED);
    assert_eq!(attempt(hello(WIRE_VERSION, 0x1234, ARENA as u64 / 2)), welcome_status::FAILED);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any bytes as a body for any function: an answer or the end, never a crash, and another session goes on.
    #[test]
    fn any_body_is_survived(function in prop_oneof![0u32..20, Just(CHAIN)], asynchronous: bool, body in prop::collection::vec(any::<u8>(), 0..80)) {
        prop_assume!(![SLEEP, APPLY, LATER, APPLY_ASYNC].contains(&function));
        let mut guest = Guest::connect(false);
        let mut lane = guest.lane();
        let message = fields(|e| body.chunks(8).for_each(|c| {
            let mut word = [0; 8];
            word[..c.len()].copy_from_slice(c);
            // Small numbers are the more interesting ones.
            let word = u64::from_le_bytes(word);
            e.word(if word & 1 == 0 { word >> 48 } else { word });
        }));
        let kind = if asynchronous { kind::CALL_ASYNC } else { kind::CALL };
        lane.send(RequestHeader { kind, function, ticket: u64::from(asynchronous), ..Default::default() }, message, &[]);
        guest.leave();
    }
}
