//! The life of a session between two carriers: its connections, which come and go, and its end.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aviary_transport::Side;

use crate::carrier::{Carrier, thread};
use crate::link::{Compression, Intake, Link, LinkEnd};
use crate::reach::{Change, Reach, Step};
use crate::resume::Ticket;

/// Messages that arrived before the peer went are still delivered, for at most this long.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the other end gets to finish.
const PEER_END_TIMEOUT: Duration = Duration::from_secs(3);

/// Events in the life of a session.
pub(crate) enum Event {
    /// The local peer hung up.
    Local,
    /// The session is over, and why.
    Over(String),
    /// A connection has broken.
    Broken { link: u64, why: String, closed: bool },
    /// Something has come over a connection for the first time.
    Alive { link: u64 },
    /// The peer is back and has shown that it is.
    Back(Arrival),
}

/// A new connection for a session.
pub(crate) struct Arrival {
    pub link: Link,
    /// Numbered packets that have arrived at the peer.
    pub received: u64,
    /// The one by which the peer has shown that it is the relay. `None`: the peer is the node.
    pub shown: Option<Ticket>,
}

/// How another connection comes about: a relay makes one, a gateway gets one.
pub(crate) trait Reconnection: Send {
    /// The session begins. Events may be told from now on.
    fn begin(&mut self, events: &Sender<Event>) -> io::Result<()>;
    /// The connection has broken. `received`: numbered packets that have arrived here. Another one is told as [`Event::Back`],
    /// a reason why none can come as [`Event::Over`].
    fn search(&mut self, received: u64, until: Instant, events: &Sender<Event>);
    /// The peer's ticket still counts: another connection with the same one may have come before.
    fn admits(&self, arrival: &Arrival) -> bool;
    /// The new connection is taken: what the peer still has to hear before the first packet.
    fn answer(&mut self, arrival: &mut Arrival, received: u64) -> io::Result<()>;
    /// The peer has read the answer.
    fn confirm(&mut self);
    /// The session ends.
    fn stop(&mut self);
}

/// Ends a connection as a fault of the network does: an orderly end would tell the peer that this process is gone. False: it
/// is no TCP connection, or the kernel does not want to now.
fn reset(socket: &TcpStream) -> bool {
    rustix::net::connect_unspec(socket).is_ok()
}

/// One connection and its threads.
struct Line {
    socket: TcpStream,
    reader: JoinHandle<Intake>,
    writer: JoinHandle<()>,
}

impl Line {
    /// Goes on after what has arrived before, and after the packet `at` of what was sent.
    fn start(
        carrier: &Arc<Carrier>,
        link: Link,
        number: u64,
        compression: Compression,
        intake: Intake,
        at: u64,
        events: &Sender<Event>,
    ) -> io::Result<Line> {
        let socket = link.socket()?;
        let (mut reader, mut writer) = link.split(compression, intake);
        let reader = thread("net-in", {
            let (carrier, events) = (carrier.clone(), events.clone());
            move || {
                let mut heard = false;
                let end = reader.run(&carrier, || {
                    if !std::mem::replace(&mut heard, true) {
                        let _ = events.send(Event::Alive { link: number });
                    }
                });
                match end {
                    LinkEnd::Over(reason) => {
                        let _ = events.send(Event::Over(reason));
                    }
                    LinkEnd::Broken { why, closed } => {
                        let _ = events.send(Event::Broken { link: number, why, closed });
                        if !closed {
                            carrier.broke();
                        }
                    }
                }
                reader.into_intake()
            }
        })?;
        let writer = thread("net-out", {
            let (carrier, socket, events) = (carrier.clone(), socket.try_clone()?, events.clone());
            move || {
                if let Err(error) = writer.run(&carrier, &carrier.arena, at) {
                    let why = format!("the link failed: {error}");
                    let _ = events.send(Event::Broken { link: number, why, closed: false });
                    carrier.broke();
                    // The reader has nothing to wait for any more.
                    reset(&socket);
                    let _ = socket.shutdown(Shutdown::Read);
                }
            }
        })?;
        Ok(Line { socket, reader, writer })
    }

