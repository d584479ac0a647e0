//! The first byte of each step chooses what to read next from the rest.

use arbitrary::{Arbitrary, Unstructured};
use aviary_wire::{Decoder, Hello, ReplyHeader, RequestHeader, Welcome};

pub fn run(bytes: &[u8]) {
    let Ok((steps, body)) = <(Vec<u8>, &[u8])>::arbitrary_take_rest(Unstructured::new(bytes)) else { return };
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
}
