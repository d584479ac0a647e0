//! The local ring of a lane, for messages that have arrived. Used by the network reader, which waits for no ring, and by the
//! lane's thread, which does; [`crate::carry::inbox`] says whose turn it is. The ring's reader is a local peer, which may lie
//! about its progress: then the ring refuses, and the lane's thread ends.

use aviary_transport::{Producer, ProducerPosition};

use crate::carry::inbox::Parcel;
use crate::carry::outbox::Outbox;

pub struct Sink {
    lane: u32,
    ring: Producer,
    /// Bytes that were delivered without granting credit for them.
    delivered: usize,
}

impl Sink {
    pub fn new(lane: u32, ring: Producer, delivered: usize) -> Self {
        Sink { lane, ring, delivered }
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
                outbox.delivered(self.lane, &mut self.delivered, bytes);
                return (!all).then(|| Parcel::Batch(batch.without(taken)));
            }
            _ => return Some(parcel),
        }
        self.grant(&parcel, outbox);
        None
    }

    fn grant(&mut self, parcel: &Parcel, outbox: &Outbox) {
        let bytes = match parcel {
            Parcel::Message(message) => message.len(),
            Parcel::Batch(batch) => batch.messages().map(<[u8]>::len).sum(),
            Parcel::Control(_) | Parcel::Pieces(_) => 0,
        };
        outbox.delivered(self.lane, &mut self.delivered, bytes);
    }
}
