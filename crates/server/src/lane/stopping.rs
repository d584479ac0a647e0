//! How a lane stops between two messages, and goes on.

use std::rc::Rc;

use aviary_transport::LaneError;

use super::{Lane, LaneEnded};
use crate::call::Call;
use crate::pause::{StopEnd, StoppedLane};
use crate::tickets::{Interrupted, Repeat};

impl Lane {
    /// Serves the taken message first, if there is one.
    pub(super) fn serve_all(self: &Rc<Self>, taken: Option<Vec<u8>>) -> LaneEnded {
        if let Some(message) = taken {
            let mut call = self.take_call();
            call.request = message;
            if let Err(stop) = self.stand(Some(&call.request)).and_then(|()| self.serve_repeatedly(&mut call)) {
                return stop;
            }
            self.keep_call(call);
        }
        loop {
            if self.session.pause.asks()
                && let Err(stop) = self.heed()
            {
                return stop;
            }
            if let Err(stop) = self.serve_next() {
                return stop;
            }
        }
    }

    #[cold]
    pub(super) fn not_received(&self, call: Box<Call>, error: LaneError) -> Result<(), LaneEnded> {
        match error {
            LaneError::Interrupted => {
                self.keep_call(call);
                self.idle.set(true);
                Ok(())
            }
            error => Err(error.into()),
        }
    }

    /// Executes a message that a pause has kept from being begun, however often that happens.
    #[cold]
    pub(super) fn serve_repeatedly(self: &Rc<Self>, call: &mut Call) -> Result<(), LaneEnded> {
        loop {
            match self.serve(call) {
                Err(LaneEnded::Paused) => self.stand(Some(&call.request))?,
                served => return served,
            }
        }
    }

    /// Something is asked of the lanes; this one is between two messages.
    #[cold]
    fn heed(&self) -> Result<(), LaneEnded> {
        if self.session.is_dead() {
            return Err(LaneEnded::Closed);
        }
        if !self.idle.take() && self.session.pause.count_call() {
            self.session.ask_to_move();
        }
        if self.session.pause.stops() { self.stand(None) } else { Ok(()) }
    }

    /// Stands until the session goes on. `taken`: a message that was not begun.
    #[cold]
    pub(super) fn stand(&self, taken: Option<&[u8]>) -> Result<(), LaneEnded> {
        self.counters.report(&self.session.stats);
        let position = self.end.borrow().position().unwrap_or_default();
        let stopped = StoppedLane { position, taken: taken.map(<[u8]>::to_vec), deferred: self.deferred.get() };
        self.idle.set(true);
        match self.session.pause.stand(self.number, stopped) {
            StopEnd::GoesOn => Ok(()),
            StopEnd::SessionOver => Err(LaneEnded::Closed),
        }
    }

    /// Waits for a ticket; a pause ends the wait unless the vendor library waits for this lane.
    #[cold]
    pub(super) fn await_ticket(&self, ticket: u64) -> Result<(), LaneEnded> {
        let repeat = if self.nesting.get() == 0 { Repeat::Possible } else { Repeat::Impossible };
        self.session.tickets.wait(ticket, repeat).map_err(|interrupted| match interrupted {
            Interrupted::SessionOver => LaneEnded::Closed,
            Interrupted::Paused => LaneEnded::Paused,
        })
    }
}
