//! Numbered packets that the peer has not acknowledged; they are sent again over the next connection. Used by
//! [`crate::carry::outbox`].
//!
//! Packets are numbered from 0 for the whole session. Numbers are counted, not sent, because a stream keeps its order. The
//! peer reports how many have arrived. A hostile peer may report any number: more than were sent is an error, and if it
//! acknowledges nothing this process keeps at most [`Retained::new`]'s bound.

use std::collections::VecDeque;

use aviary_wire::{DecodeError, Decoder, Encoder};
use thiserror::Error;

use crate::frames::frame::MAX_PACKET;

/// Memory of a packet besides its bytes, in bytes.
const PACKET_COST: usize = 64;
/// Packets of at most this many bytes are copied, so that no unused capacity is kept; longer ones keep their buffer.
const MAX_COPIED_BYTES: usize = 4 << 10;
/// The most buffers of acknowledged packets that are kept for reuse.
const MAX_SPARE: usize = 4;

/// An acknowledgement that cannot be true.
#[derive(Debug, Error, displaydoc::Display, Clone, Copy, PartialEq, Eq)]
pub enum AckError {
    /// the peer acknowledged {0} packets, but only {1} were sent
    NeverSent(u64, u64),
    /// the peer wants to resume after {0} packets, but has already acknowledged {1}
    Forgotten(u64, u64),
}

#[derive(Debug)]
pub struct Retained {
    /// The most memory for packets, in bytes; `None`: nothing is kept, and a broken connection ends the session.
    bound: Option<usize>,
    /// The number of numbered packets so far.
    sent: u64,
    /// The number of packets that the peer has acknowledged.
    acked: u64,
    /// The number of the first of `packets`.
    first: u64,
    packets: VecDeque<Vec<u8>>,
    /// Bytes of memory of `packets`.
    bytes: usize,
    /// Buffers of acknowledged packets, for reuse.
    spare: Vec<Vec<u8>>,
}

impl Retained {
    pub fn new(bound: Option<usize>) -> Self {
        Retained { bound, sent: 0, acked: 0, first: 0, packets: VecDeque::new(), bytes: 0, spare: Vec::new() }
    }

    /// No other connection will come: drops all packets and keeps none from now on.
    pub fn let_go(&mut self) {
        self.first += self.packets.len() as u64;
        self.packets.clear();
        (self.bound, self.bytes) = (None, 0);
    }

    /// True if the bound allows one more packet.
    pub fn has_room(&self) -> bool {
        self.bound.is_none_or(|bound| self.bytes + MAX_PACKET + PACKET_COST <= bound)
    }

    /// Counts a packet before it is sent: its acknowledgement may come before [`Retained::keep`].
    pub fn number(&mut self) {
        self.sent += 1;
    }

    /// The number of numbered packets so far.
    #[cfg(test)]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Keeps the packet that was counted last, and leaves a buffer for the next one in its place.
    pub fn keep(&mut self, packet: &mut Vec<u8>) {
        let number = self.first + self.packets.len() as u64;
        if self.bound.is_none() || number < self.acked {
            self.first = number + 1;
            return;
        }
        let kept = match packet.len() {
            0..=MAX_COPIED_BYTES => packet.as_slice().to_vec(),
            _ => std::mem::replace(packet, self.spare.pop().unwrap_or_default()),
        };
        self.bytes += PACKET_COST + kept.capacity();
        self.packets.push_back(kept);
    }

    /// `count` packets have arrived at the peer. A smaller count than before changes nothing.
    pub fn acknowledge(&mut self, count: u64) -> Result<(), AckError> {
        if count > self.sent {
            return Err(AckError::NeverSent(count, self.sent));
        }
        self.acked = self.acked.max(count);
        while self.first < self.acked {
            let Some(packet) = self.packets.pop_front() else { break };
            self.first += 1;
            self.bytes -= PACKET_COST + packet.capacity();
            if packet.capacity() > MAX_COPIED_BYTES && self.spare.len() < MAX_SPARE {
                self.spare.push(packet);
            }
        }
        Ok(())
    }

    /// On another connection the peer continues after `count` packets.
    pub fn rewind(&mut self, count: u64) -> Result<(), AckError> {
        if count < self.acked {
            return Err(AckError::Forgotten(count, self.acked));
        }
        self.acknowledge(count)
    }

    /// Everything that the process needs that goes on with the session.
    pub fn save(&self, to: &mut Encoder) {
        [self.sent, self.acked, self.first, self.packets.len() as u64].into_iter().for_each(|word| to.word(word));
        self.packets.iter().for_each(|packet| to.bytes(packet));
    }

