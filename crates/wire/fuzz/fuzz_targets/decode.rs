//! The first byte of each step chooses what to read next from the rest.
#![no_main]

use aviary_wire::{Decoder, Hello, ReplyHeader, RequestHeader, Welcome};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Vec<u8>, &[u8])| {
    let (steps, body) = input;
    let mut decoder = Decoder::new(body);
    for step in steps {
        let result = match step % 4 {
            0 => decoder.word().map(drop),
            1 => decoder.bytes().map(drop),
            2 => decoder.array().map(drop),
            _ => decoder.buffer().map(drop),
        };
        assert!(decoder.position() <= body.len());
        if result.is_err() {
            break;
        }
    }
    let _ = RequestHeader::parse(body);
    let _ = ReplyHeader::parse(body);
    let _ = Hello::from_body(body);
    let _ = Welcome::from_body(body);
});
