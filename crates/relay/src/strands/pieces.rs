//! Bulk data that is sent in pieces by whichever strand is free. Filled by [`crate::carry::outbox`], emptied by strands, or by
//! the first connection while there are none.
//!
//! Pieces are numbered for the whole session. Of a piece that is under way its place in the arena is kept, not its bytes: the
//! block is not used again before the answer, which the other side can give only when the piece has arrived. If a strand
//! breaks, what it has not got acknowledged is sent again. A hostile peer may acknowledge nothing: what is kept here does
//! not grow by it beyond [`WINDOW`] places.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aviary_transport::{Arena, Region};
use aviary_wire::{DecodeError, Decoder, Encoder};
use thiserror::Error;

use crate::carry::handing::sleepers::Sleepers;
use crate::frames::frame::{Kind, put_header};

/// The most bytes of a piece: with its headers and the credits of all lanes it fits a packet.
pub const PIECE_BYTES: usize = 224 << 10;
/// Of a piece's frame, before its bytes: its number and its place.
pub const PIECE_HEAD: usize = 16;
/// Strands carry the long regions of messages that have so many bytes in them.
pub const WORTH_BYTES: usize = 1 << 20;
/// Shorter regions are not worth a packet each.
const LEAST_REGION: usize = 64 << 10;
/// A lane gives strands so many pieces at its turn.
const MOST_OF_TURN: u64 = 16;
/// Lanes give no more while strands have so many pieces that they have not sent: what another lane has waits for these at most.
const MOST_UNSENT: u64 = 64;
/// A receiver takes no piece with a number this much above the first one that it lacks.
pub const WINDOW: u64 = 1 << 14;

/// The peer acknowledged {0} pieces of a strand, over which only {1} were sent
#[derive(Debug, Error, displaydoc::Display, Clone, Copy, PartialEq, Eq)]
pub struct NeverSent(u64, u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub number: u64,
    pub offset: u64,
    pub length: usize,
}

impl Piece {
    /// Appends the piece's frame.
    pub fn put(&self, arena: &Arena, out: &mut Vec<u8>) {
        put_header(out, Kind::Piece, false, 0, PIECE_HEAD + self.length);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        let end = out.len() + self.length;
        if arena.read(self.offset, self.length, out).is_err() {
            // Cannot happen, because regions are checked before they are queued; the frame must be complete anyway.
            out.resize(end, 0);
        }
    }
}

/// Whether strands are to carry regions of a message.
pub fn is_worth<'a>(regions: impl IntoIterator<Item = &'a Region>) -> bool {
    regions.into_iter().map(|region| region.length).filter(|length| *length >= LEAST_REGION).sum::<usize>()
        >= WORTH_BYTES
}

#[derive(Default)]
struct StrandQueue {
    /// Sent and not acknowledged, in the order in which they were sent.
    unacknowledged: VecDeque<Piece>,
    sent: u64,
    acknowledged: u64,
    /// Pieces that have arrived over this strand, if the peer is to be told.
    owed: Option<u64>,
    /// It takes no more pieces, and hands its connection on.
    leaves: Leaves,
    stopped: bool,
}

/// A strand that is to be the first connection.
#[derive(Default)]
enum Leaves {
    #[default]
    No,
    /// These are the last bytes of it as a strand.
    With(Vec<u8>),
    Left,
}

#[derive(Default)]
struct PiecesState {
    /// The number of the next piece.
    next: u64,
    /// What is not sent yet: the rest of each region, with the number of its first piece.
    rests: VecDeque<Piece>,
    /// Pieces of strands that broke.
    again: VecDeque<Piece>,
    /// Numbers of the pieces that strands have and the peer has not acknowledged.
    under_way: BTreeSet<u64>,
    strands: HashMap<u64, StrandQueue>,
    /// The first connection is to send one before other bulk data.
    turn: bool,
    /// Something waits until strands take more.
    hungry: bool,
}

#[derive(Default)]
pub struct Pieces {
    state: Mutex<PiecesState>,
    ready: Sleepers,
}

/// What became of regions that strands are to carry.
#[derive(Debug, PartialEq, Eq)]
pub enum Cut {
    /// Strands have enough for now.
    Full,
    /// Pieces from the first number to before the second one.
    Pieces(u64, u64),
    /// No region is long.
    Nothing,
}

