//! The local ring of a lane, for messages that have arrived. Used by the network reader, which waits for no ring, and by the
//! lane's thread, which does; [`crate::carry::inbox`] says whose turn it is. The ring's reader is a local peer, which may lie
//! about its progress: then the ring refuses, and the lane's thread ends.

use aviary_transport::{AHEAD_BYTES, Producer, ProducerPosition, Region};
use aviary_wire::{Encoder, ReplyHeader, kind};

use crate::carry::inbox::Parcel;
use crate::carry::outbox::Outbox;

/// The reader is told of so many parts at a time; of one that begins elsewhere than the last one ends as a part of its own.
const MOST_TOLD: usize = 8;

pub struct Sink {
    lane: u32,
    ring: Producer,
    /// Bytes that were delivered without granting credit for them.
    delivered: usize,
    /// Parts of the arena that are there, and of which the reader was not told.
    arrived: Vec<Region>,
}

impl Sink {
    pub fn new(lane: u32, ring: Producer, delivered: usize) -> Self {
        Sink { lane, ring, delivered, arrived: Vec::new() }
    }

    /// A region is there, ahead of its message. Tells a guest of it, when that is worth waking it. What finds no room is not
    /// told: the message says the same.
    pub fn tell(&mut self, region: Region) {
        let full = self.arrived.len() >= MOST_TOLD;
        let last = self.arrived.last_mut().filter(|last| last.offset + last.length as u64 == region.offset);
        match last {
            Some(last) => last.length += region.length,
            None if full => return,
            None => self.arrived.push(region),
        }
        if self.arrived.iter().map(|part| part.length).sum::<usize>() < AHEAD_BYTES {
            return;
        }
        let mut body = Encoder::new();
        body.start();
        for part in self.arrived.drain(..) {
            body.word(part.offset);
            body.word(part.length as u64);
        }
        let _ = self.ring.try_send(body.finish_reply(ReplyHeader { kind: kind::ARRIVED, ..ReplyHeader::default() }));
    }

    /// Where it is, and how many bytes were delivered without granting credit for them.
    pub fn position(&self) -> (ProducerPosition, usize) {
        (self.ring.position(), self.delivered)
    }

    /// Puts messages into the ring and waits for room. False: the ring has ended.
    pub fn put(&mut self, parcel: &Parcel, outbox: &Outbox) -> bool {
        let put = match parcel {
            Parcel::Message(message) => self.ring.send(message).is_ok(),
            Parcel::Batch(batch) => batch.messages().all(|message| self.ring.send(message).is_ok()),
            Parcel::Control(_) | Parcel::Pieces(_) => return true,
        };
        if put {
            self.grant(parcel, outbox);
        }
        put
    }

    /// Puts as many messages into the ring as have room now; returns the rest.
    pub fn offer(&mut self, parcel: Parcel, outbox: &Outbox) -> Option<Parcel> {
        let mut takes = |message: &[u8]| self.ring.try_send(message) == Ok(true);
        match parcel {
            Parcel::Message(ref message) if takes(message) => {}
            Parcel::Batch(batch) => {
                let (mut taken, mut bytes, mut all) = (0, 0, true);
                for message in batch.messages() {
                    all = takes(message);
                    if !all {
                        break;
                    }
                    (taken, bytes) = (taken + 1, bytes + message.len());
                }
                self.arrived.clear();
                outbox.delivered(self.lane, &mut self.delivered, bytes);
                return (!all).then(|| Parcel::Batch(batch.without(taken)));
            }
            _ => return Some(parcel),
        }
        self.grant(&parcel, outbox);
        None
    }

    fn grant(&mut self, parcel: &Parcel, outbox: &Outbox) {
        // The message says it.
        self.arrived.clear();
        let bytes = match parcel {
            Parcel::Message(message) => message.len(),
            Parcel::Batch(batch) => batch.messages().map(<[u8]>::len).sum(),
            Parcel::Control(_) | Parcel::Pieces(_) => 0,
        };
        outbox.delivered(self.lane, &mut self.delivered, bytes);
    }
}
