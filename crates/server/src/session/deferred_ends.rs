//! Calls that give an object back while calls of other threads still use it: they are made when those are over.
//!
//! The program has its answer already; such a call is asynchronous. Lanes make the calls that wait here when one of
//! their own calls has ended, which is when an object may have become free.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Calls that may wait at a time. A guest that has more of them loses the objects of further ones until its session
/// ends; their charges stay.
const MAX_DEFERRED: usize = 1 << 16;
/// Bytes of a message that may wait: a call that gives an object back names it and little else.
const MAX_MESSAGE_BYTES: usize = 256;

#[derive(Default)]
pub struct DeferredEnds {
    /// Length of `messages`, for lanes that look without the lock.
    waiting: AtomicUsize,
    messages: Mutex<Vec<Vec<u8>>>,
}

impl DeferredEnds {
    /// False: there are too many, or the message is too long.
    pub fn add(&self, message: &[u8]) -> bool {
        let mut messages = self.lock();
        let fits = message.len() <= MAX_MESSAGE_BYTES && messages.len() < MAX_DEFERRED;
        if fits {
            messages.push(message.to_vec());
            self.waiting.store(messages.len(), Ordering::Release);
        }
        fits
    }

    /// True: there are messages. A lane that has just added one sees it.
    #[inline]
    pub fn any(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// All messages, to be executed; those whose objects are still in use are added again.
    pub fn take(&self) -> Vec<Vec<u8>> {
        let mut messages = self.lock();
        self.waiting.store(0, Ordering::Release);
        std::mem::take(&mut *messages)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_wait_until_they_are_taken_once() {
        let ends = DeferredEnds::default();
        assert!(ends.take().is_empty());
        assert!(ends.add(&[1; 40]) && ends.add(&[2; 40]));
        assert_eq!(ends.take(), [vec![1; 40], vec![2; 40]]);
        assert!(ends.take().is_empty());
    }

    #[test]
    fn a_guest_cannot_make_them_grow_without_end() {
        let ends = DeferredEnds::default();
        assert!(!ends.add(&[0; MAX_MESSAGE_BYTES + 1]));
        assert_eq!((0..2 * MAX_DEFERRED).filter(|_| ends.add(&[0; 40])).count(), MAX_DEFERRED);
    }
}
