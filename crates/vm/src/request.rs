//! Requests of the driver on the control queue (docs/virtio-aviary.md), decoded and checked as far
//! as the bytes alone allow.

use aviary_wire::control::{APPLICATION_MEMORY, WRITABLE};
use rustix::io::Errno;

/// Bytes of a request's fixed part.
pub const HEADER: usize = 40;
/// Longest request in bytes.
pub const MAX_REQUEST_BYTES: usize = 64 << 10;
pub const MAX_SEND_BYTES: usize = 16 << 10;
pub const MAX_PROGRAM_BYTES: usize = 64;
/// Extents of one `MAP`.
pub const MAX_EXTENTS: usize = 1024;
pub const PAGE: u64 = 4096;

const EXTENT: usize = 16;
/// Flags of `MAP`: writable, the application's own memory. API servers use equal numbers.
const FLAGS: u32 = (WRITABLE | APPLICATION_MEMORY) as u32;

/// Numbers of the request types.
pub mod kind {
    pub const IDENTIFY: u32 = 1;
    pub const OPEN: u32 = 2;
    pub const CLOSE: u32 = 3;
    pub const SEND: u32 = 4;
    pub const MAP: u32 = 5;
    pub const UNMAP: u32 = 6;
    pub const PING: u32 = 7;
}

/// A range of a session's arena: whole pages, not empty, and its end does not overflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub offset: u64,
    pub length: u64,
}

impl Range {
    pub fn new(offset: u64, length: u64) -> Option<Self> {
        let whole = offset.is_multiple_of(PAGE) && length.is_multiple_of(PAGE) && length > 0;
        (whole && offset.checked_add(length).is_some()).then_some(Range { offset, length })
    }

    pub fn end(self) -> u64 {
        self.offset + self.length
    }
}

/// A range of guest-physical memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub address: u64,
    pub length: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    Identify {
        version: u64,
    },
    Open {
        session: u32,
        pid: u64,
        /// Start time of the process, in any unit.
        started: u64,
        program: String,
    },
    Close {
        session: u32,
    },
    Send {
        session: u32,
        bytes: Vec<u8>,
    },
    /// Maps memory; the extents' lengths add up to the range's.
    Map {
        session: u32,
        range: Range,
        flags: u64,
        extents: Vec<Extent>,
    },
    Unmap {
        session: u32,
        range: Range,
    },
    Ping,
}

struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn u32(&self, at: usize) -> Result<u32, Errno> {
        let bytes = self.0.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u32::from_le_bytes).ok_or(Errno::INVAL)
    }

    fn u64(&self, at: usize) -> Result<u64, Errno> {
        let bytes = self.0.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u64::from_le_bytes).ok_or(Errno::INVAL)
    }
}

impl Request {
    /// Decodes a request. The error is the answer's status.
    pub fn parse(bytes: &[u8]) -> Result<Self, Errno> {
        if bytes.len() > MAX_REQUEST_BYTES {
            return Err(Errno::INVAL);
        }
        let words = Words(bytes);
        let (session, flags, count) = (words.u32(4)?, words.u32(8)?, words.u32(12)? as usize);
        let (offset, length, value) = (words.u64(16)?, words.u64(24)?, words.u64(32)?);
        let range = || Range::new(offset, length).ok_or(Errno::INVAL);
        match words.u32(0)? {
            kind::IDENTIFY if value > 0 => Ok(Request::Identify { version: value }),
            kind::OPEN if session != 0 => {
                let program = String::from_utf8_lossy(rest(bytes, count, MAX_PROGRAM_BYTES)?).into_owned();
                Ok(Request::Open { session, pid: value, started: offset, program })
            }
            kind::CLOSE => Ok(Request::Close { session }),
            kind::SEND => Ok(Request::Send { session, bytes: rest(bytes, count, MAX_SEND_BYTES)?.to_owned() }),
            kind::MAP if flags & !FLAGS == 0 => {
                let (range, flags) = (range()?, u64::from(flags));
                Ok(Request::Map { session, range, flags, extents: extents(bytes, count, range)? })
            }
            kind::UNMAP => Ok(Request::Unmap { session, range: range()? }),
            kind::PING => Ok(Request::Ping),
            _ => Err(Errno::INVAL),
        }
    }
}

