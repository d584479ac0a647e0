//! Requests and replies as bytes: 64 of them, in the machine's byte order, as `fpga/library/aviary-fpga.c` writes them.
//! Requests come from clients and may be anything.

use aviary_card::Rights;
use rustix::io::Errno;

use crate::mediator::guid_halves;

/// The version in HELLO. Changes with every change of this file.
pub const LINK_VERSION: u32 = 5;
/// The length of every request and reply.
pub const MESSAGE_BYTES: usize = 64;

/// A client's wish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The first one: a virtual accelerator of this type.
    Hello {
        version: u32,
        guid: String,
    },
    /// A read of the page: 4 or 8 bytes.
    Read {
        offset: u32,
        bytes: u32,
    },
    Write {
        offset: u32,
        bytes: u32,
        value: u64,
    },
    /// The guest virtual address of the slice.
    Base {
        address: u64,
    },
    /// The address where a paused job is saved.
    State {
        address: u64,
    },
    /// Memory from which parts are mapped, under a number that the client chooses: the first `length` bytes of the file whose
    /// descriptor comes with the request.
    Memory {
        id: u64,
        length: u64,
        rights: Rights,
    },
    /// The end of that; refused while parts are mapped.
    Forget {
        id: u64,
    },
    /// A part of a memory.
    Map {
        address: u64,
        length: u64,
        memory: u64,
        offset: u64,
        rights: Rights,
    },
    /// Whatever is mapped in a range of whole pages, which may be nothing.
    Unmap {
        address: u64,
        length: u64,
    },
    Reset,
    /// Answered when an interrupt was raised, no job runs, or so many milliseconds have passed.
    Wait {
        ms: u32,
    },
    Info,
    /// What went wrong first in the last job.
    Fault,
    /// How many requests came on this connection, without those of this kind, and what was answered last: for a process that goes on with the
    /// connection of one that has died.
    Resume {
        number: u32,
    },
    /// A descriptor that becomes readable when this vector is raised; it comes with the reply.
    Interrupt {
        vector: u32,
    },
    /// The accelerator at a port, by its place among those that the client may use. May come before the first one.
    Port {
        version: u32,
        place: u64,
    },
}

/// Bytes that are no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub enum BadRequest {
    /// a request of {0} bytes instead of {MESSAGE_BYTES:}
    Length(usize),
    /// a request of unknown kind {0}
    Kind(u32),
    /// a request with {came} descriptors instead of {expected}
    Descriptors { came: usize, expected: usize },
}

const HELLO: u32 = 1;
const READ: u32 = 2;
const WRITE: u32 = 3;
const BASE: u32 = 4;
const STATE: u32 = 5;
const MAP: u32 = 6;
const UNMAP: u32 = 7;
const RESET: u32 = 8;
const WAIT: u32 = 9;
const INFO: u32 = 10;
const INTERRUPT: u32 = 11;
const PORT: u32 = 12;
const MEMORY: u32 = 13;
const FORGET: u32 = 14;
const FAULT: u32 = 15;
const RESUME: u32 = 16;

fn word(bytes: &[u8; MESSAGE_BYTES], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word))
}

fn half(bytes: &[u8; MESSAGE_BYTES], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |half| u32::from_ne_bytes(*half))
}

/// A GUID's 16 bytes as `register` pairs show them: the high word first.
fn guid(bytes: &[u8; MESSAGE_BYTES]) -> String {
    let (high, low) = (word(bytes, 8), word(bytes, 16));
    let (a, b, c) = (high >> 32, high >> 16 & 0xffff, high & 0xffff);
    format!("{a:08x}-{b:04x}-{c:04x}-{:04x}-{:012x}", low >> 48, low & 0xffff_ffff_ffff)
}

