//! Entries of [`crate::carry::outbox`]'s queues: small messages, which are sent together, and bulk data, which is sent piece by
//! piece.

use std::collections::VecDeque;

use aviary_transport::{Arena, Region};
use aviary_wire::{DecodeError, Decoder, Encoder};

use crate::frames::frame::{Kind, put_frame, put_header};
use crate::strands::pieces::{Cut, Pieces, is_worth};

/// The most bytes of a message that is sent as a whole; a longer one is cut into pieces.
pub const MAX_UNSPLIT_BYTES: usize = 16 << 10;
/// The size in bytes at which a lane's thread passes gathered messages to the outbox.
const BATCH_BYTES: usize = 4 << 10;
/// Regions of a message, at most: the transport takes no longer list.
const MOST_LISTED: usize = 1 << 16;
/// Cost of a region in bytes besides its own.
const REGION_COST: usize = 32;
/// What a piece is longer than its regions at most: by its announcement, the last header, and a small message behind them.
pub const PIECE_COST: usize = MAX_UNSPLIT_BYTES + 4 * REGION_COST;
/// Memory of a queue's entry besides its payload, in bytes, its lane's entry included.
pub const ITEM_COST: usize = 256;

/// An entry of a lane's queue.
pub enum Item {
    /// Encoded frames of small messages, which contain `bytes` message bytes.
    Small {
        frames: Vec<u8>,
        bytes: usize,
    },
    Bulk(Bulk),
}

/// What is left of an entry's regions after strands got some.
pub enum Left {
    /// Nothing can be done now: strands have enough.
    Waits,
    /// More for strands.
    Some,
    /// What the first connection sends.
    Rest,
}

/// A message with its regions, sent piece by piece. One of no bytes is none: its regions belong to a later message of the lane.
pub struct Bulk {
    pub regions: VecDeque<Region>,
    /// Whether strands carry its long regions; `None`: there was no strand yet.
    pub by_strands: Option<bool>,
    /// The number of regions at first.
    pub listed: usize,
    pub message: Vec<u8>,
    /// Bytes of the message that were sent.
    pub sent: usize,
}

impl Item {
    /// Memory of the entry, in bytes.
    pub fn held(&self) -> usize {
        ITEM_COST
            + match self {
                Item::Small { frames, .. } => frames.len(),
                Item::Bulk(bulk) => bulk.message.len() + bulk.listed * size_of::<Region>(),
            }
    }
}

impl Item {
    /// Message bytes that are not sent.
    pub fn message_bytes(&self) -> usize {
        match self {
            Item::Small { bytes, .. } => *bytes,
            Item::Bulk(bulk) => bulk.message.len() - bulk.sent,
        }
    }

    pub fn save(&self, to: &mut Encoder) {
        match self {
            Item::Small { frames, bytes } => {
                to.word(0);
                to.bytes(frames);
                to.word(*bytes as u64);
            }
            Item::Bulk(Bulk { regions, by_strands: _, listed, message, sent }) => {
                to.word(1);
                [regions.len(), *listed, *sent].into_iter().for_each(|number| to.word(number as u64));
                for region in regions {
                    to.word(region.offset);
                    to.word(region.length as u64);
                }
                to.bytes(message);
            }
        }
    }

    /// As another process has left it. A region may lie anywhere: reading it then gives zeros.
    pub fn restored(from: &mut Decoder<'_>) -> Result<Item, DecodeError> {
        if from.word()? == 0 {
            let frames = from.bytes()?.to_vec();
            let bytes = (from.word()? as usize).min(frames.len());
            return Ok(Item::Small { frames, bytes });
        }
        let [count, listed, sent] = [from.word()?, from.word()?, from.word()?];
        let mut regions = VecDeque::new();
        for _ in 0..count {
            regions.push_back(Region { offset: from.word()?, length: from.word()? as usize });
        }
        let message = from.bytes()?.to_vec();
        let sent = (sent as usize).min(message.len());
        let listed = (listed as usize).min(MOST_LISTED);
        Ok(Item::Bulk(Bulk { regions, by_strands: None, listed, message, sent }))
    }
}

/// Small messages of one lane that are queued together.
pub struct Gathered {
    lane: u32,
    pub frames: Vec<u8>,
    /// Message bytes in `frames`.
    pub bytes: usize,
    pub urgent: bool,
}

impl Gathered {
    pub fn new(lane: u32) -> Self {
        Gathered { lane, frames: Vec::new(), bytes: 0, urgent: false }
    }

    /// Adds a message. False: it is too long and must be sent alone.
    pub fn take(&mut self, message: &[u8], urgent: bool) -> bool {
        if message.len() > MAX_UNSPLIT_BYTES {
            return false;
        }
        put_frame(&mut self.frames, Kind::Message, self.lane, message);
        self.bytes += message.len();
        self.urgent |= urgent;
        true
    }

    pub fn is_full(&self) -> bool {
        self.frames.len() >= BATCH_BYTES
    }
}

impl Bulk {
    pub fn new(regions: Vec<Region>, message: &[u8]) -> Self {
        let listed = regions.len();
        let (regions, message) = (regions.into(), message.to_vec());
        Bulk { regions, by_strands: None, listed, message, sent: 0 }
    }

    /// Nothing is left to send.
    pub fn is_done(&self) -> bool {
        self.regions.is_empty() && self.sent == self.message.len()
    }

    /// Strands carry what is left of long regions, if there are strands and it is worth it: gives them the next pieces, and
    /// announces these.
    pub fn leave_to_strands(&mut self, lane: u32, pieces: &Pieces, out: &mut Vec<u8>) -> Left {
        if self.by_strands == Some(false) || !pieces.has_strands() {
            return Left::Rest;
        }
        if !*self.by_strands.get_or_insert_with(|| is_worth(&self.regions)) {
            return Left::Rest;
        }
        match pieces.cut(&mut self.regions) {
            Cut::Full => Left::Waits,
            Cut::Nothing => Left::Rest,
            Cut::Pieces(first, end) => {
                put_header(out, Kind::Pieces, false, lane, 16);
                out.extend_from_slice(&first.to_le_bytes());
                out.extend_from_slice(&end.to_le_bytes());
                Left::Some
            }
        }
    }

    /// Appends the next piece, of at most `most` bytes, to `out`; returns how many bytes of the message it contains.
    pub fn piece(&mut self, lane: u32, arena: &Arena, out: &mut Vec<u8>, most: usize) -> usize {
        let mut left = most;
        while left > 0 {
            let Some(region) = self.regions.front_mut() else { break };
            let length = region.length.min(left);
            put_header(out, Kind::Region, false, lane, 8 + length);
            out.extend_from_slice(&region.offset.to_le_bytes());
            if arena.read(region.offset, length, out).is_err() {
                // Cannot happen, because regions are checked before they are queued; the frame must be complete anyway.
                out.resize(out.len() + length, 0);
            }
            left = left.saturating_sub(length + REGION_COST);
            if length == region.length {
                self.regions.pop_front();
            } else {
                region.offset += length as u64;
                region.length -= length;
            }
        }
        // A small message is sent together with the last of its regions.
        if self.is_done() || !self.regions.is_empty() || (left < most && self.message.len() > MAX_UNSPLIT_BYTES) {
            return 0;
        }
        let rest = &self.message[self.sent..];
        let part = rest.len().min(most);
        put_header(out, Kind::Message, part < rest.len(), lane, part);
        out.extend_from_slice(&rest[..part]);
        self.sent += part;
        part
    }
}
