//! The wire format between two carriers: packets of frames. Called by `link`, which reads and writes the stream.
//!
//! A packet is a word (length, compressed or not, numbered or not), then whole frames. A frame is a header of 12 bytes
//! (kind, flags, lane, length) and a payload. Signs (pings, their answers, acknowledgements) are in unnumbered packets,
//! all other frames in numbered ones. The bytes may come from a hostile peer: each length is checked against its bound
//! before memory is allocated for it.

use thiserror::Error;

/// Longest content of a packet, before compression.
pub const MAX_PACKET: usize = 256 << 10;
pub const FRAME_HEADER: usize = 12;
pub const PACKET_HEADER: usize = 4;
const COMPRESSED: u32 = 1 << 31;
/// The packet is unnumbered: it is not sent again, and its frames are signs.
const SIGNS: u32 = 1 << 30;
/// The largest ratio of bytes after decompression to bytes before it, in LZ4's format.
const EXPANSION: usize = 255;
const MORE: u8 = 1;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The first frame of the guest's side: see [`crate::frames::open`].
    Open = 1,
    /// The first frame of the node's side.
    Welcome = 2,
    /// A message of the control socket about the lane.
    Control = 3,
    /// A message, or a part of one with [`Frame::more`] to come.
    Message = 4,
    /// An arena offset and the bytes that belong there.
    Region = 5,
    /// The number of further message bytes that may be sent on the lane.
    Credit = 6,
    Ping = 7,
    Pong = 8,
    /// The last frame of a session; the reason as text.
    Bye = 9,
    /// The node's frame after [`Kind::Welcome`]: what the relay needs to resume the session.
    Ticket = 10,
    /// The first frame of a connection that resumes a session.
    Resume = 11,
    /// The node's answer to [`Kind::Resume`].
    Resumed = 12,
    /// The number of numbered packets that have arrived since the session began.
    Ack = 13,
    /// The next message of the lane waits for pieces: the number of the first one, and that behind the last.
    Pieces = 14,
    /// A piece of bulk data: its number, its arena offset, and the bytes that belong there.
    Piece = 15,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        const ALL: [Kind; 15] = [
            Kind::Open,
            Kind::Welcome,
            Kind::Control,
            Kind::Message,
            Kind::Region,
            Kind::Credit,
            Kind::Ping,
            Kind::Pong,
            Kind::Bye,
            Kind::Ticket,
            Kind::Resume,
            Kind::Resumed,
            Kind::Ack,
            Kind::Pieces,
            Kind::Piece,
        ];
        ALL.into_iter().find(|kind| *kind as u8 == byte)
    }

    /// The frame is sent in unnumbered packets, because a lost one needs no repetition: a newer one replaces it.
    pub fn is_sign(self) -> bool {
        matches!(self, Kind::Ping | Kind::Pong | Kind::Ack)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    pub kind: Kind,
    /// The message continues in the lane's next frame.
    pub more: bool,
    pub lane: u32,
    pub payload: &'a [u8],
}

/// The peer sent bytes that are not a sequence of packets.
#[derive(Debug, Error, displaydoc::Display, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// the peer sent a packet of {0} bytes, which is longer than the limit
    Packet(usize),
    /// the peer sent a compressed packet that cannot be decompressed (it is damaged or of another version): the session cannot continue
    Compression,
    /// the peer sent a frame of kind {kind} and {length} bytes that does not fit into its packet
    Frame { kind: u8, length: u32 },
    /// the peer sent a frame of kind {0} in the wrong sort of packet (numbered or unnumbered)
    Sort(u8),
}

/// Appends a frame's header; the caller appends the payload of `length` bytes.
pub fn put_header(out: &mut Vec<u8>, kind: Kind, more: bool, lane: u32, length: usize) {
    out.extend_from_slice(&[kind as u8, if more { MORE } else { 0 }, 0, 0]);
    out.extend_from_slice(&lane.to_le_bytes());
    out.extend_from_slice(&(length as u32).to_le_bytes());
}

pub fn put_frame(out: &mut Vec<u8>, kind: Kind, lane: u32, payload: &[u8]) {
    put_header(out, kind, false, lane, payload.len());
    out.extend_from_slice(payload);
}

/// Appends a numbered packet of these frames to `out`; compressed if `compress` is set and it becomes shorter.
pub fn put_packet(out: &mut Vec<u8>, frames: &[u8], compress: bool) {
    debug_assert!(frames.len() <= MAX_PACKET);
    if compress {
        let packed = lz4_flex::block::compress_prepend_size(frames);
        if packed.len() < frames.len() {
            out.extend_from_slice(&(packed.len() as u32 | COMPRESSED).to_le_bytes());
            return out.extend_from_slice(&packed);
        }
    }
    out.extend_from_slice(&(frames.len() as u32).to_le_bytes());
    out.extend_from_slice(frames);
}

