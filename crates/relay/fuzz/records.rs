//! The record layer of TLS. The first byte chooses the peer: one that seals honestly, while something on the way changes, repeats,
//! leaves out and adds bytes; or one that has the keys and seals whatever it likes. What is opened is a beginning of what was
//! sealed, whatever happens on the way; what a peer with keys seals is taken for what it is.

use rustls::ConnectionTrafficSecrets;
use rustls::crypto::cipher::{AeadKey, Iv};

use crate::tls::keys::{Key, Renewal, Renewing};
use crate::tls::records::{Opened, Opener, Sealer};

const DATA: u8 = 23;
const HANDSHAKE: u8 = 22;
const KEY_UPDATE: [u8; 4] = [24, 0, 0, 1];
const TAG: usize = 16;
/// Bytes of data in a record, at most.
const MOST_DATA: usize = 1 << 14;

type Secrets = (u64, ConnectionTrafficSecrets);

fn secrets(number: u8) -> Secrets {
    let (key, iv) = ([number; 32], Iv::from([number ^ 0xff; 12]));
    (0, ConnectionTrafficSecrets::Chacha20Poly1305 { key: AeadKey::from(key), iv })
}

/// The keys of one direction, by number.
struct Numbered(u8);

impl Renewing for Numbered {
    fn next_to_send(&mut self) -> Result<Secrets, rustls::Error> {
        self.0 = self.0.wrapping_add(1);
        Ok(secrets(self.0))
    }

    fn next_to_receive(&mut self) -> Result<Secrets, rustls::Error> {
        self.next_to_send()
    }
}

fn renewal() -> Renewal {
    Renewal::new(Box::new(Numbered(0)))
}

/// What the input says, byte by byte; zeros behind its end.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> usize {
        let [high, low] = [self.byte(), self.byte()].map(Option::unwrap_or_default);
        usize::from(high) << 8 | usize::from(low)
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken.to_vec()
    }
}

/// Opens what has arrived. False: the connection has ended.
fn open_all(opener: &mut Opener, wire: &mut Vec<u8>, got: &mut Vec<u8>) -> bool {
    loop {
        let length = match Opener::first(wire) {
            Ok(Some(length)) => length,
            Ok(None) => return true,
            Err(_) => return false,
        };
        match opener.open(&mut wire[..length]) {
            Ok(Opened::Data(data)) => got.extend_from_slice(data),
            Ok(Opened::Nothing) => {}
            Ok(Opened::Closed) | Err(_) => return false,
        }
        wire.drain(..length);
    }
}

/// Where the records on the way begin.
fn beginnings(wire: &[u8]) -> Vec<usize> {
    let mut at = 0;
    std::iter::from_fn(|| {
        let length = Opener::first(&wire[at..]).ok().flatten()?;
        at += length;
        Some(at - length)
    })
    .collect()
}

fn on_the_way(mut script: Script<'_>) {
    let to_send = renewal();
    let mut sealer = Sealer::new(secrets(0), to_send.clone()).unwrap();
    let mut opener = Opener::new(secrets(0), renewal(), true).unwrap();
    let (mut wire, mut sent, mut got, mut changed, mut closed) = (Vec::new(), Vec::new(), Vec::new(), false, false);
    while let Some(act) = script.byte() {
        match act % 8 {
            0 | 1 if !closed => {
                let length = script.number() % (3 * MOST_DATA);
                let data: Vec<u8> = (0..length).map(|at| (sent.len() + at * 7) as u8).collect();
                sealer.seal(&data, &mut wire).unwrap();
                sent.extend_from_slice(&data);
            }
            2 => to_send.owe(),
            3 if !closed => {
                sealer.close(&mut wire).unwrap();
                closed = true;
            }
            4 if !wire.is_empty() => {
                let (at, bit) = (script.number() % wire.len(), script.byte().unwrap_or_default() % 8);
                wire[at] ^= 1 << bit;
                changed = true;
            }
            5 => {
                let beginnings = beginnings(&wire);
                let Some(at) = beginnings.get(script.number() % beginnings.len().max(1)) else { continue };
                let length = Opener::first(&wire[*at..]).unwrap().unwrap();
                let record = wire[*at..*at + length].to_vec();
                match script.byte().unwrap_or_default() % 2 {
                    0 => drop(wire.drain(*at..*at + length)),
                    _ => drop(wire.splice(*at..*at, record)),
                }
                changed = true;
            }
            6 => {
                let more = script.number() % 300;
                changed |= more > 0;
                let more = script.bytes(more);
                wire.extend_from_slice(&more);
            }
            _ => {
                let goes_on = open_all(&mut opener, &mut wire, &mut got);
                assert!(sent.starts_with(&got));
                if !goes_on {
                    assert!(changed || closed);
                    return;
                }
            }
        }
    }
    open_all(&mut opener, &mut wire, &mut got);
    assert!(sent.starts_with(&got));
    assert!(changed || got == sent);
}

