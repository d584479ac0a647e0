//! A peer that sends any bytes: packets, compressed or not, with and without numbers, and the frames in them. The first
//! byte says in pieces of which size the rest arrives, which must not matter; what was understood must survive being sent
//! again. Acknowledgements and resumptions are taken for what they say of packets that were kept, pieces and their announcements
//! for what they say of messages that wait.

use crate::carry::retained::Retained;
use crate::frames::frame::{Frame, FrameError, Kind, MAX_PACKET, Packets, put_header, put_packet, put_signs};
use crate::frames::open::Open;
use crate::resuming::resume::{Resume, Resumed, Resumption};
use crate::strands::arrivals::Arrivals;
use std::collections::HashSet;

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

/// Pieces arrive, and messages wait for them. `bound`: of their numbers, so that they meet.
fn arrive(frames: &[Owned], bound: u64) {
    let (arrivals, mut there, mut waiting) = (Arrivals::default(), HashSet::new(), Vec::new());
    for (kind, _, lane, payload) in frames {
        let word = |at: usize| payload.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        match (kind, word(0), word(8)) {
            (Kind::Piece, Some(number), _) => {
                let number = number % bound;
                let Ok(begun) = arrivals.begin(number) else { continue };
                assert_eq!(begun, there.insert(number), "once");
                if begun {
                    let whole = arrivals.finish(number);
                    let is = |(first, end): (u64, u64)| (first..end).all(|number| there.contains(&number));
                    let found = waiting.iter().position(|(_, first, end)| is((*first, *end)));
                    assert_eq!(whole, found.map(|at| waiting.swap_remove(at).0));
                }
            }
            (Kind::Pieces, Some(first), Some(end)) => {
                let (first, end) = (first % bound, end % bound);
                if let Ok(Some(awaited)) = arrivals.expect(*lane, first, end) {
                    assert!(!awaited.is_whole() && end - first <= 1 << 30);
                    // Longer ones are not looked at number by number.
                    assert!(waiting.iter().all(|(_, other, last)| end <= *other || first >= *last));
                    waiting.push((*lane, first, end));
                }
            }
            _ => {}
        }
    }
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
    arrive(&frames, 16);
    arrive(&frames, u64::MAX);
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