/// Makes a numbered packet out of frames before which there is room for its header; `packet` has it then, and `frames`
/// nothing that counts. Compressed as by [`put_packet`].
pub fn make_packet(frames: &mut Vec<u8>, packet: &mut Vec<u8>, compress: bool) {
    packet.clear();
    if compress {
        return put_packet(packet, &frames[PACKET_HEADER..], true);
    }
    let length = (frames.len() - PACKET_HEADER) as u32;
    frames[..PACKET_HEADER].copy_from_slice(&length.to_le_bytes());
    std::mem::swap(frames, packet);
}

/// Appends an unnumbered packet of these signs.
pub fn put_signs(out: &mut Vec<u8>, frames: &[u8]) {
    debug_assert!(frames.len() <= MAX_PACKET);
    out.extend_from_slice(&(frames.len() as u32 | SIGNS).to_le_bytes());
    out.extend_from_slice(frames);
}

/// Cuts a byte stream into packets.
#[derive(Default)]
pub struct Packets {
    received: Vec<u8>,
    at: usize,
    unpacked: Vec<u8>,
}

impl Packets {
    /// The buffer to which received bytes are appended.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        if self.at > 0 {
            self.received.drain(..self.at);
            self.at = 0;
        }
        &mut self.received
    }

    /// The frames of the next whole packet; `None`: more bytes are needed.
    pub fn next_packet(&mut self) -> Result<Option<Frames<'_>>, FrameError> {
        let rest = &self.received[self.at..];
        let Some((header, body)) = rest.split_first_chunk::<PACKET_HEADER>() else { return Ok(None) };
        let word = u32::from_le_bytes(*header);
        let length = (word & !(COMPRESSED | SIGNS)) as usize;
        let signs = word & SIGNS != 0;
        if length > MAX_PACKET {
            return Err(FrameError::Packet(length));
        }
        let Some(body) = body.get(..length) else { return Ok(None) };
        self.at += PACKET_HEADER + length;
        if word & COMPRESSED == 0 {
            return Ok(Some(Frames { rest: body, signs }));
        }
        let (size, packed) = lz4_flex::block::uncompressed_size(body).map_err(|_| FrameError::Compression)?;
        if size > MAX_PACKET {
            return Err(FrameError::Packet(size));
        }
        // A peer that claims an impossible size makes this process allocate nothing.
        if size > packed.len().saturating_mul(EXPANSION) {
            return Err(FrameError::Compression);
        }
        self.unpacked.resize(size, 0);
        match lz4_flex::block::decompress_into(packed, &mut self.unpacked) {
            Ok(n) if n == size => Ok(Some(Frames { rest: &self.unpacked, signs })),
            _ => Err(FrameError::Compression),
        }
    }
}

/// The frames of one packet.
#[derive(Debug)]
pub struct Frames<'a> {
    rest: &'a [u8],
    signs: bool,
}

impl Frames<'_> {
    /// A numbered packet is sent again if the connection breaks before it has arrived.
    pub fn is_numbered(&self) -> bool {
        !self.signs
    }

    /// Bytes of the frames that were not read yet.
    pub fn bytes_left(&self) -> usize {
        self.rest.len()
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, FrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let sorted = |split: (Frame<'a>, _)| match split.0.kind.is_sign() == self.signs {
            true => Ok(split),
            false => Err(FrameError::Sort(split.0.kind as u8)),
        };
        let (frame, rest) = match split(self.rest).and_then(sorted) {
            Ok(split) => split,
            Err(error) => {
                self.rest = &[];
                return Some(Err(error));
            }
        };
        self.rest = rest;
        Some(Ok(frame))
    }
}