    /// Ends its threads at once. What has arrived stays; `None`: a thread has failed.
    fn sever(self, carrier: &Carrier) -> Option<Intake> {
        carrier.outbox.sever();
        // Some kernels reset no connection that a thread waits for.
        if !reset(&self.socket) {
            let _ = self.socket.shutdown(Shutdown::Read);
        }
        let intake = self.reader.join();
        reset(&self.socket);
        let _ = self.socket.shutdown(Shutdown::Both);
        self.writer.join().ok()?;
        intake.ok()
    }
}

struct Session {
    carrier: Arc<Carrier>,
    compression: Compression,
    reach: Reach,
    line: Option<Line>,
    /// While there is no connection.
    intake: Intake,
    way: Box<dyn Reconnection>,
    events: Sender<Event>,
    /// Why the last connection broke.
    broken: String,
}

/// Why a session ends.
enum Cause {
    Local,
    Remote(String),
}

impl Carrier {
    /// Carries until either end is gone for good, and says why it ended.
    pub fn run(
        self: Arc<Self>,
        link: Link,
        compression: Compression,
        mut way: Box<dyn Reconnection>,
    ) -> io::Result<String> {
        let (events, ended) = channel();
        way.begin(&events)?;
        let line = Line::start(&self, link, 0, compression, Intake::default(), 0, &events)?;
        let control = thread("control", {
            let (carrier, events) = (self.clone(), events.clone());
            move || {
                if let Err(error) = carrier.listen() {
                    let _ = events.send(Event::Over(error));
                }
                let _ = events.send(Event::Local);
            }
        })?;
        self.output.start(&self);
        self.outbox.ping(self.clock());
        let reach = Reach::new(self.grace);
        let intake = Intake::default();
        let mut session =
            Session { carrier: self, compression, reach, line: Some(line), intake, way, events, broken: String::new() };
        let cause = session.last(&ended);
        session.way.stop();
        let reason = session.conclude(cause, &ended);
        if let Some(line) = session.line.take() {
            let _ = (line.reader.join(), line.writer.join());
        }
        let _ = control.join();
        Ok(reason)
    }
}

impl Session {
    /// Until the session ends; says why it does.
    fn last(&mut self, ended: &Receiver<Event>) -> Cause {
        loop {
            let event = match self.reach.deadline() {
                None => ended.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(until) => ended.recv_timeout(until.saturating_duration_since(Instant::now())),
            };
            let now = Instant::now();
            let step = match event {
                Ok(Event::Local) => return Cause::Local,
                Ok(Event::Over(reason)) => return Cause::Remote(reason),
                Ok(Event::Broken { link, why, closed }) => {
                    if self.reach.link() == Some(link) {
                        self.broken = why;
                    }
                    self.reach.change(Change::Broke { link, closed }, now)
                }
                Ok(Event::Alive { link }) => {
                    if self.reach.link() == Some(link) {
                        self.way.confirm();
                    }
                    Step::Nothing
                }
                Ok(Event::Back(arrival)) if !self.way.admits(&arrival) => Step::Nothing,
                Ok(Event::Back(arrival)) => match self.reach.change(Change::Back, now) {
                    Step::Relink { link } => match self.relink(arrival, link) {
                        Ok(step) => step,
                        Err(reason) => return Cause::Remote(reason),
                    },
                    step => step,
                },
                Err(RecvTimeoutError::Timeout) => self.reach.change(Change::Tick, now),
                Err(RecvTimeoutError::Disconnected) => return Cause::Remote("internal error".to_owned()),
            };
            match step {
                Step::Nothing | Step::Relink { .. } => {}
                Step::Search { until } => {
                    if let Err(reason) = self.search(until) {
                        return Cause::Remote(reason);
                    }
                }
                Step::End if self.carrier.grace.is_zero() => return Cause::Remote(self.broken.clone()),
                Step::End => return Cause::Remote(format!("{}, and no connection came back in time", self.broken)),
            }
        }
    }

    /// Ends the connection, if there is one.
    fn sever(&mut self) -> Result<(), String> {
        if let Some(line) = self.line.take() {
            self.intake = line.sever(&self.carrier).ok_or("internal error")?;
        }
        Ok(())
    }