/// What a strand does next.
#[derive(Debug, PartialEq, Eq)]
pub enum Work {
    Piece(Piece),
    /// Tell the peer how many pieces have arrived over this strand.
    Acknowledge(u64),
    /// Send these bytes, which may be none, and hand the connection on.
    Leave(Vec<u8>),
    /// There was nothing for the given time, and nothing is under way.
    Idle,
    Stop,
}

impl PiecesState {
    /// Pieces that no strand has taken yet.
    fn unsent(&self) -> u64 {
        let rests: usize = self.rests.iter().map(|rest| rest.length.div_ceil(PIECE_BYTES)).sum();
        (self.again.len() + rests) as u64
    }

    fn take(&mut self) -> Option<Piece> {
        if let Some(piece) = self.again.pop_front() {
            return Some(piece);
        }
        let rest = self.rests.front_mut()?;
        // Half of it is for what the first connection has under way.
        if self.under_way.first().is_some_and(|first| rest.number >= first.saturating_add(WINDOW / 2)) {
            return None;
        }
        let piece = Piece { length: rest.length.min(PIECE_BYTES), ..*rest };
        if piece.length == rest.length {
            self.rests.pop_front();
        } else {
            rest.number = rest.number.wrapping_add(1);
            rest.offset = rest.offset.wrapping_add(piece.length as u64);
            rest.length -= piece.length;
        }
        Some(piece)
    }
}

impl Pieces {
    fn state(&self) -> MutexGuard<'_, PiecesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next pieces out of the long ones of a message's regions.
    pub fn cut(&self, regions: &mut VecDeque<Region>) -> Cut {
        let mut state = self.state();
        if state.unsent() >= MOST_UNSENT {
            state.hungry = true;
            return Cut::Full;
        }
        let (first, end) = (state.next, state.next + MOST_OF_TURN);
        for region in regions.iter_mut().filter(|region| region.length >= LEAST_REGION) {
            let length = region.length.min((end - state.next) as usize * PIECE_BYTES);
            if length == 0 {
                break;
            }
            let rest = Piece { number: state.next, offset: region.offset, length };
            state.next += length.div_ceil(PIECE_BYTES) as u64;
            state.rests.push_back(rest);
            region.offset += length as u64;
            region.length -= length;
        }
        regions.retain(|region| region.length > 0);
        self.ready.wake(&mut state);
        if state.next > first { Cut::Pieces(first, state.next) } else { Cut::Nothing }
    }

    /// True once after [`Cut::Full`], as soon as strands take more.
    pub fn is_hungry(&self) -> bool {
        let mut state = self.state();
        let hungry = state.hungry && state.unsent() < MOST_UNSENT / 2;
        state.hungry &= !hungry;
        hungry
    }

    /// A strand begins to carry pieces.
    pub fn begin(&self, strand: u64) {
        self.state().strands.insert(strand, StrandQueue::default());
    }

    pub fn has_strands(&self) -> bool {
        !self.state().strands.is_empty()
    }

    /// How many strands there are.
    #[cfg(test)]
    pub fn strands(&self) -> usize {
        self.state().strands.len()
    }

    /// The next work of a strand; waits for it, for `idle` at most.
    pub fn next(&self, strand: u64, idle: Duration) -> Work {
        let until = Instant::now() + idle;
        let mut state = self.state();
        loop {
            let Some(own) = state.strands.get_mut(&strand).filter(|own| !own.stopped) else { return Work::Stop };
            if let Some(count) = own.owed.take() {
                return Work::Acknowledge(count);
            }
            match std::mem::replace(&mut own.leaves, Leaves::Left) {
                Leaves::No => own.leaves = Leaves::No,
                Leaves::With(last) => return Work::Leave(last),
                Leaves::Left => return Work::Stop,
            }
            if let Some(piece) = state.take() {
                state.under_way.insert(piece.number);
                if let Some(own) = state.strands.get_mut(&strand) {
                    own.sent += 1;
                    own.unacknowledged.push_back(piece);
                }
                return Work::Piece(piece);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Work::Idle;
            }
            state = self.ready.wait_for(state, left);
        }
    }

