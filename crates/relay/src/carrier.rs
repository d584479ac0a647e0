//! One connection between a local peer (guest or API server) and another carrier.
//!
//! Threads: one reads the network, one writes it, one reads the local control socket, and per lane one
//! takes messages out of the local ring and one puts arriving ones into the other. The reader never waits
//! for a lane, so that none of them holds up the others. Connections come and go ([`crate::life`]); everything here stays.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aviary_transport::take_regions;
use aviary_transport::{Arena, Consumer, ControlSocket, LaneEnd, LaneError, LaneWaker, Liveness, Producer, Side};
use aviary_wire::control::control_kind;
use aviary_wire::{Control, MAX_MESSAGE, kind};

use crate::inbox::{Inbox, Parcel};
use crate::items::Gathered;
use crate::outbox::{CREDIT_BYTES, Outbox};
use crate::output::Output;
use crate::touched::Touched;

/// Lanes of one guest at a time, as many as an API server takes. Each costs two threads here.
const MAX_LANES: usize = 1024;
/// Bytes of memory that what arrived for one lane may take until its ring has room: an honest peer sends a window and a
/// message beyond it, of which the shortest have about three times their size here.
const LANE_HELD: usize = 4 * CREDIT_BYTES + MAX_MESSAGE;
/// The same for all lanes of a connection together.
const ALL_HELD: usize = 8 * MAX_MESSAGE;
struct CarriedLane {
    liveness: Arc<Liveness>,
    waker: LaneWaker,
    inbox: Arc<Inbox>,
    pump: Option<JoinHandle<()>>,
    delivery: Option<JoinHandle<()>>,
}

pub(crate) struct Carrier {
    /// Which end of the local lanes this process holds.
    pub(crate) side: Side,
    pub(crate) arena: Arc<Arena>,
    /// The memory that the peer makes this process's arena hold. `None`: the peer is the node, which is trusted that
    /// far.
    touched: Option<Touched>,
    pub(crate) control: ControlSocket,
    /// Time without a connection that the session survives; zero: none.
    pub(crate) grace: Duration,
    pub outbox: Outbox,
    lanes: Mutex<HashMap<u32, CarriedLane>>,
    /// The session ends: a connection that breaks now is not replaced.
    closing: AtomicBool,
    /// Where the application's output goes, or comes from.
    pub output: Output,
    /// Nanoseconds of the fastest round trip seen.
    round_trip: AtomicU64,
    started: Instant,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn thread<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<JoinHandle<T>> {
    std::thread::Builder::new().name(name.to_owned()).stack_size(512 << 10).spawn(run)
}

impl Carrier {
    /// For a guest. `grace`: time without a connection that the session survives.
    pub fn relay(arena: Arc<Arena>, control: ControlSocket, output: Output, grace: Duration) -> Arc<Self> {
        Self::new(Side::Server, arena, None, control, output, grace)
    }

    /// For an API server. `memory`: bytes that the peer may make the arena hold.
    pub fn gateway(
        arena: Arc<Arena>,
        memory: usize,
        control: ControlSocket,
        output: Output,
        grace: Duration,
    ) -> Arc<Self> {
        let touched = Touched::new(arena.size(), memory);
        Self::new(Side::Guest, arena, Some(touched), control, output, grace)
    }

    fn new(
        side: Side,
        arena: Arc<Arena>,
        touched: Option<Touched>,
        control: ControlSocket,
        output: Output,
        grace: Duration,
    ) -> Arc<Self> {
        Arc::new(Carrier {
            side,
            arena,
            touched,
            control,
            grace,
            outbox: if grace.is_zero() { Outbox::forgetful() } else { Outbox::default() },
            lanes: Mutex::default(),
            closing: AtomicBool::new(false),
            output,
            round_trip: AtomicU64::new(u64::MAX),
            started: Instant::now(),
        })
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

    /// So many numbered packets have arrived, which the peer keeps until it knows.
    pub fn acknowledge(&self, received: u64) {
        if !self.grace.is_zero() {
            self.outbox.ack(received);
        }
    }

    // The end.

    /// Connections are not replaced any more.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.outbox.let_go();
    }

    /// A connection has broken, which was told before. Nothing waits for another one if none comes.
    pub(crate) fn broke(&self) {
        if self.grace.is_zero() || self.closing.load(Ordering::SeqCst) {
            self.outbox.kill();
        }
    }

    /// The lanes' threads end.
    pub(crate) fn end_lanes(&self) {
        for (_, mut lane) in locked(&self.lanes).drain() {
            lane.end();
        }
    }

