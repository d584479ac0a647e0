//! Holds blocks of asynchronous calls until it is known that the server no longer uses them.

use aviary_wire::{RequestHeader, flag, kind};

use super::ThreadLane;
use crate::descriptor::Lost;
use crate::lane::frame::Frame;
use crate::lane::held::Milestone;

impl ThreadLane {
    pub(super) fn hold(&self, ticket: u64, frame: &mut Frame) -> Result<(), Lost> {
        let Some(is_half_full) = self.keep_held(ticket, frame) else { return Ok(()) };
        // Where no word of the arena tells, the server is asked early enough to go on with later calls meanwhile.
        if is_half_full && self.connection.memory.arena.mirrored() && self.milestone.get().is_none() {
            self.pass_milestone()?;
        }
        // Of a mirrored arena that number counts calls that have let others go ahead, and still use their blocks.
        if self.is_crowded() && !self.has_unsent() && !self.connection.memory.arena.mirrored() {
            self.reclaim(self.connection.tickets.finished(&self.connection.memory.arena));
        }
        if self.is_crowded() {
            self.await_milestone()?;
        }
        if self.is_crowded() {
            self.finish_posted()?;
            if let Ok(mut held) = self.held.try_borrow_mut() {
                held.unsent = false;
            }
        }
        Ok(())
    }

    /// Whether half of the room is used now. `None`: a signal handler has interrupted the use of the list, and its blocks stay in use
    /// for ever.
    fn keep_held(&self, ticket: u64, frame: &mut Frame) -> Option<bool> {
        let Ok(mut held) = self.held.try_borrow_mut() else {
            frame.blocks.clear();
            return None;
        };
        frame.blocks.drain(..).for_each(|block| held.add(ticket, block));
        Some(held.is_half_full())
    }

    fn is_crowded(&self) -> bool {
        self.held.try_borrow().is_ok_and(|held| held.is_crowded())
    }

    fn has_unsent(&self) -> bool {
        self.held.try_borrow().is_ok_and(|held| held.unsent)
    }

    /// A call is not sent. If parts of its inputs were, its blocks are held until the next answer of this lane, which comes
    /// behind them.
    pub fn hold_if_ahead(&self, frame: &mut Frame) {
        if !frame.ahead {
            return;
        }
        let ticket = self.connection.tickets.last();
        if let Ok(mut held) = self.held.try_borrow_mut() {
            held.unsent = true;
        }
        self.keep_held(ticket, frame);
    }

    /// Waits until all calls that this thread has sent are executed.
    pub fn finish_posted(&self) -> Result<(), Lost> {
        let mut sync = self.take_frame();
        let answer = self.exchange(kind::SYNC, 0, 0, &mut sync)?;
        self.keep_deferred(answer.deferred);
        self.give_frame(sync);
        Ok(())
    }

    #[cold]
    fn pass_milestone(&self) -> Result<(), Lost> {
        let (mut sync, serial, ticket) = (self.take_frame(), self.next_serial(), self.ticket_before());
        let header = RequestHeader { kind: kind::SYNC, flags: flag::LATER, ticket, serial, ..RequestHeader::default() };
        let message = sync.encoder.finish_request(header);
        // A call of a signal handler may read the answer as soon as the end is free.
        self.with_end(|end| {
            // Or has passed one before that.
            if self.milestone.get().is_none() {
                end.send(message, &[])?;
                self.milestone.set(Some(Milestone { serial, ticket }));
            }
            Ok(())
        })?;
        self.give_frame(sync);
        Ok(())
    }

    #[cold]
    fn await_milestone(&self) -> Result<(), Lost> {
        let Some(milestone) = self.milestone.get() else { return Ok(()) };
        let mut sync = self.take_frame();
        let passed = self.take_messages(|| self.passed(milestone.serial), None, &mut sync);
        self.give_frame(sync);
        passed.map(drop)
    }

    fn passed(&self, serial: u64) -> bool {
        self.milestone.get().is_none_or(|milestone| milestone.serial != serial)
    }

    /// If this answers a milestone: which one, from then on no longer.
    pub(super) fn answered(&self, serial: u64) -> Option<Milestone> {
        let milestone = self.milestone.get().filter(|milestone| milestone.serial == serial)?;
        self.milestone.set(None);
        Some(milestone)
    }

    /// This lane's calls up to its ticket are executed.
    pub(super) fn reached(&self, milestone: Milestone) {
        if !self.has_unsent() {
            self.reclaim(milestone.ticket);
        }
    }

    /// Frees the blocks of asynchronous calls up to `ticket`.
    #[inline]
    pub(super) fn reclaim(&self, ticket: u64) {
        let Ok(mut held) = self.held.try_borrow_mut() else { return };
        while let Some(block) = held.take(ticket) {
            self.connection.memory.blocks.free(block);
        }
    }
}