    /// As another process has left it. Its numbers may be any: they are compared with the peer's as those of this process are.
    pub fn restored(from: &mut Decoder<'_>, bound: usize) -> Result<Self, DecodeError> {
        let [sent, acked, first, count] = [from.word()?, from.word()?, from.word()?, from.word()?];
        let mut again = Retained { sent, acked, first, ..Retained::new(Some(bound)) };
        for _ in 0..count {
            let packet = from.bytes()?.to_vec();
            again.bytes += PACKET_COST + packet.capacity();
            again.packets.push_back(packet);
        }
        Ok(again)
    }

    /// The first kept packet with at least this number: its number and bytes.
    pub fn from(&self, number: u64) -> Option<(u64, &[u8])> {
        let number = number.max(self.first);
        let at = usize::try_from(number - self.first).ok()?;
        self.packets.get(at).map(|packet| (number, packet.as_slice()))
    }

    /// Bytes of memory that wait for acknowledgement.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn send(retained: &mut Retained, bytes: &[u8]) {
        retained.number();
        retained.keep(&mut bytes.to_vec());
    }

    fn kept(retained: &Retained, from: u64) -> Vec<(u64, Vec<u8>)> {
        let (mut all, mut at) = (Vec::new(), from);
        while let Some((number, bytes)) = retained.from(at) {
            all.push((number, bytes.to_vec()));
            at = number + 1;
        }
        all
    }

    #[test]
    fn packets_are_kept_until_they_are_acknowledged() {
        let mut retained = Retained::new(Some(1 << 20));
        (0..5u8).for_each(|n| send(&mut retained, &[n; 10]));
        assert_eq!(retained.acknowledge(2), Ok(()));
        assert_eq!(
            kept(&retained, 0).iter().map(|(number, bytes)| (*number, bytes[0])).collect::<Vec<_>>(),
            [(2, 2), (3, 3), (4, 4)]
        );
        assert_eq!(retained.acknowledge(1), Ok(()), "an older one");
        assert_eq!(retained.acknowledge(6), Err(AckError::NeverSent(6, 5)));
        assert_eq!(retained.acknowledge(u64::MAX), Err(AckError::NeverSent(u64::MAX, 5)));
        assert_eq!(retained.rewind(1), Err(AckError::Forgotten(1, 2)));
        assert_eq!(retained.rewind(4), Ok(()));
        assert_eq!(kept(&retained, 0).len(), 1);
        assert_eq!(retained.rewind(5), Ok(()));
        assert_eq!((kept(&retained, 0).len(), retained.held()), (0, 0));
    }

    #[test]
    fn acknowledgement_may_come_before_the_packet_is_kept() {
        let mut retained = Retained::new(Some(1 << 20));
        send(&mut retained, b"a");
        retained.number();
        assert_eq!(retained.acknowledge(2), Ok(()));
        retained.keep(&mut b"b".to_vec());
        assert_eq!(retained.held(), 0);
        send(&mut retained, b"c");
        assert_eq!(kept(&retained, 0), [(2, b"c".to_vec())]);
    }

    #[test]
    fn nothing_is_kept_without_a_bound() {
        let mut retained = Retained::new(None);
        (0..100).for_each(|_| send(&mut retained, &[0; 100_000]));
        assert!(retained.has_room() && retained.held() == 0);
        assert_eq!(retained.acknowledge(100), Ok(()));
    }

    #[test]
    fn what_is_kept_can_be_let_go_at_any_time() {
        let mut retained = Retained::new(Some(MAX_PACKET));
        send(&mut retained, b"a");
        retained.number();
        assert!(!retained.has_room());
        retained.let_go();
        retained.keep(&mut b"b".to_vec());
        assert!(retained.has_room() && retained.held() == 0 && kept(&retained, 0).is_empty());
        assert_eq!(retained.acknowledge(3), Err(AckError::NeverSent(3, 2)));
        assert_eq!(retained.acknowledge(2), Ok(()));
    }

    proptest! {
        #[test]
        fn memory_is_bounded_and_numbers_stay_right(
            steps in prop::collection::vec((0usize..MAX_PACKET, prop::option::of(0u64..400)), 1..200),
        ) {
            let bound = 1 << 20;
            let (mut retained, mut sizes, mut acked) = (Retained::new(Some(bound)), Vec::new(), 0);
            for (size, ack) in steps {
                if retained.has_room() {
                    send(&mut retained, &vec![sizes.len() as u8; size]);
                    sizes.push(size);
                }
                if let Some(ack) = ack {
                    let possible = ack <= sizes.len() as u64;
                    prop_assert_eq!(retained.acknowledge(ack).is_ok(), possible);
                    acked = if possible { acked.max(ack) } else { acked };
                }
                let left = kept(&retained, 0);
                prop_assert_eq!(left.len() as u64, sizes.len() as u64 - acked);
                for (number, bytes) in left {
                    prop_assert_eq!((bytes.len(), bytes.iter().all(|b| *b == number as u8)), (sizes[number as usize], true));
                }
                prop_assert!(retained.held() <= bound + MAX_PACKET, "{}", retained.held());
            }
        }
    }
}
