//! The lane for callbacks that no waiting call of the guest could receive:
//! those from vendor threads and from asynchronous calls.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use aviary_transport::{LaneEnd, LanePosition, LaneWaker, Liveness};
use std::sync::Arc;

/// The guest opens the lane before it registers its first callback, but on another socket.
const CALLBACK_LANE_OPEN_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Default)]
struct CallbackLaneState {
    /// `None`: not open yet, or in use.
    lane: Option<LaneEnd>,
    watch: Option<(LaneWaker, Arc<Liveness>)>,
    /// The guest did not open it in time: the next callbacks do not wait again.
    given_up: bool,
    dead: bool,
    /// No callback goes to the guest until the session goes on.
    stopped: bool,
}

#[derive(Default)]
pub struct CallbackLane {
    state: Mutex<CallbackLaneState>,
    changed: Condvar,
}

impl CallbackLane {
    /// The guest has opened it. False: it already had.
    pub fn open(&self, lane: LaneEnd, liveness: Arc<Liveness>) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.watch.is_some() {
            return false;
        }
        state.watch = Some((lane.waker(), liveness));
        state.lane = Some(lane);
        self.changed.notify_all();
        true
    }

    /// Runs `exchange` with the lane, one thread at a time. `None`: it never opened, or the session is over.
    pub fn with<R>(&self, exchange: impl FnOnce(&mut LaneEnd) -> R) -> Option<R> {
        let mut lane = self.take()?;
        let result = exchange(&mut lane);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.lane = Some(lane);
        self.changed.notify_all();
        Some(result)
    }

    fn take(&self) -> Option<LaneEnd> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let deadline = Instant::now() + CALLBACK_LANE_OPEN_TIMEOUT;
        loop {
            if state.dead {
                return None;
            }
            if state.stopped {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if let Some(lane) = state.lane.take() {
                return Some(lane);
            }
            // Another callback may take as long as it likes; only the opening is bounded.
            let left = deadline.saturating_duration_since(Instant::now());
            if state.watch.is_some() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            } else if left.is_zero() || state.given_up {
                state.given_up = true;
                return None;
            } else {
                state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// Keeps callbacks that come from now on waiting. The lane's position, if it is open; the outer `None`: a callback was
    /// under way until `deadline`, and nothing has changed.
    pub fn stop(&self, deadline: Instant) -> Option<Option<LanePosition>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.watch.is_some() && state.lane.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || state.dead {
                return None;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.stopped = true;
        Some(state.lane.as_ref().and_then(LaneEnd::position))
    }

    /// Ends [`CallbackLane::stop`].
    pub fn go_on(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).stopped = false;
        self.changed.notify_all();
    }

    /// Ends every wait on the lane, now and later.
    pub fn kill(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.dead = true;
        if let Some((waker, liveness)) = &state.watch {
            liveness.kill();
            waker.wake();
        }
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stopped_callback_lane_keeps_callbacks_until_it_goes_on() {
        let lane = CallbackLane::default();
        assert_eq!(lane.stop(Instant::now()), Some(None));
        std::thread::scope(|scope| {
            let callback = scope.spawn(|| lane.with(|_| ()));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!callback.is_finished());
            lane.kill();
            assert!(callback.join().unwrap().is_none());
        });
    }

    #[test]
    fn callback_lane_that_is_never_opened_is_waited_for_once() {
        let lane = CallbackLane::default();
        let start = Instant::now();
        for _ in 0..1000 {
            assert!(lane.with(|_| ()).is_none());
        }
        // A wait for each would be 1000 of them; a busy machine adds seconds to the one.
        assert!(start.elapsed() < CALLBACK_LANE_OPEN_TIMEOUT * 30);
    }
}
