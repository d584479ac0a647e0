//! The state of a session as a snapshot, and a session from a snapshot.
//!
//! [`capture`] writes what a fresh API server needs to make the objects of a paused session again: the object log, the
//! ids, references and charges of all objects, and their explicit state. [`rebuild`] makes the recorded calls again by
//! the handlers that every call has; the objects keep their ids. What the guest sees of the session beside that, lanes,
//! arena, tickets, does not pass here.

#[cfg(test)]
mod allocations;
mod capture;
mod errors;
pub mod object_log;
mod rebuild;
pub mod recording;
pub mod remake;
mod replay;
pub(crate) mod replayed;

use std::ffi::CStr;

use crate::callbacks::closures::ClosureLifetime;
use crate::session::Session;

pub use capture::{capture, may_differ};
pub use errors::{NotMovable, RebuildError};
pub use rebuild::{Places, Rebuilt, rebuild, rebuild_thread};

/// True if a callback is still to come that comes once.
pub fn is_called_back(session: &Session) -> bool {
    session.objects.registered_callbacks().iter().any(|(_, life)| *life == ClosureLifetime::Once)
}

/// How far the vendor's library is with what it was given.
#[derive(Debug)]
pub enum Quiet {
    Done,
    /// Not yet.
    Again,
    Blocked(NotMovable),
}

/// What a session is about to do once its work has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// To leave its process: what the specification's `stays` names is in the way.
    Leave,
    /// To stay in its process, where only its memory leaves the devices.
    Stay,
}

/// Asks the vendor's library to finish what it was given.
pub fn quiesce(session: &Session, goal: Goal) -> Quiet {
    // SAFETY: the specification's own function.
    let answer = session.api.quiesce.map_or(0, |quiesce| unsafe { quiesce() });
    let asks = goal == Goal::Leave || answer < 0;
    let why = asks.then(|| stays(session)).flatten();
    match (answer, why) {
        (_, Some(why)) => Quiet::Blocked(NotMovable::Stays { why }),
        (1.., None) => Quiet::Again,
        (0, None) => Quiet::Done,
        _ => Quiet::Blocked(NotMovable::Busy { what: "the library has work that only the application can end" }),
    }
}

/// The reason that the specification gives for the session not to move now.
fn stays(session: &Session) -> Option<String> {
    // SAFETY: the specification's own function.
    let why = unsafe { session.api.stays?() };
    // SAFETY: not NULL, so it ends with a NUL and is still there, as `ApiDescriptor` says.
    (!why.is_null()).then(|| unsafe { CStr::from_ptr(why) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests;
