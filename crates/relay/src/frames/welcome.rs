//! The answer to a guest that wants a session.

use std::time::Duration;

use aviary_wire::{WIRE_VERSION, Welcome};

use crate::carry::link::Link;
use crate::frames::frame::Kind;

/// The most time for the node's answer to an attach: a vendor's library may take long to start.
pub(crate) const WELCOME_TIMEOUT: Duration = Duration::from_secs(60);

/// Refuses a guest. `status`: one of [`aviary_wire::attach::welcome_status`].
pub(crate) fn refuse_as<T>(link: &mut Link, status: u64, why: &str) -> Result<T, String> {
    let welcome = Welcome { wire_version: WIRE_VERSION, status, text: why.to_owned(), ..Welcome::default() };
    let _ = link.send(Kind::Welcome, &welcome.to_bytes());
    link.end();
    Err(why.to_owned())
}
