//! Records of TLS 1.3 (RFC 8446, section 5) after the handshake. Used by `stream`; a peer whose records are made by any
//! other implementation understands them.
//!
//! Nothing of a record is used before it was verified. A hostile peer makes this process hold [`MOST_OF_HANDSHAKE`] bytes of
//! messages in part; records that it repeats, leaves out or changes end the connection.

use rustls::{AlertDescription, ContentType, Error, InvalidMessage};

use crate::tls::keys::{Key, Renewal};

pub(crate) const HEADER: usize = 5;
/// Bytes of data in a record, at most.
const MOST_DATA: usize = 1 << 14;
/// Of a record's content, as it is sent.
const MOST_SEALED: usize = MOST_DATA + 256;
/// A record is longer than its data by its header, its type and its tag.
const OVERHEAD: usize = HEADER + 1 + TAG;
const TAG: usize = 16;
/// Records that are sealed with one key: half of what AES-GCM allows, and less.
const MOST_RECORDS: u64 = 1 << 23;
/// Bytes of messages that have arrived in part. No implementation sends tickets longer than this.
const MOST_OF_HANDSHAKE: usize = 64 << 10;

const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;
const WARNING: u8 = 1;
const CLOSE_NOTIFY: u8 = 0;
const USER_CANCELED: u8 = 90;

/// False: these bytes begin no record of TLS.
pub(crate) fn is_record(header: &[u8; HEADER]) -> bool {
    (CHANGE_CIPHER_SPEC..=DATA).contains(&header[0]) && header[1] == 3 && length_of(header) <= MOST_SEALED
}

/// Bytes that follow the header.
pub(crate) fn length_of(header: &[u8; HEADER]) -> usize {
    usize::from(u16::from_be_bytes([header[3], header[4]]))
}

pub(crate) struct Sealer {
    key: Key,
    renewal: Renewal,
}

impl Sealer {
    pub fn new(secrets: (u64, rustls::ConnectionTrafficSecrets), renewal: Renewal) -> Result<Self, Error> {
        Ok(Sealer { key: Key::new(secrets)?, renewal })
    }

    /// Appends records with these bytes to `out`.
    pub fn seal(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        out.reserve(bytes.len() + bytes.len().div_ceil(MOST_DATA) * OVERHEAD);
        for data in bytes.chunks(MOST_DATA) {
            if self.renewal.take_owed() || self.key.records() >= MOST_RECORDS {
                self.renew(out)?;
            }
            self.record(DATA, data, out)?;
        }
        Ok(())
    }

    /// Tells the peer that nothing follows.
    pub fn close(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        self.record(ALERT, &[WARNING, CLOSE_NOTIFY], out)
    }

    /// What follows is sealed with another key.
    fn renew(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        // The peer's own key may stay.
        self.record(HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 0], out)?;
        self.key = self.renewal.to_send()?;
        Ok(())
    }

    fn record(&mut self, kind: u8, data: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        let length = (data.len() + 1 + TAG) as u16;
        let header = [DATA, 3, 3, (length >> 8) as u8, length as u8];
        out.extend_from_slice(&header);
        let at = out.len();
        out.extend_from_slice(data);
        out.push(kind);
        let tag = self.key.seal(&header, &mut out[at..])?;
        out.extend_from_slice(tag.as_ref());
        Ok(())
    }
}

pub(crate) struct Opener {
    key: Key,
    renewal: Renewal,
    /// Only servers send tickets.
    is_server: bool,
    /// Messages of the handshake's kind that have arrived in part.
    begun: Vec<u8>,
}

/// The content of a record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Opened<'a> {
    Data(&'a [u8]),
    /// For this end of the connection itself.
    Nothing,
    /// The peer sends nothing more.
    Closed,
}

impl Opener {
    pub fn new(
        secrets: (u64, rustls::ConnectionTrafficSecrets),
        renewal: Renewal,
        is_server: bool,
    ) -> Result<Self, Error> {
        Ok(Opener { key: Key::new(secrets)?, renewal, is_server, begun: Vec::new() })
    }

    /// The length of the first record in `bytes`, with its header; `None`: it has not arrived.
    pub fn first(bytes: &[u8]) -> Result<Option<usize>, Error> {
        let Some(header) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
        if header[0] != DATA {
            return Err(Error::InvalidMessage(InvalidMessage::InvalidContentType));
        }
        let length = length_of(header);
        if length > MOST_SEALED {
            return Err(Error::PeerSentOversizedRecord);
        }
        Ok((bytes.len() >= HEADER + length).then_some(HEADER + length))
    }

    /// Opens a whole record, in its place.
    pub fn open<'a>(&mut self, record: &'a mut [u8]) -> Result<Opened<'a>, Error> {
        let (header, content) = record.split_at_mut_checked(HEADER).ok_or(Error::DecryptError)?;
        let content = self.key.open(header, content)?;
        // Zeros behind the type hide the length.
        let end = content.iter().rposition(|byte| *byte != 0);
        let end = end.ok_or(Error::InvalidMessage(InvalidMessage::InvalidContentType))?;
        if end > MOST_DATA {
            return Err(Error::PeerSentOversizedRecord);
        }
        let (data, kind) = (&content[..end], content[end]);
        if kind != HANDSHAKE && !self.begun.is_empty() {
            return Err(Error::InvalidMessage(InvalidMessage::MessageTooShort));
        }
        match kind {
            DATA => Ok(Opened::Data(data)),
            ALERT => alert(data),
            HANDSHAKE => self.handle(data).map(|()| Opened::Nothing),
            _ => Err(Error::InvalidMessage(InvalidMessage::InvalidContentType)),
        }
    }

    /// Messages that follow the handshake.
    fn handle(&mut self, data: &[u8]) -> Result<(), Error> {
        if data.is_empty() || self.begun.len() + data.len() > MOST_OF_HANDSHAKE {
            return Err(Error::InvalidMessage(InvalidMessage::HandshakePayloadTooLarge));
        }
        self.begun.extend_from_slice(data);
        while let Some([kind, high, middle, low]) = self.begun.first_chunk::<4>().copied() {
            let end = 4 + u32::from_be_bytes([0, high, middle, low]) as usize;
            if end > MOST_OF_HANDSHAKE {
                return Err(Error::InvalidMessage(InvalidMessage::HandshakePayloadTooLarge));
            }
            let Some(body) = self.begun.get(4..end) else { return Ok(()) };
            match (kind, body) {
                // The next record has another key, so nothing may lie behind.
                (KEY_UPDATE, [0 | 1]) if self.begun.len() == end => {
                    if body == [1] {
                        self.renewal.owe();
                    }
                    self.key = self.renewal.to_receive()?;
                }
                (NEW_SESSION_TICKET, _) if !self.is_server => {}
                _ => {
                    return Err(Error::InappropriateMessage {
                        expect_types: vec![ContentType::ApplicationData],
                        got_type: ContentType::Handshake,
                    });
                }
            }
            self.begun.drain(..end);
        }
        Ok(())
    }
}

fn alert<'a>(data: &[u8]) -> Result<Opened<'a>, Error> {
    match data {
        [_, CLOSE_NOTIFY] => Ok(Opened::Closed),
        [_, USER_CANCELED] => Ok(Opened::Nothing),
        [_, reason] => Err(Error::AlertReceived(AlertDescription::from(*reason))),
        _ => Err(Error::InvalidMessage(InvalidMessage::MessageTooShort)),
    }
}

#[cfg(test)]
#[path = "records_tests.rs"]
mod tests;
