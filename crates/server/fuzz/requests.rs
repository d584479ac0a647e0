//! Hostile requests to a small API with every kind of field: the server answers or ends the session.

use arbitrary::{Arbitrary, Unstructured};
use std::time::{Duration, Instant};

use aviary_wire::{Encoder, ReplyHeader, RequestHeader, flag, kind};

use crate::support::api::{ADD, COMPLETE, SLEEP};
use crate::support::{Guest, Lane};

/// Serial of the call that ends the input.
const LAST: u64 = u64::MAX;
const PATIENCE: Duration = Duration::from_secs(10);

fn send(lane: &mut Lane, header: RequestHeader, words: &[u64]) {
    let mut message = Encoder::new();
    message.start();
    words.iter().for_each(|word| message.word(*word));
    // A session that has ended takes no more messages once its ring is full.
    let _ = lane.end.send(message.finish_request(header), &[]);
}

/// Reads until the last call is answered or the session has ended.
fn drain(guest: &Guest, lane: &mut Lane) {
    let (deadline, mut message) = (Instant::now() + PATIENCE, Vec::new());
    while guest.control().alive() {
        assert!(Instant::now() < deadline, "the server hangs");
        match lane.end.try_receive(&mut message) {
            Ok(true) => {}
            _ => continue,
        }
        let Ok((header, _)) = ReplyHeader::parse(&message) else { panic!("a malformed reply") };
        match header.kind {
            kind::REPLY if header.serial == LAST => return,
            // Refused: otherwise the server waits for an answer, as it should.
            kind::CALLBACK => send(lane, RequestHeader { kind: kind::CALLBACK_REPLY, ..Default::default() }, &[1]),
            _ => {}
        }
    }
}

pub fn run(bytes: &[u8]) {
    let Ok(calls) = <Vec<(u8, u8, u8, Vec<u64>)>>::arbitrary_take_rest(Unstructured::new(bytes)) else { return };
    let mut guest = Guest::with_config(false, r#"{"session": 1, "limits": {"memory": 1000}}"#);
    let mut lane = guest.lane();
    let mut ticket = 0;
    for (function, how, length, words) in calls.iter().take(20) {
        // Numbers beyond the functions' end the session; all others are equally likely.
        let function = u32::from(*function) % 23;
        // One takes its time; the other writes where an earlier call of any size told the fake vendor to.
        if function == SLEEP || function == COMPLETE {
            continue;
        }
        let kind = match how % 8 {
            0..4 => kind::CALL,
            4 | 5 => kind::CALL_ASYNC,
            6 => kind::FETCH,
            _ => kind::SYNC,
        };
        // Output with replies would replace descriptors 1 and 2 of this process, which are the fuzzer's.
        let flags = u16::from(how >> 3) & !flag::PRINT_WITH_REPLIES;
        // An acknowledged call takes no ticket; one that never comes would rightly be waited for.
        ticket += u64::from(kind == kind::CALL_ASYNC && flags & flag::ACKNOWLEDGE == 0);
        let header = RequestHeader { kind, function, ticket, flags, ..Default::default() };
        let words = &words[..words.len().min(usize::from(*length))];
        send(&mut lane, header, words);
    }
    let last = RequestHeader { kind: kind::CALL, function: ADD, ticket, serial: LAST, ..Default::default() };
    send(&mut lane, last, &[1, 1]);
    drain(&guest, &mut lane);
    drop(lane);
    guest.leave();
}
