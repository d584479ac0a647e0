//! A lane inside a call that only waits (`waits` of the specification). A pause need not wait for it: it claims the call, and the
//! process that goes on with the session makes it again. The vendor's thread stays in the call, and what that answers is told
//! to nobody unless the pause is given up.
//!
//! The lane prepares, begins and ends its wait; [`crate::session::pause`] claims it, with the pause's own lock held.

use std::sync::{Mutex, MutexGuard, PoisonError};

use aviary_transport::LanePosition;

/// A lane that stands: all that another process needs to go on with it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoppedLane {
    pub position: LanePosition,
    /// A message that was taken from the ring and not begun.
    pub taken: Option<Vec<u8>>,
    /// The error of an asynchronous call that no reply has told yet.
    pub deferred: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum WaitState {
    /// The lane is in no such call.
    #[default]
    Absent,
    Waiting,
    /// A pause counts the lane among those that stand.
    Claimed,
}

#[derive(Debug, Default)]
struct Wait {
    state: WaitState,
    /// What another process needs to make the call. Its memory serves the next one.
    stopped: StoppedLane,
}

#[derive(Debug, Default)]
pub struct LaneWait(Mutex<Wait>);

impl LaneWait {
    /// The message of a call that is going to wait, before its handler translates values in place.
    pub fn prepare(&self, message: &[u8]) {
        let mut wait = self.lock();
        let taken = wait.stopped.taken.get_or_insert_default();
        taken.clear();
        taken.extend_from_slice(message);
    }

    /// The lane waits, for the message that was prepared last.
    pub fn begin(&self, position: LanePosition, deferred: Option<i64>) {
        let mut wait = self.lock();
        (wait.stopped.position, wait.stopped.deferred) = (position, deferred);
        wait.state = WaitState::Waiting;
    }

    /// The lane does not wait any longer. False: it must stand, as a pause has claimed it.
    pub fn end(&self) -> bool {
        let mut wait = self.lock();
        let is_claimed = wait.state == WaitState::Claimed;
        if !is_claimed {
            wait.state = WaitState::Absent;
        }
        !is_claimed
    }

    /// A pause takes the lane as one that stands; `None`: it is in no such call, or is taken already.
    pub fn claim(&self) -> Option<StoppedLane> {
        let mut wait = self.lock();
        if wait.state != WaitState::Waiting {
            return None;
        }
        wait.state = WaitState::Claimed;
        Some(wait.stopped.clone())
    }

    /// The pause is over. False: it had not claimed the lane.
    pub fn unclaim(&self) -> bool {
        let mut wait = self.lock();
        let was_claimed = wait.state == WaitState::Claimed;
        if was_claimed {
            wait.state = WaitState::Waiting;
        }
        was_claimed
    }

    fn lock(&self) -> MutexGuard<'_, Wait> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
