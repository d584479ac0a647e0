//! A peer that sends any bytes: packets, compressed or not, with and without numbers, and the frames in them. The first
//! byte says in pieces of which size the rest arrives, which must not matter; what was understood must survive being sent
//! again. Acknowledgements and resumptions are taken for what they say of packets that were kept.

use crate::carry::retained::Retained;
use crate::frames::frame::{Frame, FrameError, Kind, MAX_PACKET, Packets, put_header, put_packet, put_signs};
use crate::frames::open::Open;
use crate::resuming::resume::{Resume, Resumed, Resumption};

/// Bytes that a peer which acknowledges nothing makes this process hold.
const KEPT: usize = 1 << 20;

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
        match kind.is_sign() {
            true => put_signs(&mut stream, &packet),
            false => put_packet(&mut stream, &packet, compress),
        }
    }
    stream
}

/// The peer gets a packet for each frame that it sends, and acknowledges what it likes.
fn acknowledge(frames: &[Owned]) {
    let (mut retained, mut sent, mut acked) = (Retained::new(Some(KEPT)), 0u64, 0u64);
    for (kind, _, _, payload) in frames {
        if retained.has_room() {
            retained.number();
            retained.keep(&mut payload.clone());
            sent += 1;
        }
        let Some(count) = payload.first_chunk::<8>().map(|word| u64::from_le_bytes(*word)) else { continue };
        let (taken, possible) = match kind {
            Kind::Ack => (retained.acknowledge(count).is_ok(), count <= sent),
            Kind::Resumed => (retained.rewind(count).is_ok(), count <= sent && count >= acked),
            _ => continue,
        };
        assert_eq!(taken, possible);
        acked = if taken { acked.max(count) } else { acked };
    }
    let (mut at, mut left) = (0, 0);
    while let Some((number, _)) = retained.from(at) {
        assert!(number >= acked && number < sent);
        (at, left) = (number + 1, left + 1);
    }
    assert_eq!(left, sent - acked);
}

pub fn run(input: &[u8]) {
    let Some((piece, stream)) = input.split_first() else { return };
    let (frames, error) = receive(stream, stream.len().max(1));
    let in_pieces = receive(stream, usize::from(*piece) + 1);
    assert_eq!(in_pieces, (frames.clone(), error));
    for compress in [false, true] {
        assert_eq!(receive(&send(&frames, compress), MAX_PACKET), (frames.clone(), None));
    }
    acknowledge(&frames);
    for (kind, _, _, payload) in &frames {
        match kind {
            Kind::Open => {
                if let Ok(open) = Open::from_bytes(payload) {
                    assert_eq!(Open::from_bytes(&open.to_bytes()), Ok(open));
                }
            }
            Kind::Resume => {
                if let Ok(bytes) = Resume::from_bytes(payload).map(|resume| resume.to_bytes()) {
                    assert_eq!(Resume::from_bytes(&bytes).map(|resume| resume.to_bytes()), Ok(bytes));
                }
            }
            Kind::Ticket => {
                let _ = Resumption::from_bytes(payload).map(Resumption::to_bytes);
            }
            Kind::Resumed => {
                let _ = Resumed::from_bytes(payload).map(Resumed::to_bytes);
            }
            _ => {}
        }
    }
}
