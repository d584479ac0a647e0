//! The strands of one session. Used by [`crate::carry::life`], whose thread alone begins and ends them.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use crate::carry::carrier::Carrier;
use crate::carry::link::Link;
use crate::strands::strand::{Strand, StrandEnd};

/// Further connections of a session: a peer that makes more loses the eldest.
pub(crate) const MOST_STRANDS: usize = 7;

#[derive(Default)]
pub(crate) struct Strands {
    running: BTreeMap<u64, Strand>,
    next: u64,
    /// This one is to be the first connection: the peer was asked.
    asked: Option<u64>,
    /// Further ones are being made.
    pub joining: bool,
}

impl Strands {
    pub fn count(&self) -> usize {
        self.running.len()
    }

    /// `ended`: told the strand's number, and what has come of it.
    pub fn begin(
        &mut self,
        carrier: &Arc<Carrier>,
        link: Link,
        ended: impl FnOnce(u64, StrandEnd) + Send + 'static,
    ) -> io::Result<()> {
        while self.running.len() >= MOST_STRANDS {
            let Some((number, eldest)) = self.running.pop_first() else { break };
            eldest.end(carrier, number);
        }
        let number = self.next;
        self.next += 1;
        self.running.insert(number, Strand::start(carrier, link, number, move |end| ended(number, end))?);
        Ok(())
    }

    /// Asks the peer to use the newest strand as the first connection from now on, by these bytes, unless another one was asked
    /// for and has not ended. `claim`: `None`, if the peer asks.
    pub fn ask(&mut self, carrier: &Carrier, claim: impl FnOnce() -> Option<Vec<u8>>) {
        if self.asked.is_none()
            && let Some(newest) = self.running.keys().next_back()
            && let Some(claim) = claim()
        {
            carrier.outbox.pieces.leave(*newest, claim);
            self.asked = Some(*newest);
        }
    }

    /// This one has ended by itself. True: it is the one that was asked for.
    pub fn ended(&mut self, number: u64) -> bool {
        self.running.remove(&number).into_iter().for_each(Strand::ended);
        let asked = self.asked == Some(number);
        self.asked = self.asked.filter(|_| !asked);
        asked
    }

    pub fn end_all(&mut self, carrier: &Carrier) {
        self.asked = None;
        while let Some((number, strand)) = self.running.pop_first() {
            strand.end(carrier, number);
        }
    }
}
