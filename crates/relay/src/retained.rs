//! Numbered packets that the peer has not acknowledged: what is sent again on another connection.
//!
//! Packets have numbers from 0 on, for as long as the session lasts; they are counted, not written, because a stream keeps
//! its order. The peer says how many have arrived. It may say anything: numbers of what was never sent are an error, and a
//! peer that acknowledges nothing makes this process hold [`Retained::new`]'s bound and no more.

use std::collections::VecDeque;

use thiserror::Error;

use crate::frame::MAX_PACKET;

/// Memory of a packet besides its bytes, in bytes.
const PACKET_COST: usize = 64;
/// A shorter packet is copied, so that what is kept is no longer than it; a longer one keeps its memory.
const MAX_COPIED_BYTES: usize = 4 << 10;
/// Memory of acknowledged packets that is used again.
const MAX_SPARE: usize = 4;

/// An acknowledgement that cannot be true.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
pub enum AckError {
    /// the peer acknowledges {0} packets, of which {1} were sent
    #[error("the peer acknowledges {0} packets, of which {1} were sent")]
    NeverSent(u64, u64),
    /// the peer wants to go on after {0} packets, of which it has acknowledged {1}
    #[error("the peer wants to go on after {0} packets, of which it has acknowledged {1}")]
    Forgotten(u64, u64),
}

#[derive(Debug)]
pub struct Retained {
    /// Bytes of memory; `None`: nothing is kept, and a broken connection ends the session.
    bound: Option<usize>,
    /// Numbers that were given.
    sent: u64,
    /// Packets that have arrived, as the peer says.
    acked: u64,
    /// The number of the first of `packets`.
    first: u64,
    packets: VecDeque<Vec<u8>>,
    /// Bytes of memory of `packets`.
    bytes: usize,
    /// Of acknowledged packets.
    spare: Vec<Vec<u8>>,
}

impl Retained {
    pub fn new(bound: Option<usize>) -> Self {
        Retained { bound, sent: 0, acked: 0, first: 0, packets: VecDeque::new(), bytes: 0, spare: Vec::new() }
    }

    /// No other connection comes: nothing is kept from now on.
    pub fn let_go(&mut self) {
        self.first += self.packets.len() as u64;
        self.packets.clear();
        (self.bound, self.bytes) = (None, 0);
    }

    /// One more packet may be sent.
    pub fn has_room(&self) -> bool {
        self.bound.is_none_or(|bound| self.bytes + MAX_PACKET + PACKET_COST <= bound)
    }

    /// Gives a number to a packet, before it is sent: its acknowledgement may come before [`Retained::keep`].
    pub fn number(&mut self) {
        self.sent += 1;
    }

    /// Numbers that were given.
    #[cfg(test)]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Keeps the packet that got the last number, and leaves memory for the next.
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

    /// So many packets have arrived. An older acknowledgement than the last changes nothing.
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

    /// The peer goes on after so many packets, on another connection.
    pub fn rewind(&mut self, count: u64) -> Result<(), AckError> {
        if count < self.acked {
            return Err(AckError::Forgotten(count, self.acked));
        }
        self.acknowledge(count)
    }

    /// The first packet that is kept, from this number on: its number and bytes.
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
