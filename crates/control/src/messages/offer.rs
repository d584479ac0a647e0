//! Offers of API servers to each other: their names, and the way from one to the other, which the node makes and does not look into.

use crate::channel::{Patience, receive_with, send_with};
use rustix::net::RecvFlags;
use serde::{Deserialize, Serialize};
use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

/// Which offer: whose it is, and what nobody can guess.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OfferName {
    /// Of the connection that offers.
    pub session: u64,
    pub secret: [u64; 2],
}

/// Puts an offered descriptor, and the number that goes with it, into the socket that came with [`crate::ToServer::Fetch`].
///
/// # Errors
/// As sendmsg(2).
pub fn give(to: BorrowedFd<'_>, descriptor: BorrowedFd<'_>, note: u64) -> io::Result<()> {
    send_with(to, &note.to_ne_bytes(), &[descriptor], Patience::None)
}

/// The descriptor that was given over the socket that came with [`crate::ToServer::Fetched`], and its number. `None`: there is no
/// such offer, or the answer has not come yet.
pub fn taken(from: BorrowedFd<'_>) -> Option<(OwnedFd, u64)> {
    let mut note = [0; 8];
    let (bytes, _, descriptors) = receive_with(from, &mut note, RecvFlags::empty()).ok()?;
    let descriptor = descriptors.into_iter().next().filter(|_| bytes == note.len())?;
    Some((descriptor, u64::from_ne_bytes(note)))
}
