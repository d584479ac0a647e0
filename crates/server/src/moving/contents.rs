//! The state of a session apart from its link: objects, what they hold, what the vendor's library needs to have them again.

use std::io::{Read, Write};
use std::sync::Arc;

use super::Obstacle;
use crate::session::Session;

/// Writes the state of a session whose lanes stand and whose devices have nothing to do.
pub fn capture(session: &Arc<Session>, _into: &mut dyn Write) -> Result<(), Obstacle> {
    match session.handles.len() {
        0 => Ok(()),
        count => Err(Obstacle::lasting(format!("{count} objects of {} cannot be made again", session.api.name))),
    }
}

/// Gives a new session the state of another one.
pub fn rebuild(_session: &Arc<Session>, _from: &mut dyn Read) -> Result<(), String> {
    Ok(())
}
