//! Frames that depend on no order and go before all others: signs, which have no number, and credits and farewells, which
//! have one.

use std::collections::BTreeMap;

use crate::frame::{Kind, put_frame};

/// A reason for people is cut here.
const LONGEST_REASON: usize = 200;

/// Frames that go first. However many frames the peer asks for, at most one of a kind waits, and at most one credit for
/// each lane: a peer that sends pings without end and reads nothing makes this process hold a few bytes.
#[derive(Default)]
pub struct First {
    pub ping: Option<u64>,
    /// The newest: the peer measures nothing by older ones.
    pub pong: Option<u64>,
    /// Numbered packets that have arrived from the peer, since the session began.
    pub ack: Option<u64>,
    /// Bytes by lane, summed up.
    credits: BTreeMap<u32, u64>,
    farewell: Option<Vec<u8>>,
}

impl First {
    pub fn grant(&mut self, lane: u32, bytes: u64) {
        let credit = self.credits.entry(lane).or_default();
        *credit = credit.saturating_add(bytes);
    }

    /// The first reason is the one that counts.
    pub fn part(&mut self, reason: &str) {
        let reason = reason.as_bytes();
        self.farewell.get_or_insert_with(|| reason[..reason.len().min(LONGEST_REASON)].to_vec());
    }

    /// The lane is over.
    pub fn forget(&mut self, lane: u32) {
        self.credits.remove(&lane);
    }

    /// Appends the signs, of which none waits then.
    pub fn put_signs(&mut self, out: &mut Vec<u8>) {
        let signs = [(Kind::Ping, &mut self.ping), (Kind::Pong, &mut self.pong), (Kind::Ack, &mut self.ack)];
        for (kind, word) in signs {
            if let Some(word) = word.take() {
                put_frame(out, kind, 0, &word.to_le_bytes());
            }
        }
    }

    /// Appends the others, of which none waits then.
    pub fn put(&mut self, out: &mut Vec<u8>) {
        for (lane, bytes) in std::mem::take(&mut self.credits) {
            put_frame(out, Kind::Credit, lane, &bytes.to_le_bytes());
        }
        if let Some(reason) = self.farewell.take() {
            put_frame(out, Kind::Bye, 0, &reason);
        }
    }

    /// Bytes that wait, roughly.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.credits.len() * 16 + self.farewell.as_ref().map_or(0, Vec::len)
    }
}
