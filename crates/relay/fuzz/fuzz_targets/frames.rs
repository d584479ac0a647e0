//! A peer that sends any bytes: packets, compressed or not, and the frames in them. The first byte says in pieces of
//! which size the rest arrives, which must not matter; what was understood must survive being sent again.
#![no_main]

// The crate shows nobody its frames.
#[allow(dead_code)]
#[path = "../../src/frame.rs"]
mod frame;
#[allow(dead_code)]
#[path = "../../src/open.rs"]
mod open;

/// The part of the crate's module that `open` needs.
mod processes {
    pub type ProcessKey = [u8; 16];
}

use frame::{Frame, FrameError, Kind, MAX_PACKET, Packets, put_header, put_packet};
use libfuzzer_sys::fuzz_target;
use open::Open;

type Owned = (Kind, bool, u32, Vec<u8>);

/// The frames of a stream that arrives in such pieces, and the mistake that ended it.
fn receive(stream: &[u8], piece: usize) -> (Vec<Owned>, Option<FrameError>) {
    let (mut packets, mut frames) = (Packets::default(), Vec::new());
    for bytes in stream.chunks(piece) {
        packets.buffer().extend_from_slice(bytes);
        loop {
            let content = match packets.next_packet() {
                Ok(Some(content)) => content,
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            };
            let mut total = 0;
            for frame in content {
                let Frame { kind, more, lane, payload } = match frame {
                    Ok(frame) => frame,
                    Err(error) => return (frames, Some(error)),
                };
                total += payload.len();
                assert!(total <= MAX_PACKET);
                frames.push((kind, more, lane, payload.to_vec()));
            }
        }
    }
    (frames, None)
}

fn send(frames: &[Owned], compress: bool) -> Vec<u8> {
    let (mut stream, mut packet) = (Vec::new(), Vec::new());
    for (kind, more, lane, payload) in frames {
        packet.clear();
        put_header(&mut packet, *kind, *more, *lane, payload.len());
        packet.extend_from_slice(payload);
        put_packet(&mut stream, &packet, compress);
    }
    stream
}

fuzz_target!(|input: &[u8]| {
    let Some((piece, stream)) = input.split_first() else { return };
    let (frames, error) = receive(stream, stream.len().max(1));
    let in_pieces = receive(stream, usize::from(*piece) + 1);
    assert_eq!(in_pieces, (frames.clone(), error));
    for compress in [false, true] {
        assert_eq!(receive(&send(&frames, compress), MAX_PACKET), (frames.clone(), None));
    }
    for (kind, _, _, payload) in &frames {
        if *kind == Kind::Open
            && let Ok(open) = Open::from_bytes(payload)
        {
            assert_eq!(Open::from_bytes(&open.to_bytes()), Ok(open));
        }
    }
});