    fn search(&mut self, until: Instant) -> Result<(), String> {
        self.sever()?;
        self.way.search(self.intake.received(), until, &self.events);
        Ok(())
    }

    /// Goes on over another connection. One that fails at once is one that broke.
    fn relink(&mut self, mut arrival: Arrival, number: u64) -> Result<Step, String> {
        self.sever()?;
        if let Err(error) = self.way.answer(&mut arrival, self.intake.received()) {
            self.broken = error.to_string();
            return Ok(self.reach.change(Change::Broke { link: number, closed: false }, Instant::now()));
        }
        let Arrival { link, received, .. } = arrival;
        self.carrier.outbox.relink(received).map_err(|error| error.to_string())?;
        let intake = std::mem::take(&mut self.intake);
        let started = Line::start(&self.carrier, link, number, self.compression, intake, received, &self.events);
        self.line = Some(started.map_err(|error| error.to_string())?);
        self.carrier.outbox.ping(self.carrier.clock());
        Ok(Step::Nothing)
    }

    fn conclude(&mut self, cause: Cause, ended: &Receiver<Event>) -> String {
        let carrier = self.carrier.clone();
        carrier.close();
        let mut rest = Rest { ended, link: self.reach.link(), local: false, remote: false, broken: false };
        rest.take_all();
        // Queued frames have no way out. A connection that breaks from now on sees to that itself.
        if self.line.is_none() || rest.broken {
            carrier.outbox.kill();
        }
        let delivered = || Instant::now() + DELIVERY_TIMEOUT;
        let reason = match cause {
            Cause::Local => {
                carrier.finish_pumps();
                carrier.output.finish(DELIVERY_TIMEOUT);
                carrier.outbox.farewell("");
                carrier.outbox.finish();
                // The other side still says what it has to.
                if self.line.is_some() {
                    rest.until(|rest| rest.remote);
                }
                match carrier.side {
                    Side::Server => "the guest has gone".to_owned(),
                    Side::Guest => "the API server has gone".to_owned(),
                }
            }
            Cause::Remote(reason) => {
                carrier.finish_deliveries(delivered());
                self.part_locally();
                rest.until(|rest| rest.local);
                carrier.finish_pumps();
                carrier.output.finish(DELIVERY_TIMEOUT);
                carrier.outbox.finish();
                reason
            }
        };
        carrier.finish_deliveries(delivered());
        carrier.output.close(DELIVERY_TIMEOUT);
        // Queued frames may still be on their way out; a link that takes nothing ends by itself.
        if let Some(line) = &self.line {
            let _ = line.socket.shutdown(Shutdown::Read);
        }
        let _ = rustix::net::shutdown(carrier.control.as_fd(), rustix::net::Shutdown::Both);
        carrier.outbox.finish();
        carrier.end_lanes();
        reason
    }

    /// Tells the local peer. An API server then finishes what it has; a guest knows that it is lost.
    fn part_locally(&self) {
        let how = match self.carrier.side {
            Side::Guest => rustix::net::Shutdown::Write,
            Side::Server => rustix::net::Shutdown::Both,
        };
        let _ = rustix::net::shutdown(self.carrier.control.as_fd(), how);
    }
}

/// Events after the one that ends the session.
struct Rest<'a> {
    ended: &'a Receiver<Event>,
    /// The last connection.
    link: Option<u64>,
    /// The local peer has hung up.
    local: bool,
    /// The other side says nothing more.
    remote: bool,
    /// And takes nothing.
    broken: bool,
}

impl Rest<'_> {
    fn take(&mut self, event: Event) {
        match event {
            Event::Local => self.local = true,
            Event::Over(_) => self.remote = true,
            Event::Broken { link, closed, .. } if self.link == Some(link) => {
                self.remote = true;
                self.broken |= !closed;
            }
            // Too late, or of a connection before the last.
            Event::Broken { .. } | Event::Alive { .. } | Event::Back(_) => {}
        }
    }

    fn take_all(&mut self) {
        while let Ok(event) = self.ended.try_recv() {
            self.take(event);
        }
    }

    fn until(&mut self, done: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PEER_END_TIMEOUT;
        while !done(self) {
            match self.ended.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(event) => self.take(event),
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
#[path = "life_tests.rs"]
mod tests;
