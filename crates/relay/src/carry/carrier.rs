//! One session between a local peer (guest or API server) and the carrier on the other machine. Created by `relay` and
//! `gateway`; [`crate::carry::life`] attaches connections to it, one after the other.
//!
//! Threads: one reads the network, one writes it, one reads the local control socket, and for each lane one takes messages
//! out of the local ring. A call passes as few of them as possible: the thread that takes a message out of a ring sends it
//! itself ([`crate::carry::handing::turn`]), and the network reader puts an arriving message into its ring itself, if no
//! other waits and it has room. The network reader never waits for a lane, so a full lane does not delay others: what finds
//! no room is for a thread of the lane, which is started then.
//!
//! A hostile remote peer can fill at most [`ALL_HELD`] bytes for all rings and the memory that [`Touched`] allows; beyond
//! that its session ends. A hostile local peer can only end its own session.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aviary_transport::take_regions;
use aviary_transport::{
    Arena, Consumer, ConsumerPosition, ControlSocket, LaneEnd, LaneError, LaneWaker, Liveness, Region, Side,
};
use aviary_wire::control::control_kind;
use aviary_wire::{Control, MAX_MESSAGE, kind};

use crate::carry::handing::packet::Packet;
use crate::carry::handing::queues::CREDIT_BYTES;
use crate::carry::handing::sender::Sender;
use crate::carry::handing::sink::Sink;
use crate::carry::inbox::{Inbox, Parcel};
use crate::carry::outbox::{Outbox, Over};
use crate::carry::threads::thread;
use crate::carry::touched::Touched;
use crate::frames::items::Gathered;
use crate::output::Output;
use crate::strands::arrivals::Arrivals;
use crate::strands::pieces::{WORTH_BYTES, is_worth};

/// The most lanes of one guest at a time; an API server accepts as many. Each needs a thread here, and another one once its
/// ring was full.
pub(crate) const MAX_LANES: usize = 1024;
/// The most memory, in bytes, for messages that have arrived for one lane and wait for room in its ring. An honest peer
/// sends its credit and one message beyond it; the shortest messages need about three times their size here.
const LANE_HELD: usize = 4 * CREDIT_BYTES + MAX_MESSAGE;
/// The most memory, in bytes, for messages that wait for room in any ring of a session.
const ALL_HELD: usize = 8 * MAX_MESSAGE;
/// How long the network reader, which waits for nothing, may take to put what it has into a ring.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);
/// Regions of at least so many bytes in a frame are bulk data.
const BULK_REGION: usize = 48 << 10;
/// Where a lane lies in the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LanePlace {
    pub offset: u64,
    pub length: usize,
}

pub(crate) struct CarriedLane {
    pub place: LanePlace,
    pub liveness: Arc<Liveness>,
    pub waker: LaneWaker,
    pub inbox: Arc<Inbox>,
    /// Locked only by the network reader and the delivering thread, one of which passes the other by.
    pub sink: Arc<Mutex<Sink>>,
    /// Answers where it has stopped.
    pub pump: Option<JoinHandle<ConsumerPosition>>,
    /// Started when something has found no room in the ring.
    pub delivery: Option<JoinHandle<()>>,
}

