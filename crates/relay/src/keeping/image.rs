//! The file in which a gateway leaves its session: a head with everything but the memory, then the pages of the arena.
//!
//! The node keeps it together with the state of the session and lets nobody change it. What is in it may still be what a
//! hostile peer has made of its gateway: it is read with the same care as what comes over the network, and decides about that
//! peer's session only.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::time::Duration;

use aviary_transport::{Arena, ArenaError, ConsumerPosition, LaneError, LanePosition, ProducerPosition};
use aviary_wire::{Control, DecodeError, Decoder, Encoder};
use rustix::fs::{SeekFrom as SeekTo, seek};
use rustix::io::Errno;
use thiserror::Error;

use crate::carry::inbox::{Batch, Parcel};
use crate::resuming::resume::{ResumeError, SessionName, StrandKey, Tickets, array};
use crate::strands::arrivals::{Awaited, PieceError};

/// "AVGATE" and the version of the form.
const MAGIC: u64 = u64::from_le_bytes(*b"AVGATE\0\x03");
/// Memory is read and written in pieces of at most this many bytes; pieces that are all zeros are left out.
const PIECE_BYTES: usize = 64 << 10;

/// The reason why a file is not the session of a gateway.
#[derive(Debug, Error, displaydoc::Display)]
pub enum ImageError {
    /// the file with the gateway's session cannot be read: {0}
    Io(#[from] io::Error),
    /// the file is no session of a gateway of this version
    Magic,
    /// the gateway's session is cut off: {0}
    Cut(#[from] DecodeError),
    /// the gateway's session is malformed: {0}
    Tickets(#[from] ResumeError),
    /// the gateway's session is malformed: its tenant has no name
    Tenant,
    /// the gateway's session is malformed: {0}
    Arena(#[from] ArenaError),
    /// the gateway's session is malformed: {0}
    Lane(#[from] LaneError),
    /// the gateway's session is malformed: {0}
    Pieces(#[from] PieceError),
}

/// What a connection must show to resume the session, and how it is watched.
#[derive(Debug, Clone)]
pub struct KeptWay {
    /// Empty if the node accepts peers without identity (--plain-loopback).
    pub tenant: String,
    pub session: SessionName,
    pub tickets: Tickets,
    /// What strands show, and how many have come.
    pub strands: StrandKey,
    /// Without data for so long a connection counts as broken.
    pub patience: Duration,
}

impl KeptWay {
    pub fn save(&self, to: &mut Encoder) {
        to.bytes(self.tenant.as_bytes());
        to.bytes(&self.session);
        self.tickets.save(to);
        self.strands.save(to);
        to.word(u64::try_from(self.patience.as_millis()).unwrap_or(u64::MAX));
    }

    pub fn restored(from: &mut Decoder<'_>) -> Result<KeptWay, ImageError> {
        let tenant = std::str::from_utf8(from.bytes()?).map_err(|_| ImageError::Tenant)?.to_owned();
        let (session, tickets) = (array(from)?, Tickets::restored(from)?);
        let strands = StrandKey::restored(from)?;
        Ok(KeptWay { tenant, session, tickets, strands, patience: Duration::from_millis(from.word()?) })
    }
}

/// A lane whose threads have stopped.
pub struct KeptLane {
    pub number: u32,
    pub offset: u64,
    pub length: u64,
    pub position: LanePosition,
    /// Bytes that were delivered without granting credit for them.
    pub delivered: u64,
    /// What has arrived for it and is not in its ring.
    pub parcels: Vec<Parcel>,
}

impl KeptLane {
    pub fn save(&self, to: &mut Encoder) {
        let LanePosition { sent, received } = self.position;
        let words = [u64::from(self.number), self.offset, self.length, sent.written, sent.consumed, received.read];
        words.into_iter().chain([received.released, self.delivered]).for_each(|word| to.word(word));
        to.word(self.parcels.len() as u64);
        for parcel in &self.parcels {
            let (kind, bytes) = match parcel {
                Parcel::Message(message) => (0, message.as_slice()),
                Parcel::Batch(batch) => (1, batch.bytes()),
                Parcel::Control(message) => (2, &message.to_bytes()[..]),
                Parcel::Pieces(awaited) => {
                    [3, 16, awaited.first, awaited.end].into_iter().for_each(|word| to.word(word));
                    continue;
                }
            };
            to.word(kind);
            to.bytes(bytes);
        }
    }

    pub fn restored(from: &mut Decoder<'_>) -> Result<KeptLane, ImageError> {
        let (number, offset, length) = (from.word()? as u32, from.word()?, from.word()?);
        let sent = ProducerPosition { written: from.word()?, consumed: from.word()? };
        let received = ConsumerPosition { read: from.word()?, released: from.word()? };
        let (delivered, mut parcels) = (from.word()?, Vec::new());
        for _ in 0..from.word()? {
            parcels.push(match (from.word()?, from.bytes()?) {
                (0, bytes) => Parcel::Message(bytes.to_vec()),
                (1, bytes) => Parcel::Batch(Batch::of(bytes)),
                (3, bytes) => {
                    let mut numbers = Decoder::new(bytes);
                    Parcel::Pieces(Awaited::left(numbers.word()?, numbers.word()?))
                }
                (_, bytes) => {
                    let bytes = bytes.try_into().map_err(|_| ResumeError::Size)?;
                    Parcel::Control(Control::from_bytes(bytes))
                }
            });
        }
        Ok(KeptLane { number, offset, length, position: LanePosition { sent, received }, delivered, parcels })
    }
}

/// Writes the file. `head`: everything but the memory.
pub fn write(file: File, head: &[u8], arena: &Arena) -> io::Result<u64> {
    let mut to = BufWriter::new(file);
    to.write_all(&MAGIC.to_le_bytes())?;
    to.write_all(&(head.len() as u64).to_le_bytes())?;
    to.write_all(head)?;
    write_memory(&mut to, arena)?;
    let mut file = to.into_inner().map_err(|error| error.into_error())?;
    file.stream_position()
}

/// The pages of the arena that exist and are not zero.
fn write_memory(to: &mut impl Write, arena: &Arena) -> io::Result<()> {
    let file = arena.file().ok_or_else(|| io::Error::other("the arena has no file"))?;
    let (mut at, end, mut bytes) = (0, arena.size() as u64, vec![0; PIECE_BYTES]);
    while at < end {
        let data = match seek(file, SeekTo::Data(at)) {
            Err(Errno::NXIO) => return Ok(()),
            found => found?,
        };
        let hole = seek(file, SeekTo::Hole(data))?.min(end);
        at = data;
        while at < hole {
            let length = usize::try_from(hole - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            let read = rustix::io::pread(file, &mut bytes[..length], at)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if bytes[..read].iter().any(|byte| *byte != 0) {
                to.write_all(&at.to_le_bytes())?;
                to.write_all(&(read as u64).to_le_bytes())?;
                to.write_all(&bytes[..read])?;
            }
            at += read as u64;
        }
    }
    Ok(())
}

/// The head of a file; the memory follows in the second result ([`read_memory`]).
pub fn read(file: File) -> Result<(Vec<u8>, impl Read), ImageError> {
    let mut from = BufReader::new(file);
    from.seek(SeekFrom::Start(0))?;
    let (magic, length) = (word(&mut from)?, word(&mut from)?);
    if magic != MAGIC {
        return Err(ImageError::Magic);
    }
    let mut head = Vec::new();
    // Memory grows with what is there, not with what the length says.
    if (&mut from).take(length).read_to_end(&mut head)? as u64 != length {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok((head, from))
}

fn word(from: &mut impl Read) -> io::Result<u64> {
    let mut word = [0; 8];
    from.read_exact(&mut word)?;
    Ok(u64::from_le_bytes(word))
}

/// Fills an arena with the memory of a file.
pub fn read_memory(mut from: impl Read, arena: &Arena) -> Result<(), ImageError> {
    let mut bytes = vec![0; PIECE_BYTES];
    loop {
        let mut first = [0; 8];
        match from.read(&mut first[..1])? {
            0 => return Ok(()),
            _ => from.read_exact(&mut first[1..])?,
        }
        let (offset, length) = (u64::from_le_bytes(first), word(&mut from)?);
        let outside = || ArenaError::Outside { offset, length: PIECE_BYTES, size: arena.size() };
        let length = usize::try_from(length).ok().filter(|length| *length <= PIECE_BYTES).ok_or_else(outside)?;
        from.read_exact(&mut bytes[..length])?;
        arena.write(offset, &bytes[..length])?;
    }
}
