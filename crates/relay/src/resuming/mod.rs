//! Resuming a session over another connection: tickets, the relay's side and the node's side.

pub(crate) mod handover;
pub(crate) mod redial;
pub(crate) mod resume;
