//! Delegation: a guest's thread executes a call itself, in the context of the server's sleeping thread.
//!
//! *Borrowing* is a third way to wake a lane's thread. Before that thread sleeps it leaves its context
//! in a [`Berth`]; a guest's thread that would wake it, and then wait for it, may claim the berth by
//! one step of [`BerthWord`] and continue in that context until it would sleep again. The answer lies in the ring by then. Rings,
//! messages and tickets are the same; where nothing can be borrowed the thread is woken as ever.

mod state;

#[cfg(not(loom))]
mod berth;
#[cfg(not(loom))]
pub mod door;
#[cfg(not(loom))]
mod parking;
#[cfg(not(loom))]
mod switch;

#[cfg(not(loom))]
pub use berth::Berth;
pub use state::{BerthState, BerthWord, Step};