pub(crate) struct Carrier {
    /// The end of the local lanes that this process has: `Server` in a relay, `Guest` in a gateway.
    pub(crate) side: Side,
    pub(crate) arena: Arc<Arena>,
    /// The memory that the remote peer has written in this process's arena. `None`: no bound, because the peer is a node,
    /// which is trusted.
    pub(crate) touched: Option<Touched>,
    pub(crate) control: ControlSocket,
    /// How long the session survives without a connection; zero: it ends with its connection.
    pub(crate) grace: Duration,
    pub outbox: Arc<Outbox>,
    /// The sending half of the connection. Used by the thread whose turn it is ([`crate::carry::handing::turn`]), so nobody
    /// waits for it.
    sender: Mutex<Option<Sender>>,
    pub(crate) lanes: Mutex<HashMap<u32, CarriedLane>>,
    /// Pieces that have arrived, and messages that wait for them.
    pub(crate) arrivals: Arrivals,
    /// Bytes of long regions that have arrived since strands were last asked for.
    bulk: AtomicUsize,
    /// Asks for strands. `None`: this end makes none.
    wishes: Mutex<Option<Wish>>,
    /// The session is ending: a connection that breaks now is not replaced.
    closing: AtomicBool,
    /// Standard output and error: in a relay their destination, in a gateway their source.
    pub output: Arc<Output>,
    /// The shortest round trip so far, in nanoseconds; `u64::MAX`: none was measured yet.
    round_trip: AtomicU64,
    started: Instant,
    /// The guest takes parts of long outputs ahead of their message.
    early: AtomicBool,
}

type Wish = Box<dyn FnOnce() + Send>;

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Packets are kept only for another connection.
fn outbox_for(grace: Duration) -> Outbox {
    if grace.is_zero() { Outbox::forgetful() } else { Outbox::default() }
}

impl Carrier {
    /// The carrier of a guest. `grace`: how long the session survives without a connection.
    pub fn relay(arena: Arc<Arena>, control: ControlSocket, output: Output, grace: Duration) -> Arc<Self> {
        Self::new(Side::Server, arena, None, control, output, grace, (outbox_for(grace), Arrivals::default()))
    }

    /// The carrier of an API server. `memory`: bytes of the arena that the remote peer may fill.
    pub fn gateway(
        arena: Arc<Arena>,
        memory: usize,
        control: ControlSocket,
        output: Output,
        grace: Duration,
    ) -> Arc<Self> {
        let touched = Touched::new(arena.size(), memory);
        let whole = (outbox_for(grace), Arrivals::default());
        Self::new(Side::Guest, arena, Some(touched), control, output, grace, whole)
    }

    /// As that, of a session that another process has left. It has no lanes yet.
    pub fn gateway_again(
        arena: Arc<Arena>,
        (touched, outbox, arrivals): (Touched, Outbox, Arrivals),
        control: ControlSocket,
        output: Output,
        grace: Duration,
    ) -> Arc<Self> {
        Self::new(Side::Guest, arena, Some(touched), control, output, grace, (outbox, arrivals))
    }

    fn new(
        side: Side,
        arena: Arc<Arena>,
        touched: Option<Touched>,
        control: ControlSocket,
        output: Output,
        grace: Duration,
        (outbox, arrivals): (Outbox, Arrivals),
    ) -> Arc<Self> {
        Arc::new(Carrier {
            side,
            arena,
            touched,
            control,
            grace,
            outbox: Arc::new(outbox),
            sender: Mutex::default(),
            lanes: Mutex::default(),
            arrivals,
            bulk: AtomicUsize::new(0),
            wishes: Mutex::default(),
            closing: AtomicBool::new(false),
            output: Arc::new(output),
            round_trip: AtomicU64::new(u64::MAX),
            started: Instant::now(),
            early: AtomicBool::new(false),
        })
    }

    /// The guest shall be told of what has arrived ahead of its message.
    pub fn set_early(&self) {
        self.early.store(true, Ordering::Relaxed);
    }

    fn tells_early(&self) -> bool {
        self.early.load(Ordering::Relaxed)
    }

