//! The blocks of a lane's asynchronous calls, which the server may still use.

use std::collections::VecDeque;

use crate::memory::block::Block;

/// Bytes beyond which the guest checks for blocks that the server no longer uses.
const MAX_HELD_BYTES: u64 = 64 << 20;
const MAX_HELD_BLOCKS: usize = 512;

#[derive(Default)]
pub(super) struct Held {
    /// Tickets and the blocks that their calls name, in ascending order of tickets.
    pub blocks: VecDeque<(u64, Block)>,
    bytes: u64,
    /// Some are of calls that were not sent, but parts of whose inputs were: tickets do not tell when these have arrived.
    pub unsent: bool,
}

/// A question among asynchronous calls whose answer nobody waits for yet: it says that all calls up to a ticket are executed.
#[derive(Clone, Copy)]
pub(super) struct Milestone {
    pub serial: u64,
    pub ticket: u64,
}

impl Held {
    pub fn add(&mut self, ticket: u64, block: Block) {
        self.bytes += block.size;
        self.blocks.push_back((ticket, block));
    }

    /// The next one whose call has a ticket up to this one.
    pub fn take(&mut self, ticket: u64) -> Option<Block> {
        let (_, block) = self.blocks.pop_front_if(|(of, _)| *of <= ticket)?;
        self.bytes -= block.size;
        Some(block)
    }

    pub fn is_half_full(&self) -> bool {
        self.bytes > MAX_HELD_BYTES / 2 || self.blocks.len() > MAX_HELD_BLOCKS / 2
    }

    pub fn is_crowded(&self) -> bool {
        self.bytes > MAX_HELD_BYTES || self.blocks.len() > MAX_HELD_BLOCKS
    }
}
