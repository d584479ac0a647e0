//! The prefix of the server's messages.

use aviary_wire::{Decoder, ReplyHeader, flag};

use crate::connection::Connection;
use crate::descriptor::Lost;
use crate::memory::deliveries::Waiter;
use crate::process::log;

/// Reads a message's prefix: keeps a deferred error and applies deliveries.
#[inline(always)]
pub(crate) fn prefix(
    connection: &Connection,
    header: &ReplyHeader,
    fields: &mut Decoder,
    waiter: Waiter,
) -> Result<Option<i64>, Lost> {
    let empty = header.flags & (flag::DEFERRED | flag::DELIVERIES | flag::PRINTED) == 0;
    if empty && connection.deliveries.settled(header.delivered) {
        return Ok(None);
    }
    read_prefix(connection, header, fields, waiter)
}

/// Reads a prefix that has a field or comes after a delivery that is not applied yet.
#[inline(never)]
fn read_prefix(
    connection: &Connection,
    header: &ReplyHeader,
    fields: &mut Decoder,
    waiter: Waiter,
) -> Result<Option<i64>, Lost> {
    let malformed = |e: aviary_wire::DecodeError| connection.peer.fail(&format!("a reply is malformed: {e}"));
    let mut deferred = None;
    if header.flags & flag::DEFERRED != 0 {
        deferred = Some(fields.word().map_err(malformed)? as i64);
    }
    let mut own = Vec::new();
    if header.flags & flag::DELIVERIES != 0 {
        for _ in 0..fields.word().map_err(malformed)? {
            own.push((fields.word().map_err(malformed)?, fields.word().map_err(malformed)?));
        }
    }
    connection.deliveries.apply(&connection.memory, &connection.peer.liveness, &own, header.delivered, waiter);
    if header.flags & flag::PRINTED != 0 {
        for number in [1, 2] {
            log::print(number, fields.bytes().map_err(malformed)?);
        }
    }
    Ok(deferred)
}
