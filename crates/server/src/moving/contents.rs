//! The state of a session apart from its link: objects, what they hold, what the vendor's library needs to have them again.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

use super::Obstacle;
use crate::session::Session;
use crate::state::{self, NotMovable, Places, RebuildError, Rebuilt};

/// Writes the state of a session whose lanes stand and whose devices have nothing to do.
pub fn capture(session: &Arc<Session>, into: &mut dyn Write) -> Result<(), Obstacle> {
    Ok(state::capture(session, into)?)
}

impl From<NotMovable> for Obstacle {
    fn from(reason: NotMovable) -> Obstacle {
        if reason.is_final() { Obstacle::lasting(reason.to_string()) } else { Obstacle::not_now(reason.to_string()) }
    }
}

/// Gives a new session the state of another one, but for that of threads.
pub fn rebuild(session: &Arc<Session>, from: &mut dyn Read) -> Result<Rebuilt, String> {
    state::rebuild(session, from, &Places::default()).map_err(|error| error.to_string())
}

/// The state of threads, which each makes again by itself.
pub struct ThreadRebuild {
    session: Arc<Session>,
    rebuilt: Arc<Rebuilt>,
    /// The first mistake.
    failed: Arc<Mutex<Option<RebuildError>>>,
}

impl ThreadRebuild {
    pub fn new(session: &Arc<Session>, rebuilt: Rebuilt) -> ThreadRebuild {
        ThreadRebuild { session: session.clone(), rebuilt: Arc::new(rebuilt), failed: Arc::default() }
    }

    /// To be executed on the lane's thread.
    pub fn of_lane(&self, lane: u32) -> Box<dyn FnOnce() + Send> {
        let (session, rebuilt, failed) = (self.session.clone(), self.rebuilt.clone(), self.failed.clone());
        Box::new(move || {
            if let Err(error) = state::rebuild_thread(&session, &rebuilt, lane) {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        })
    }

    /// After all threads have begun.
    pub fn outcome(&self) -> Result<(), String> {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        failed.map_or(Ok(()), |error| Err(error.to_string()))
    }
}
