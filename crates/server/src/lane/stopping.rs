//! How a lane stops between two messages, and goes on.

use std::os::fd::{AsFd, OwnedFd};

use aviary_control::{MoveReport, Patience, SwapReport};
use aviary_transport::LaneError;

use super::Lane;
use super::ended::LaneEnded;
use crate::call::Call;
use crate::session::pause::StopEnd;
use crate::session::tickets::{Interrupted, Repeat};
use crate::session::waits::StoppedLane;

impl Lane {
    /// Serves the taken message first, if there is one.
    pub(super) fn serve_all(&self, taken: Option<Vec<u8>>) -> LaneEnded {
        if let Some(message) = taken {
            let mut call = self.take_call();
            *call.request.bytes = message;
            if let Err(stop) = self.stand(Some(&call.request.bytes)).and_then(|()| self.serve_repeatedly(&mut call)) {
                return stop;
            }
            self.keep_call(call);
        }
        loop {
            if self.context.session.pause.asks()
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
    pub(super) fn serve_repeatedly(&self, call: &mut Call) -> Result<(), LaneEnded> {
        loop {
            match self.serve(call) {
                Err(LaneEnded::Paused) => self.stand(Some(&call.request.bytes))?,
                served => return served,
            }
        }
    }

    /// Something is asked of the lanes; this one is between two messages.
    #[cold]
    fn heed(&self) -> Result<(), LaneEnded> {
        if self.context.session.pause.is_dead() {
            return Err(LaneEnded::Closed);
        }
        if !self.idle.take() && self.context.session.pause.count_call() {
            self.ask_to_move();
        }
        if self.context.session.pause.stops() {
            self.stand(None)?;
        }
        // Its memory may have left while this lane stood: the next message waits for that.
        if self.context.session.pause.is_out() { self.serve_once_in() } else { Ok(()) }
    }

    /// For tests: all lanes stop now, and the node is asked to move the session. It answers in any case.
    fn ask_to_move(&self) {
        let session = &self.context.session;
        let ask = |orders: &OwnedFd| aviary_control::send(orders.as_fd(), &MoveReport::Wanted, &[], Patience::Waits);
        if session.orders.as_ref().is_none_or(|orders| ask(orders).is_err()) {
            session.pause.resume();
        }
    }

    /// Stands until the session goes on. `taken`: a message that was not begun.
    #[cold]
    pub(super) fn stand(&self, taken: Option<&[u8]>) -> Result<(), LaneEnded> {
        self.counters.report(&self.context.session.accounts.stats);
        let position = self.context.end.borrow().position().unwrap_or_default();
        let stopped = StoppedLane { position, taken: taken.map(<[u8]>::to_vec), deferred: self.context.deferred.get() };
        self.idle.set(true);
        match self.context.session.pause.stand(self.number, stopped) {
            StopEnd::GoesOn if taken.is_some() => self.await_memory(),
            StopEnd::GoesOn => Ok(()),
            StopEnd::SessionOver => Err(LaneEnded::Closed),
        }
    }

    /// The next message of a session whose memory is out: it is executed when the memory is back.
    #[cold]
    fn serve_once_in(&self) -> Result<(), LaneEnded> {
        let mut call = self.take_call();
        if let Err(error) = self.receive(&mut call.request.bytes) {
            return self.not_received(call, error);
        }
        self.await_memory()?;
        let served = self.serve_repeatedly(&mut call);
        self.keep_call(call);
        served
    }

    /// Before a message is begun that the lane has had for a while.
    fn await_memory(&self) -> Result<(), LaneEnded> {
        let session = &self.context.session;
        let call = || {
            if let Some(orders) = &session.orders {
                // A node that does not listen has gone.
                let called = MoveReport::Swap(SwapReport::Called);
                let _ = aviary_control::send(orders.as_fd(), &called, &[], Patience::Waits);
            }
        };
        match session.pause.await_memory(call) {
            StopEnd::GoesOn => Ok(()),
            StopEnd::SessionOver => Err(LaneEnded::Closed),
        }
    }

    /// Waits for a ticket; a pause ends the wait unless the vendor library waits for this lane.
    #[cold]
    pub(super) fn await_ticket(&self, ticket: u64) -> Result<(), LaneEnded> {
        let repeat = if self.context.nesting.get() == 0 { Repeat::Possible } else { Repeat::Impossible };
        self.context.session.calls.tickets.wait(ticket, repeat).map_err(|interrupted| match interrupted {
            Interrupted::SessionOver => LaneEnded::Closed,
            Interrupted::Paused => LaneEnded::Paused,
        })
    }
}
