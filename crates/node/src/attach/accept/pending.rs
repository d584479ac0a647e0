//! A connection that was accepted at a socket and waits for its turn.

use crate::attach::guest::Guest;
use crate::attach::identity::Identity;
use aviary_control::Foreign;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::OwnedFd;

/// A connection whose other end is known.
#[derive(Debug)]
pub struct PendingAttach {
    pub identity: Identity,
    pub guest: Guest,
    pub socket: Foreign,
    /// The process that has connected, whatever guest it is served as.
    pub peer: u32,
    /// A gateway whose connection is for the session of this name, which another gateway has.
    pub resumes: Option<u128>,
}

/// One that is given up when there is no other.
pub fn spare_descriptor() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC).ok()
}