fn split(packet: &[u8]) -> Result<(Frame<'_>, &[u8]), FrameError> {
    let cut = FrameError::Frame { kind: packet.first().copied().unwrap_or(0), length: packet.len() as u32 };
    let (header, rest) = packet.split_first_chunk::<FRAME_HEADER>().ok_or(cut)?;
    let lane = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
    let length = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
    let broken = FrameError::Frame { kind: header[0], length };
    let kind = Kind::of(header[0]).ok_or(broken)?;
    let (payload, rest) = rest.split_at_checked(length as usize).ok_or(broken)?;
    Ok((Frame { kind, more: header[1] & MORE != 0, lane, payload }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn collect(packets: &mut Packets, into: &mut Vec<(u32, Vec<u8>)>) -> Result<(), FrameError> {
        while let Some(frames) = packets.next_packet()? {
            for frame in frames {
                let frame = frame?;
                into.push((frame.lane, frame.payload.to_vec()));
            }
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn frames_survive_any_cut(
            frames in prop::collection::vec((any::<u32>(), prop::collection::vec(0u8..3, 0..300)), 1..40),
            per_packet in 1usize..8, cut in 1usize..500, compress: bool,
        ) {
            let mut stream = Vec::new();
            for some in frames.chunks(per_packet) {
                let mut packet = Vec::new();
                some.iter().for_each(|(lane, payload)| put_frame(&mut packet, Kind::Message, *lane, payload));
                put_packet(&mut stream, &packet, compress);
            }
            let (mut packets, mut got) = (Packets::default(), Vec::new());
            for bytes in stream.chunks(cut) {
                packets.buffer().extend_from_slice(bytes);
                collect(&mut packets, &mut got).unwrap();
            }
            prop_assert_eq!(got, frames);
        }

        #[test]
        fn any_bytes_are_withstood(bytes in prop::collection::vec(any::<u8>(), 0..2000), length in 0u32..600, packed: bool) {
            let mut packets = Packets::default();
            let word = length | if packed { COMPRESSED } else { 0 };
            packets.buffer().extend_from_slice(&word.to_le_bytes());
            packets.buffer().extend_from_slice(&bytes);
            let _ = collect(&mut packets, &mut Vec::new());
        }
    }

    #[test]
    fn signs_have_no_number_and_everything_else_has_one() {
        for byte in 0..=u8::MAX {
            let Some(kind) = Kind::of(byte) else { continue };
            let (mut frames, mut packets) = (Vec::new(), Packets::default());
            put_frame(&mut frames, kind, 0, b"x");
            put_signs(packets.buffer(), &frames);
            put_packet(packets.buffer(), &frames, false);
            let alone = packets.next_packet().unwrap().unwrap();
            assert!(!alone.is_numbered());
            let wrong = Err(FrameError::Sort(byte));
            assert_eq!(alone.map(|frame| frame.map(drop)).collect::<Vec<_>>() == [wrong], !kind.is_sign(), "{kind:?}");
            let numbered = packets.next_packet().unwrap().unwrap();
            assert!(numbered.is_numbered());
            assert_eq!(
                numbered.map(|frame| frame.map(drop)).collect::<Vec<_>>() == [wrong],
                kind.is_sign(),
                "{kind:?}"
            );
        }
    }

    #[test]
    fn sizes_are_bounded() {
        let mut packets = Packets::default();
        packets.buffer().extend_from_slice(&(MAX_PACKET as u32 + 1).to_le_bytes());
        assert_eq!(packets.next_packet().err(), Some(FrameError::Packet(MAX_PACKET + 1)));
        let mut bomb = Packets::default();
        bomb.buffer().extend_from_slice(&(8 | COMPRESSED).to_le_bytes());
        bomb.buffer().extend_from_slice(&u32::MAX.to_le_bytes());
        bomb.buffer().extend_from_slice(&[0; 4]);
        assert_eq!(bomb.next_packet().err(), Some(FrameError::Packet(u32::MAX as usize)));
    }

    #[test]
    fn a_packet_unpacks_to_no_more_than_its_bytes_can_mean() {
        let claim = |size: usize, packed: usize| {
            let mut packets = Packets::default();
            packets.buffer().extend_from_slice(&((4 + packed) as u32 | COMPRESSED).to_le_bytes());
            packets.buffer().extend_from_slice(&(size as u32).to_le_bytes());
            packets.buffer().resize(8 + packed, 0);
            assert_eq!(packets.next_packet().err(), Some(FrameError::Compression));
            packets.unpacked.capacity()
        };
        assert_eq!(claim(MAX_PACKET, 1000), 0, "no memory is taken for the claim");
        assert!(claim(MAX_PACKET, MAX_PACKET / EXPANSION + 1) >= MAX_PACKET, "what could be true is tried");
        // The best that the compressor does stays below: an honest packet is never refused.
        let mut stream = Vec::new();
        let mut frames = Vec::new();
        put_frame(&mut frames, Kind::Message, 1, &vec![0; MAX_PACKET - FRAME_HEADER]);
        put_packet(&mut stream, &frames, true);
        let mut packets = Packets::default();
        packets.buffer().extend_from_slice(&stream);
        assert_eq!(packets.next_packet().unwrap().unwrap().count(), 1);
    }
}
