//! The strands of one session. Used by [`crate::carry::life`], whose thread alone begins and ends them.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use crate::carry::carrier::Carrier;
use crate::carry::link::Link;
use crate::strands::strand::Strand;

/// Further connections of a session: a peer that makes more loses the eldest.
pub(crate) const MOST_STRANDS: usize = 7;

#[derive(Default)]
pub(crate) struct Strands {
    running: BTreeMap<u64, Strand>,
    next: u64,
    /// Further ones are being made.
    pub joining: bool,
}

impl Strands {
    pub fn count(&self) -> usize {
        self.running.len()
    }

    /// `ended`: told the strand's number, and what the peer did wrong, when it ends by itself.
    pub fn begin(
        &mut self,
        carrier: &Arc<Carrier>,
        link: Link,
        ended: impl FnOnce(u64, Result<(), String>) + Send + 'static,
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

    /// This one has ended by itself.
    pub fn ended(&mut self, carrier: &Carrier, number: u64) {
        if let Some(strand) = self.running.remove(&number) {
            strand.end(carrier, number);
        }
    }

    pub fn end_all(&mut self, carrier: &Carrier) {
        while let Some((number, strand)) = self.running.pop_first() {
            strand.end(carrier, number);
        }
    }
}
