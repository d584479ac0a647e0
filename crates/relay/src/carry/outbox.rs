//! Frames that wait to be sent: keeps the order within each lane, gives lanes turns, and counts credits. Filled by the
//! threads of a carrier; emptied by the one of them whose turn it is to send ([`crate::carry::handing::turn`]), or by the
//! network writer. A peer that reads nothing or acknowledges nothing makes it hold at most [`ALL_QUEUED`] and
//! [`MAX_RETAINED_BYTES`]; then the senders wait.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aviary_transport::{Arena, Region};
use aviary_wire::{DecodeError, Decoder, Encoder};

use crate::carry::handing::packet::Packet;
use crate::carry::handing::queues::{CREDIT_BYTES, MAX_GATHERED_BYTES, OutboxLane, OutboxState};
use crate::carry::handing::sleepers::Sleepers;
use crate::carry::pace::LEAST_PIECE;
use crate::carry::retained::{AckError, Retained};
use crate::frames::first::First;
use crate::frames::frame::{Kind, put_frame};
use crate::frames::items::{Bulk, Gathered, Item};
use crate::strands::pieces::Pieces;

/// The most bytes that wait on all lanes together before every sender waits: the bound for a peer that reads nothing,
/// however many lanes it has opened. Honest peers read and stay far below it.
const ALL_QUEUED: usize = 512 << 20;
/// The most memory, in bytes, of packets that the peer has not acknowledged: more than the data in flight of a connection,
/// which the kernel usually bounds by 6 MiB.
const MAX_RETAINED_BYTES: usize = 16 << 20;
/// The most packets that a lane's thread sends in a turn: its own, and what others have queued meanwhile.
const MAX_PACKETS_OF_LANE: usize = 4;

/// The session has ended: nothing more is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Over;

pub struct Outbox {
    state: Mutex<OutboxState>,
    /// The writer waits for something to send.
    ready: Sleepers,
    /// Senders wait for room.
    room: Sleepers,
    /// What strands may carry.
    pub pieces: Pieces,
    /// The most memory of queues, in bytes, before every sender waits.
    most: usize,
}

impl Default for Outbox {
    /// An outbox that keeps sent packets until they are acknowledged, for the next connection.
    fn default() -> Self {
        Outbox::holding(ALL_QUEUED, Some(MAX_RETAINED_BYTES))
    }
}

/// The writer's next step.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Packet,
    /// The socket has not taken all of a packet: the rest goes before anything else.
    Rest,
    /// There was nothing to send for the given time.
    Idle,
    /// There is no connection.
    Severed,
    /// Everything was sent, and nothing follows.
    Finished,
}

impl Outbox {
    /// An outbox that keeps no sent packets: the session ends with its connection.
    pub fn forgetful() -> Self {
        Outbox::holding(ALL_QUEUED, None)
    }

    fn holding(most: usize, retained: Option<usize>) -> Self {
        let state = OutboxState::new(Retained::new(retained));
        let (ready, room, pieces) = (Sleepers::default(), Sleepers::default(), Pieces::default());
        Outbox { state: Mutex::new(state), ready, room, pieces, most }
    }

    fn state(&self) -> MutexGuard<'_, OutboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the writer, unless a thread sends that will look again before it leaves.
    fn nudge(&self, state: &mut MutexGuard<'_, OutboxState>) {
        if !state.sending.is_lent() {
            self.ready.wake(state);
        }
    }

    fn first(&self, set: impl FnOnce(&mut First)) {
        let mut state = self.state();
        set(&mut state.first);
        state.urgent = true;
        self.nudge(&mut state);
    }

    /// Sends a ping; the answer repeats `time`.
    pub fn ping(&self, time: u64) {
        self.first(|first| first.ping = Some(time));
    }

    /// Answers a ping and acknowledges `received` numbered packets.
    pub fn pong(&self, time: u64, received: u64) {
        self.first(|first| (first.pong, first.ack) = (Some(time), Some(received)));
    }

    /// Acknowledges `received` numbered packets.
    pub fn ack(&self, received: u64) {
        self.first(|first| first.ack = Some(received));
    }

    /// The peer has acknowledged `count` packets.
    pub fn acknowledged(&self, count: u64) -> Result<(), AckError> {
        let mut state = self.state();
        let full = !state.retained.has_room();
        state.retained.acknowledge(count)?;
        if full {
            self.nudge(&mut state);
        }
        Ok(())
    }

