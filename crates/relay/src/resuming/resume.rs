//! Frames that resume a session over another connection, and the tickets in them. Used by `redial` (relay) and `handover`
//! (gateway). A hostile peer cannot resume a session without its ticket: 32 random bytes, each valid once.

use std::time::Duration;

use aviary_wire::{DecodeError, Decoder, Encoder};
use rustix::rand::{GetRandomFlags, getrandom};
use subtle::ConstantTimeEq;
use thiserror::Error;

use crate::frames::open::{MAX_TOKEN, VERSION};

const MAGIC: u64 = u64::from_le_bytes(*b"AVresume");
const TICKET_BYTES: usize = 32;

/// The name of a session on its node. It is no secret and proves nothing.
pub type SessionName = [u8; 16];

/// Proof that the bearer is the relay of a session. It is valid once: the answer contains the next one.
#[derive(Clone, Copy)]
pub struct Ticket([u8; TICKET_BYTES]);

impl Ticket {
    pub fn random() -> Option<Ticket> {
        random().map(Ticket)
    }

    /// Constant-time comparison.
    pub fn is(&self, other: &Ticket) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ticket")
    }
}

/// Random bytes from the kernel. `None`: the kernel returned none.
pub fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    (getrandom(&mut bytes, GetRandomFlags::empty()) == Ok(N)).then_some(bytes)
}

/// The valid tickets of one session, on the node.
#[derive(Debug, Clone, Copy)]
pub struct Tickets {
    valid: Valid,
    /// The highest number that was shown with one of them. A proof that was sent before another one and arrives after it is
    /// worth nothing: what it says of arrived packets is not true any more.
    number: u64,
}

#[derive(Debug, Clone, Copy)]
enum Valid {
    /// Only this ticket is valid.
    Known(Ticket),
    /// `fresh` was sent in answer to `shown`. Until the relay has sent data after that, the answer may be lost and the relay
    /// may still have `shown`, so both are valid.
    Renewed { shown: Ticket, fresh: Ticket },
}

impl Tickets {
    pub fn new(ticket: Ticket) -> Self {
        Tickets { valid: Valid::Known(ticket), number: 0 }
    }

    pub fn admits(&self, proof: &Proof) -> bool {
        let valid = match &self.valid {
            Valid::Known(known) => known.is(&proof.ticket),
            // Compares with both in any case, so that the time does not depend on which one matches.
            Valid::Renewed { shown, fresh } => shown.is(&proof.ticket) | fresh.is(&proof.ticket),
        };
        valid && proof.number > self.number
    }

    /// `shown` was accepted, and `fresh` is sent in the answer.
    pub fn renew(&mut self, shown: &Proof, fresh: Ticket) {
        *self = Tickets { valid: Valid::Renewed { shown: shown.ticket, fresh }, number: shown.number };
    }

    /// For the process that goes on with the session.
    pub fn save(&self, to: &mut Encoder) {
        let (older, newer) = match &self.valid {
            Valid::Known(known) => (known, known),
            Valid::Renewed { shown, fresh } => (shown, fresh),
        };
        [older, newer].into_iter().for_each(|ticket| to.bytes(&ticket.0));
        to.word(self.number);
    }

    /// As another process has left them.
    pub fn restored(from: &mut Decoder<'_>) -> Result<Self, ResumeError> {
        let valid = Valid::Renewed { shown: Ticket(array(from)?), fresh: Ticket(array(from)?) };
        Ok(Tickets { valid, number: from.word()? })
    }

    /// The relay has read the last answer: the older ticket is not valid any more.
    pub fn confirm(&mut self) {
        if let Valid::Renewed { fresh, .. } = self.valid {
            self.valid = Valid::Known(fresh);
        }
    }
}

/// What a relay shows to resume its session, by which every proof has a higher number than those before it.
#[derive(Debug)]
pub struct Claims {
    ticket: Ticket,
    number: u64,
}

impl Claims {
    pub fn new(ticket: Ticket) -> Self {
        Claims { ticket, number: 0 }
    }

    /// `received`: the number of numbered packets that have arrived.
    pub fn next(&mut self, received: u64) -> Proof {
        self.number += 1;
        Proof { ticket: self.ticket, number: self.number, received }
    }

    /// The node's answer has another ticket.
    pub fn renew(&mut self, ticket: Ticket) {
        self.ticket = ticket;
    }
}

/// What strands of a session show: its key, and a number that is higher each time.
#[derive(Debug, Clone, Copy)]
pub struct StrandKey {
    key: Ticket,
    /// The highest number that was shown.
    shown: u64,
}

impl StrandKey {
    pub fn new(key: Ticket) -> Self {
        StrandKey { key, shown: 0 }
    }

    /// Whether a strand may join; the same proof counts once.
    pub fn admits(&mut self, proof: &Proof) -> bool {
        let admitted = self.key.is(&proof.ticket) && proof.number > self.shown;
        if admitted {
            self.shown = proof.number;
        }
        admitted
    }

