//! A session on its way to another process: it stands, its state is written; or it is made anew out of such a state.

mod dropped;
pub mod evict;
pub mod link;
pub mod snapshot;
pub mod stage;
pub mod watch;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aviary_control::{MoveReport, Patience};
use aviary_transport::LanePosition;

use crate::lane::dispatch::serve_deferred_ends;
use crate::session::Session;
use crate::state::{self, Goal, NotMovable, Quiet};

/// Between two looks at something that is about to be done.
const LOOK_AGAIN: Duration = Duration::from_micros(200);
/// The number of the lane that the control loop's own calls are made for: guests count from 1.
const NO_LANE: u32 = 0;
/// Functions that a reason names.
const NAMED_FUNCTIONS: usize = 3;

/// In the way of a move; the text is for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub enum Obstacle {
    /// {0}
    NotNow(String),
    /// {0}
    Lasting(String),
}

impl Obstacle {
    pub fn not_now(text: impl Into<String>) -> Obstacle {
        Obstacle::NotNow(text.into())
    }

    pub fn lasting(text: impl Into<String>) -> Obstacle {
        Obstacle::Lasting(text.into())
    }

    /// `attempt`: that of the order.
    pub fn report(&self, attempt: u64) -> MoveReport {
        MoveReport::Unmovable { attempt, reason: self.to_string(), lasting: matches!(self, Obstacle::Lasting(_)) }
    }
}

impl From<NotMovable> for Obstacle {
    fn from(why: NotMovable) -> Obstacle {
        let text = why.to_string();
        if why.is_final() { Obstacle::Lasting(text) } else { Obstacle::NotNow(text) }
    }
}

impl From<io::Error> for Obstacle {
    fn from(error: io::Error) -> Obstacle {
        Obstacle::NotNow(format!("the state cannot be written: {error}"))
    }
}

/// Sends a report on its way to the node.
pub fn report(orders: &OwnedFd, report: &MoveReport) -> io::Result<()> {
    aviary_control::send(orders.as_fd(), report, &[], Patience::Waits)
}

/// Obstacles of a pause at its deadline: the calls that lanes are in.
pub fn calls_under_way(session: &Session, timeout: Duration) -> Obstacle {
    let standing = session.pause.stopped();
    let busy =
        session.objects.handles.in_use.last_functions().into_iter().filter(|(lane, _)| !standing.contains_key(lane));
    let name = |number: u32| session.api.functions.get(number as usize).map_or("?", |function| function.name);
    let names: BTreeSet<&str> = busy.map(|(_, function)| name(function)).collect();
    if names.is_empty() {
        return Obstacle::not_now(format!("a thread between two calls did not stop within {timeout:?}"));
    }
    let named: Vec<&str> = names.iter().copied().take(NAMED_FUNCTIONS).collect();
    let more = if names.len() > named.len() { " and others" } else { "" };
    Obstacle::not_now(format!("{}{more} did not return within {timeout:?}", named.join(", ")))
}

/// Brings everything that the lanes have begun to its end: their callbacks, their devices' work, what is to be delivered.
/// All lanes are paused.
pub fn drain(session: &Arc<Session>, goal: Goal, deadline: Instant) -> Result<(), Obstacle> {
    session.callbacks.posted.settle(deadline);
    if !session.callbacks.posted.is_idle() {
        return Err(Obstacle::not_now("a callback of the application is running"));
    }
    // Calls that give objects back waited for others; there are none now.
    if session.calls.deferred_ends.any() {
        let uses = session.objects.handles.in_use.lane();
        serve_deferred_ends(session, &uses, NO_LANE).map_err(|_| Obstacle::lasting("the session is about to end"))?;
        if session.calls.deferred_ends.any() {
            return Err(Obstacle::not_now("an object's release waits for a callback that uses it"));
        }
    }
    quiesce(session, goal, deadline)?;
    session.devices.lane_idle(|_| false);
    while !session.tables.late.settle() {
        if Instant::now() >= deadline {
            return Err(Obstacle::not_now("the vendor library still writes outputs of earlier calls"));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    session.let_go_all().then_some(()).ok_or_else(|| Obstacle::not_now("a callback uses an object"))
}

/// Waits until the vendor's library has finished what it was given.
fn quiesce(session: &Session, goal: Goal, deadline: Instant) -> Result<(), Obstacle> {
    loop {
        match state::quiesce(session, goal) {
            Quiet::Done => return Ok(()),
            Quiet::Blocked(why) => return Err(why.into()),
            Quiet::Again if Instant::now() >= deadline => {
                return Err(Obstacle::not_now("the devices still execute earlier calls"));
            }
            Quiet::Again => std::thread::sleep(LOOK_AGAIN),
        }
    }
}

/// Keeps callbacks from going to the guest, if none is on its way. The position of their lane, if it is open.
pub fn close_callbacks(session: &Session, deadline: Instant) -> Result<Option<LanePosition>, Obstacle> {
    session.callbacks.lane.stop(deadline).ok_or_else(|| Obstacle::not_now("a callback of the application is running"))
}
