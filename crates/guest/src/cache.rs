//! Answers of pure queries, by request.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Remembered bytes beyond which nothing more is remembered: queries have few distinct arguments.
const LIMIT: usize = 8 << 20;

#[derive(Default)]
struct Answers {
    by_request: HashMap<Box<[u8]>, Arc<[u8]>>,
    bytes: usize,
}

#[derive(Default)]
pub(crate) struct Cache {
    answers: RwLock<Answers>,
}

impl Cache {
    pub fn get(&self, key: &[u8]) -> Option<Arc<[u8]>> {
        self.answers.read().unwrap_or_else(PoisonError::into_inner).by_request.get(key).cloned()
    }

    pub fn put(&self, key: &[u8], answer: &[u8]) {
        let mut answers = self.answers.write().unwrap_or_else(PoisonError::into_inner);
        let cost = key.len() + answer.len() + 64;
        if answers.bytes + cost <= LIMIT && !answers.by_request.contains_key(key) {
            answers.by_request.insert(key.into(), answer.into());
            answers.bytes += cost;
        }
    }
}
