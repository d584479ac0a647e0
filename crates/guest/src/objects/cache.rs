//! Replies of pure queries, by request.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Bytes of remembered replies after which no more are remembered: queries have few distinct
/// arguments.
const MAX_CACHE_BYTES: usize = 8 << 20;

#[derive(Default)]
struct Answers {
    by_request: HashMap<Arc<[u8]>, Arc<[u8]>>,
    /// Requests by the handles in them: replies about an ended handle must not be used.
    by_handle: HashMap<u64, Vec<Arc<[u8]>>>,
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

    /// Remembers a reply. `handles`: the ids in the request.
    pub fn put(&self, key: &[u8], handles: &[u64], answer: &[u8]) {
        let mut answers = self.answers.write().unwrap_or_else(PoisonError::into_inner);
        let cost = cost(key, answer);
        if answers.bytes + cost <= MAX_CACHE_BYTES && !answers.by_request.contains_key(key) {
            let key: Arc<[u8]> = key.into();
            for id in handles {
                answers.by_handle.entry(*id).or_default().push(key.clone());
            }
            answers.by_request.insert(key, answer.into());
            answers.bytes += cost;
        }
    }

    /// Forgets the replies about an ended handle.
    pub fn forget(&self, id: u64) {
        let known = self.answers.read().unwrap_or_else(PoisonError::into_inner).by_handle.contains_key(&id);
        if !known {
            return;
        }
        let mut answers = self.answers.write().unwrap_or_else(PoisonError::into_inner);
        for key in answers.by_handle.remove(&id).unwrap_or_default() {
            if let Some(answer) = answers.by_request.remove(&key) {
                answers.bytes -= cost(&key, &answer);
            }
        }
    }
}

fn cost(key: &[u8], answer: &[u8]) -> usize {
    key.len() + answer.len() + 64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_forgotten_with_their_handles() {
        let cache = Cache::default();
        cache.put(b"one", &[7, 8], b"1");
        cache.put(b"two", &[8], b"2");
        cache.put(b"three", &[], b"3");
        cache.forget(7);
        assert!(cache.get(b"one").is_none());
        assert_eq!(cache.get(b"two").as_deref(), Some(b"2".as_slice()));
        cache.forget(8);
        assert!(cache.get(b"two").is_none() && cache.get(b"three").is_some());
        assert_eq!(cache.answers.into_inner().unwrap().bytes, cost(b"three", b"3"));
    }
}
