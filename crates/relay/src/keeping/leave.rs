//! A gateway gives its session up, for another process that goes on with it. Two orders of the node: *hold* before the API
//! server's state is written, *save* after it, so that between them the API server takes what is in the rings and gets nothing
//! more.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use aviary_transport::LanePosition;
use aviary_wire::Encoder;

use crate::carry::carrier::{Carrier, locked};
use crate::carry::life::Session;
use crate::carry::link::Compression;
use crate::keeping::image::{KeptLane, KeptWay, write};

/// How long messages that are half in a ring may take until they are there.
const HOLD_TIMEOUT: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

impl Session {
    /// The connection is given up without a word to the relay, which looks for another one. What has arrived stays here. Tells
    /// the node, which asks once.
    pub fn hold(&mut self) {
        self.held = true;
        match self.try_hold() {
            Ok(()) => self.way.tell("held\n"),
            Err(why) => self.way.tell(&format!("stays {}\n", why.replace(char::is_control, " "))),
        }
    }

    fn try_hold(&mut self) -> Result<(), String> {
        if self.carrier.grace.is_zero() {
            return Err("its sessions end with their connections (network_grace = \"0s\")".to_owned());
        }
        self.sever()?;
        self.carrier.outbox.yield_up();
        self.carrier.hold(Instant::now() + HOLD_TIMEOUT)
    }

    /// Writes the session. True: it is another process's from now on.
    pub fn save(&mut self, file: File, way: &KeptWay) -> bool {
        match self.try_save(file, way) {
            Ok(bytes) => {
                self.way.tell(&format!("saved {bytes}\n"));
                true
            }
            Err(error) => {
                self.way.tell(&format!("stays its gateway cannot write its part: {error}\n"));
                false
            }
        }
    }

    fn try_save(&mut self, file: File, way: &KeptWay) -> io::Result<u64> {
        let carrier = &self.carrier;
        // The thread handles what the API server has said before it stood, and then ends.
        rustix::net::shutdown(&carrier.control, rustix::net::Shutdown::Read)?;
        let failed = || io::Error::other("internal error: a thread of the session has panicked");
        self.control.take().map_or(Ok(()), |control| control.join().map_err(|_| failed()))?;
        let lanes = carrier.stop_lanes().ok_or_else(failed)?;
        carrier.output.drain(&carrier.outbox);
        let mut to = Encoder::new();
        to.start();
        way.save(&mut to);
        to.word(u64::from(self.compression == Compression::Auto));
        to.word(carrier.arena.size() as u64);
        carrier.touched.as_ref().ok_or_else(|| io::Error::other("it is no gateway"))?.save(&mut to);
        self.intake.save(&mut to);
        carrier.arrivals.save(&mut to);
        carrier.outbox.save(&mut to);
        to.word(lanes.len() as u64);
        lanes.iter().for_each(|lane| lane.save(&mut to));
        write(file, to.body(), &carrier.arena)
    }
}

impl Carrier {
    /// Nothing that has arrived goes to the API server any more, which has read all that was sent to it before. There is no
    /// connection. An error: the API server does not take what is begun.
    fn hold(&self, deadline: Instant) -> Result<(), String> {
        let inboxes: Vec<_> = locked(&self.lanes).values().map(|lane| lane.inbox.clone()).collect();
        // All at once; the waits follow.
        inboxes.iter().for_each(|inbox| inbox.hold_back());
        if !inboxes.iter().all(|inbox| inbox.await_idle(deadline)) {
            return Err("its API server does not take the calls that it was sent".to_owned());
        }
        while !self.control.is_read() {
            if Instant::now() >= deadline {
                return Err("its API server does not read what it was told".to_owned());
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Ends the threads of all lanes where they are. The API server stands, and [`Carrier::hold`] came before.
    /// `None`: one of them has panicked.
    fn stop_lanes(&self) -> Option<Vec<KeptLane>> {
        let lanes: Vec<_> = locked(&self.lanes).drain().collect();
        let mut stopped = Vec::new();
        for (number, mut lane) in lanes {
            lane.inbox.stop();
            lane.liveness.interrupt();
            lane.waker.wake();
            let received = lane.pump.take()?.join().ok()?;
            if let Some(delivery) = lane.delivery.take() {
                delivery.join().ok()?;
            }
            let (sent, delivered) = locked(&lane.sink).position();
            stopped.push(KeptLane {
                number,
                offset: lane.place.offset,
                length: lane.place.length as u64,
                position: LanePosition { sent, received },
                delivered: delivered as u64,
                parcels: lane.inbox.take_all(),
            });
        }
        Some(stopped)
    }
}
