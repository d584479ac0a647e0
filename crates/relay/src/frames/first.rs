//! Frames that are sent before all queued ones: signs (in unnumbered packets), credits and the farewell (in numbered
//! ones). Filled and emptied by [`crate::carry::outbox`].

use std::collections::BTreeMap;

use crate::frames::frame::{Kind, put_frame};

/// The longest reason of a farewell, in bytes; the rest is cut off.
const LONGEST_REASON: usize = 200;

/// Frames that wait to be sent first: at most one of each kind, and at most one credit per lane. A peer that sends endless
/// pings and reads nothing makes this process hold only a few bytes.
#[derive(Default)]
pub struct First {
    pub ping: Option<u64>,
    /// The time in the newest ping; the peer needs no answer to older ones.
    pub pong: Option<u64>,
    /// Numbered packets that have arrived from the peer, since the session began.
    pub ack: Option<u64>,
    /// Message bytes by lane that the peer may send in addition.
    credits: BTreeMap<u32, u64>,
    farewell: Option<Vec<u8>>,
}

impl First {
    pub fn grant(&mut self, lane: u32, bytes: u64) {
        let credit = self.credits.entry(lane).or_default();
        *credit = credit.saturating_add(bytes);
    }

    /// Keeps the first reason that was given.
    pub fn part(&mut self, reason: &str) {
        let reason = reason.as_bytes();
        self.farewell.get_or_insert_with(|| reason[..reason.len().min(LONGEST_REASON)].to_vec());
    }

    /// Waiting credits, by lane. Of what else waits nothing is of use to another connection.
    pub fn credits(&self) -> &BTreeMap<u32, u64> {
        &self.credits
    }

    /// The lane has ended: its credit is dropped.
    pub fn forget(&mut self, lane: u32) {
        self.credits.remove(&lane);
    }

    /// Something waits to be sent.
    pub fn waits(&self) -> bool {
        let signs = [self.ping, self.pong, self.ack];
        signs.iter().any(Option::is_some) || !self.credits.is_empty() || self.farewell.is_some()
    }

    /// Moves all waiting signs to `out`.
    pub fn put_signs(&mut self, out: &mut Vec<u8>) {
        let signs = [(Kind::Ping, &mut self.ping), (Kind::Pong, &mut self.pong), (Kind::Ack, &mut self.ack)];
        for (kind, word) in signs {
            if let Some(word) = word.take() {
                put_frame(out, kind, 0, &word.to_le_bytes());
            }
        }
    }

    /// Moves all waiting credits and the farewell to `out`.
    pub fn put(&mut self, out: &mut Vec<u8>) {
        for (lane, bytes) in std::mem::take(&mut self.credits) {
            put_frame(out, Kind::Credit, lane, &bytes.to_le_bytes());
        }
        if let Some(reason) = self.farewell.take() {
            put_frame(out, Kind::Bye, 0, &reason);
        }
    }

    /// Bytes that wait, as an estimate.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.credits.len() * 16 + self.farewell.as_ref().map_or(0, Vec::len)
    }
}
