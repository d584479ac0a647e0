//! Message headers and their constants.

use crate::decode::DecodeError;

/// Bytes of a header, in both directions.
pub const HEADER_SIZE: usize = 32;

/// Message kinds. Requests and replies number theirs independently.
pub mod kind {
    pub const CALL: u16 = 1;
    pub const CALL_ASYNC: u16 = 2;
    pub const CALLBACK_REPLY: u16 = 3;
    pub const FETCH: u16 = 4;
    pub const SYNC: u16 = 5;

    pub const REPLY: u16 = 1;
    pub const CALLBACK: u16 = 2;
    /// From a carrier: these parts of the arena are there, as the next reply will have them. The body has words: offset and
    /// length of each.
    pub const ARRIVED: u16 = 3;
}

/// Header flags.
pub mod flag {
    /// Request: answer this asynchronous call with an empty reply.
    pub const ACKNOWLEDGE: u16 = 1;
    /// Request of kind `SYNC`: what the vendor's library prints from now on shall come with replies, because the guest's
    /// descriptors lead elsewhere than those that the server has.
    pub const PRINT_WITH_REPLIES: u16 = 2;
    /// `SYNC`: nobody waits for the answer, which is read with a later one. It says nothing of other threads' calls: they would wait
    /// until it is read.
    pub const LATER: u16 = 4;

    /// Reply: the body starts with a deferred error.
    pub const DEFERRED: u16 = 1;
    /// Reply: the body continues with deliveries.
    pub const DELIVERIES: u16 = 2;
    /// Reply: the vendor's function succeeded.
    pub const SUCCESS: u16 = 4;
    /// Reply: the guest has the device now and calls often: its thread should stay awake between its calls.
    pub const STAY_AWAKE: u16 = 8;
    /// Reply: the body continues with what the vendor's library has printed, on standard output and on standard error.
    pub const PRINTED: u16 = 16;
}

/// Reply status.
pub mod status {
    pub const OK: u32 = 0;
    pub const UNSUPPORTED: u32 = 1;
    /// `detail` is the handle's type.
    pub const INVALID_HANDLE: u32 = 2;
    pub const REFUSED: u32 = 3;
    /// The body is one word: the value to return.
    pub const FAILED: u32 = 4;
    pub const LOST: u32 = 5;
    /// The vendor's library lacks the function.
    pub const ABSENT: u32 = 6;
}

/// Header of a message from the guest.
///
/// ```
/// use aviary_wire::{Encoder, RequestHeader};
///
/// let mut encoder = Encoder::new();
/// encoder.start();
/// let message = encoder.finish_request(RequestHeader { serial: 9, ..RequestHeader::default() });
/// assert_eq!(RequestHeader::parse(message)?.0.serial, 9);
/// assert!(RequestHeader::parse(&message[1..]).is_err());
/// # Ok::<(), aviary_wire::DecodeError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestHeader {
    /// Header and body, in bytes.
    pub length: u32,
    pub kind: u16,
    pub flags: u16,
    pub function: u32,
    /// Number of arena regions that the message names.
    pub regions: u32,
    pub ticket: u64,
    pub serial: u64,
}

/// Header of a message from the server.
///
/// ```
/// use aviary_wire::{Encoder, ReplyHeader};
///
/// let mut encoder = Encoder::new();
/// encoder.start();
/// let message = encoder.finish_reply(ReplyHeader { serial: 9, ..ReplyHeader::default() });
/// assert_eq!(ReplyHeader::parse(message)?.0.serial, 9);
/// assert!(ReplyHeader::parse(&message[1..]).is_err());
/// # Ok::<(), aviary_wire::DecodeError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplyHeader {
    /// Header and body, in bytes.
    pub length: u32,
    pub kind: u16,
    pub flags: u16,
    pub status: u32,
    pub detail: u32,
    /// Deliveries assigned so far, this message's own included.
    pub delivered: u64,
    pub serial: u64,
}

#[inline]
fn u16_at(b: &[u8; HEADER_SIZE], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

#[inline]
fn u32_at(b: &[u8; HEADER_SIZE], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

#[inline]
fn u64_at(b: &[u8; HEADER_SIZE], at: usize) -> u64 {
    u64::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3], b[at + 4], b[at + 5], b[at + 6], b[at + 7]])
}

