//! Sending a message to the guest, with what every message may carry beside its body.

use aviary_transport::{LaneEnd, Region};
use aviary_wire::{Encoder, REJECTED_CALL, ReplyHeader, flag};

use super::ended::LaneEnded;
use crate::session::Session;
use crate::session::printed::Texts;
use crate::tables::deferred_outputs::Delivery;

/// Notices of a message to the guest beside its body.
#[derive(Debug, Default)]
pub struct Piggyback {
    /// An asynchronous call of this lane failed.
    pub deferred: Option<i64>,
    pub printed: Option<Box<Texts>>,
}

/// Adds the prefix that every message to the guest may carry, and sends it.
pub fn send_on(
    session: &Session,
    end: &mut LaneEnd,
    header: &mut ReplyHeader,
    body: &mut Encoder,
    regions: &mut Vec<(u64, u64)>,
    piggyback: Piggyback,
    deliveries: &mut Vec<Delivery>,
) -> Result<(), LaneEnded> {
    deliveries.clear();
    header.delivered = session.tables.late.collect(deliveries);
    let with_content = deliveries.iter().filter(|d| d.bytes > 0 && d.offset != REJECTED_CALL);
    regions.extend(with_content.map(|d| (d.offset, d.bytes)));
    let carried: Vec<Region> =
        if session.tables.memory.is_shared() { Vec::new() } else { regions.iter().map(region).collect() };
    let sent = if piggyback.deferred.is_none() && piggyback.printed.is_none() && deliveries.is_empty() {
        body.finish_reply(*header)
    } else {
        let mut whole = prefix(header, &piggyback, deliveries);
        body.body().chunks_exact(8).for_each(|word| whole.word(word_of(word)));
        std::mem::swap(body, &mut whole);
        body.finish_reply(*header)
    };
    Ok(end.send(sent, &carried)?)
}

fn prefix(header: &mut ReplyHeader, piggyback: &Piggyback, deliveries: &[Delivery]) -> Encoder {
    let mut whole = Encoder::new();
    whole.start();
    if let Some(error) = piggyback.deferred {
        header.flags |= flag::DEFERRED;
        whole.word(error as u64);
    }
    if !deliveries.is_empty() {
        header.flags |= flag::DELIVERIES;
        whole.word(deliveries.len() as u64);
        for delivery in deliveries {
            whole.word(delivery.offset);
            whole.word(delivery.bytes);
        }
    }
    if let Some(texts) = &piggyback.printed {
        header.flags |= flag::PRINTED;
        texts.iter().for_each(|text| whole.bytes(text));
    }
    whole
}

pub(super) fn word_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn region((offset, bytes): &(u64, u64)) -> Region {
    Region { offset: *offset, length: *bytes as usize }
}