    /// Keeps a packet of [`Outbox::next`] until the peer acknowledges it, and leaves a buffer for the next one.
    pub fn keep(&self, packet: &mut Vec<u8>) {
        self.state().retained.keep(packet);
    }

    /// No other connection will come: sent packets are dropped, and nothing waits for acknowledgements.
    pub fn let_go(&self) {
        let mut state = self.state();
        state.retained.let_go();
        self.nudge(&mut state);
    }

    /// Marks the connection as ended: its writer stops, and queued items wait.
    pub fn sever(&self) {
        let mut state = self.state();
        state.severed = true;
        self.nudge(&mut state);
    }

    /// Another process goes on with the session: nothing is sent, and no sender waits.
    pub fn yield_up(&self) {
        let mut state = self.state();
        (state.severed, state.yields) = (true, true);
        self.nudge(&mut state);
        self.room.wake(&mut state);
    }

    /// Everything that waits, for the process that goes on with the session. Nothing is queued any more.
    pub fn save(&self, to: &mut Encoder) {
        let state = self.state();
        state.retained.save(to);
        self.pieces.save(to);
        to.word(state.first.credits().len() as u64);
        for (lane, bytes) in state.first.credits() {
            to.word(u64::from(*lane));
            to.word(*bytes);
        }
        to.word(state.lanes.len() as u64);
        for (number, lane) in &state.lanes {
            to.word(u64::from(*number));
            [lane.credit as u64, u64::from(lane.over), lane.queue.len() as u64]
                .into_iter()
                .for_each(|word| to.word(word));
            lane.queue.iter().for_each(|item| item.save(to));
        }
    }

    /// As another process has left it; there is no connection yet.
    pub fn restored(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let outbox = Outbox::default();
        let mut state = outbox.state();
        (state.retained, state.severed) = (Retained::restored(from, MAX_RETAINED_BYTES)?, true);
        let pieces = Pieces::restored(from)?;
        for _ in 0..from.word()? {
            let lane = from.word()? as u32;
            state.first.grant(lane, from.word()?);
        }
        for _ in 0..from.word()? {
            let number = from.word()? as u32;
            let [credit, over, count] = [from.word()?, from.word()?, from.word()?];
            let credit = (credit as i64).min(CREDIT_BYTES as i64);
            let mut lane = OutboxLane { credit, over: over != 0, ..OutboxLane::new() };
            for _ in 0..count {
                let item = Item::restored(from)?;
                state.held += item.held();
                lane.queued += item.message_bytes();
                lane.queue.push_back(item);
            }
            if !lane.queue.is_empty() {
                state.turns.push_back(number);
                state.urgent = true;
            }
            state.lanes.insert(number, lane);
        }
        drop(state);
        Ok(Outbox { pieces, ..outbox })
    }

    /// A new connection, on which the peer continues after `received` packets.
    pub fn relink(&self, received: u64) -> Result<(), AckError> {
        let mut state = self.state();
        state.retained.rewind(received)?;
        // Waiting signs were for the previous connection.
        (state.first.ping, state.first.pong, state.first.ack) = (None, None, None);
        state.severed = false;
        state.sending.renew();
        Ok(())
    }

    /// Copies the first kept packet from number `at` on into `packet`, and waiting signs into `signs`. Returns the number of
    /// the packet after it. `None`: all were sent again, or there is no connection.
    pub fn again(&self, at: u64, packet: &mut Vec<u8>, signs: &mut Vec<u8>) -> Option<u64> {
        let mut state = self.state();
        if state.severed || state.dead {
            return None;
        }
        let (number, bytes) = state.retained.from(at)?;
        packet.clear();
        packet.extend_from_slice(bytes);
        state.first.put_signs(signs);
        Some(number + 1)
    }

    /// Allows the peer to send `bytes` further message bytes on this lane.
    pub fn grant(&self, lane: u32, bytes: u64) {
        self.first(|first| first.grant(lane, bytes));
    }

    /// Sends the reason of the session's end. The peer reads nothing after it.
    pub fn farewell(&self, reason: &str) {
        self.first(|first| first.part(reason));
    }

    /// Queues a control message behind everything on its lane. Waits while too much is queued.
    pub fn control(&self, lane: u32, payload: &[u8]) -> Result<(), Over> {
        let mut state = self.with_room(lane)?;
        let mut frame = Vec::new();
        put_frame(&mut frame, Kind::Control, lane, payload);
        state.small(lane, &frame, 0);
        state.urgent = true;
        self.nudge(&mut state);
        Ok(())
    }

