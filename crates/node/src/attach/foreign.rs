//! Sockets of peers, and the states of sessions that move: what of it the node has, and how it is closed.
//!
//! The node takes no descriptor that a guest or an API server sends. What it has are its own ends of sockets, in which such
//! descriptors may be in flight, so that the last close of one closes those, too: they are closed aside, for their tenant.

use aviary_control::{Aside, Foreign, PartyName, state_file, state_sockets};
use std::{io, os::fd::OwnedFd};

/// Kinds of sockets, for people.
pub(crate) const CONNECTION: &str = "the connection of a guest";
pub(crate) const CONTROL: &str = "the control socket of an API server";
pub(crate) const LISTENER: &str = "a listener with connections that nobody took";
const STATE: &str = "the state of a session";
pub(crate) const BETWEEN: &str = "a socket between API servers";

/// The party that pays where nobody knows yet, or where it is the node's user.
pub(crate) fn nobody() -> PartyName {
    "(nobody)".into()
}

/// The state of a session that moves or is parked: all that the node has of it.
#[derive(Debug)]
pub(crate) struct HeldState {
    /// The node's own file: what an API server writes there is sealed by that.
    pub file: OwnedFd,
    /// A socket of the node's own, in which the descriptors of the session are in flight.
    pub rest: Foreign,
}

impl HeldState {
    /// An empty one, and the socket by which an API server fills it.
    pub fn new(aside: &Aside, tenant: &PartyName) -> io::Result<(Self, Foreign)> {
        let [from, to] = state_sockets()?;
        let [from, rest] = [from, to].map(|socket| Foreign::new(socket, aside, tenant, STATE));
        Ok((Self { file: state_file()?, rest }, from))
    }

    /// One that an earlier program of this node has left.
    pub fn again(file: OwnedFd, rest: OwnedFd, aside: &Aside, tenant: &PartyName) -> Self {
        Self { file, rest: Foreign::new(rest, aside, tenant, STATE) }
    }
}