    /// The next piece for the first connection, which takes them only while there is no strand. `before`: other bulk data may
    /// come later; then every second time.
    pub fn next_of_first(&self, before: bool) -> Option<Piece> {
        let mut state = self.state();
        if !state.strands.is_empty() || before && !std::mem::replace(&mut state.turn, false) {
            state.turn = true;
            return None;
        }
        let piece = state.take()?;
        // Its packet is numbered and kept.
        state.under_way.remove(&piece.number);
        Some(piece)
    }

    /// `count` pieces have arrived over this strand.
    pub fn owe(&self, strand: u64, count: u64) {
        let mut state = self.state();
        if let Some(own) = state.strands.get_mut(&strand) {
            own.owed = Some(count);
            self.ready.wake(&mut state);
        }
    }

    /// The peer has got so many of the pieces that were sent over this strand.
    pub fn acknowledge(&self, strand: u64, count: u64) -> Result<(), NeverSent> {
        let mut state = self.state();
        let PiecesState { strands, under_way, .. } = &mut *state;
        let Some(own) = strands.get_mut(&strand) else { return Ok(()) };
        if count > own.sent {
            return Err(NeverSent(count, own.sent));
        }
        while own.acknowledged < count {
            own.acknowledged += 1;
            if let Some(piece) = own.unacknowledged.pop_front() {
                under_way.remove(&piece.number);
            }
        }
        self.ready.wake(&mut state);
        Ok(())
    }

    /// True if nothing of this strand waits for the peer.
    pub fn is_quiet(&self, strand: u64) -> bool {
        self.state().strands.get(&strand).is_none_or(|own| own.unacknowledged.is_empty())
    }

    /// The strand's writer stops at its next step.
    pub fn stop(&self, strand: u64) {
        let mut state = self.state();
        if let Some(own) = state.strands.get_mut(&strand) {
            own.stopped = true;
            self.ready.wake(&mut state);
        }
    }

    /// The strand's writer hands the connection on at its next step, after these last bytes. Nothing, if it did so before.
    pub fn leave(&self, strand: u64, last: Vec<u8>) {
        let mut state = self.state();
        if let Some(own) = state.strands.get_mut(&strand)
            && matches!(own.leaves, Leaves::No)
        {
            own.leaves = Leaves::With(last);
            self.ready.wake(&mut state);
        }
    }

    /// The strand's writer was to hand the connection on.
    pub fn has_left(&self, strand: u64) -> bool {
        self.state().strands.get(&strand).is_some_and(|own| !matches!(own.leaves, Leaves::No))
    }

    /// The strand carries nothing more: others send again what may not have arrived.
    pub fn broke(&self, strand: u64) {
        let mut state = self.state();
        if let Some(own) = state.strands.remove(&strand) {
            own.unacknowledged.into_iter().rev().for_each(|piece| state.again.push_front(piece));
            self.ready.wake(&mut state);
        }
    }

    /// True if everything has arrived at the peer, or is in numbered packets.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        let state = self.state();
        state.rests.is_empty() && state.again.is_empty() && state.under_way.is_empty()
    }

    /// For the process that goes on with the session; there is no strand any more.
    pub fn save(&self, to: &mut Encoder) {
        let state = self.state();
        to.word(state.next);
        for list in [&state.again, &state.rests] {
            to.word(list.len() as u64);
            for piece in list {
                [piece.number, piece.offset, piece.length as u64].into_iter().for_each(|word| to.word(word));
            }
        }
    }

    /// As another process has left them. A place may lie anywhere: reading it then gives zeros. Numbers may be any: the peer
    /// refuses those that it does not expect.
    pub fn restored(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut state = PiecesState { next: from.word()?.min(u64::MAX / 2), ..PiecesState::default() };
        for list in [&mut state.again, &mut state.rests] {
            for _ in 0..from.word()? {
                let (number, offset, length) = (from.word()?, from.word()?, from.word()? as usize);
                list.push_back(Piece { number, offset, length });
            }
        }
        // Pieces were cut already; no longer one would fit a packet.
        state.again.iter_mut().for_each(|piece| piece.length = piece.length.min(PIECE_BYTES));
        Ok(Pieces { state: Mutex::new(state), ready: Sleepers::default() })
    }
}

#[cfg(test)]
#[path = "pieces_tests.rs"]
mod tests;
