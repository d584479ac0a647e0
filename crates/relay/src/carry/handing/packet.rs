//! A packet on its way out of the outbox, with the buffers in which it is made.

use crate::frames::frame::{PACKET_HEADER, make_packet};

#[derive(Debug, Default)]
pub struct Packet {
    /// Frames of an unnumbered packet that goes before this one.
    pub signs: Vec<u8>,
    /// Room for the header of the numbered packet, then its frames.
    pub frames: Vec<u8>,
    /// The numbered packet as it is sent.
    pub encoded: Vec<u8>,
    /// Packets that a lane's thread has sent in its present turn.
    pub sent: usize,
}

impl Packet {
    /// Empties it for the next frames.
    pub fn clear(&mut self) {
        self.signs.clear();
        self.frames.clear();
        self.frames.resize(PACKET_HEADER, 0);
        self.encoded.clear();
    }

    /// Frames of a numbered packet wait to be encoded.
    pub fn has_frames(&self) -> bool {
        self.frames.len() > PACKET_HEADER
    }

    /// Makes the numbered packet, if there are frames for it; they are gone then.
    pub fn encode(&mut self, compress: bool) {
        if self.has_frames() {
            make_packet(&mut self.frames, &mut self.encoded, compress);
            self.frames.clear();
        }
    }

    /// The numbered packet is made.
    pub fn is_numbered(&self) -> bool {
        !self.encoded.is_empty()
    }
}