fn rest(bytes: &[u8], length: usize, most: usize) -> Result<&[u8], Errno> {
    if length > most {
        return Err(Errno::INVAL);
    }
    bytes.get(HEADER..HEADER + length).ok_or(Errno::INVAL)
}

fn extents(bytes: &[u8], count: usize, range: Range) -> Result<Vec<Extent>, Errno> {
    if count > MAX_EXTENTS {
        return Err(Errno::INVAL);
    }
    let words = Words(rest(bytes, count * EXTENT, MAX_EXTENTS * EXTENT)?);
    let (mut list, mut total) = (Vec::with_capacity(count), 0u64);
    for at in (0..count * EXTENT).step_by(EXTENT) {
        // The rules are those of a range of the arena.
        let Range { offset: address, length } = Range::new(words.u64(at)?, words.u64(at + 8)?).ok_or(Errno::INVAL)?;
        total = total.checked_add(length).ok_or(Errno::INVAL)?;
        list.push(Extent { address, length });
    }
    if total == range.length { Ok(list) } else { Err(Errno::INVAL) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kind: u32, flags: u32, count: u32, words: [u64; 3], rest: &[u64]) -> Vec<u8> {
        let mut bytes: Vec<u8> = [kind, 7, flags, count].iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(words.iter().chain(rest).flat_map(|word| word.to_le_bytes()));
        bytes
    }

    #[test]
    fn a_mapping_is_whole_pages_that_add_up() {
        let map = |count, words, rest: &[u64]| Request::parse(&request(kind::MAP, 3, count, words, rest));
        let (range, extents) = (Range { offset: 4096, length: 8192 }, [(0x1000, 4096), (0x9000, 4096)]);
        let extents = extents.map(|(address, length)| Extent { address, length }).to_vec();
        let words = [4096, 8192, 0];
        let whole = Request::Map { session: 7, range, flags: 3, extents };
        assert_eq!(map(2, words, &[0x1000, 4096, 0x9000, 4096]), Ok(whole));
        for (count, words, rest) in [
            (1, words, &[0x1000, 4096][..]),
            (2, words, &[0x1000, 4096, 0x9000][..]),
            (2, words, &[0x1001, 4096, 0x9000, 4096]),
            (3, words, &[0x1000, 4096, 0x9000, 4096, 0x2000, 0]),
            (2, words, &[u64::MAX - 4095, 4096, 0x9000, 4096]),
            (2, words, &[0x1000, 1 << 63, 0x9000, (1 << 63) + 8192]),
            (u32::MAX, words, &[0x1000, 8192]),
            (1, [4095, 8192, 0], &[0x1000, 8192]),
            (1, [u64::MAX - 8191, 8192, 0], &[0x1000, 8192]),
            (0, [0, 0, 0], &[]),
        ] {
            assert_eq!(map(count, words, rest), Err(Errno::INVAL), "{count} {words:?} {rest:x?}");
        }
        assert_eq!(Request::parse(&request(kind::MAP, 4, 1, [0, 4096, 0], &[0, 4096])), Err(Errno::INVAL));
    }

    #[test]
    fn announced_bytes_must_follow() {
        assert!(Request::parse(&request(kind::SEND, 0, 8, [0; 3], &[1])).is_ok());
        assert_eq!(Request::parse(&request(kind::SEND, 0, 9, [0; 3], &[1])), Err(Errno::INVAL));
        assert_eq!(Request::parse(&request(kind::OPEN, 0, 65, [0; 3], &[0; 9])), Err(Errno::INVAL));
        assert_eq!(Request::parse(&request(kind::IDENTIFY, 0, 0, [0; 3], &[])), Err(Errno::INVAL));
        assert_eq!(Request::parse(&request(0, 0, 0, [0; 3], &[])), Err(Errno::INVAL));
        assert_eq!(Request::parse(&request(kind::PING, 0, 0, [0; 3], &[])[..39]), Err(Errno::INVAL));
    }
}
