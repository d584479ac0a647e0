//! Entries of the outbox's queues: small messages that go together, and long ones that go piece by piece.

use std::collections::VecDeque;

use aviary_transport::{Arena, Region};

use crate::frame::{Kind, MAX_FRAGMENT_BYTES, put_frame, put_header};

/// A longer message is cut into pieces and takes turns.
pub const MAX_UNSPLIT_BYTES: usize = 16 << 10;
/// A thread that gathers passes it on at this size.
const BATCH_BYTES: usize = 4 << 10;
/// Cost of a region in bytes besides its own.
const REGION_COST: usize = 32;
/// Memory of a queue's entry besides its payload, in bytes, its lane's entry included.
pub const ITEM_COST: usize = 256;

/// An entry of a lane's queue.
pub enum Item {
    /// Encoded frames of small messages, and how many bytes of messages they hold.
    Small {
        frames: Vec<u8>,
        bytes: usize,
    },
    Bulk(Bulk),
}

/// A message with its regions, sent piece by piece.
pub struct Bulk {
    pub regions: VecDeque<Region>,
    /// How many regions there were at first.
    pub listed: usize,
    pub message: Vec<u8>,
    /// Bytes of the message.
    pub sent: usize,
}

impl Item {
    /// Bytes of memory that go with it.
    pub fn held(&self) -> usize {
        ITEM_COST
            + match self {
                Item::Small { frames, .. } => frames.len(),
                Item::Bulk(bulk) => bulk.message.len() + bulk.listed * size_of::<Region>(),
            }
    }
}

/// Small messages of one lane that are queued together.
pub struct Gathered {
    lane: u32,
    pub frames: Vec<u8>,
    /// Of messages.
    pub bytes: usize,
    pub urgent: bool,
}

impl Gathered {
    pub fn new(lane: u32) -> Self {
        Gathered { lane, frames: Vec::new(), bytes: 0, urgent: false }
    }

    /// False: the message is too long and goes alone.
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
    /// Appends the next piece; says how many bytes of the message it holds.
    pub fn piece(&mut self, lane: u32, arena: &Arena, out: &mut Vec<u8>) -> usize {
        let mut left = MAX_FRAGMENT_BYTES;
        while left > 0 {
            let Some(region) = self.regions.front_mut() else { break };
            let length = region.length.min(left);
            put_header(out, Kind::Region, false, lane, 8 + length);
            out.extend_from_slice(&region.offset.to_le_bytes());
            if arena.read(region.offset, length, out).is_err() {
                // Regions are checked before they are queued; the frame must still be whole.
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
        // A message that is small goes along with the last of its regions.
        if !self.regions.is_empty() || (left < MAX_FRAGMENT_BYTES && self.message.len() > MAX_UNSPLIT_BYTES) {
            return 0;
        }
        let rest = &self.message[self.sent..];
        let part = rest.len().min(MAX_FRAGMENT_BYTES);
        put_header(out, Kind::Message, part < rest.len(), lane, part);
        out.extend_from_slice(&rest[..part]);
        self.sent += part;
        part
    }
}
