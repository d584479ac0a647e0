//! Resuming a session over another connection: tickets, the relay's side and the node's side.

#[cfg(test)]
mod cut_tests;
#[cfg(test)]
mod cutter;
pub(crate) mod handover;
#[cfg(test)]
mod hostile_tests;
pub(crate) mod redial;
pub(crate) mod resume;