    /// Waits while too much is queued, on this lane or on all together.
    fn with_room(&self, lane: u32) -> Result<MutexGuard<'_, OutboxState>, Over> {
        let mut state = self.state();
        while !state.has_room(lane, self.most) && !state.yields && !state.dead && !state.finished {
            state = self.room.wait(state);
        }
        if state.dead || state.finished { Err(Over) } else { Ok(state) }
    }

    /// Queues the small messages in `gathered` and empties it. Waits while too much is queued. True: `packet` is the next
    /// packet, and the caller sends it and calls [`Outbox::sent`].
    pub fn send_gathered(
        &self,
        lane: u32,
        gathered: &mut Gathered,
        arena: &Arena,
        packet: &mut Packet,
    ) -> Result<bool, Over> {
        if gathered.frames.is_empty() {
            return Ok(false);
        }
        let mut state = self.with_gathered(lane, gathered)?;
        Ok(self.begin(&mut state, arena, packet))
    }

    fn with_gathered(&self, lane: u32, gathered: &mut Gathered) -> Result<MutexGuard<'_, OutboxState>, Over> {
        let mut state = self.with_room(lane)?;
        state.small(lane, &gathered.frames, gathered.bytes);
        state.queued(lane, gathered.bytes, gathered.urgent);
        gathered.frames.clear();
        (gathered.bytes, gathered.urgent) = (0, false);
        Ok(state)
    }

    /// Messages of `bytes` bytes are in the ring: grants the remote peer new credit, in steps.
    pub fn delivered(&self, lane: u32, sum: &mut usize, bytes: usize) {
        *sum += bytes;
        if *sum >= CREDIT_BYTES / 4 {
            self.grant(lane, *sum as u64);
            *sum = 0;
        }
    }

    /// Queues a message and the regions that must arrive before it. Waits while too much is queued.
    pub fn message(&self, lane: u32, message: &[u8], regions: Vec<Region>, urgent: bool) -> Result<(), Over> {
        let mut state = self.with_message(lane, message, regions, urgent)?;
        self.wake_for(&mut state);
        Ok(())
    }

    /// As [`Outbox::message`]. True: as of [`Outbox::send_gathered`].
    pub fn send_message(
        &self,
        lane: u32,
        message: &[u8],
        regions: Vec<Region>,
        urgent: bool,
        arena: &Arena,
        packet: &mut Packet,
    ) -> Result<bool, Over> {
        let mut state = self.with_message(lane, message, regions, urgent)?;
        Ok(self.begin(&mut state, arena, packet))
    }

    fn with_message(
        &self,
        lane: u32,
        message: &[u8],
        regions: Vec<Region>,
        urgent: bool,
    ) -> Result<MutexGuard<'_, OutboxState>, Over> {
        let mut alone = Gathered::new(lane);
        if regions.is_empty() && alone.take(message, urgent) {
            return self.with_gathered(lane, &mut alone);
        }
        let mut state = self.with_room(lane)?;
        state.push(lane, Item::Bulk(Bulk::new(regions, message)));
        state.queued(lane, message.len(), urgent);
        state.gathered += MAX_GATHERED_BYTES;
        Ok(state)
    }

    /// After the thread of a lane has queued something: gives it the turn to send, if somebody waits for the message and nobody
    /// sends; otherwise wakes the writer, if it is the writer's.
    fn begin(&self, state: &mut MutexGuard<'_, OutboxState>, arena: &Arena, packet: &mut Packet) -> bool {
        if !state.urgent || state.is_ending() || !state.retained.has_room() || !state.sending.lend() {
            self.wake_for(state);
            return false;
        }
        packet.clear();
        packet.sent = 0;
        if state.next_packet(arena, &mut packet.signs, &mut packet.frames, LEAST_PIECE, &self.pieces) {
            self.room.wake(state);
            return true;
        }
        // Without credit. The writer does not want the turn, because the lock was held all the time.
        state.sending.leave(false);
        false
    }

    /// The thread of a lane has sent its packet. `rest`: the socket took no more of it. True: `packet` is the next one; false:
    /// somebody else's turn.
    pub fn sent(&self, arena: &Arena, packet: &mut Packet, rest: bool) -> bool {
        let mut state = self.state();
        // It has its number, whether or not the connection took it.
        packet.encode(false);
        if packet.is_numbered() {
            state.retained.keep(&mut packet.encoded);
        }
        packet.clear();
        packet.sent += 1;
        if rest {
            state.sending.leave_rest();
            self.ready.wake(&mut state);
            return false;
        }
        let goes_on = packet.sent < MAX_PACKETS_OF_LANE && !state.is_ending() && state.has_only_small();
        if goes_on && state.next_packet(arena, &mut packet.signs, &mut packet.frames, LEAST_PIECE, &self.pieces) {
            self.room.wake(&mut state);
            return true;
        }
        let more = state.is_ending() || state.first.waits() || !state.turns.is_empty();
        if state.sending.leave(more) {
            self.ready.wake(&mut state);
        }
        false
    }

    /// A strand has broken: if there is no other one the writer sends what it had.
    pub fn strand_broke(&self, strand: u64) {
        self.pieces.broke(strand);
        self.ready.wake(&mut self.state());
    }

    /// A strand has taken a piece: what waits for that goes on.
    pub fn piece_taken(&self) {
        if self.pieces.is_hungry() {
            self.ready.wake(&mut self.state());
        }
    }

    /// Wakes the writer, unless it lingers and will look again by itself.
    fn wake_for(&self, state: &mut MutexGuard<'_, OutboxState>) {
        if !state.lingers || state.urgent || state.gathered >= MAX_GATHERED_BYTES {
            self.nudge(state);
        }
    }

    /// The peer accepts `bytes` further message bytes on this lane.
    pub fn credit(&self, lane: u32, bytes: u64) {
        let mut state = self.state();
        if let Some(lane) = state.lanes.get_mut(&lane) {
            let more = i64::try_from(bytes).unwrap_or(CREDIT_BYTES as i64);
            // A peer that grants too much only hurts itself.
            lane.credit = lane.credit.saturating_add(more).min(CREDIT_BYTES as i64);
        }
        self.nudge(&mut state);
    }

    /// The lane has ended: its entry is removed once its queued items were sent.
    pub fn forget(&self, number: u32) {
        let mut state = self.state();
        state.first.forget(number);
        if let Some(lane) = state.lanes.get_mut(&number) {
            lane.over = true;
            if lane.queue.is_empty() {
                state.lanes.remove(&number);
            }
        }
    }

    /// Memory of everything that waits to be sent, in bytes.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        let state = self.state();
        state.held + state.lanes.len() * size_of::<OutboxLane>() + state.first.held() + state.retained.held()
    }

    /// Ends the outbox after the queued frames were sent.
    pub fn finish(&self) {
        let mut state = self.state();
        state.finished = true;
        self.nudge(&mut state);
        self.room.wake(&mut state);
    }

    pub fn kill(&self) {
        let mut state = self.state();
        state.dead = true;
        self.nudge(&mut state);
        self.room.wake(&mut state);
    }

    /// The writer's: waits for its turn and for something to send; puts signs into `signs` and appends the frames of the next
    /// numbered packet to `out`, with at most `piece` bytes of bulk data. If no thread waits for the messages it lingers up
    /// to `linger` longer, because further ones will probably follow. Returns after `idle` in any case. While the peer has
    /// too many packets to acknowledge, only signs are sent.
    pub fn next(
        &self,
        arena: &Arena,
        signs: &mut Vec<u8>,
        out: &mut Vec<u8>,
        piece: usize,
        linger: Duration,
        idle: Duration,
    ) -> Next {
        let until = Instant::now() + idle;
        let mut state = self.state();
        loop {
            while !state.sending.take() {
                state = self.ready.wait(state);
            }
            if state.dead {
                return Next::Finished;
            }
            if state.severed {
                return Next::Severed;
            }
            if state.sending.take_rest() {
                return Next::Rest;
            }
            let now = Instant::now();
            let lingers = match state.since {
                Some(since) if !state.urgent && !state.finished && state.gathered < MAX_GATHERED_BYTES => {
                    since + linger
                }
                _ => now,
            };
            if lingers <= now {
                if state.next_packet(arena, signs, out, piece, &self.pieces) {
                    self.room.wake(&mut state);
                    return Next::Packet;
                }
                if state.finished {
                    return Next::Finished;
                }
            }
            if until <= now {
                return Next::Idle;
            }
            let end = if lingers > now { lingers.min(until) } else { until };
            state.lingers = lingers > now;
            state.sending.free();
            state = self.ready.wait_for(state, end.saturating_duration_since(now));
        }
    }
}

#[cfg(test)]
#[path = "outbox_tests.rs"]
mod tests;
