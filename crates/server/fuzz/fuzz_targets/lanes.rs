//! Three lanes that create, set, use and end the same objects at the same time: none is used after its end.
#![no_main]

use std::time::{Duration, Instant};

use aviary_wire::{Encoder, HandleId, ReplyHeader, RequestHeader, kind};
use libfuzzer_sys::fuzz_target;

#[path = "../../tests/support/mod.rs"]
mod support;

use support::api::{ADD, COPY, GIVE_BACK, KEEP, MAKE, SET, THROUGH, TOUCH};
use support::racing::RACER;
use support::{Guest, Lane};

const LANES: usize = 3;
const CALLS: usize = 60;
/// Serial of the call that ends a lane's part of the input.
const LAST: u64 = u64::MAX;
const PATIENCE: Duration = Duration::from_secs(60);

/// An object that may have been created: few of them, so that lanes meet.
fn racer(number: u8) -> u64 {
    let (index, generation) = (u32::from(number & 3), u32::from(number >> 2 & 3) + 1);
    HandleId { ty: RACER as u8, generation, index }.to_word()
}

fn send(lane: &mut Lane, header: RequestHeader, words: &[u64]) {
    let mut message = Encoder::new();
    message.start();
    words.iter().for_each(|word| message.word(*word));
    // A session that has ended takes no more messages once its ring is full.
    let _ = lane.end.send(message.finish_request(header), &[]);
}

fuzz_target!(|calls: Vec<(u8, u8, u8)>| {
    let mut guest = Guest::with_config(false, r#"{"session": 1, "limits": {"handles": 6}}"#);
    let mut lanes: Vec<Lane> = (0..LANES).map(|_| guest.lane()).collect();
    let mut ticket = 0;
    for (how, first, second) in calls.iter().take(CALLS) {
        let (one, other) = (racer(*first), racer(*second));
        let (function, words) = match how & 7 {
            0 => (MAKE, vec![]),
            1 => (KEEP, vec![one]),
            2 | 3 => (GIVE_BACK, vec![one]),
            4 => (TOUCH, vec![one, other]),
            5 => (SET, vec![one, u64::from(how >> 5), other]),
            6 => (THROUGH, vec![one]),
            _ => (COPY, vec![one]),
        };
        let asynchronous = how & 16 != 0 && !matches!(function, MAKE | COPY);
        ticket += u64::from(asynchronous);
        let kind = if asynchronous { kind::CALL_ASYNC } else { kind::CALL };
        let header = RequestHeader { kind, function, ticket, ..Default::default() };
        send(&mut lanes[usize::from(*how >> 3) % LANES], header, &words);
    }
    for lane in &mut lanes {
        let last = RequestHeader { kind: kind::CALL, function: ADD, ticket, serial: LAST, ..Default::default() };
        send(lane, last, &[1, 1]);
    }
    let (deadline, mut message, mut done) = (Instant::now() + PATIENCE, Vec::new(), [false; LANES]);
    while guest.control().alive() && done.contains(&false) {
        assert!(Instant::now() < deadline, "the server hangs");
        for (lane, done) in lanes.iter_mut().zip(&mut done).filter(|(_, done)| !**done) {
            if !matches!(lane.end.try_receive(&mut message), Ok(true)) {
                continue;
            }
            let Ok((header, _)) = ReplyHeader::parse(&message) else { panic!("a malformed reply") };
            *done = header.kind == kind::REPLY && header.serial == LAST;
        }
    }
    assert_eq!(done, [true; LANES], "a session that only raced has ended");
    drop(lanes);
    guest.leave();
});
