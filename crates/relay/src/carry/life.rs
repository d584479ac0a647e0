//! The main loop of a session between two carriers: it replaces broken connections and ends the session. A strand takes the place
//! of a first connection that has broken; if there is none the relay makes another connection. Run by `relay` and
//! `gateway` on a thread of its own; [`crate::carry::reach`] decides, the code here acts.

use std::fs::File;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aviary_transport::Side;

use crate::carry::carrier::Carrier;
use crate::carry::link::{Compression, Intake, Link, LinkEnd};
use crate::carry::reach::{Change, Reach, Step};
use crate::carry::threads::thread;
use crate::keeping::image::KeptWay;
use crate::resuming::resume::Proof;
use crate::strands::strand::StrandEnd;
use crate::strands::together::{MOST_STRANDS, Strands};

/// How long messages that have arrived before the end are still delivered.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(1);
/// How long this side waits for the other one to finish.
const PEER_END_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a relay waits for an answer over a strand that is to be the first connection.
const HANDING_TIMEOUT: Duration = Duration::from_secs(3);

/// Events of a session, sent by its threads.
pub(crate) enum Event {
    /// The local peer hung up.
    Local,
    /// The session ends, for this reason.
    Over(String),
    /// Connection number `link` has broken. `closed`: the peer's machine has closed it in order.
    Broken { link: u64, why: String, closed: bool },
    /// The first bytes have arrived over connection number `link`.
    Alive { link: u64 },
    /// The peer has connected again and has proven that it is the peer of this session.
    Back(Box<Arrival>),
    /// There is bulk data that strands could carry.
    Wish,
    /// No further strands come for now.
    Joined,
    /// This strand carries nothing more.
    StrandEnded { number: u64 },
    /// This one neither, because it is to be the first connection; what the peer has sent over it for that.
    StrandLeads { number: u64, link: Box<Link>, said: Vec<u8> },
    /// The node lets another process go on with the session: give the connection up, and take no other.
    Hold,
    /// As that, and the API server stands: write the session to the file, and end.
    Save { file: File, way: KeptWay },
}

/// A new connection for a session.
pub(crate) struct Arrival {
    pub link: Link,
    /// The number of numbered packets that have arrived at the peer.
    pub received: u64,
    /// With what a relay has proven its session. `None`: the peer is a node.
    pub shown: Option<Proof>,
    pub role: Role,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The first connection: a new one, for a session that has no other.
    First,
    /// The first connection, which was a strand until now; the other strands stay.
    Leads,
    /// A further strand.
    Joins,
}

/// The way to get another connection: a relay dials the node, a gateway receives one from the node.
pub(crate) trait Reconnection: Send {
    /// The session begins. Events may be sent from now on.
    fn begin(&mut self, events: &Sender<Event>) -> io::Result<()>;
    /// The connection has broken: look for another one. `received`: the number of numbered packets that have arrived here.
    /// Success is sent as [`Event::Back`], final failure as [`Event::Over`].
    fn search(&mut self, received: u64, until: Instant, events: &Sender<Event>);
    /// What a relay sends over the strand that is to be the first connection. `None`: the peer chooses one.
    fn claim(&mut self, _received: u64) -> Option<Vec<u8>> {
        None
    }
    /// A strand is to be the first connection; what the peer has sent over it for that. An error: nothing that means this.
    fn leads(&mut self, link: Link, said: &[u8]) -> Result<Arrival, String>;
    /// True if the arrival's ticket is still valid: another connection may have used it before.
    fn admits(&self, arrival: &Arrival) -> bool;
    /// Sends the answer to a peer whose new connection is used from now on, before the first packet.
    fn answer(&mut self, arrival: &mut Arrival, received: u64) -> io::Result<()>;
    /// Tells the peer that its strand is used from now on.
    fn welcome(&mut self, _strand: &mut Link) -> io::Result<()> {
        Ok(())
    }
    /// How many strands this end wants beside the first connection, whose round trip this is. A gateway makes none.
    fn strands(&self, _round_trip: Duration) -> usize {
        0
    }
    /// Makes so many strands. Each is sent as [`Event::Back`]; then [`Event::Joined`] is.
    fn join(&mut self, _count: usize, _events: &Sender<Event>) {}
    /// The peer has read the answer.
    fn confirm(&mut self);
    /// Tells the node a line. Only a gateway has one.
    fn tell(&self, _line: &str) {}
    /// The session ends.
    fn stop(&mut self);
}

