//! Frames that wait to be sent: keeps the order within each lane, gives lanes turns, and counts credits. Filled by the
//! threads of a carrier, emptied by the network writer. A peer that reads nothing or acknowledges nothing makes it hold at
//! most [`ALL_QUEUED`] and [`MAX_RETAINED_BYTES`]; then the senders wait.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aviary_transport::{Arena, Region};
use aviary_wire::{DecodeError, Decoder, Encoder};

use crate::carry::handing::sleepers::Sleepers;
use crate::carry::retained::{AckError, Retained};
use crate::frames::first::First;
use crate::frames::frame::{Kind, MAX_PACKET, put_frame};
use crate::frames::items::{Bulk, Gathered, Item, PIECE_COST};

/// The most message bytes of one lane that are sent and not yet delivered by the peer.
pub const CREDIT_BYTES: usize = 1 << 20;
/// The most bytes of small messages that wait for further ones before they are sent.
const MAX_GATHERED_BYTES: usize = 32 << 10;
/// The size in bytes from which on a packet takes no further small messages.
const FULL_PACKET_BYTES: usize = 64 << 10;
/// The most message bytes that wait on one lane before its sender waits.
const MAX_QUEUED_BYTES: usize = 1 << 20;
/// The most bytes that wait on all lanes together before every sender waits: the bound for a peer that reads nothing,
/// however many lanes it has opened. Honest peers read and stay far below it.
const ALL_QUEUED: usize = 512 << 20;
/// The most memory, in bytes, of packets that the peer has not acknowledged: more than the data in flight of a connection,
/// which the kernel usually bounds by 6 MiB.
const MAX_RETAINED_BYTES: usize = 16 << 20;
/// The session has ended: nothing more is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Over;

struct OutboxLane {
    queue: VecDeque<Item>,
    /// Message bytes in the queue.
    queued: usize,
    /// Message bytes that the peer accepts now; the last piece sent may exceed it.
    credit: i64,
    /// The lane has ended: nothing more is queued, the rest is still sent.
    over: bool,
}

impl OutboxLane {
    fn new() -> Self {
        OutboxLane { queue: VecDeque::new(), queued: 0, credit: CREDIT_BYTES as i64, over: false }
    }

    /// True if removing the lane's entry changes nothing: it has ended, or equals a new one.
    fn is_dispensable(&self) -> bool {
        self.queue.is_empty() && (self.over || self.credit == CREDIT_BYTES as i64)
    }
}

struct OutboxState {
    first: First,
    /// Packets that were sent and not acknowledged.
    retained: Retained,
    lanes: HashMap<u32, OutboxLane>,
    /// Memory of the queues of all lanes, in bytes.
    held: usize,
    /// Lanes with queued items, each once, in the order of their turns.
    turns: VecDeque<u32>,
    /// A thread probably waits for the answer to a queued message, so it is sent at once.
    urgent: bool,
    /// The time at which the first message that is not urgent was queued.
    since: Option<Instant>,
    /// Message bytes queued since the queues were last empty.
    gathered: usize,
    /// The writer waits for further messages before it sends the queued ones.
    lingers: bool,
    /// There is no connection: queued items wait for the next one.
    severed: bool,
    /// Another process goes on with the session: no sender waits, as it could not stop then.
    yields: bool,
    /// The session ends: the remaining frames are sent, then nothing.
    finished: bool,
    dead: bool,
}