    /// What the next strand shows.
    pub fn next(&mut self) -> Proof {
        self.shown += 1;
        Proof { ticket: self.key, number: self.shown, received: 0 }
    }

    /// For the process that goes on with the session.
    pub fn save(&self, to: &mut Encoder) {
        to.bytes(&self.key.0);
        to.word(self.shown);
    }

    /// As another process has left it.
    pub fn restored(from: &mut Decoder<'_>) -> Result<Self, ResumeError> {
        Ok(StrandKey { key: Ticket(array(from)?), shown: from.word()? })
    }
}

/// The node's answer that follows [`crate::frames::frame::Kind::Welcome`].
#[derive(Debug, Clone, Copy)]
pub struct Resumption {
    pub session: SessionName,
    pub ticket: Ticket,
    /// Of the session's strands.
    pub strands: Ticket,
    /// How long the session survives without a connection; zero: it ends with its connection.
    pub grace: Duration,
}

/// What a relay shows to the gateway of its session.
#[derive(Debug, Clone, Copy)]
pub struct Proof {
    /// Of a new strand the session's key for strands.
    pub ticket: Ticket,
    /// Higher than all that were shown with a ticket of the session, or with its key, before.
    pub number: u64,
    /// The number of numbered packets that have arrived from the node; of a new strand nothing.
    pub received: u64,
}

/// The first frame of a connection that resumes a session. It is sent twice: without a proof to the new gateway, which finds
/// the session's, and with the proof to the session's gateway. The last frame of a strand that becomes the first connection.
#[derive(Debug)]
pub struct Resume {
    /// As in [`crate::frames::open::Open`].
    pub token: Vec<u8>,
    pub session: SessionName,
    pub proof: Option<Proof>,
    /// The connection is to be a further strand of the session, which goes on over its first one.
    pub joins: bool,
}

/// The answer to a proof.
#[derive(Debug, Clone, Copy)]
pub struct Resumed {
    /// The ticket for the next time.
    pub ticket: Ticket,
    /// The number of numbered packets that have arrived from the relay.
    pub received: u64,
}

