//! Ranges of the arena.

/// A range of the arena. It has no `Drop`: its owner frees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    pub offset: u64,
    pub size: u64,
}
