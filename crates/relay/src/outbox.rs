//! Frames that wait to be sent: order within lanes, turns between them, credits.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aviary_transport::{Arena, Region};

use crate::first::First;
use crate::frame::{Kind, put_frame};
use crate::items::{Bulk, Gathered, Item};
use crate::retained::{AckError, Retained};

/// Bytes of messages that may be on the way on one lane.
pub const CREDIT_BYTES: usize = 1 << 20;
/// Small messages are gathered up to this size.
const MAX_GATHERED_BYTES: usize = 32 << 10;
/// When so much is gathered a packet is full.
const FULL_PACKET_BYTES: usize = 64 << 10;
/// Bytes of messages that may wait on one lane before its sender waits, too.
const MAX_QUEUED_BYTES: usize = 1 << 20;
/// Bytes that may wait on all lanes together before every sender waits: a peer that reads nothing makes this process hold
/// no more, however many lanes it has opened. Honest peers stay far below it, because they read.
const ALL_QUEUED: usize = 512 << 20;
/// Bytes of memory of packets that the peer has not acknowledged: more than a link has on its way, which the kernel bounds
/// by 6 MiB as a rule.
const MAX_RETAINED_BYTES: usize = 16 << 20;
/// the connection is over
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Over;

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

struct OutboxState {
    first: First,
    /// Of what was sent.
    retained: Retained,
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
    /// The connection is gone: what is queued waits for another one.
    severed: bool,
    /// Remaining frames are sent, then no more.
    finished: bool,
    dead: bool,
}

pub struct Outbox {
    state: Mutex<OutboxState>,
    ready: Condvar,
    room: Condvar,
    /// Bytes of memory that may wait before every sender waits.
    most: usize,
}

impl Default for Outbox {
    /// Sent packets are sent again on another connection, unless they were acknowledged.
    fn default() -> Self {
        Outbox::holding(ALL_QUEUED, Some(MAX_RETAINED_BYTES))
    }
}

/// The writer's next step.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Packet,
    /// Nothing to send for the given time.
    Idle,
    /// The connection is gone.
    Severed,
    /// Everything was sent and nothing follows.
    Finished,
}

impl Outbox {
    /// Nothing that was sent is kept: the connection is the only one.
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
            writer_waits: false,
            lingers: false,
            severed: false,
            finished: false,
            dead: false,
        };
        Outbox { state: Mutex::new(state), ready: Condvar::default(), room: Condvar::default(), most }
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

    /// Answers a ping, and says how many numbered packets have arrived.
    pub fn pong(&self, time: u64, received: u64) {
        self.first(|first| (first.pong, first.ack) = (Some(time), Some(received)));
    }

    /// So many numbered packets have arrived from the peer.
    pub fn ack(&self, received: u64) {
        self.first(|first| first.ack = Some(received));
    }

    /// The peer says that so many packets have arrived.
    pub fn acknowledged(&self, count: u64) -> Result<(), AckError> {
        let mut state = self.state();
        let full = !state.retained.has_room();
        state.retained.acknowledge(count)?;
        if full {
            self.wake(&mut state);
        }
        Ok(())
    }

    /// Keeps a packet that [`Outbox::next`] made until the peer has it, and leaves memory for the next one.
    pub fn keep(&self, packet: &mut Vec<u8>) {
        self.state().retained.keep(packet);
    }

    /// No other connection comes: nothing that was sent is kept, and nothing waits for acknowledgements.
    pub fn let_go(&self) {
        let mut state = self.state();
        state.retained.let_go();
        self.wake(&mut state);
    }

    /// The connection is gone: its writer ends, and what is queued waits.
    pub fn sever(&self) {
        let mut state = self.state();
        state.severed = true;
        self.wake(&mut state);
    }

    /// Another connection, on which the peer goes on after so many packets.
    pub fn relink(&self, received: u64) -> Result<(), AckError> {
        let mut state = self.state();
        state.retained.rewind(received)?;
        // Signs were for the connection that is gone.
        (state.first.ping, state.first.pong, state.first.ack) = (None, None, None);
        state.severed = false;
        Ok(())
    }

    /// Puts the first kept packet from number `at` on into `packet`, and signs that wait into `signs`. Says the number of the
    /// packet after it. `None`: all were sent again, or the connection is gone.
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
        state.held + state.lanes.len() * size_of::<OutboxLane>() + state.first.held() + state.retained.held()
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

    /// Puts signs into `signs` and frames of what should go next, which get a number, into `out`. Waits for something; for
    /// messages that nobody waits for, up to `linger` longer, because others will probably follow. Wakes up after `idle` in
    /// any case. While the peer has too much to acknowledge only signs go.
    pub fn next(
        &self,
        arena: &Arena,
        signs: &mut Vec<u8>,
        out: &mut Vec<u8>,
        linger: Duration,
        idle: Duration,
    ) -> Next {
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
            if state.severed {
                return Next::Severed;
            }
            let has_room = state.retained.has_room();
            if lingers <= now {
                state.first.put_signs(signs);
                if has_room {
                    state.fill(arena, out);
                    if !out.is_empty() {
                        state.retained.number();
                    }
                }
                if !out.is_empty() || !signs.is_empty() {
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

#[cfg(test)]
#[path = "outbox_tests.rs"]
mod tests;