impl Request {
    /// Kind, a small number, then words: bytes 0-3, 4-7, 8-15 and so on.
    ///
    /// # Errors
    /// See [`BadRequest`].
    pub fn parse(bytes: &[u8], descriptors: usize) -> Result<Request, BadRequest> {
        let bytes: &[u8; MESSAGE_BYTES] = bytes.try_into().map_err(|_| BadRequest::Length(bytes.len()))?;
        let (small, first, second, third) = (half(bytes, 4), word(bytes, 8), word(bytes, 16), word(bytes, 24));
        let fourth = word(bytes, 32);
        let rights = if small & 1 == 0 { Rights::Read } else { Rights::ReadWrite };
        // An offset beyond 32 bits is as wrong as the largest one.
        let offset = u32::try_from(first).unwrap_or(u32::MAX);
        let request = match half(bytes, 0) {
            HELLO => Request::Hello { version: small, guid: guid(bytes) },
            READ => Request::Read { offset, bytes: small },
            WRITE => Request::Write { offset, bytes: small, value: second },
            BASE => Request::Base { address: first },
            STATE => Request::State { address: first },
            MEMORY => Request::Memory { id: first, length: second, rights },
            FORGET => Request::Forget { id: first },
            MAP => Request::Map { address: first, length: second, offset: third, memory: fourth, rights },
            UNMAP => Request::Unmap { address: first, length: second },
            RESET => Request::Reset,
            WAIT => Request::Wait { ms: small },
            INFO => Request::Info,
            FAULT => Request::Fault,
            RESUME => Request::Resume { number: small },
            INTERRUPT => Request::Interrupt { vector: small },
            PORT => Request::Port { version: small, place: first },
            kind => return Err(BadRequest::Kind(kind)),
        };
        let expected = usize::from(matches!(request, Request::Memory { .. }));
        if descriptors != expected {
            return Err(BadRequest::Descriptors { came: descriptors, expected });
        }
        Ok(request)
    }
}

impl Request {
    /// As [`Request::parse`] reads it.
    pub fn to_bytes(&self) -> [u8; MESSAGE_BYTES] {
        let of_rights = |rights: Rights| u32::from(rights == Rights::ReadWrite);
        let (kind, small, words): (u32, u32, [u64; 4]) = match *self {
            Request::Hello { version, ref guid } => {
                let [high, low] = guid_halves(guid);
                (HELLO, version, [high, low, 0, 0])
            }
            Request::Read { offset, bytes } => (READ, bytes, [offset.into(), 0, 0, 0]),
            Request::Write { offset, bytes, value } => (WRITE, bytes, [offset.into(), value, 0, 0]),
            Request::Base { address } => (BASE, 0, [address, 0, 0, 0]),
            Request::State { address } => (STATE, 0, [address, 0, 0, 0]),
            Request::Memory { id, length, rights } => (MEMORY, of_rights(rights), [id, length, 0, 0]),
            Request::Forget { id } => (FORGET, 0, [id, 0, 0, 0]),
            Request::Map { address, length, memory, offset, rights } => {
                (MAP, of_rights(rights), [address, length, offset, memory])
            }
            Request::Unmap { address, length } => (UNMAP, 0, [address, length, 0, 0]),
            Request::Reset => (RESET, 0, [0; 4]),
            Request::Wait { ms } => (WAIT, ms, [0; 4]),
            Request::Info => (INFO, 0, [0; 4]),
            Request::Fault => (FAULT, 0, [0; 4]),
            Request::Resume { number } => (RESUME, number, [0; 4]),
            Request::Interrupt { vector } => (INTERRUPT, vector, [0; 4]),
            Request::Port { version, place } => (PORT, version, [place, 0, 0, 0]),
        };
        let mut bytes = Reply::with(&words).to_bytes();
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..8].copy_from_slice(&small.to_ne_bytes());
        bytes
    }
}

/// The last word of the answer to [`Request::Resume`], which no other one has: answers that nobody has read come before it.
pub const RESUMED: u64 = u64::from_ne_bytes(*b"RESUMED!");

/// The answer: 0 or an errno, and up to seven words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reply {
    pub errno: u32,
    pub words: [u64; 7],
}

impl Reply {
    pub fn with(words: &[u64]) -> Reply {
        let mut reply = Reply::default();
        reply.words.iter_mut().zip(words).for_each(|(to, from)| *to = *from);
        reply
    }

    pub fn refused(errno: Errno) -> Reply {
        Reply { errno: errno.raw_os_error().unsigned_abs(), ..Reply::default() }
    }

    pub fn from_bytes(bytes: &[u8; MESSAGE_BYTES]) -> Reply {
        let mut reply = Reply { errno: half(bytes, 0), ..Reply::default() };
        reply.words.iter_mut().enumerate().for_each(|(at, to)| *to = word(bytes, 8 * (at + 1)));
        reply
    }

    /// The words, or the errno as an error.
    pub fn result(self) -> Result<[u64; 7], Errno> {
        match i32::try_from(self.errno) {
            Ok(0) => Ok(self.words),
            // No errno of the kernel's is above 4,095, and none of a card is wrong in another way.
            Ok(errno) if errno < 4096 => Err(Errno::from_raw_os_error(errno)),
            _ => Err(Errno::PROTO),
        }
    }

