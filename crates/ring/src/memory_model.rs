//! A ring's memory for the model checker: the words of [`crate::memory`], without sharing between processes.

use std::sync::Arc;

use crate::LINE;
use crate::sync::{AtomicU32, AtomicU64};

struct Words {
    consumed: AtomicU64,
    consumer_sleeps: AtomicU32,
    producer_sleeps: AtomicU32,
    lines: Vec<AtomicU64>,
}

#[derive(Clone)]
pub struct RingMemory(Arc<Words>);

impl RingMemory {
    /// An empty ring of `lines` lines, a power of two, in memory that held something else before:
    /// every word but the first seal looks like the seal of a message of one byte.
    pub fn model(lines: usize) -> Self {
        let before = 1 << 48 | 1;
        RingMemory(Arc::new(Words {
            consumed: AtomicU64::new(0),
            consumer_sleeps: AtomicU32::new(0),
            producer_sleeps: AtomicU32::new(0),
            lines: (0..lines * LINE / 8).map(|n| AtomicU64::new(if n == 0 { 0 } else { before })).collect(),
        }))
    }

    pub fn capacity(&self) -> usize {
        self.0.lines.len() * 8
    }

    pub(crate) fn consumed(&self) -> &AtomicU64 {
        &self.0.consumed
    }

    pub(crate) fn consumer_sleeps(&self) -> &AtomicU32 {
        &self.0.consumer_sleeps
    }

    pub(crate) fn producer_sleeps(&self) -> &AtomicU32 {
        &self.0.producer_sleeps
    }

    pub(crate) fn word(&self, at: u64) -> &AtomicU64 {
        &self.0.lines[at as usize / 8 % self.0.lines.len()]
    }
}
