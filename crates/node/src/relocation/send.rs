//! Messages of the node to API servers about sessions that move.

use crate::node::CoreState;
use aviary_control::{MoveOrder, Patience, ToServer};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

pub(crate) fn tell(
    state: &CoreState,
    server: u64,
    message: &ToServer,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let server = state.registry.servers.get(&server).ok_or(io::ErrorKind::NotFound)?;
    aviary_control::send(server.process.control.as_fd(), message, descriptors, Patience::None)
}

/// An order that needs no answer: an API server that does not listen has ended, or is late, and both are seen.
pub(crate) fn order(state: &CoreState, server: u64, session: u64, order: MoveOrder) {
    let _ = tell(state, server, &ToServer::Move { session, order }, &[]);
}

pub(crate) fn order_all<'a>(
    state: &CoreState,
    server: u64,
    sessions: impl IntoIterator<Item = &'a u64>,
    given: MoveOrder,
) {
    sessions.into_iter().for_each(|session| order(state, server, *session, given));
}