    pub fn to_bytes(self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..4].copy_from_slice(&self.errno.to_ne_bytes());
        for (at, word) in self.words.iter().enumerate() {
            bytes[8 * (at + 1)..][..8].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(kind: u32, small: u32, words: &[u64]) -> [u8; MESSAGE_BYTES] {
        let mut bytes = Reply::with(words).to_bytes();
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..8].copy_from_slice(&small.to_ne_bytes());
        bytes
    }

    #[test]
    fn requests_are_read_as_the_library_writes_them() {
        let hello = request(HELLO, 1, &[0x6c6c_0001_4a5e_4f0a, 0x9d1b_2f4f_0c11_0002]);
        let guid = "6c6c0001-4a5e-4f0a-9d1b-2f4f0c110002".to_owned();
        assert_eq!(Request::parse(&hello, 0), Ok(Request::Hello { version: 1, guid }));
        let write = request(WRITE, 8, &[0x40, 7]);
        assert_eq!(Request::parse(&write, 0), Ok(Request::Write { offset: 0x40, bytes: 8, value: 7 }));
        let memory = request(MEMORY, 0, &[7, 8]);
        assert_eq!(Request::parse(&memory, 1), Ok(Request::Memory { id: 7, length: 8, rights: Rights::Read }));
        let map = request(MAP, 1, &[1, 2, 3, 7]);
        let wish = Request::Map { address: 1, length: 2, offset: 3, memory: 7, rights: Rights::ReadWrite };
        assert_eq!(Request::parse(&map, 0), Ok(wish));
    }

    #[test]
    fn offset_beyond_32_bits_does_not_wrap_into_the_page() {
        let read = request(READ, 8, &[1 << 32 | 0x40]);
        assert_eq!(Request::parse(&read, 0), Ok(Request::Read { offset: u32::MAX, bytes: 8 }));
    }

    #[test]
    fn descriptors_come_with_the_requests_that_have_one() {
        let expected = |kind, came| Request::parse(&request(kind, 0, &[]), came).err();
        assert_eq!(expected(MEMORY, 0), Some(BadRequest::Descriptors { came: 0, expected: 1 }));
        assert_eq!(expected(MAP, 1), Some(BadRequest::Descriptors { came: 1, expected: 0 }));
        assert_eq!(expected(RESET, 1), Some(BadRequest::Descriptors { came: 1, expected: 0 }));
        assert_eq!(expected(WAIT, 0), None);
        assert_eq!(expected(99, 0), Some(BadRequest::Kind(99)));
    }

    #[test]
    fn requests_that_are_written_are_read_again() {
        let rights = Rights::ReadWrite;
        for (request, descriptors) in [
            (Request::Hello { version: 4, guid: "6c6c0001-4a5e-4f0a-9d1b-2f4f0c110002".to_owned() }, 0),
            (Request::Read { offset: 8, bytes: 4 }, 0),
            (Request::Write { offset: 8, bytes: 4, value: 1 << 40 }, 0),
            (Request::Base { address: 1 << 41 }, 0),
            (Request::State { address: 1 << 42 }, 0),
            (Request::Memory { id: 3, length: 4096, rights }, 1),
            (Request::Forget { id: 3 }, 0),
            (Request::Map { address: 1, length: 2, memory: 3, offset: 4, rights: Rights::Read }, 0),
            (Request::Unmap { address: 1, length: 2 }, 0),
            (Request::Reset, 0),
            (Request::Wait { ms: 50 }, 0),
            (Request::Info, 0),
            (Request::Fault, 0),
            (Request::Resume { number: 3 }, 0),
            (Request::Interrupt { vector: 3 }, 0),
            (Request::Port { version: 4, place: 2 }, 0),
        ] {
            assert_eq!(Request::parse(&request.to_bytes(), descriptors), Ok(request));
        }
        let reply = Reply { errno: 12, ..Reply::with(&[1, 2, 3, 4, 5, 6, 7]) };
        assert_eq!(Reply::from_bytes(&reply.to_bytes()), reply);
        assert_eq!(reply.result(), Err(Errno::NOMEM));
        assert_eq!(Reply { errno: u32::MAX, ..reply }.result(), Err(Errno::PROTO));
    }

    proptest! {
        #[test]
        fn noise_is_a_request_or_an_error(bytes in any::<Vec<u8>>(), descriptors in 0..4_usize) {
            let parsed = Request::parse(&bytes, descriptors);
            prop_assert_eq!(bytes.len() != MESSAGE_BYTES, matches!(parsed, Err(BadRequest::Length(_))));
        }
    }
}
