//! Frames that wait to be sent: order within lanes, turns between them, credits.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aviary_transport::{Arena, Region};

use crate::first::First;
use crate::frame::{Kind, MAX_FRAGMENT_BYTES, put_frame, put_header};

/// Bytes of messages that may be on the way on one lane.
pub const CREDIT_BYTES: usize = 1 << 20;
/// A longer message is cut into pieces and takes turns.
const MAX_UNSPLIT_BYTES: usize = 16 << 10;
/// Small messages are gathered up to this size.
const MAX_GATHERED_BYTES: usize = 32 << 10;
/// A thread that gathers passes it on at this size.
const BATCH_BYTES: usize = 4 << 10;
/// When so much is gathered a packet is full.
const FULL_PACKET_BYTES: usize = 64 << 10;
/// Cost of a region in bytes besides its own.
const REGION_COST: usize = 32;
/// Bytes of messages that may wait on one lane before its sender waits, too.
const MAX_QUEUED_BYTES: usize = 1 << 20;
/// Bytes that may wait on all lanes together before every sender waits: a peer that reads nothing makes this process hold
/// no more, however many lanes it has opened. Honest peers stay far below it, because they read.
const ALL_QUEUED: usize = 512 << 20;
/// Memory of a queue's entry besides its payload, in bytes, its lane's entry included.
const ITEM_COST: usize = 256;

/// the connection is over
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Over;

enum Item {
    /// Encoded frames of small messages, and how many bytes of messages they hold.
    Small {
        frames: Vec<u8>,
        bytes: usize,
    },
    Bulk(Bulk),
}

/// A message with its regions, sent piece by piece.
struct Bulk {
    regions: VecDeque<Region>,
    /// How many regions there were at first.
    listed: usize,
    message: Vec<u8>,
    sent: usize,
}

impl Item {
    /// Bytes of memory that go with it.
    fn held(&self) -> usize {
        ITEM_COST
            + match self {
                Item::Small { frames, .. } => frames.len(),
                Item::Bulk(bulk) => bulk.message.len() + bulk.listed * size_of::<Region>(),
            }
    }
}

struct OutboxLane {
    queue: VecDeque<Item>,
    /// Bytes of messages in the queue.
    queued: usize,
    /// Bytes of messages that the peer takes now; what is sent may exceed it once.
    credit: i64,
    /// Nothing more is queued; what is there is still sent.
    over: bool,
}

impl OutboxLane {
    fn new() -> Self {
        OutboxLane { queue: VecDeque::new(), queued: 0, credit: CREDIT_BYTES as i64, over: false }
    }

    /// Forgetting it changes nothing: it is over, or a new one would look alike.
    fn is_dispensable(&self) -> bool {
        self.queue.is_empty() && (self.over || self.credit == CREDIT_BYTES as i64)
    }
}

#[derive(Default)]
struct OutboxState {
    first: First,
    lanes: HashMap<u32, OutboxLane>,
    /// Bytes of memory that the queues of all lanes hold.
    held: usize,
    /// Lanes with something queued, each once.
    turns: VecDeque<u32>,
    /// Somebody waits for what is queued, as far as known.
    urgent: bool,
    /// When the first of what is not urgent was queued.
    since: Option<Instant>,
    /// Bytes of messages queued since the queues were last empty.
    gathered: usize,
    writer_waits: bool,
    /// The writer waits for more to come before it sends what there is.
    lingers: bool,
    /// Remaining frames are sent, then no more.
    finished: bool,
    dead: bool,
}

/// Small messages of one lane that are queued together.
pub struct Gathered {
    lane: u32,
    frames: Vec<u8>,
    bytes: usize,
    urgent: bool,
}

impl Gathered {
    pub fn new(lane: u32) -> Self {
        Gathered { lane, frames: Vec::new(), bytes: 0, urgent: false }
    }