    pub fn clock(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    pub fn round_trip(&self) -> Duration {
        match self.round_trip.load(Ordering::Relaxed) {
            u64::MAX => Duration::ZERO,
            nanoseconds => Duration::from_nanos(nanoseconds),
        }
    }

    pub fn saw_round_trip(&self, sent: u64) {
        self.round_trip.fetch_min(self.clock().saturating_sub(sent), Ordering::Relaxed);
    }

    pub fn note_round_trip(&self, round_trip: Duration) {
        self.round_trip.fetch_min(u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Acknowledges that `received` numbered packets have arrived; the peer keeps them until then.
    pub fn acknowledge(&self, received: u64) {
        if !self.grace.is_zero() {
            self.outbox.ack(received);
        }
    }

    // The connection.

    /// A connection begins.
    pub fn set_sender(&self, sender: Sender) {
        *locked(&self.sender) = Some(sender);
    }

    /// It has ended, and no thread has the turn to send.
    pub fn take_sender(&self) {
        *locked(&self.sender) = None;
    }

    /// The caller has the turn to send.
    pub fn with_sender<T>(&self, with: impl FnOnce(&mut Sender) -> io::Result<T>) -> io::Result<T> {
        locked(&self.sender).as_mut().map_or(Err(io::ErrorKind::NotConnected.into()), with)
    }

    /// The thread of a lane has the turn to send, and this packet. Sends it, and what is queued meanwhile.
    fn send(&self, packet: &mut Packet) {
        loop {
            let round_trip = self.round_trip();
            let sent = self.with_sender(|sender| Ok(sender.offer(packet, round_trip)));
            if !self.outbox.sent(&self.arena, packet, !sent.unwrap_or(false)) {
                return;
            }
        }
    }

    /// Strands are asked for by this, once.
    pub(crate) fn grant_wishes(&self, ask: impl FnOnce() + Send + 'static) {
        *locked(&self.wishes) = Some(Box::new(ask));
    }

    /// There is bulk data that strands could carry.
    pub(crate) fn wish(&self) {
        // Asked once; whoever grants it lets it be asked again.
        let ask = locked(&self.wishes).take();
        ask.into_iter().for_each(|ask| ask());
    }

    // The end.

    /// From now on a broken connection is not replaced.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.outbox.let_go();
    }

    /// A connection has broken; the event was sent before. If none will replace it, senders stop waiting.
    pub(crate) fn broke(&self) {
        if self.grace.is_zero() || self.closing.load(Ordering::SeqCst) {
            self.outbox.kill();
        }
    }

    /// Ends all lanes and their threads.
    pub(crate) fn end_lanes(&self) {
        for (_, mut lane) in locked(&self.lanes).drain() {
            lane.end();
        }
    }

    /// Sends the messages that are still in local rings.
    pub(crate) fn finish_pumps(&self) {
        let pumps: Vec<_> = locked(&self.lanes).values_mut().filter_map(CarriedLane::finish_pump).collect();
        for pump in pumps {
            let _ = pump.join();
        }
    }

    /// Waits until messages that have arrived are in the local rings, until `deadline` at most.
    pub(crate) fn finish_deliveries(&self, deadline: Instant) {
        let inboxes: Vec<_> = locked(&self.lanes).values().map(|lane| lane.inbox.clone()).collect();
        inboxes.iter().for_each(|inbox| inbox.finish());
        for inbox in inboxes {
            inbox.await_end(deadline);
        }
    }

    // Local control messages.

    /// Handles control messages of the local peer. `Ok`: it closed the socket; an error: it sent a message that is not
    /// allowed.
    pub(crate) fn listen(self: &Arc<Self>) -> Result<(), String> {
        while let Ok(Some((message, _))) = self.control.receive() {
            self.heard(message)?;
        }
        Ok(())
    }

    fn heard(self: &Arc<Self>, message: Control) -> Result<(), String> {
        match (message.kind, self.side) {
            (control_kind::LANE_OPEN, Side::Server) => {
                self.send_control(message)?;
                self.open_lane(message).map_err(|e| e.to_string())
            }
            // Messages in the lane's ring are sent before its end.
            (control_kind::LANE_CLOSE, Side::Server) | (control_kind::LANE_CLOSED, Side::Guest) => {
                let pump = locked(&self.lanes).get_mut(&message.lane).and_then(CarriedLane::finish_pump);
                if let Some(pump) = pump {
                    let _ = pump.join();
                }
                self.send_control(message)?;
                if self.side == Side::Guest {
                    self.forget(message.lane);
                }
                Ok(())
            }
            (control_kind::FAREWELL, Side::Guest) => self.send_control(message),
            (other, _) => Err(format!("unexpected control message of kind {other}")),
        }
    }

    fn send_control(&self, message: Control) -> Result<(), String> {
        self.outbox.control(message.lane, &message.to_bytes()).map_err(|_| "the session has ended".to_owned())
    }

    fn forget(&self, number: u32) {
        let lane = locked(&self.lanes).remove(&number);
        self.arrivals.forget(number);
        if let Some(mut lane) = lane {
            lane.inbox.finish();
            lane.end();
        }
        self.outbox.forget(number);
    }

    /// Counts a range of the arena before it is written. An error: the remote peer has used its share of memory.
    fn touch(&self, offset: u64, length: usize) -> Result<(), String> {
        let touched = self.touched.as_ref().map_or(Ok(()), |touched| touched.touch(offset, length));
        touched.map_err(|full| full.to_string())
    }

    fn open_lane(self: &Arc<Self>, open: Control) -> Result<(), LaneError> {
        let number = open.lane;
        // Locked until the lane is in the table: its first answer may arrive before this function returns, and a message for
        // an unknown lane is dropped.
        let mut lanes = locked(&self.lanes);
        if lanes.len() >= MAX_LANES || lanes.contains_key(&number) {
            return Err(LaneError::Open("a number of its own"));
        }
        let liveness = Arc::new(Liveness::notified());
        let length = usize::try_from(open.length).map_err(|_| LaneError::Open("memory"))?;
        if self.side == Side::Guest {
            LaneEnd::clear(&self.arena, open.offset, length)?;
        }
        let end = LaneEnd::shared(&self.arena, open.offset, length, self.side, &liveness)?;
        if self.side == Side::Guest {
            self.control.send(open, None).map_err(|_| LaneError::Dead)?;
        }
        let inbox = Arc::new(Inbox::unattended(self.output.total.clone()));
        let place = LanePlace { offset: open.offset, length };
        lanes.insert(number, self.start_lane(number, place, (end, liveness), inbox, 0)?);
        Ok(())
    }

    /// The threads of a lane. `delivered`: bytes that were delivered without granting credit for them.
    pub(crate) fn start_lane(
        self: &Arc<Self>,
        number: u32,
        place: LanePlace,
        (end, liveness): (LaneEnd, Arc<Liveness>),
        inbox: Arc<Inbox>,
        delivered: usize,
    ) -> Result<CarriedLane, LaneError> {
        let waker = end.waker();
        let Some((tx, mut rx)) = end.split() else { return Err(LaneError::Open("rings")) };
        let sink = Arc::new(Mutex::new(Sink::new(number, tx, delivered)));
        rx.set_interruptible(true);
        let pump = thread(&format!("out-{number}"), {
            let carrier = self.clone();
            move || carrier.pump(number, rx)
        });
        let pump = Some(pump.map_err(LaneError::Socket)?);
        Ok(CarriedLane { place, liveness, waker, inbox, sink, pump, delivery: None })
    }

    /// Starts the thread that waits for room in a lane's ring, once.
    pub(crate) fn start_delivery(self: &Arc<Self>, number: u32) -> io::Result<()> {
        let mut lanes = locked(&self.lanes);
        // A lane that has just ended needs none.
        let Some(lane) = lanes.get_mut(&number).filter(|lane| lane.inbox.attend()) else { return Ok(()) };
        let (carrier, inbox, sink) = (self.clone(), lane.inbox.clone(), lane.sink.clone());
        lane.delivery = Some(thread(&format!("in-{number}"), move || carrier.deliver(&sink, &inbox))?);
        Ok(())
    }

    /// Sends messages of a local ring to the other machine, until the ring ends or the pump is interrupted. Answers where.
    fn pump(&self, lane: u32, mut rx: Consumer) -> ConsumerPosition {
        self.pump_all(lane, &mut rx);
        rx.position()
    }

    fn pump_all(&self, lane: u32, rx: &mut Consumer) {
        let (mut message, mut batch, mut packet) = (Vec::new(), Gathered::new(lane), Packet::default());
        loop {
            // Messages that are in the ring already are sent together.
            let received = match rx.try_receive(&mut message) {
                Ok(false) if self.pass_on(lane, &mut batch, &mut packet) => rx.receive(&mut message).map(|()| true),
                other => other,
            };
            if !matches!(received, Ok(true)) {
                self.pass_on(lane, &mut batch, &mut packet);
                return;
            }
            let Ok(regions) = take_regions(&mut message) else {
                return self.broken("the local peer sent a message without a region list");
            };
            if regions.iter().any(|r| self.arena.pointer(r.offset, r.length).is_err()) {
                return self.broken("the local peer sent a message with a region outside of the arena");
            }
            // The remote peer asked the API server to write its answer there, so the memory is charged to that peer.
            if let Err(why) = regions.iter().try_for_each(|region| self.touch(region.offset, region.length)) {
                return self.broken(&why);
            }
            let urgent = self.side == Side::Guest || somebody_waits(&message);
            if is_worth(&regions) {
                self.wish();
            }
            let passed = if regions.is_empty() && batch.take(&message, urgent) {
                !batch.is_full() || self.pass_on(lane, &mut batch, &mut packet)
            } else {
                self.pass_on(lane, &mut batch, &mut packet)
                    && self.pass_on_long(lane, &message, regions, urgent, &mut packet)
            };
            if !passed {
                return;
            }
        }
    }

    /// False: the session has ended.
    fn pass_on(&self, lane: u32, batch: &mut Gathered, packet: &mut Packet) -> bool {
        if self.side == Side::Guest {
            self.output.flush(&self.outbox);
        }
        self.send_if(self.outbox.send_gathered(lane, batch, &self.arena, packet), packet)
    }

    /// The same for a message that is sent alone, with its regions.
    fn pass_on_long(&self, lane: u32, message: &[u8], regions: Vec<Region>, urgent: bool, packet: &mut Packet) -> bool {
        self.send_if(self.outbox.send_message(lane, message, regions, urgent, &self.arena, packet), packet)
    }

    fn send_if(&self, turn: Result<bool, Over>, packet: &mut Packet) -> bool {
        if turn == Ok(true) {
            self.send(packet);
        }
        turn.is_ok()
    }

    /// Puts arriving messages into the local ring, until the session ends or the inbox is stopped.
    fn deliver(&self, sink: &Mutex<Sink>, inbox: &Inbox) {
        while let Some(parcel) = inbox.next() {
            if let Parcel::Control(message) = parcel {
                let _ = self.control.send(message, None);
            } else if !locked(sink).put(&parcel, &self.outbox) {
                break;
            }
        }
        inbox.ended();
    }

    fn broken(&self, why: &str) {
        self.outbox.farewell(why);
        self.outbox.finish();
    }

    // Frames from the network.

    /// `lane`: of whose next message it is.
    pub fn arrived_region(&self, lane: Option<u32>, payload: &[u8]) -> Result<(), String> {
        let (offset, data) = payload.split_first_chunk::<8>().ok_or("the peer sent a region without an offset")?;
        let offset = u64::from_le_bytes(*offset);
        self.touch(offset, data.len())?;
        if data.len() >= BULK_REGION && self.bulk.fetch_add(data.len(), Ordering::Relaxed) >= WORTH_BYTES {
            self.bulk.store(0, Ordering::Relaxed);
            self.wish();
        }
        self.arena.write(offset, data).map_err(|e| e.to_string())?;
        if let Some(lane) = lane.filter(|_| self.tells_early() && data.len() >= BULK_REGION) {
            self.tell(lane, Region { offset, length: data.len() });
        }
        Ok(())
    }

    /// Whole messages from the network.
    pub fn arrived(self: &Arc<Self>, number: u32, parcel: Parcel) -> Result<(), String> {
        if let Some(inbox) = self.output.inbox(number) {
            return self.accept(inbox, parcel).map(drop);
        }
        self.output.settle();
        // The lane has just ended: its messages are dropped.
        let Some((inbox, sink)) = self.of_lane(number) else { return Ok(()) };
        let unattended = if inbox.pass_by() {
            let rest = locked(&sink).offer(parcel, &self.outbox);
            inbox.passed(rest)
        } else {
            self.accept(&inbox, parcel)?
        };
        self.attend_if(unattended, number)
    }

    pub(crate) fn attend_if(self: &Arc<Self>, unattended: bool, number: u32) -> Result<(), String> {
        let started = if unattended { self.start_delivery(number) } else { Ok(()) };
        started.map_err(|error| format!("cannot start a thread for a lane: {error}"))
    }

    pub(crate) fn of_lane(&self, lane: u32) -> Option<(Arc<Inbox>, Arc<Mutex<Sink>>)> {
        locked(&self.lanes).get(&lane).map(|lane| (lane.inbox.clone(), lane.sink.clone()))
    }

    /// True: the inbox has no consumer.
    pub(crate) fn accept(&self, inbox: &Inbox, parcel: Parcel) -> Result<bool, String> {
        if inbox.held() > LANE_HELD || self.output.total.get() > ALL_HELD {
            return Err("the peer sent more messages than its credit allows".into());
        }
        Ok(inbox.push(parcel))
    }

    pub fn arrived_control(self: &Arc<Self>, payload: &[u8]) -> Result<(), String> {
        let bytes = payload.try_into().map_err(|_| "the peer sent a control message of the wrong size")?;
        let message = Control::from_bytes(bytes);
        match (message.kind, self.side) {
            (control_kind::LANE_OPEN, Side::Guest) => {
                if Output::has(message.lane) {
                    return Err("the peer opened a lane with a reserved number".into());
                }
                self.touch(message.offset, usize::try_from(message.length).unwrap_or(usize::MAX))?;
                self.open_lane(message).map_err(|e| e.to_string())
            }
            (control_kind::LANE_CLOSE, Side::Guest) | (control_kind::FAREWELL, Side::Server) => {
                match self.of_lane(message.lane) {
                    Some((inbox, _)) => {
                        let unattended = self.accept(&inbox, Parcel::Control(message))?;
                        self.attend_if(unattended, message.lane)
                    }
                    None => self.control.send(message, None).map_err(|e| e.to_string()),
                }
            }
            (control_kind::LANE_CLOSED, Side::Server) => {
                // From now on the guest reuses the lane's memory, so no thread of this process may use it.
                self.forget(message.lane);
                self.control.send(message, None).map_err(|e| e.to_string())
            }
            (other, _) => Err(format!("unexpected control message of kind {other}")),
        }
    }
}

impl CarriedLane {
    /// The local peer publishes no more messages: the thread sends those in the ring, then ends.
    fn finish_pump(&mut self) -> Option<JoinHandle<ConsumerPosition>> {
        self.liveness.kill();
        self.waker.wake();
        self.pump.take()
    }

    fn end(&mut self) {
        self.inbox.finish();
        self.inbox.give_up();
        self.liveness.kill();
        self.waker.wake();
        self.pump.take().map(JoinHandle::join);
        self.delivery.take().map(JoinHandle::join);
        // The network reader may be at the ring.
        self.inbox.await_idle(Instant::now() + DELIVERY_TIMEOUT);
    }
}

/// True if the sender of a request waits for an answer: for all requests except asynchronous calls without acknowledgement.
fn somebody_waits(message: &[u8]) -> bool {
    match message.get(4..8) {
        Some([a, b, c, d]) => u16::from_le_bytes([*a, *b]) != kind::CALL_ASYNC || u16::from_le_bytes([*c, *d]) != 0,
        _ => true,
    }
}

#[cfg(test)]
#[path = "carrier_tests.rs"]
mod tests;
