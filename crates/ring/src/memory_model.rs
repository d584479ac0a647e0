//! A ring's memory for the model checker: the words of [`crate::memory`], without sharing between processes.

use std::sync::Arc;

use crate::sync::{AtomicU32, AtomicU64, Ordering};

struct Words {
    published: AtomicU64,
    producer_cpu: AtomicU32,
    consumed: AtomicU64,
    consumer_sleeps: AtomicU32,
    producer_sleeps: AtomicU32,
    data: Vec<AtomicU64>,
}

#[derive(Clone)]
pub struct RingMemory(Arc<Words>);

impl RingMemory {
    /// An empty ring; `capacity` is a power of two.
    pub fn model(capacity: usize) -> Self {
        RingMemory(Arc::new(Words {
            published: AtomicU64::new(0),
            producer_cpu: AtomicU32::new(0),
            consumed: AtomicU64::new(0),
            consumer_sleeps: AtomicU32::new(0),
            producer_sleeps: AtomicU32::new(0),
            data: (0..capacity / 8).map(|_| AtomicU64::new(0)).collect(),
        }))
    }

    pub fn capacity(&self) -> usize {
        self.0.data.len() * 8
    }

    pub(crate) fn published(&self) -> &AtomicU64 {
        &self.0.published
    }

    pub(crate) fn producer_cpu(&self) -> &AtomicU32 {
        &self.0.producer_cpu
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

    fn data(&self, at: u64) -> &AtomicU64 {
        &self.0.data[at as usize / 8 % self.0.data.len()]
    }

    pub(crate) fn store_word(&self, at: u64, value: u64) {
        self.data(at).store(value, Ordering::Relaxed);
    }

    pub(crate) fn load_word(&self, at: u64) -> u64 {
        self.data(at).load(Ordering::Relaxed)
    }
}