/// Bytes that are not a frame that resumes a session.
#[derive(Debug, Error, displaydoc::Display, PartialEq, Eq)]
pub enum ResumeError {
    /// the peer is not an Aviary relay
    Magic,
    /// the frame to resume the session is malformed: {0}
    Malformed(#[from] DecodeError),
    /// the frame to resume the session has a field of the wrong size
    Size,
    /// the relay has protocol version {0}, this node {VERSION:}: update the older one
    Version(u64),
}

pub(crate) fn array<const N: usize>(d: &mut Decoder) -> Result<[u8; N], ResumeError> {
    d.bytes()?.try_into().map_err(|_| ResumeError::Size)
}

fn encode(fill: impl FnOnce(&mut Encoder)) -> Vec<u8> {
    let mut e = Encoder::new();
    e.start();
    fill(&mut e);
    e.body().to_vec()
}

impl Resumption {
    pub fn to_bytes(self) -> Vec<u8> {
        encode(|e| {
            e.bytes(&self.session);
            e.bytes(&self.ticket.0);
            e.bytes(&self.strands.0);
            e.word(u64::try_from(self.grace.as_millis()).unwrap_or(u64::MAX));
        })
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ResumeError> {
        let mut d = Decoder::new(bytes);
        let (session, ticket, strands) = (array(&mut d)?, Ticket(array(&mut d)?), Ticket(array(&mut d)?));
        Ok(Resumption { session, ticket, strands, grace: Duration::from_millis(d.word()?) })
    }
}

impl Resume {
    pub fn to_bytes(&self) -> Vec<u8> {
        encode(|e| {
            e.word(MAGIC);
            e.word(VERSION);
            e.bytes(&self.token);
            e.bytes(&self.session);
            e.bytes(self.proof.as_ref().map_or(&[], |proof| &proof.ticket.0));
            e.word(self.proof.map_or(0, |proof| proof.number));
            e.word(self.proof.map_or(0, |proof| proof.received));
            e.word(u64::from(self.joins));
        })
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ResumeError> {
        let mut d = Decoder::new(bytes);
        if d.word()? != MAGIC {
            return Err(ResumeError::Magic);
        }
        let version = d.word()?;
        if version != VERSION {
            return Err(ResumeError::Version(version));
        }
        let token = d.bytes()?;
        let token = token[..token.len().min(MAX_TOKEN)].to_vec();
        let session = array(&mut d)?;
        let ticket = d.bytes()?;
        let (number, received, joins) = (d.word()?, d.word()?, d.word()? != 0);
        let proof = match ticket.len() {
            0 => None,
            _ => Some(Proof { ticket: Ticket(ticket.try_into().map_err(|_| ResumeError::Size)?), number, received }),
        };
        Ok(Resume { token, session, proof, joins })
    }
}

impl Resumed {
    pub fn to_bytes(self) -> Vec<u8> {
        encode(|e| {
            e.bytes(&self.ticket.0);
            e.word(self.received);
        })
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ResumeError> {
        let mut d = Decoder::new(bytes);
        Ok(Resumed { ticket: Ticket(array(&mut d)?), received: d.word()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(byte: u8) -> Ticket {
        Ticket([byte; TICKET_BYTES])
    }

    fn proof(of: u8, number: u64) -> Proof {
        Proof { ticket: ticket(of), number, received: 0 }
    }

    #[test]
    fn ticket_counts_until_its_successor_is_known_to_have_arrived() {
        let mut tickets = Tickets::new(ticket(1));
        let is = |tickets: &Tickets, of: u8| tickets.admits(&proof(of, u64::MAX));
        assert!(is(&tickets, 1) && !is(&tickets, 2) && !is(&tickets, 0));
        tickets.renew(&proof(1, 1), ticket(2));
        assert!(is(&tickets, 1), "the answer may be lost");
        assert!(is(&tickets, 2));
        // The answer was lost, and the first is shown again.
        tickets.renew(&proof(1, 2), ticket(3));
        assert!(is(&tickets, 1) && !is(&tickets, 2) && is(&tickets, 3));
        // The answer has arrived, and then the connection broke before anything else came.
        tickets.renew(&proof(3, 3), ticket(4));
        assert!(!is(&tickets, 1), "it was answered, and the answer used");
        tickets.confirm();
        assert!(is(&tickets, 4) && !is(&tickets, 3), "a replay");
        tickets.confirm();
        assert!(is(&tickets, 4));
    }

    #[test]
    fn a_proof_that_arrives_behind_a_later_one_counts_for_nothing() {
        let (mut claims, mut tickets) = (Claims::new(ticket(1)), Tickets::new(ticket(1)));
        // Two attempts, of which the first one is late.
        let (late, last) = (claims.next(7), claims.next(9));
        assert!(tickets.admits(&late) && tickets.admits(&last));
        tickets.renew(&last, ticket(2));
        assert!(
            !tickets.admits(&late) && !tickets.admits(&last),
            "the answer may be lost, but not these were sent after it"
        );
        assert!(tickets.admits(&claims.next(9)));
        claims.renew(ticket(2));
        assert!(tickets.admits(&claims.next(9)));
    }

    #[test]
    fn a_ticket_that_differs_in_one_bit_counts_for_nothing() {
        let own = Ticket::random().unwrap();
        let tickets = Tickets::new(own);
        for bit in 0..TICKET_BYTES * 8 {
            let mut other = own;
            other.0[bit / 8] ^= 1 << (bit % 8);
            assert!(!tickets.admits(&Proof { ticket: other, number: 1, received: 0 }));
        }
        assert!(!Ticket::random().unwrap().is(&own));
        assert_eq!(format!("{own:?}"), "Ticket", "a log must not have it");
    }

    #[test]
    fn frames_survive_and_any_cut_is_withstood() {
        let proof = Some(Proof { ticket: ticket(7), number: 9, received: u64::MAX });
        let resume = Resume { token: b"secret".to_vec(), session: [3; 16], proof, joins: true };
        let bytes = resume.to_bytes();
        let back = Resume::from_bytes(&bytes).unwrap();
        let Proof { number, received, .. } = back.proof.unwrap();
        assert_eq!((back.to_bytes(), number, received), (bytes.clone(), 9, u64::MAX));
        let bare = Resume { proof: None, ..back };
        assert!(Resume::from_bytes(&bare.to_bytes()).unwrap().proof.is_none());
        let grace = Duration::from_secs(120);
        let resumption = Resumption { session: [1; 16], ticket: ticket(2), strands: ticket(3), grace }.to_bytes();
        assert_eq!(Resumption::from_bytes(&resumption).unwrap().grace, grace);
        let resumed = Resumed { ticket: ticket(9), received: 5 }.to_bytes();
        assert_eq!(Resumed::from_bytes(&resumed).unwrap().received, 5);
        assert!((0..bytes.len()).all(|cut| Resume::from_bytes(&bytes[..cut]).is_err()));
        assert!((0..resumption.len()).all(|cut| Resumption::from_bytes(&resumption[..cut]).is_err()));
        assert!((0..resumed.len()).all(|cut| Resumed::from_bytes(&resumed[..cut]).is_err()));
    }

    #[test]
    fn other_versions_and_sizes_are_refused() {
        let mut bytes = Resume { token: Vec::new(), session: [0; 16], proof: None, joins: false }.to_bytes();
        bytes[8] = 77;
        assert!(matches!(Resume::from_bytes(&bytes), Err(ResumeError::Version(77))));
        bytes[0] ^= 1;
        assert!(matches!(Resume::from_bytes(&bytes), Err(ResumeError::Magic)));
        let short = encode(|e| {
            e.bytes(&[1; 31]);
            e.word(0);
        });
        assert!(matches!(Resumed::from_bytes(&short), Err(ResumeError::Size)));
    }
}
