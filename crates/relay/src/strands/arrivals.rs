//! Pieces that have arrived, over whichever strand, and the messages that wait for them. Used by [`crate::carry::carrier`].
//!
//! A piece is written to the arena once: strands that break make the peer send some again. A hostile peer may send pieces for
//! which no message comes, in any order, again and again: this process holds at most [`WINDOW`] numbers and [`MOST_WAITING`]
//! messages, and what is written counts as all memory of the arena does. A message whose pieces never come waits, with what
//! follows on its lane, until its session ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aviary_wire::{DecodeError, Decoder, Encoder};
use thiserror::Error;

use crate::strands::pieces::WINDOW;

/// Messages that wait for pieces.
const MOST_WAITING: usize = 1 << 16;
/// Pieces of one message: 256 TiB.
const MOST_OF_MESSAGE: u64 = 1 << 30;

/// Pieces that cannot be those of an honest peer.
#[derive(Debug, Error, displaydoc::Display, Clone, Copy, PartialEq, Eq)]
pub enum PieceError {
    /// the peer sent piece {0} while piece {1} had not arrived
    Beyond(u64, u64),
    /// the peer announced pieces {0} to {1}, which are none or belong to another message, too
    Announced(u64, u64),
    /// the peer sent more than {MOST_WAITING:} messages that wait for pieces
    Waiting,
    /// the peer sent a piece without a number or a place
    Head,
}

/// Pieces for which a message waits.
#[derive(Debug, Clone)]
pub struct Awaited {
    pub first: u64,
    pub end: u64,
    whole: Arc<AtomicBool>,
}

impl Awaited {
    /// Of a process that has left the session: [`Arrivals::expect`] makes it good.
    pub fn left(first: u64, end: u64) -> Self {
        Awaited { first, end, whole: Arc::default() }
    }

    pub fn is_whole(&self) -> bool {
        self.whole.load(Ordering::Acquire)
    }
}

struct Waiting {
    end: u64,
    missing: u64,
    lane: u32,
    whole: Arc<AtomicBool>,
}

#[derive(Default)]
struct ArrivalsState {
    /// All pieces below this number have arrived.
    below: u64,
    /// Others that have arrived.
    done: BTreeSet<u64>,
    /// Pieces that a strand writes at this moment.
    begun: BTreeSet<u64>,
    /// By the number of their first piece.
    waiting: BTreeMap<u64, Waiting>,
}

impl ArrivalsState {
    fn missing(&self, first: u64, end: u64) -> u64 {
        let from = first.max(self.below).min(end);
        end - from - self.done.range(from..end).count() as u64
    }
}

#[derive(Default)]
pub struct Arrivals(Mutex<ArrivalsState>);

impl Arrivals {
    fn state(&self) -> MutexGuard<'_, ArrivalsState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True: the caller writes the piece now, then calls [`Arrivals::finish`]. False: it is there, or another strand writes it.
    pub fn begin(&self, number: u64) -> Result<bool, PieceError> {
        let mut state = self.state();
        if number >= state.below.saturating_add(WINDOW) {
            return Err(PieceError::Beyond(number, state.below));
        }
        Ok(number >= state.below && !state.done.contains(&number) && state.begun.insert(number))
    }

    /// The lane of the message that waits for this piece.
    pub fn lane_of(&self, number: u64) -> Option<u32> {
        let state = self.state();
        let (_, waiting) = state.waiting.range(..=number).next_back()?;
        (number < waiting.end).then_some(waiting.lane)
    }

    /// The piece is written. Returns the lane of the message that waited for nothing else.
    pub fn finish(&self, number: u64) -> Option<u32> {
        let mut state = self.state();
        state.begun.remove(&number);
        state.done.insert(number);
        while let Some(below) = state.below.checked_add(1).filter(|_| state.done.first() == Some(&state.below)) {
            state.done.pop_first();
            state.below = below;
        }
        let (first, waiting) = state.waiting.range_mut(..=number).next_back()?;
        let first = *first;
        if number >= waiting.end {
            return None;
        }
        waiting.missing -= 1;
        if waiting.missing > 0 {
            return None;
        }
        waiting.whole.store(true, Ordering::Release);
        state.waiting.remove(&first).map(|waiting| waiting.lane)
    }

    /// The next message of this lane needs these pieces. `None`: they are there.
    pub fn expect(&self, lane: u32, first: u64, end: u64) -> Result<Option<Awaited>, PieceError> {
        let mut state = self.state();
        let overlaps = state.waiting.range(..end).next_back().is_some_and(|(_, before)| before.end > first);
        if first >= end || end - first > MOST_OF_MESSAGE || overlaps {
            return Err(PieceError::Announced(first, end));
        }
        let missing = state.missing(first, end);
        if missing == 0 {
            return Ok(None);
        }
        if state.waiting.len() >= MOST_WAITING {
            return Err(PieceError::Waiting);
        }
        let whole = Arc::new(AtomicBool::new(false));
        state.waiting.insert(first, Waiting { end, missing, lane, whole: whole.clone() });
        Ok(Some(Awaited { first, end, whole }))
    }

    /// The lane has ended: nothing of it waits any more.
    pub fn forget(&self, lane: u32) {
        self.state().waiting.retain(|_, waiting| waiting.lane != lane);
    }

    /// Lanes with what they wait for.
    #[cfg(test)]
    pub fn waiting(&self) -> Vec<(u32, u64, u64)> {
        self.state().waiting.iter().map(|(first, waiting)| (waiting.lane, *first, waiting.end)).collect()
    }

    /// For the process that goes on with the session. What waits is in the inboxes.
    pub fn save(&self, to: &mut Encoder) {
        let state = self.state();
        [state.below, state.done.len() as u64].into_iter().for_each(|word| to.word(word));
        state.done.iter().for_each(|number| to.word(*number));
    }

    /// As another process has left them.
    pub fn restored(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut state = ArrivalsState { below: from.word()?, ..ArrivalsState::default() };
        for _ in 0..from.word()? {
            state.done.insert(from.word()?);
        }
        Ok(Arrivals(Mutex::new(state)))
    }
}

#[cfg(test)]
#[path = "arrivals_tests.rs"]
mod tests;
