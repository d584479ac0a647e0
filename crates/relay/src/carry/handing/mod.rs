//! How threads of a session hand messages to each other.

pub(crate) mod packet;
pub(crate) mod queues;
pub(crate) mod sender;
pub(crate) mod sink;
pub(crate) mod sleepers;
#[cfg(test)]
mod sleepers_tests;
pub(crate) mod turn;
#[cfg(test)]
mod turn_model;

/// What the threads wait with; the model checker has its own.
mod sync {
    pub use std::sync::{Condvar, MutexGuard};
}
