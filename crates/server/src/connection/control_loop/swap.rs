//! The control loop's part in a swap: the session's memory leaves its devices and returns, in this process.

use std::time::{Duration, Instant};

use aviary_control::{MoveReport, SwapFigures, SwapReport};

use super::Connected;
use crate::moving::evict::Evicted;
use crate::moving::stage::{MoveStage, Step};
use crate::moving::{Obstacle, close_callbacks, drain};
use crate::session::pause::Beside;
use crate::state::{self, Goal, NotMovable};
use crate::tables::rooms::device_memory;

/// Time in which a session must stand that gives back what it keeps for copies.
const KEEP_STOP: Duration = Duration::from_millis(100);

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Connected {
    /// The steps that concern the session's device memory.
    pub(super) fn obey_swap(&mut self, step: Step) {
        match step {
            Step::Evict { attempt, stop, room, part } => self.evict(attempt, (stop, room), part),
            Step::EvictMore { attempt, part } => self.evict_more(attempt, part),
            Step::Return { attempt, credit } => self.bring_back(attempt, credit),
            Step::Keep { most } => self.keep_at_most(most),
            Step::Prepare { bytes } => self.prepare(bytes),
            Step::Room { request, granted } => {
                if let Some(rooms) = &self.session.accounts.rooms {
                    rooms.answer(request, granted);
                    self.session.pause.wake_aside();
                }
            }
            Step::Refuse { attempt } => {
                let out = Obstacle::not_now("its device memory is swapped out (aviary swap in)");
                // A node that does not listen has gone, and this process ends with it.
                let _ = self.report(&out.report(attempt));
            }
            _ => {}
        }
    }

    /// Takes the memory out and reports; the session goes on if that is not possible.
    fn evict(&mut self, attempt: u64, (timeout, room): (Duration, u64), part: Option<u64>) {
        let told = match self.take_out(attempt, timeout, room, part) {
            Ok((evicted, figures)) => {
                let (bytes, freed, rest) = (evicted.bytes, evicted.freed.clone(), evicted.rest(&self.session));
                self.evicted = Some(evicted);
                self.stage = MoveStage::Evicted;
                // Lanes wait for messages again, and keep what comes.
                self.session.calls.tickets.resume();
                self.lanes.values().for_each(|shadow| shadow.liveness.resume());
                let left = SwapReport::Evicted { attempt, bytes, figures, freed, rest: Some(rest) };
                // As above.
                let _ = self.report(&MoveReport::Swap(left));
                // Only now: what a lane tells comes after that.
                if self.session.pause.let_out() {
                    let _ = self.report(&MoveReport::Swap(SwapReport::Called));
                }
                if let Some(evicted) = &mut self.evicted {
                    evicted.trim();
                }
                return;
            }
            Err(obstacle) => {
                self.go_on();
                SwapReport::Stays { attempt, reason: obstacle.to_string(), kept: self.kept() }
            }
        };
        // As above.
        let _ = self.report(&MoveReport::Swap(told));
    }

    /// Of memory that is out in part more leaves. The session stands all the time.
    fn evict_more(&mut self, attempt: u64, part: Option<u64>) {
        let Some(evicted) = &mut self.evicted else { return };
        let begun = Instant::now();
        let told = match evicted.take_more(&self.session, attempt, part) {
            Ok(freed) => {
                let (objects, unchanged) = (evicted.objects(), evicted.unchanged);
                let figures =
                    SwapFigures { copy_us: us(begun.elapsed()), objects, unchanged, ..SwapFigures::default() };
                let rest = Some(evicted.rest(&self.session));
                SwapReport::Evicted { attempt, bytes: evicted.bytes, figures, freed, rest }
            }
            Err(obstacle) => SwapReport::Stays { attempt, reason: obstacle.to_string(), kept: 0 },
        };
        // As above.
        let _ = self.report(&MoveReport::Swap(told));
    }

    /// Gives host memory back that was kept for the next time. What is kept for copies stays if the session does not stand for a
    /// moment: the node asks again.
    pub(super) fn keep_at_most(&mut self, most: u64) {
        if self.kept() > most && self.session.tables.kept.buffers() > 0 && self.stage == MoveStage::Serving {
            // The vendor's library waits for the devices' work before it takes such memory back.
            let deadline = Instant::now() + KEEP_STOP;
            let stands = self.stop_lanes(Beside::Aside, KEEP_STOP, deadline).is_ok();
            if stands && drain(&self.session, Goal::Stay, deadline).is_ok() {
                self.session.tables.kept.give_buffers_back();
            }
            self.go_on();
        }
        self.spare.shrink(most.saturating_sub(self.session.tables.kept.buffers()));
        // As above.
        let _ = self.report(&MoveReport::Swap(SwapReport::Kept { bytes: self.kept() }));
    }

    /// Makes host memory for the next eviction, while the session runs; no more than will be needed, as far as that is known.
    fn prepare(&mut self, bytes: u64) {
        let bytes = self.spare.expected(bytes).min(bytes).saturating_sub(self.session.tables.kept.buffers());
        // Without memory it is as before, which the report says.
        let _ = self.spare.prepare(bytes);
        // As above.
        let _ = self.report(&MoveReport::Swap(SwapReport::Kept { bytes: self.kept() }));
    }

    /// Host memory that is kept, with that for copies.
    pub(super) fn kept(&self) -> u64 {
        self.spare.bytes().saturating_add(self.session.tables.kept.buffers())
    }

    /// What is kept for copies beyond so much is given back; the session stands. Answers what is kept.
    fn keep_within(&self, most: u64) -> u64 {
        if self.kept() > most {
            self.session.tables.kept.give_buffers_back();
        }
        self.kept()
    }

    fn take_out(
        &mut self,
        attempt: u64,
        timeout: Duration,
        room: u64,
        part: Option<u64>,
    ) -> Result<(Evicted, SwapFigures), Obstacle> {
        let asked = Instant::now();
        // As far as is known before the session stands; one that does not stand keeps it for the next time. If there is none it turns
        // out below.
        let _ = self.spare.prepare(self.spare.expected(device_memory(&self.session.accounts.gate)).min(room));
        let begun = Instant::now();
        let deadline = begun + timeout;
        self.stop_lanes(Beside::Aside, timeout, deadline)?;
        let stood = Instant::now();
        let session = &self.session;
        drain(session, Goal::Stay, deadline)?;
        // One that comes while no call is begun would wait for a call that perhaps never comes.
        if state::is_called_back(session) {
            return Err(NotMovable::Busy { what: "the library has not called back yet" }.into());
        }
        close_callbacks(session, deadline)?;
        let drained = Instant::now();
        let evicted = Evicted::take(session, (attempt, part), room, &mut self.spare);
        if let Err(Obstacle::Lasting(why)) = &evicted {
            session.fail(why);
        }
        let evicted = evicted?;
        let figures = SwapFigures {
            reserve_us: us(begun - asked),
            stop_us: us(stood - begun),
            drain_us: us(drained - stood),
            copy_us: us(drained.elapsed()),
            objects: evicted.objects(),
            unchanged: evicted.unchanged,
        };
        Ok((evicted, figures))
    }

    /// Brings the memory back and reports; the session waits on if that is not possible.
    /// `credit`: how much may be there by now; `None`: all of it.
    fn bring_back(&mut self, attempt: u64, credit: Option<u64>) {
        let begun = Instant::now();
        let Some(evicted) = self.evicted.take() else { return };
        credit.into_iter().for_each(|credit| self.session.tables.overlap.begin_returning(attempt, credit));
        let back = evicted.come_back(&self.session);
        self.session.tables.overlap.end();
        let told = match back {
            Ok(()) => {
                let (return_us, charged) = (us(begun.elapsed()), evicted.bytes);
                self.spare = evicted.into_spare();
                let kept = self.keep_within(charged);
                self.go_on();
                SwapReport::Returned { attempt, return_us, kept }
            }
            Err(error) if error.torn => {
                self.session.fail(&error.to_string());
                SwapReport::Stays { attempt, reason: error.to_string(), kept: 0 }
            }
            Err(error) => {
                self.evicted = Some(evicted);
                SwapReport::Stays { attempt, reason: error.to_string(), kept: 0 }
            }
        };
        // As above.
        let _ = self.report(&MoveReport::Swap(told));
    }
}