/// Resets a connection, as a fault of the network does: the peer learns at once that nothing more comes over it.
/// False: it is not a TCP connection, or the kernel refuses at this moment.
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
    /// Starts the threads of a connection that continues the session. `intake`: the state of arrival so far; `at`: the number
    /// of the first packet to send again.
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
        let (mut reader, writer, sender) = link.split(compression, intake);
        carrier.set_sender(sender);
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
                if let Err(error) = writer.run(&carrier, at) {
                    let why = format!("cannot send to the peer: {error}");
                    let _ = events.send(Event::Broken { link: number, why, closed: false });
                    carrier.broke();
                    // Wakes the reader, which then ends.
                    reset(&socket);
                    let _ = socket.shutdown(Shutdown::Read);
                }
            }
        })?;
        Ok(Line { socket, reader, writer })
    }

    /// Ends the connection and its threads at once; returns the state of arrival. `None`: a thread has panicked.
    fn sever(self, carrier: &Carrier) -> Option<Intake> {
        carrier.outbox.sever();
        // Some kernels do not reset a connection while a thread waits for it.
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

pub(crate) struct Session {
    pub carrier: Arc<Carrier>,
    pub compression: Compression,
    reach: Reach,
    line: Option<Line>,
    strands: Strands,
    /// The state of arrival while there is no connection; otherwise the connection's reader has it.
    pub intake: Intake,
    pub way: Box<dyn Reconnection>,
    events: Sender<Event>,
    /// The reason why the last connection broke.
    broken: String,
    /// The local peer has hung up while a strand was to take the first connection's place: the peer is told over that.
    parts: bool,
    /// Hears the local peer, while it runs.
    pub control: Option<JoinHandle<()>>,
    /// The session is to go on in another process.
    pub held: bool,
}

/// The cause of a session's end: the local peer, or the remote peer or the network, with the reason.
enum Cause {
    Local,
    Remote(String),
    /// It goes on in another process: nobody is told anything.
    Kept,
}

impl Carrier {
    /// Runs the session until either side has ended for good; returns the reason.
    pub fn run(
        self: Arc<Self>,
        link: Link,
        compression: Compression,
        mut way: Box<dyn Reconnection>,
    ) -> io::Result<String> {
        let (events, ended) = channel();
        way.begin(&events)?;
        let line = Line::start(&self, link, 0, compression, Intake::default(), 0, &events)?;
        let reach = Reach::new(self.grace, handing(self.side));
        Session::new(self, compression, (reach, Some(line), Intake::default()), way, events).live(&ended)
    }

    /// As [`Carrier::run`], of a session that another process has left. Its lanes run; there is no connection yet.
    pub fn run_again(
        self: Arc<Self>,
        intake: Intake,
        compression: Compression,
        mut way: Box<dyn Reconnection>,
    ) -> io::Result<String> {
        let (events, ended) = channel();
        way.begin(&events)?;
        let until = Instant::now().checked_add(self.grace).ok_or(io::ErrorKind::InvalidInput)?;
        way.search(intake.received(), until, &events);
        let reach = Reach::away(self.grace, handing(self.side), until);
        Session::new(self, compression, (reach, None, intake), way, events).live(&ended)
    }
}

/// A gateway waits for its relay, for as long as there is any strand.
fn handing(side: Side) -> Option<Duration> {
    (side == Side::Server).then_some(HANDING_TIMEOUT)
}

impl Session {
    fn new(
        carrier: Arc<Carrier>,
        compression: Compression,
        (reach, line, intake): (Reach, Option<Line>, Intake),
        way: Box<dyn Reconnection>,
        events: Sender<Event>,
    ) -> Session {
        let (broken, control, strands) = (String::new(), None, Strands::default());
        let (parts, held) = (false, false);
        Session { carrier, compression, reach, line, strands, intake, way, events, broken, parts, control, held }
    }

    /// From the first event to the end; returns the reason.
    fn live(mut self, ended: &Receiver<Event>) -> io::Result<String> {
        let control = thread("control", {
            let (carrier, events) = (self.carrier.clone(), self.events.clone());
            move || {
                if let Err(error) = carrier.listen() {
                    let _ = events.send(Event::Over(error));
                }
                let _ = events.send(Event::Local);
            }
        })?;
        self.control = Some(control);
        self.carrier.output.start(&self.carrier.outbox);
        self.carrier.outbox.ping(self.carrier.clock());
        self.grant_wishes();
        let cause = self.last(ended);
        self.way.stop();
        if matches!(cause, Cause::Kept) {
            return Ok("the session goes on in another process".to_owned());
        }
        let reason = self.conclude(cause, ended);
        self.strands.end_all(&self.carrier);
        if let Some(line) = self.line.take() {
            let _ = (line.reader.join(), line.writer.join());
        }
        self.control.take().map(JoinHandle::join);
        Ok(reason)
    }

    /// Handles events until the session ends; returns the cause.
    fn last(&mut self, ended: &Receiver<Event>) -> Cause {
        loop {
            let event = match self.reach.deadline().filter(|_| !self.held) {
                None => ended.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(until) => ended.recv_timeout(until.saturating_duration_since(Instant::now())),
            };
            let step = match event {
                Ok(event) => self.handle(event, Instant::now()),
                Err(RecvTimeoutError::Timeout) => Ok(self.reach.change(Change::Tick, Instant::now())),
                Err(RecvTimeoutError::Disconnected) => {
                    Err(Cause::Remote("internal error: all threads of the session have ended".to_owned()))
                }
            };
            match step {
                Ok(Step::Nothing | Step::Relink { .. }) => {}
                Ok(Step::HandOver) => {
                    if let Err(reason) = self.sever_line() {
                        return Cause::Remote(reason);
                    }
                    self.hand_over();
                }
                Ok(Step::Search { until }) => {
                    if let Err(reason) = self.search(until) {
                        return Cause::Remote(reason);
                    }
                }
                Ok(Step::End) if self.carrier.grace.is_zero() => return Cause::Remote(self.broken.clone()),
                Ok(Step::End) => {
                    return Cause::Remote(format!("{}, and the connection was not restored in time", self.broken));
                }
                Err(cause) => return cause,
            }
            if self.parts && !self.reach.is_handing() {
                return Cause::Local;
            }
        }
    }

    /// An error: the session ends for this cause.
    fn handle(&mut self, event: Event, now: Instant) -> Result<Step, Cause> {
        match event {
            Event::Local if self.reach.is_handing() => self.parts = true,
            Event::Local => return Err(Cause::Local),
            Event::Over(reason) => return Err(Cause::Remote(reason)),
            Event::Hold => self.hold(),
            Event::Save { file, way } if self.held => {
                if self.save(file, &way) {
                    return Err(Cause::Kept);
                }
            }
            _ if self.held => {}
            Event::Save { .. } => {}
            Event::Broken { link, why, .. } => {
                if self.reach.link() == Some(link) {
                    self.broken = why;
                }
                let strands = self.strands.count() > 0;
                return Ok(self.reach.change(Change::Broke { link, strands }, now));
            }
            Event::Alive { link } => {
                if self.reach.link() == Some(link) {
                    self.way.confirm();
                }
            }
            Event::Back(arrival) if arrival.role == Role::Joins => self.join(arrival.link),
            Event::Back(arrival) => return self.back(*arrival, now),
            Event::Wish => self.grant(),
            Event::Joined => {
                self.strands.joining = false;
                self.grant_wishes();
            }
            Event::StrandEnded { number } => {
                self.strands.ended(number);
                self.grant_wishes();
                return Ok(self.lost_strand(now));
            }
            Event::StrandLeads { number, link, said } => {
                let asked = self.strands.ended(number);
                let arrival = self.way.leads(*link, &said).map_err(Cause::Remote)?;
                // A relay that has asked for it and then not waited for it any longer has ended it.
                if asked || self.carrier.side == Side::Guest {
                    let step = self.back(arrival, now)?;
                    return Ok(if step == Step::Nothing { self.lost_strand(now) } else { step });
                }
            }
        }
        Ok(Step::Nothing)
    }

    /// Another first connection, if it is this session's.
    fn back(&mut self, arrival: Arrival, now: Instant) -> Result<Step, Cause> {
        if !self.way.admits(&arrival) {
            return Ok(Step::Nothing);
        }
        match self.reach.change(Change::Back, now) {
            Step::Relink { link } => self.relink(arrival, link).map_err(Cause::Remote),
            step => Ok(step),
        }
    }

    /// A strand has ended. If one is to take the first connection's place, it is another one, or none is left.
    fn lost_strand(&mut self, now: Instant) -> Step {
        if self.strands.count() == 0 {
            return self.reach.change(Change::Alone, now);
        }
        if self.reach.is_handing() {
            self.hand_over();
        }
        Step::Nothing
    }

    /// Asks the peer to use a strand as the first connection, if that is this end's part.
    fn hand_over(&mut self) {
        let Session { carrier, strands, way, intake, .. } = self;
        strands.ask(carrier, || way.claim(intake.received()));
    }

    /// A further strand, if the session has any connection.
    fn join(&mut self, mut link: Link) {
        if (self.line.is_some() || self.reach.is_handing()) && self.way.welcome(&mut link).is_ok() {
            // One that fails at once is one less.
            let events = self.events.clone();
            let _ = self.strands.begin(&self.carrier, link, move |number, end| {
                let _ = events.send(match end {
                    StrandEnd::Broken => Event::StrandEnded { number },
                    StrandEnd::Wrong(why) => Event::Over(why),
                    StrandEnd::Leads(link, said) => Event::StrandLeads { number, link, said },
                });
            });
        }
    }

    /// Makes the strands that there should be.
    fn grant(&mut self) {
        let wanted = self.way.strands(self.carrier.round_trip()).min(MOST_STRANDS);
        if self.line.is_some() && wanted > self.strands.count() {
            self.strands.joining = true;
            self.way.join(wanted - self.strands.count(), &self.events);
        }
    }

    /// Strands may be asked for, unless some are being made.
    fn grant_wishes(&self) {
        if !self.strands.joining && self.way.strands(Duration::MAX) > 0 {
            let events = self.events.clone();
            self.carrier.grant_wishes(move || drop(events.send(Event::Wish)));
        }
    }

    /// Ends all connections.
    pub fn sever(&mut self) -> Result<(), String> {
        self.strands.end_all(&self.carrier);
        self.sever_line()
    }

    /// Ends the first connection, if there is one.
    fn sever_line(&mut self) -> Result<(), String> {
        if let Some(line) = self.line.take() {
            self.intake = line.sever(&self.carrier).ok_or("internal error: a thread of the connection has panicked")?;
        }
        Ok(())
    }

    fn search(&mut self, until: Instant) -> Result<(), String> {
        self.sever()?;
        self.way.search(self.intake.received(), until, &self.events);
        Ok(())
    }

    /// Continues over another first connection. One that fails at once counts as broken.
    fn relink(&mut self, mut arrival: Arrival, number: u64) -> Result<Step, String> {
        // A relay that has any strand left uses that.
        if arrival.role == Role::Leads {
            self.sever_line()?
        } else {
            self.sever()?
        }
        if let Err(error) = self.way.answer(&mut arrival, self.intake.received()) {
            self.broken = error.to_string();
            let strands = self.strands.count() > 0;
            return Ok(self.reach.change(Change::Broke { link: number, strands }, Instant::now()));
        }
        let Arrival { link, received, .. } = arrival;
        self.carrier.outbox.relink(received).map_err(|error| error.to_string())?;
        let intake = std::mem::take(&mut self.intake);
        let started = Line::start(&self.carrier, link, number, self.compression, intake, received, &self.events);
        self.line = Some(started.map_err(|error| error.to_string())?);
        self.carrier.outbox.ping(self.carrier.clock());
        self.grant_wishes();
        Ok(Step::Nothing)
    }

    fn conclude(&mut self, cause: Cause, ended: &Receiver<Event>) -> String {
        let carrier = self.carrier.clone();
        carrier.close();
        let mut rest = Rest { ended, link: self.reach.link(), local: self.parts, remote: false, broken: false };
        rest.take_all();
        // Queued frames cannot be sent any more. A connection that breaks after this calls `broke` itself.
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
                // The other side may still send what it has, then its farewell.
                if self.line.is_some() {
                    rest.until(|rest| rest.remote);
                }
                match carrier.side {
                    Side::Server => "the guest has ended".to_owned(),
                    Side::Guest => "the API server has ended".to_owned(),
                }
            }
            Cause::Kept => String::new(),
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
        // Queued frames may still be in the writer; a connection that takes no data times out by itself.
        if let Some(line) = &self.line {
            let _ = line.socket.shutdown(Shutdown::Read);
        }
        let _ = rustix::net::shutdown(carrier.control.as_fd(), rustix::net::Shutdown::Both);
        carrier.outbox.finish();
        carrier.end_lanes();
        reason
    }

    /// Tells the local peer that the session ends. An API server finishes the calls that it has; a guest has lost its device.
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
            Event::Broken { .. } | Event::Alive { .. } | Event::Back(_) | Event::Hold | Event::Save { .. } => {}
            Event::Wish | Event::Joined | Event::StrandEnded { .. } | Event::StrandLeads { .. } => {}
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
