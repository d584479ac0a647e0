//! Ranges of the arena, and the locks of tables of them.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A range of the arena. It has no `Drop`: its owner frees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    pub offset: u64,
    pub size: u64,
}

/// A thread that has panicked leaves a table as it was: no change of one takes several steps that can panic.
pub(crate) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