    /// False: the message is too long and goes alone.
    pub fn take(&mut self, message: &[u8], urgent: bool) -> bool {
        if message.len() > MAX_UNSPLIT_BYTES {
            return false;
        }
        put_frame(&mut self.frames, Kind::Message, self.lane, message);
        self.bytes += message.len();
        self.urgent |= urgent;
        true
    }

    pub fn is_full(&self) -> bool {
        self.frames.len() >= BATCH_BYTES
    }
}

pub struct Outbox {
    state: Mutex<OutboxState>,
    ready: Condvar,
    room: Condvar,
    /// Bytes of memory that may wait before every sender waits.
    most: usize,
}

impl Default for Outbox {
    fn default() -> Self {
        Outbox::holding(ALL_QUEUED)
    }
}

/// The writer's next step.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Packet,
    /// Nothing to send for the given time.
    Idle,
    /// Everything was sent and nothing follows.
    Finished,
}

impl Outbox {
    fn holding(most: usize) -> Self {
        Outbox { state: Mutex::default(), ready: Condvar::default(), room: Condvar::default(), most }
    }

    fn state(&self) -> MutexGuard<'_, OutboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, state: &mut OutboxState) {
        if std::mem::take(&mut state.writer_waits) {
            self.ready.notify_one();
        }
    }

    fn first(&self, set: impl FnOnce(&mut First)) {
        let mut state = self.state();
        set(&mut state.first);
        state.urgent = true;
        self.wake(&mut state);
    }

    /// Asks for a sign of life; `time` comes back.
    pub fn ping(&self, time: u64) {
        self.first(|first| first.ping = Some(time));
    }

    /// Answers a ping.
    pub fn pong(&self, time: u64) {
        self.first(|first| first.pong = Some(time));
    }

    /// The peer may send so many more bytes of messages on this lane.
    pub fn grant(&self, lane: u32, bytes: u64) {
        self.first(|first| first.grant(lane, bytes));
    }

    /// Says why the connection ends. The peer reads nothing after it.
    pub fn farewell(&self, reason: &str) {
        self.first(|first| first.part(reason));
    }

    /// A control message, after everything that is queued on its lane. Waits while much is queued.
    pub fn control(&self, lane: u32, payload: &[u8]) -> Result<(), Over> {
        let mut state = self.with_room(lane)?;
        let mut frame = Vec::new();
        put_frame(&mut frame, Kind::Control, lane, payload);
        state.small(lane, &frame, 0);
        state.urgent = true;
        self.wake(&mut state);
        Ok(())
    }

    /// Waits while much is queued, on the lane or altogether.
    fn with_room(&self, lane: u32) -> Result<MutexGuard<'_, OutboxState>, Over> {
        let mut state = self.state();
        while !state.has_room(lane, self.most) && !state.dead && !state.finished {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.dead || state.finished { Err(Over) } else { Ok(state) }
    }

    /// Small messages, which are taken out of `gathered`.
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

    /// A message and the regions that go before it. Waits while much is queued on its lane.
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

    /// A writer that lingers looks again by itself.
    fn wake_for(&self, state: &mut OutboxState) {
        if !state.lingers || state.urgent || state.gathered >= MAX_GATHERED_BYTES {
            self.wake(state);
        }
    }

    /// The peer takes more.
    pub fn credit(&self, lane: u32, bytes: u64) {
        let mut state = self.state();
        if let Some(lane) = state.lanes.get_mut(&lane) {
            let more = i64::try_from(bytes).unwrap_or(CREDIT_BYTES as i64);
            // A peer that grants too much only hurts itself.
            lane.credit = lane.credit.saturating_add(more).min(CREDIT_BYTES as i64);
        }
        self.wake(&mut state);
    }

    /// The lane is over: nothing more is queued on it, and nothing of it is remembered once what is queued was sent.
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

    /// Bytes of memory that wait to be sent, what goes first included.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        let state = self.state();
        state.held + state.lanes.len() * size_of::<OutboxLane>() + state.first.held()
    }

    /// Queued frames are still sent.
    pub fn finish(&self) {
        let mut state = self.state();
        state.finished = true;
        self.wake(&mut state);
        self.room.notify_all();
    }

    pub fn kill(&self) {
        let mut state = self.state();
        state.dead = true;
        self.wake(&mut state);
        self.room.notify_all();
    }

    /// Puts frames of what should go next into `out`. Waits for something; for messages that nobody waits for,
    /// up to `linger` longer, because others will probably follow. Wakes up after `idle` in any case.
    pub fn next(&self, arena: &Arena, out: &mut Vec<u8>, linger: Duration, idle: Duration) -> Next {
        let until = Instant::now() + idle;
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
            if lingers <= now {
                state.fill(arena, out);
                if !out.is_empty() {
                    if state.turns.is_empty() {
                        (state.urgent, state.since, state.gathered) = (false, None, 0);
                    }
                    self.room.notify_all();
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
            (state.writer_waits, state.lingers) = (true, lingers > now);
            (state, _) = self
                .ready
                .wait_timeout(state, end.saturating_duration_since(now))
                .unwrap_or_else(PoisonError::into_inner);
            state.writer_waits = false;
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

    /// Queues small frames, with so many bytes of messages in them, together with the lane's last ones.
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

    fn fill(&mut self, arena: &Arena, out: &mut Vec<u8>) {
        self.first.put(out);
        self.fill_small(out);
        self.fill_bulk(arena, out);
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

    /// Small messages of all lanes.
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

    /// One piece of the first lane whose turn it is.
    fn fill_bulk(&mut self, arena: &Arena, out: &mut Vec<u8>) {
        for _ in 0..self.turns.len() {
            let Some(number) = self.turns.pop_front() else { return };
            self.turns.push_back(number);
            let Some(lane) = self.lanes.get_mut(&number) else { continue };
            let Some(Item::Bulk(bulk)) = lane.queue.front_mut() else { continue };
            // A message that was begun is finished: credit comes back when it was delivered as a whole.
            if bulk.regions.is_empty() && bulk.sent == 0 && lane.credit <= 0 {
                continue;
            }
            let sent = bulk.piece(number, arena, out);
            lane.credit -= sent as i64;
            lane.queued -= sent;
            if bulk.regions.is_empty() && bulk.sent == bulk.message.len() {
                self.held -= lane.queue.pop_front().as_ref().map_or(0, Item::held);
            }
            return;
        }
    }
}

impl Bulk {
    /// Appends the next piece; says how many bytes of the message it holds.
    fn piece(&mut self, lane: u32, arena: &Arena, out: &mut Vec<u8>) -> usize {
        let mut left = MAX_FRAGMENT_BYTES;
        while left > 0 {
            let Some(region) = self.regions.front_mut() else { break };
            let length = region.length.min(left);
            put_header(out, Kind::Region, false, lane, 8 + length);
            out.extend_from_slice(&region.offset.to_le_bytes());
            if arena.read(region.offset, length, out).is_err() {
                // Regions are checked before they are queued; the frame must still be whole.
                out.resize(out.len() + length, 0);
            }
            left = left.saturating_sub(length + REGION_COST);
            if length == region.length {
                self.regions.pop_front();
            } else {
                region.offset += length as u64;
                region.length -= length;
            }
        }
        // A message that is small goes along with the last of its regions.
        if !self.regions.is_empty() || (left < MAX_FRAGMENT_BYTES && self.message.len() > MAX_UNSPLIT_BYTES) {
            return 0;
        }
        let rest = &self.message[self.sent..];
        let part = rest.len().min(MAX_FRAGMENT_BYTES);
        put_header(out, Kind::Message, part < rest.len(), lane, part);
        out.extend_from_slice(&rest[..part]);
        self.sent += part;
        part
    }
}

#[cfg(test)]
#[path = "outbox_tests.rs"]
mod tests;
