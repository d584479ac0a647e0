//! The link of a session to its guest, as one process leaves it to the next: greeting, lanes, tickets, deliveries.
//!
//! The bytes that are read here may be those of an API server that a guest has taken over, or come out of a file.

use std::collections::BTreeMap;

use aviary_transport::{ConsumerPosition, LanePosition, ProducerPosition};
use aviary_wire::{DecodeError, Decoder, Encoder};

use crate::session::config::{MAX_LANES, MAX_LATE};
use crate::session::waits::StoppedLane;
use crate::tables::deferred_outputs::Delivery;

/// Where a lane lies in the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LanePlace {
    pub offset: u64,
    pub length: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LinkedLane {
    pub place: LanePlace,
    pub stopped: StoppedLane,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Link {
    /// A whole `Hello`.
    pub hello: Vec<u8>,
    /// The guest was told that the arena lies at the same address on both sides.
    pub same_address: bool,
    /// The guest has asked for printed text with its replies.
    pub prints_with_replies: bool,
    /// By number.
    pub lanes: BTreeMap<u32, LinkedLane>,
    /// The lane for callbacks, if it is open.
    pub callbacks: Option<(LanePlace, LanePosition)>,
    /// Every asynchronous call up to this one was executed.
    pub tickets_done: u64,
    /// Deliveries that were ever told.
    pub delivered: u64,
    /// Those that are final and not told yet.
    pub deliveries: Vec<Delivery>,
    /// Where the application's heap lies in the arena.
    pub heap: Option<LanePlace>,
}

/// Bytes that are no link.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum LinkError {
    /// the link of the session is cut off: {0}
    Cut(#[from] DecodeError),
    /// the session's state is damaged: it lists {0} {1}, at most {2} are possible
    TooMany(u64, &'static str, usize),
}

impl Link {
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut to = Encoder::new();
        to.start();
        to.bytes(&self.hello);
        to.word(u64::from(self.same_address));
        to.word(u64::from(self.prints_with_replies));
        to.word(self.lanes.len() as u64);
        for (number, lane) in &self.lanes {
            to.word(u64::from(*number));
            put_place(&mut to, lane.place);
            put_position(&mut to, lane.stopped.position);
            to.optional_bytes(lane.stopped.taken.as_deref());
            put_optional(&mut to, lane.stopped.deferred.map(|error| error as u64));
        }
        to.word(u64::from(self.callbacks.is_some()));
        if let Some((place, position)) = self.callbacks {
            put_place(&mut to, place);
            put_position(&mut to, position);
        }
        to.word(self.tickets_done);
        to.word(self.delivered);
        to.word(self.deliveries.len() as u64);
        for delivery in &self.deliveries {
            to.word(delivery.offset);
            to.word(delivery.bytes);
        }
        to.word(u64::from(self.heap.is_some()));
        if let Some(place) = self.heap {
            put_place(&mut to, place);
        }
        to.body().to_vec()
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Link, LinkError> {
        let mut from = Decoder::new(bytes);
        let hello = from.bytes()?.to_vec();
        let (same_address, prints_with_replies) = (from.word()? != 0, from.word()? != 0);
        let mut link = Link { hello, same_address, prints_with_replies, ..Link::default() };
        for _ in 0..count(&mut from, "lanes", MAX_LANES)? {
            let number = from.word()? as u32;
            let (place, position) = (take_place(&mut from)?, take_position(&mut from)?);
            let taken = from.optional_bytes()?.map(<[u8]>::to_vec);
            let deferred = take_optional(&mut from)?.map(|error| error as i64);
            link.lanes.insert(number, LinkedLane { place, stopped: StoppedLane { position, taken, deferred } });
        }
        if from.word()? != 0 {
            link.callbacks = Some((take_place(&mut from)?, take_position(&mut from)?));
        }
        link.tickets_done = from.word()?;
        link.delivered = from.word()?;
        for _ in 0..count(&mut from, "deliveries", MAX_LATE)? {
            link.deliveries.push(Delivery { offset: from.word()?, bytes: from.word()? });
        }
        if from.word()? != 0 {
            link.heap = Some(take_place(&mut from)?);
        }
        from.finish()?;
        Ok(link)
    }
}

fn count(from: &mut Decoder<'_>, what: &'static str, most: usize) -> Result<u64, LinkError> {
    match from.word()? {
        count if count > most as u64 => Err(LinkError::TooMany(count, what, most)),
        count => Ok(count),
    }
}

fn put_optional(to: &mut Encoder, value: Option<u64>) {
    to.word(u64::from(value.is_some()));
    to.word(value.unwrap_or(0));
}

fn take_optional(from: &mut Decoder<'_>) -> Result<Option<u64>, DecodeError> {
    let (there, value) = (from.word()?, from.word()?);
    Ok((there != 0).then_some(value))
}

fn put_place(to: &mut Encoder, place: LanePlace) {
    to.word(place.offset);
    to.word(place.length);
}

fn take_place(from: &mut Decoder<'_>) -> Result<LanePlace, DecodeError> {
    Ok(LanePlace { offset: from.word()?, length: from.word()? })
}

fn put_position(to: &mut Encoder, LanePosition { sent, received }: LanePosition) {
    [sent.written, sent.consumed, received.read, received.released].into_iter().for_each(|word| to.word(word));
}

fn take_position(from: &mut Decoder<'_>) -> Result<LanePosition, DecodeError> {
    Ok(LanePosition {
        sent: ProducerPosition { written: from.word()?, consumed: from.word()? },
        received: ConsumerPosition { read: from.word()?, released: from.word()? },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn positions() -> impl Strategy<Value = LanePosition> {
        any::<[u64; 4]>().prop_map(|[written, consumed, read, released]| LanePosition {
            sent: ProducerPosition { written, consumed },
            received: ConsumerPosition { read, released },
        })
    }

    fn places() -> impl Strategy<Value = LanePlace> {
        any::<(u64, u64)>().prop_map(|(offset, length)| LanePlace { offset, length })
    }

    prop_compose! {
        fn lanes()(place in places(), position in positions(), taken in any::<Option<Vec<u8>>>(),
            deferred in any::<Option<i64>>()) -> LinkedLane {
            LinkedLane { place, stopped: StoppedLane { position, taken, deferred } }
        }
    }

    prop_compose! {
        fn links()(hello in any::<Vec<u8>>(), (same_address, prints_with_replies) in any::<(bool, bool)>(),
            lanes in prop::collection::btree_map(any::<u32>(), lanes(), 0..5),
            callbacks in prop::option::of((places(), positions())), tickets_done in any::<u64>(),
            delivered in any::<u64>(), deliveries in any::<Vec<(u64, u64)>>(), heap in prop::option::of(places())) -> Link {
            let deliveries = deliveries.into_iter().map(|(offset, bytes)| Delivery { offset, bytes }).collect();
            Link { hello, same_address, prints_with_replies, lanes, callbacks, tickets_done, delivered, deliveries, heap }
        }
    }

    proptest! {
        #[test]
        fn link_is_read_as_it_was_written(link in links()) {
            prop_assert_eq!(Link::from_bytes(&link.to_bytes()).unwrap(), link);
        }

        #[test]
        fn cut_link_is_refused(link in links(), at in any::<prop::sample::Index>()) {
            let bytes = link.to_bytes();
            prop_assert!(Link::from_bytes(&bytes[..at.index(bytes.len())]).is_err());
        }

        #[test]
        fn noise_is_no_danger(bytes in any::<Vec<u8>>()) {
            let _ = Link::from_bytes(&bytes);
        }
    }

    #[test]
    fn counts_beyond_the_limits_are_refused() {
        let mut to = Encoder::new();
        to.start();
        to.bytes(b"hello");
        [1, 0, MAX_LANES as u64 + 1].into_iter().for_each(|word| to.word(word));
        assert!(matches!(Link::from_bytes(to.body()), Err(LinkError::TooMany(..))));
    }
}