pub struct Outbox {
    state: Mutex<OutboxState>,
    /// The writer waits for something to send.
    ready: Sleepers,
    /// Senders wait for room.
    room: Sleepers,
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
        let state = OutboxState {
            first: First::default(),
            retained: Retained::new(retained),
            lanes: HashMap::new(),
            held: 0,
            turns: VecDeque::new(),
            urgent: false,
            since: None,
            gathered: 0,
            lingers: false,
            severed: false,
            yields: false,
            finished: false,
            dead: false,
        };
        Outbox { state: Mutex::new(state), ready: Sleepers::default(), room: Sleepers::default(), most }
    }

    fn state(&self) -> MutexGuard<'_, OutboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn first(&self, set: impl FnOnce(&mut First)) {
        let mut state = self.state();
        set(&mut state.first);
        state.urgent = true;
        self.ready.wake(&mut state);
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
            self.ready.wake(&mut state);
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
        self.ready.wake(&mut state);
    }

    /// Marks the connection as ended: its writer stops, and queued items wait.
    pub fn sever(&self) {
        let mut state = self.state();
        state.severed = true;
        self.ready.wake(&mut state);
    }

    /// Another process goes on with the session: nothing is sent, and no sender waits.
    pub fn yield_up(&self) {
        let mut state = self.state();
        (state.severed, state.yields) = (true, true);
        self.ready.wake(&mut state);
        self.room.wake(&mut state);
    }

    /// Everything that waits, for the process that goes on with the session. Nothing is queued any more.
    pub fn save(&self, to: &mut Encoder) {
        let state = self.state();
        state.retained.save(to);
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
        Ok(outbox)
    }

    /// A new connection, on which the peer continues after `received` packets.
    pub fn relink(&self, received: u64) -> Result<(), AckError> {
        let mut state = self.state();
        state.retained.rewind(received)?;
        // Waiting signs were for the previous connection.
        (state.first.ping, state.first.pong, state.first.ack) = (None, None, None);
        state.severed = false;
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
        self.ready.wake(&mut state);
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

    /// Queues the small messages in `gathered` and empties it.
    pub fn gathered(&self, lane: u32, gathered: &mut Gathered) -> Result<(), Over> {
        if gathered.frames.is_empty() {
            return Ok(());
        }
        let mut state = self.with_room(lane)?;
        state.small(lane, &gathered.frames, gathered.bytes);
        state.queued(lane, gathered.bytes, gathered.urgent);
        self.wake_for(&mut state);
        gathered.frames.clear();
        (gathered.bytes, gathered.urgent) = (0, false);
        Ok(())
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
        let mut alone = Gathered::new(lane);
        if regions.is_empty() && alone.take(message, urgent) {
            return self.gathered(lane, &mut alone);
        }
        let mut state = self.with_room(lane)?;
        let listed = regions.len();
        state.push(lane, Item::Bulk(Bulk { regions: regions.into(), listed, message: message.to_vec(), sent: 0 }));
        state.queued(lane, message.len(), urgent);
        state.gathered += MAX_GATHERED_BYTES;
        self.wake_for(&mut state);
        Ok(())
    }

    /// Wakes the writer, unless it lingers and will look again by itself.
    fn wake_for(&self, state: &mut MutexGuard<'_, OutboxState>) {
        if !state.lingers || state.urgent || state.gathered >= MAX_GATHERED_BYTES {
            self.ready.wake(state);
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
        self.ready.wake(&mut state);
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
        self.ready.wake(&mut state);
        self.room.wake(&mut state);
    }

    pub fn kill(&self) {
        let mut state = self.state();
        state.dead = true;
        self.ready.wake(&mut state);
        self.room.wake(&mut state);
    }

    /// Waits for something to send; puts signs into `signs` and appends the frames of the next numbered packet to `out`, with at most
    /// `piece` bytes of bulk data. If no thread
    /// waits for the messages it lingers up to `linger` longer, because further ones will probably follow. Returns after
    /// `idle` in any case. While the peer has too many packets to acknowledge, only signs are sent.
    pub fn next(
        &self,
        arena: &Arena,
        signs: &mut Vec<u8>,
        out: &mut Vec<u8>,
        piece: usize,
        linger: Duration,
        idle: Duration,
    ) -> Next {
        let (until, empty) = (Instant::now() + idle, out.len());
        let mut state = self.state();
        loop {
            if state.dead {
                return Next::Finished;
            }
            let now = Instant::now();
            let lingers = match state.since {
                Some(since) if !state.urgent && !state.finished && state.gathered < MAX_GATHERED_BYTES => {
                    since + linger
                }
                _ => now,
            };
            if state.severed {
                return Next::Severed;
            }
            let has_room = state.retained.has_room();
            if lingers <= now {
                state.first.put_signs(signs);
                if has_room {
                    state.fill(arena, out, piece);
                    if out.len() > empty {
                        state.retained.number();
                    }
                }
                if out.len() > empty || !signs.is_empty() {
                    if state.turns.is_empty() {
                        (state.urgent, state.since, state.gathered) = (false, None, 0);
                    }
                    self.room.wake(&mut state);
                    return Next::Packet;
                }
                if state.finished {
                    return Next::Finished;
                }
            }
            let end = if lingers > now { lingers.min(until) } else { until };
            if until <= now {
                return Next::Idle;
            }
            state.lingers = lingers > now;
            state = self.ready.wait_for(state, end.saturating_duration_since(now));
        }
    }
}

impl OutboxState {
    fn lane(&mut self, number: u32) -> &mut OutboxLane {
        self.lanes.entry(number).or_insert_with(OutboxLane::new)
    }

    /// Accounts for messages that were queued.
    fn queued(&mut self, number: u32, bytes: usize, urgent: bool) {
        self.lane(number).queued += bytes;
        self.gathered += bytes;
        self.urgent |= urgent;
        self.since.get_or_insert_with(Instant::now);
    }

    fn has_room(&self, number: u32, most: usize) -> bool {
        let much = |lane: &OutboxLane| lane.queued > MAX_QUEUED_BYTES;
        self.held <= most && !self.lanes.get(&number).is_some_and(much)
    }

    fn push(&mut self, number: u32, item: Item) {
        self.held += item.held();
        if self.lane(number).queue.is_empty() {
            self.turns.push_back(number);
        }
        self.lane(number).queue.push_back(item);
    }

    /// Queues small frames that contain `messages` message bytes, merged with the lane's last ones.
    fn small(&mut self, number: u32, more: &[u8], messages: usize) {
        match self.lane(number).queue.back_mut() {
            Some(Item::Small { frames, bytes }) if frames.len() < MAX_GATHERED_BYTES => {
                frames.extend_from_slice(more);
                *bytes += messages;
                self.held += more.len();
            }
            _ => self.push(number, Item::Small { frames: more.to_vec(), bytes: messages }),
        }
    }

    fn fill(&mut self, arena: &Arena, out: &mut Vec<u8>, piece: usize) {
        self.first.put(out);
        self.fill_small(out);
        self.fill_bulk(arena, out, piece);
        let OutboxState { turns, lanes, .. } = self;
        turns.retain(|number| {
            let Some(lane) = lanes.get(number) else { return false };
            if lane.is_dispensable() {
                lanes.remove(number);
                return false;
            }
            !lane.queue.is_empty()
        });
    }

    /// Adds small messages of all lanes.
    fn fill_small(&mut self, out: &mut Vec<u8>) {
        for _ in 0..self.turns.len() {
            let Some(number) = self.turns.pop_front() else { return };
            self.turns.push_back(number);
            let Some(lane) = self.lanes.get_mut(&number) else { continue };
            while out.len() < FULL_PACKET_BYTES && lane.credit > 0 {
                let Some(Item::Small { .. }) = lane.queue.front() else { break };
                let item = lane.queue.pop_front();
                self.held -= item.as_ref().map_or(0, Item::held);
                if let Some(Item::Small { frames, bytes }) = item {
                    out.extend_from_slice(&frames);
                    lane.credit -= bytes as i64;
                    lane.queued -= bytes;
                }
            }
        }
    }

    /// Adds one piece of bulk data, of the first lane in turn, of `piece` bytes at most.
    fn fill_bulk(&mut self, arena: &Arena, out: &mut Vec<u8>, piece: usize) {
        let piece = piece.min((MAX_PACKET - PIECE_COST).saturating_sub(out.len()));
        if piece == 0 {
            return;
        }
        for _ in 0..self.turns.len() {
            let Some(number) = self.turns.pop_front() else { return };
            self.turns.push_back(number);
            let Some(lane) = self.lanes.get_mut(&number) else { continue };
            let Some(Item::Bulk(bulk)) = lane.queue.front_mut() else { continue };
            // A message that was begun is sent to its end: the peer returns its credit after the whole message.
            if bulk.regions.is_empty() && bulk.sent == 0 && lane.credit <= 0 {
                continue;
            }
            let sent = bulk.piece(number, arena, out, piece);
            lane.credit -= sent as i64;
            lane.queued -= sent;
            if bulk.regions.is_empty() && bulk.sent == bulk.message.len() {
                self.held -= lane.queue.pop_front().as_ref().map_or(0, Item::held);
            }
            return;
        }
    }
}

#[cfg(test)]
#[path = "outbox_tests.rs"]
mod tests;