/// What an end must take a record for.
fn expected(content: &[u8]) -> Option<&[u8]> {
    let end = content.iter().rposition(|byte| *byte != 0)?;
    (content[end] == DATA && end <= MOST_DATA).then_some(&content[..end])
}

fn with_keys(mut script: Script<'_>) {
    let (mut key, mut keys) = (Key::new(secrets(0)).unwrap(), Numbered(0));
    let is_server = script.byte().unwrap_or_default().is_multiple_of(2);
    let mut opener = Opener::new(secrets(0), renewal(), is_server).unwrap();
    // Messages of the handshake's kind that are not complete.
    let mut begun = Vec::new();
    while let Some(kind) = script.byte() {
        let length = script.number() % (MOST_DATA + 300);
        let mut content = script.bytes(length);
        // Long ones, too, from short inputs.
        content.resize(if kind.is_multiple_of(3) { length } else { content.len() }, kind);
        content.push(if kind < 128 { kind % 4 + 20 } else { kind });
        let header = [DATA, 3, 3, ((content.len() + TAG) >> 8) as u8, (content.len() + TAG) as u8];
        let mut record = [&header[..], &content].concat();
        let tag = key.seal(&header, &mut record[header.len()..]).unwrap();
        record.extend_from_slice(tag.as_ref());
        match (Opener::first(&record), opener.open(&mut record.clone())) {
            (Err(_), _) => {
                assert!(content.len() + TAG > MOST_DATA + 256);
                return;
            }
            (Ok(length), _) if length != Some(record.len()) => panic!("{length:?}"),
            (Ok(_), Ok(Opened::Data(data))) => {
                assert_eq!(Some(data), expected(&content));
                assert!(begun.is_empty());
            }
            (Ok(_), Ok(Opened::Nothing)) => {
                let end = content.iter().rposition(|byte| *byte != 0).unwrap();
                if content[end] == HANDSHAKE {
                    begun.extend_from_slice(&content[..end]);
                    assert!(begun.len() <= 64 << 10);
                }
                // Complete ones; those that have begun stay.
                while let Some([kind, high, middle, low]) = begun.first_chunk::<4>().copied() {
                    let end = 4 + u32::from_be_bytes([0, high, middle, low]) as usize;
                    if begun.len() < end {
                        break;
                    }
                    if begun.starts_with(&KEY_UPDATE) {
                        assert_eq!(begun.len(), end, "what follows has another key");
                        key = Key::new(keys.next_to_send().unwrap()).unwrap();
                    } else {
                        assert!(kind == 4 && !is_server);
                    }
                    begun.drain(..end);
                }
            }
            (Ok(_), Ok(Opened::Closed) | Err(_)) => {
                assert!(expected(&content).is_none() || !begun.is_empty());
                return;
            }
        }
    }
}

pub fn run(input: &[u8]) {
    let Some((peer, script)) = input.split_first() else { return };
    if peer.is_multiple_of(2) { on_the_way(Script(script)) } else { with_keys(Script(script)) }
}
