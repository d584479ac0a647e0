//! A ring's memory for the model checker: the words of [`crate::memory`], without sharing between processes.

use std::sync::Arc;

use loom::cell::UnsafeCell;

use crate::sync::{AtomicU32, AtomicU64};
use crate::{Doorbell, LINE, Reach};

struct Words {
    consumed: AtomicU64,
    consumer_sleeps: AtomicU32,
    producer_sleeps: AtomicU32,
    lines: Vec<[AtomicU64; LINE / 8]>,
    /// Stand-ins for the content of each line. The checker does not reorder a load behind a later
    /// store, so words alone would not reveal a line that is written while it is read; unordered
    /// access to a cell is an error at once.
    contents: Vec<UnsafeCell<()>>,
}

#[derive(Clone)]
pub struct RingMemory(Arc<Words>);

impl RingMemory {
    /// An empty ring of `lines` lines, a power of two, in memory with old content: every word but
    /// the first seal looks like the seal of a message of one byte.
    pub fn model(lines: usize) -> Self {
        let before = 1 << 48 | 1;
        RingMemory(Arc::new(Words {
            consumed: AtomicU64::new(0),
            consumer_sleeps: AtomicU32::new(0),
            producer_sleeps: AtomicU32::new(0),
            lines: (0..lines)
                .map(|line| std::array::from_fn(|word| AtomicU64::new(if line + word == 0 { 0 } else { before })))
                .collect(),
            contents: (0..lines).map(|_| UnsafeCell::new(())).collect(),
        }))
    }

    /// None: the checker models one machine.
    pub(crate) fn doorbell(&self) -> Option<&dyn Doorbell> {
        None
    }

    pub(crate) fn reach(&self) -> Reach {
        Reach::Near
    }

    pub fn capacity(&self) -> usize {
        self.0.lines.len() * LINE
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

    pub(crate) fn line(&self, at: u64) -> &[AtomicU64; LINE / 8] {
        &self.0.lines[at as usize / LINE % self.0.lines.len()]
    }

    fn content(&self, at: u64) -> &UnsafeCell<()> {
        &self.0.contents[at as usize / LINE % self.0.lines.len()]
    }

    pub(crate) fn writes(&self, at: u64) {
        self.content(at).with_mut(|_| ());
    }

    pub(crate) fn reads(&self, at: u64) {
        self.content(at).with(|_| ());
    }
}