    /// Takes the messages that are still in local rings.
    pub(crate) fn finish_pumps(&self) {
        let pumps: Vec<_> = locked(&self.lanes).values_mut().filter_map(CarriedLane::finish_pump).collect();
        for pump in pumps {
            let _ = pump.join();
        }
    }

    /// Messages that arrived are still put into local rings, unless these stay full.
    pub(crate) fn finish_deliveries(&self, deadline: Instant) {
        let inboxes: Vec<_> = locked(&self.lanes).values().map(|lane| lane.inbox.clone()).collect();
        inboxes.iter().for_each(|inbox| inbox.finish());
        for inbox in inboxes {
            inbox.await_end(deadline);
        }
    }

    // Local control messages.

    /// Handles what the local peer says until it hangs up, which is `Ok`, or says what it must not.
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
            // The lane's messages go first.
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
            (other, _) => Err(format!("a control message of the unexpected kind {other}")),
        }
    }

    fn send_control(&self, message: Control) -> Result<(), String> {
        self.outbox.control(message.lane, &message.to_bytes()).map_err(|_| "the connection is over".to_owned())
    }

    fn forget(&self, number: u32) {
        let lane = locked(&self.lanes).remove(&number);
        if let Some(mut lane) = lane {
            lane.inbox.finish();
            lane.end();
        }
        self.outbox.forget(number);
    }

    /// Before something is written to the arena.
    fn touch(&self, offset: u64, length: usize) -> Result<(), String> {
        let touched = self.touched.as_ref().map_or(Ok(()), |touched| touched.touch(offset, length));
        touched.map_err(|full| full.to_string())
    }

    fn open_lane(self: &Arc<Self>, open: Control) -> Result<(), LaneError> {
        let number = open.lane;
        // Held until the lane is known: its first answer may arrive before this function returns, and what
        // arrives for an unknown lane is dropped.
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
        let waker = end.waker();
        let Some((tx, rx)) = end.split() else { return Err(LaneError::Open("rings")) };
        if self.side == Side::Guest {
            self.control.send(open, None).map_err(|_| LaneError::Dead)?;
        }
        let inbox = Arc::new(Inbox::new(self.output.total.clone()));
        let no_thread = LaneError::Socket;
        let pump = thread(&format!("out-{number}"), {
            let carrier = self.clone();
            move || carrier.pump(number, rx)
        });
        let delivery = thread(&format!("in-{number}"), {
            let (carrier, inbox) = (self.clone(), inbox.clone());
            move || carrier.deliver(number, tx, &inbox)
        });
        let lane = CarriedLane {
            liveness,
            waker,
            inbox,
            pump: Some(pump.map_err(no_thread)?),
            delivery: Some(delivery.map_err(no_thread)?),
        };
        lanes.insert(number, lane);
        Ok(())
    }

    /// Takes messages out of the local ring.
    fn pump(&self, lane: u32, mut rx: Consumer) {
        let (mut message, mut batch) = (Vec::new(), Gathered::new(lane));
        loop {
            // While there is more to come at once, several go in one piece.
            let received = match rx.try_receive(&mut message) {
                Ok(false) if self.pass_on(lane, &mut batch) => rx.receive(&mut message).map(|()| true),
                other => other,
            };
            if !matches!(received, Ok(true)) {
                self.pass_on(lane, &mut batch);
                return;
            }
            let Ok(regions) = take_regions(&mut message) else {
                return self.broken("a message of the local peer has no region list");
            };
            if regions.iter().any(|r| self.arena.pointer(r.offset, r.length).is_err()) {
                return self.broken("a message of the local peer names memory outside the arena");
            }
            // The API server has written its answer there, because the peer asked for it.
            if let Err(why) = regions.iter().try_for_each(|region| self.touch(region.offset, region.length)) {
                return self.broken(&why);
            }
            let urgent = self.side == Side::Guest || somebody_waits(&message);
            let passed = if regions.is_empty() && batch.take(&message, urgent) {
                !batch.is_full() || self.pass_on(lane, &mut batch)
            } else {
                self.pass_on(lane, &mut batch) && self.outbox.message(lane, &message, regions, urgent).is_ok()
            };
            if !passed {
                return;
            }
        }
    }

    /// False: the connection is over.
    fn pass_on(&self, lane: u32, batch: &mut Gathered) -> bool {
        if self.side == Side::Guest {
            self.output.flush(self);
        }
        self.outbox.gathered(lane, batch).is_ok()
    }

    /// Puts what arrives into the local ring.
    fn deliver(&self, lane: u32, mut tx: Producer, inbox: &Inbox) {
        let mut delivered = 0;
        while let Some(parcel) = inbox.next() {
            match parcel {
                Parcel::Message(message) => {
                    if tx.send(&message).is_err() {
                        break;
                    }
                    self.delivered(lane, &mut delivered, message.len());
                }
                Parcel::Batch(batch) => {
                    if batch.messages().any(|message| tx.send(message).is_err()) {
                        break;
                    }
                    self.delivered(lane, &mut delivered, batch.messages().map(<[u8]>::len).sum());
                }
                Parcel::Control(message) => {
                    let _ = self.control.send(message, None);
                }
            }
        }
        inbox.ended();
    }

    /// The other end may send more.
    pub fn delivered(&self, lane: u32, sum: &mut usize, bytes: usize) {
        *sum += bytes;
        if *sum >= CREDIT_BYTES / 4 {
            self.outbox.grant(lane, *sum as u64);
            *sum = 0;
        }
    }

    fn broken(&self, why: &str) {
        self.outbox.farewell(why);
        self.outbox.finish();
    }

    // Handles the frames that arrive.

    pub fn arrived_region(&self, payload: &[u8]) -> Result<(), String> {
        let (offset, data) = payload.split_first_chunk::<8>().ok_or("a region without an offset")?;
        let offset = u64::from_le_bytes(*offset);
        self.touch(offset, data.len())?;
        self.arena.write(offset, data).map_err(|e| e.to_string())
    }

    /// Whole messages.
    pub fn arrived(&self, lane: u32, parcel: Parcel) -> Result<(), String> {
        if let Some(inbox) = self.output.inbox(lane) {
            return self.accept(inbox, parcel);
        }
        self.output.settle();
        let lanes = locked(&self.lanes);
        // A lane that just ended.
        let Some(lane) = lanes.get(&lane) else { return Ok(()) };
        self.accept(&lane.inbox, parcel)
    }

    fn accept(&self, inbox: &Inbox, parcel: Parcel) -> Result<(), String> {
        if inbox.held() > LANE_HELD || self.output.total.get() > ALL_HELD {
            return Err("the peer sends more than it may".into());
        }
        inbox.push(parcel);
        Ok(())
    }

    pub fn arrived_control(self: &Arc<Self>, payload: &[u8]) -> Result<(), String> {
        let bytes = payload.try_into().map_err(|_| "a control message of the wrong size")?;
        let message = Control::from_bytes(bytes);
        match (message.kind, self.side) {
            (control_kind::LANE_OPEN, Side::Guest) => {
                if Output::has(message.lane) {
                    return Err("a lane with a reserved number".into());
                }
                self.touch(message.offset, usize::try_from(message.length).unwrap_or(usize::MAX))?;
                self.open_lane(message).map_err(|e| e.to_string())
            }
            (control_kind::LANE_CLOSE, Side::Guest) | (control_kind::FAREWELL, Side::Server) => {
                match locked(&self.lanes).get(&message.lane) {
                    Some(lane) => self.accept(&lane.inbox, Parcel::Control(message)),
                    None => self.control.send(message, None).map_err(|e| e.to_string()),
                }
            }
            (control_kind::LANE_CLOSED, Side::Server) => {
                // Its memory is the guest's again: nobody here may use it any more.
                self.forget(message.lane);
                self.control.send(message, None).map_err(|e| e.to_string())
            }
            (other, _) => Err(format!("a control message of the unexpected kind {other}")),
        }
    }
}

impl CarriedLane {
    /// The local peer publishes no more on it. What was published is taken, then the thread ends.
    fn finish_pump(&mut self) -> Option<JoinHandle<()>> {
        self.liveness.kill();
        self.waker.wake();
        self.pump.take()
    }

    fn end(&mut self) {
        self.inbox.finish();
        self.liveness.kill();
        self.waker.wake();
        for thread in [self.pump.take(), self.delivery.take()].into_iter().flatten() {
            let _ = thread.join();
        }
    }
}

/// True if a request's sender waits for an answer: everything but an asynchronous call without acknowledgement.
fn somebody_waits(message: &[u8]) -> bool {
    match message.get(4..8) {
        Some([a, b, c, d]) => u16::from_le_bytes([*a, *b]) != kind::CALL_ASYNC || u16::from_le_bytes([*c, *d]) != 0,
        _ => true,
    }
}

#[cfg(test)]
#[path = "carrier_tests.rs"]
mod tests;
