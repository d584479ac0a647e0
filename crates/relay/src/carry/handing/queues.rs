//! What waits to be sent, without locks and threads: the queues of all lanes, whose turn it is, and what fits the next packet.
//! The content of [`crate::carry::outbox`], which says who may use it. Bounds are the outbox's.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use aviary_transport::Arena;

use crate::carry::handing::turn::SendingTurn;
use crate::carry::retained::Retained;
use crate::frames::first::First;
use crate::frames::frame::MAX_PACKET;
use crate::frames::items::{Item, Left, PIECE_COST};
use crate::strands::pieces::{PIECE_BYTES, Pieces};

/// The most message bytes of one lane that are sent and not yet delivered by the peer.
pub const CREDIT_BYTES: usize = 1 << 20;
/// The most bytes of small messages that wait for further ones before they are sent.
pub const MAX_GATHERED_BYTES: usize = 32 << 10;
/// The size in bytes from which on a packet takes no further small messages.
const FULL_PACKET_BYTES: usize = 64 << 10;
/// The most message bytes that wait on one lane before its sender waits.
const MAX_QUEUED_BYTES: usize = 1 << 20;

pub struct OutboxLane {
    pub queue: VecDeque<Item>,
    /// Message bytes in the queue.
    pub queued: usize,
    /// Message bytes that the peer accepts now; the last piece sent may exceed it.
    pub credit: i64,
    /// The lane has ended: nothing more is queued, the rest is still sent.
    pub over: bool,
}

impl OutboxLane {
    pub fn new() -> Self {
        OutboxLane { queue: VecDeque::new(), queued: 0, credit: CREDIT_BYTES as i64, over: false }
    }

    /// True if removing the lane's entry changes nothing: it has ended, or equals a new one.
    fn is_dispensable(&self) -> bool {
        self.queue.is_empty() && (self.over || self.credit == CREDIT_BYTES as i64)
    }
}

pub struct OutboxState {
    pub first: First,
    /// Packets that were sent and not acknowledged.
    pub retained: Retained,
    pub lanes: HashMap<u32, OutboxLane>,
    /// Memory of the queues of all lanes, in bytes.
    pub held: usize,
    /// Lanes with queued items, each once, in the order of their turns.
    pub turns: VecDeque<u32>,
    /// A thread probably waits for the answer to a queued message, so it is sent at once.
    pub urgent: bool,
    /// The time at which the first message that is not urgent was queued.
    pub since: Option<Instant>,
    /// Message bytes queued since the queues were last empty.
    pub gathered: usize,
    /// The writer waits for further messages before it sends the queued ones.
    pub lingers: bool,
    /// Who sends.
    pub sending: SendingTurn,
    /// There is no connection: queued items wait for the next one.
    pub severed: bool,
    /// Another process goes on with the session: no sender waits, as it could not stop then.
    pub yields: bool,
    /// The session ends: the remaining frames are sent, then nothing.
    pub finished: bool,
    pub dead: bool,
}

impl OutboxState {
    pub fn new(retained: Retained) -> Self {
        OutboxState {
            first: First::default(),
            retained,
            lanes: HashMap::new(),
            held: 0,
            turns: VecDeque::new(),
            urgent: false,
            since: None,
            gathered: 0,
            lingers: false,
            sending: SendingTurn::default(),
            severed: false,
            yields: false,
            finished: false,
            dead: false,
        }
    }

    /// No thread but the writer may send: there is no connection, or the session ends.
    pub fn is_ending(&self) -> bool {
        self.severed || self.dead || self.finished
    }

    /// Small messages wait, of which one is urgent, and nothing else does.
    pub fn has_only_small(&self) -> bool {
        let small = |number| {
            self.lanes.get(number).is_some_and(|lane: &OutboxLane| {
                lane.credit > 0 && matches!(lane.queue.front(), Some(Item::Small { .. }))
            })
        };
        self.urgent && !self.turns.is_empty() && self.turns.iter().all(small)
    }

    /// Appends what may be sent now to `signs` and `frames`, with at most `piece` bytes of bulk data, and counts the packet.
    /// False: nothing.
    pub fn next_packet(
        &mut self,
        arena: &Arena,
        signs: &mut Vec<u8>,
        frames: &mut Vec<u8>,
        piece: usize,
        pieces: &Pieces,
    ) -> bool {
        let empty = frames.len();
        self.first.put_signs(signs);
        if self.retained.has_room() {
            self.fill(arena, frames, piece, pieces);
            if frames.len() > empty {
                self.retained.number();
            }
        }
        if frames.len() == empty && signs.is_empty() {
            return false;
        }
        if self.turns.is_empty() {
            (self.urgent, self.since, self.gathered) = (false, None, 0);
        }
        true
    }

    fn lane(&mut self, number: u32) -> &mut OutboxLane {
        self.lanes.entry(number).or_insert_with(OutboxLane::new)
    }

    /// Accounts for messages that were queued.
    pub fn queued(&mut self, number: u32, bytes: usize, urgent: bool) {
        self.lane(number).queued += bytes;
        self.gathered += bytes;
        self.urgent |= urgent;
        self.since.get_or_insert_with(Instant::now);
    }

    pub fn has_room(&self, number: u32, most: usize) -> bool {
        let much = |lane: &OutboxLane| lane.queued > MAX_QUEUED_BYTES;
        self.held <= most && !self.lanes.get(&number).is_some_and(much)
    }

    pub fn push(&mut self, number: u32, item: Item) {
        self.held += item.held();
        if self.lane(number).queue.is_empty() {
            self.turns.push_back(number);
        }
        self.lane(number).queue.push_back(item);
    }

    /// Queues small frames that contain `messages` message bytes, merged with the lane's last ones.
    pub fn small(&mut self, number: u32, more: &[u8], messages: usize) {
        match self.lane(number).queue.back_mut() {
            Some(Item::Small { frames, bytes }) if frames.len() < MAX_GATHERED_BYTES => {
                frames.extend_from_slice(more);
                *bytes += messages;
                self.held += more.len();
            }
            _ => self.push(number, Item::Small { frames: more.to_vec(), bytes: messages }),
        }
    }

    fn fill(&mut self, arena: &Arena, out: &mut Vec<u8>, piece: usize, pieces: &Pieces) {
        self.first.put(out);
        // Of strands that broke, while there is no other one: every second packet has one.
        if let Some(piece) = pieces.next_of_first(true) {
            piece.put(arena, out);
        } else {
            self.fill_small(out);
            let before = out.len();
            self.fill_bulk(arena, out, piece, pieces);
            if before == out.len()
                && before + PIECE_COST + PIECE_BYTES <= MAX_PACKET
                && let Some(piece) = pieces.next_of_first(false)
            {
                piece.put(arena, out);
            }
        }
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
    fn fill_bulk(&mut self, arena: &Arena, out: &mut Vec<u8>, piece: usize, pieces: &Pieces) {
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
            let sent = match bulk.leave_to_strands(number, pieces, out) {
                Left::Waits => continue,
                Left::Some => 0,
                Left::Rest => bulk.piece(number, arena, out, piece),
            };
            lane.credit -= sent as i64;
            lane.queued -= sent;
            if bulk.is_done() {
                self.held -= lane.queue.pop_front().as_ref().map_or(0, Item::held);
            }
            return;
        }
    }
}