/// Splits a received message into its raw header and its body, checking the length it states.
#[inline]
fn split(message: &[u8]) -> Result<(&[u8; HEADER_SIZE], &[u8]), DecodeError> {
    let Some((header, body)) = message.split_first_chunk::<HEADER_SIZE>() else {
        return Err(DecodeError::Header { length: message.len() });
    };
    let stated = u32_at(header, 0);
    if stated as usize != message.len() {
        return Err(DecodeError::Length { stated, length: message.len() });
    }
    Ok((header, body))
}

impl RequestHeader {
    #[inline]
    pub fn to_bytes(&self) -> [u8; HEADER_SIZE] {
        let mut b = [0; HEADER_SIZE];
        b[0..4].copy_from_slice(&self.length.to_le_bytes());
        b[4..6].copy_from_slice(&self.kind.to_le_bytes());
        b[6..8].copy_from_slice(&self.flags.to_le_bytes());
        b[8..12].copy_from_slice(&self.function.to_le_bytes());
        b[12..16].copy_from_slice(&self.regions.to_le_bytes());
        b[16..24].copy_from_slice(&self.ticket.to_le_bytes());
        b[24..32].copy_from_slice(&self.serial.to_le_bytes());
        b
    }

    /// The header of a whole received message, and its body.
    #[inline]
    pub fn parse(message: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let (b, body) = split(message)?;
        let header = RequestHeader {
            length: u32_at(b, 0),
            kind: u16_at(b, 4),
            flags: u16_at(b, 6),
            function: u32_at(b, 8),
            regions: u32_at(b, 12),
            ticket: u64_at(b, 16),
            serial: u64_at(b, 24),
        };
        Ok((header, body))
    }
}

impl ReplyHeader {
    #[inline]
    pub fn to_bytes(&self) -> [u8; HEADER_SIZE] {
        let mut b = [0; HEADER_SIZE];
        b[0..4].copy_from_slice(&self.length.to_le_bytes());
        b[4..6].copy_from_slice(&self.kind.to_le_bytes());
        b[6..8].copy_from_slice(&self.flags.to_le_bytes());
        b[8..12].copy_from_slice(&self.status.to_le_bytes());
        b[12..16].copy_from_slice(&self.detail.to_le_bytes());
        b[16..24].copy_from_slice(&self.delivered.to_le_bytes());
        b[24..32].copy_from_slice(&self.serial.to_le_bytes());
        b
    }

    /// The header of a whole received message, and its body.
    #[inline]
    pub fn parse(message: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let (b, body) = split(message)?;
        let header = ReplyHeader {
            length: u32_at(b, 0),
            kind: u16_at(b, 4),
            flags: u16_at(b, 6),
            status: u32_at(b, 8),
            detail: u32_at(b, 12),
            delivered: u64_at(b, 16),
            serial: u64_at(b, 24),
        };
        Ok((header, body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive() {
        let request = RequestHeader {
            length: 32,
            kind: 2,
            flags: 0x8001,
            function: 7,
            regions: 3,
            ticket: u64::MAX - 1,
            serial: 1 << 40,
        };
        assert_eq!(RequestHeader::parse(&request.to_bytes()), Ok((request, &[][..])));
        let reply = ReplyHeader { length: 32, kind: 1, flags: 6, status: 2, detail: 9, delivered: 5, serial: 1 << 63 };
        assert_eq!(ReplyHeader::parse(&reply.to_bytes()), Ok((reply, &[][..])));
    }

    #[test]
    fn a_wrong_length_is_refused() {
        let mut bytes = RequestHeader { length: 40, ..Default::default() }.to_bytes().to_vec();
        assert_eq!(RequestHeader::parse(&bytes), Err(DecodeError::Length { stated: 40, length: 32 }));
        bytes.extend([0; 8]);
        assert!(RequestHeader::parse(&bytes).is_ok());
        assert_eq!(RequestHeader::parse(&bytes[..31]), Err(DecodeError::Header { length: 31 }));
    }
}
