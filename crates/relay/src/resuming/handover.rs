//! The node's side of resuming a session: passes a new connection from the gateway process that accepted it to the gateway
//! process of the session.
//!
//! Each connection gets a new gateway process, which authenticates the peer and asks the node for the session; the node
//! connects the two gateways. The session's gateway only gets connections of its own tenant. On each, a second TLS session
//! begins, in which the peer must send the session's ticket. One connection at a time is examined, for [`PROOF_TIMEOUT`]
//! at most; a newer one replaces it, so a peer that sends nothing blocks nobody.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aviary_transport::{ControlSocket, receive_greeting, receive_hello, send_greeting};
use aviary_wire::attach::welcome_status;
use aviary_wire::control::control_kind;
use aviary_wire::{Hello, WIRE_VERSION, Welcome};
use rustix::net::{SendFlags, send};
use rustix::time::{ClockId, clock_gettime};

use crate::carry::life::{Arrival, Event, Reconnection, Role};
use crate::carry::link::Link;
use crate::carry::threads::thread;
use crate::frames::frame::Kind;
use crate::frames::welcome::{WELCOME_TIMEOUT, refuse_as};
use crate::keeping::image::KeptWay;
use crate::keys::security::{Identity, NodeSecurity};
use crate::resuming::resume::{Proof, Resume, Resumed, Resumption, SessionName, StrandKey, Ticket, Tickets};

/// The most time for the other gateway to pass its connection.
const PASS_TIMEOUT: Duration = Duration::from_secs(2);
/// The most time for a connection to show the session's ticket.
const PROOF_TIMEOUT: Duration = Duration::from_secs(5);
const NOT_OURS: &str = "the session has ended, or the ticket is not valid for it";

/// Passes a connection that resumes a session to the gateway of that session, which the node chooses.
pub(crate) fn hand_over(node: &Path, mut link: Link) -> Result<String, String> {
    let socket = UnixStream::connect(node).map_err(|e| format!("the node does not answer its own gateway: {e}"))?;
    let connection = link.socket().map_err(|e| e.to_string())?;
    let failed =
        |e: aviary_transport::ControlError| format!("the session's gateway did not accept the connection: {e}");
    // Fails if the node has no such session and has already answered and closed the socket; its answer is read next.
    let _ = send_greeting(&socket, &Hello::default().to_bytes(), &[connection.as_fd()]);
    let welcome = receive_greeting(socket.as_fd(), WELCOME_TIMEOUT).map_err(failed)?;
    if welcome.status != welcome_status::OK {
        return refuse_as(&mut link, welcome.status, &welcome.text);
    }
    // After this the peer begins a second TLS session, with the other gateway.
    link.send(Kind::Welcome, &welcome.to_bytes()).map_err(|e| e.to_string())?;
    Ok("passed on".to_owned())
}

/// What a connection must show to resume this session.
struct Expected {
    security: NodeSecurity,
    /// Empty if the node accepts peers without identity (--plain-loopback).
    tenant: String,
    session: SessionName,
    patience: Duration,
    tickets: Mutex<Tickets>,
    strands: Mutex<StrandKey>,
}

pub(crate) struct HandOvers {
    expected: Arc<Expected>,
    /// The channel to the node: connections come from it; lines about this session's connection go to it.
    node: Arc<OwnedFd>,
}

impl HandOvers {
    /// `resumption`: as it was sent to the relay. `patience`: the time without data after which a connection counts as broken.
    pub fn new(
        node: OwnedFd,
        security: NodeSecurity,
        tenant: String,
        resumption: Resumption,
        patience: Duration,
    ) -> Self {
        let tickets = Mutex::new(Tickets::new(resumption.ticket));
        let session = resumption.session;
        let strands = Mutex::new(StrandKey::new(resumption.strands));
        let expected = Arc::new(Expected { security, tenant, session, patience, tickets, strands });
        HandOvers { expected, node: Arc::new(node) }
    }

    /// Of a session that an earlier gateway has left.
    pub fn again(node: OwnedFd, security: NodeSecurity, kept: KeptWay) -> Self {
        let KeptWay { tenant, session, tickets, strands, patience } = kept;
        let (tickets, strands) = (Mutex::new(tickets), Mutex::new(strands));
        HandOvers {
            expected: Arc::new(Expected { security, tenant, session, patience, tickets, strands }),
            node: Arc::new(node),
        }
    }

    /// Tells the node that the session can go on.
    pub fn tell_ready(&self) {
        self.tell_line("ready\n");
    }

    /// Sends a line to the node, or drops it if the node does not read: this process must not wait for it.
    fn tell_line(&self, line: &str) {
        let _ = send(&*self.node, line.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

impl Expected {
    fn tickets(&self) -> std::sync::MutexGuard<'_, Tickets> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn strands(&self) -> std::sync::MutexGuard<'_, StrandKey> {
        self.strands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the process that goes on with the session.
    fn kept(&self) -> KeptWay {
        let (tenant, tickets, strands) = (self.tenant.clone(), *self.tickets(), *self.strands());
        KeptWay { tenant, session: self.session, tickets, strands, patience: self.patience }
    }

    fn admits(&self, proof: &Proof, joins: bool) -> bool {
        if joins { self.strands().admits(proof) } else { self.tickets().admits(proof) }
    }

    /// Accepts a connection if the peer is of the session's tenant and shows the session's ticket.
    fn listen(&self, mut socket: TcpStream) -> Result<Arrival, String> {
        let text = |e: io::Error| e.to_string();
        socket.set_nonblocking(false).map_err(text)?;
        socket.set_write_timeout(Some(PROOF_TIMEOUT)).map_err(text)?;
        let deadline = Instant::now() + PROOF_TIMEOUT;
        let tls = self.security.shake_hands(&mut socket, deadline).map_err(text)?;
        let certified = self.security.by_certificate(tls.as_ref());
        let mut link = Link::new(socket, tls, self.patience).map_err(text)?;
        let resume = link.receive(Kind::Resume, deadline).map_err(text)?;
        let resume = Resume::from_bytes(&resume).map_err(|e| e.to_string())?;
        let same_tenant = self.security.is_plain()
            || self.security.identify(certified, &resume.token) == Identity::Tenant(self.tenant.clone());
        match resume.proof {
            Some(proof) if same_tenant && resume.session == self.session && self.admits(&proof, resume.joins) => {
                let role = if resume.joins { Role::Joins } else { Role::First };
                Ok(Arrival { link, received: proof.received, shown: Some(proof), role })
            }
            _ => refuse_as(&mut link, welcome_status::OVER, NOT_OURS),
        }
    }
}

/// A connection that is examined. `None`: it has shown a valid ticket and is the session's, was refused, or a newer one came. Who
/// takes the socket decides which.
type Hearing = Mutex<Option<TcpStream>>;

fn decide(hearing: &Hearing) -> Option<TcpStream> {
    hearing.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// The connection that is examined, and by whom.
struct Listening {
    hearing: Arc<Hearing>,
    thread: JoinHandle<()>,
}

impl Listening {
    /// Makes place for a newer connection. A connection that has already shown the ticket is kept.
    fn end(self) {
        decide(&self.hearing).into_iter().for_each(close);
        let _ = self.thread.join();
    }
}

/// For all that have the socket.
fn close(socket: TcpStream) {
    let _ = socket.shutdown(Shutdown::Both);
}

/// Examines connections that the node passes, until the node ends.
fn take_all(expected: &Arc<Expected>, node: &ControlSocket, events: &Sender<Event>) {
    let mut listening: Option<Listening> = None;
    while let Ok(Some((message, passed))) = node.receive() {
        match message.kind {
            control_kind::GATEWAY_HOLD => {
                let _ = events.send(Event::Hold);
                continue;
            }
            control_kind::GATEWAY_SAVE => {
                if let Some(file) = passed {
                    let _ = events.send(Event::Save { file: file.into(), way: expected.kept() });
                }
                continue;
            }
            _ => {}
        }
        let Some(socket) = passed.and_then(|gateway| take(&gateway)) else { continue };
        if let Some(older) = listening.take() {
            older.end();
        }
        let Ok(copy) = socket.try_clone() else { continue };
        let (expected, events) = (expected.clone(), events.clone());
        let hearing = Arc::new(Mutex::new(Some(copy)));
        let heard = hearing.clone();
        let listen = move || match (expected.listen(socket), decide(&heard)) {
            // From here on only the session has the socket: what it refuses is closed.
            (Ok(arrival), Some(_)) => drop(events.send(Event::Back(Box::new(arrival)))),
            (Err(_), Some(socket)) => close(socket),
            (_, None) => {}
        };
        listening = thread("resume", listen).ok().map(|thread| Listening { hearing, thread });
    }
}

/// Receives the connection from another gateway.
fn take(gateway: &OwnedFd) -> Option<TcpStream> {
    let (_, descriptors) = receive_hello(gateway, PASS_TIMEOUT).ok()?;
    let connection = descriptors.into_iter().next()?;
    let welcome = Welcome { wire_version: WIRE_VERSION, status: welcome_status::OK, ..Welcome::default() };
    send_greeting(gateway, &welcome.to_bytes(), &[]).ok()?;
    Some(TcpStream::from(connection))
}

/// The machine's monotonic clock, in milliseconds; the node compares it with its own.
fn monotonic_ms() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000)
}

impl Reconnection for HandOvers {
    fn begin(&mut self, events: &Sender<Event>) -> io::Result<()> {
        let (expected, events) = (self.expected.clone(), events.clone());
        let node = ControlSocket::new(self.node.try_clone()?);
        // The thread ends with the process.
        thread("resumptions", move || take_all(&expected, &node, &events)).map(drop)
    }

    fn search(&mut self, _: u64, _: Instant, _: &Sender<Event>) {
        self.tell_line(&format!("away {}\n", monotonic_ms()));
    }

    fn leads(&mut self, link: Link, said: &[u8]) -> Result<Arrival, String> {
        let resume = Resume::from_bytes(said).map_err(|error| error.to_string())?;
        // Another session's ticket is none of this one's.
        let proof = resume.proof.filter(|_| resume.session == self.expected.session && !resume.joins);
        let received = proof.map_or(0, |proof| proof.received);
        Ok(Arrival { link, received, shown: proof, role: Role::Leads })
    }

    fn admits(&self, arrival: &Arrival) -> bool {
        arrival.shown.is_some_and(|proof| self.expected.tickets().admits(&proof))
    }

    fn answer(&mut self, arrival: &mut Arrival, received: u64) -> io::Result<()> {
        let none = || io::Error::other("the kernel returned no random bytes");
        let ticket = Ticket::random().ok_or_else(none)?;
        self.expected.tickets().renew(&arrival.shown.ok_or_else(none)?, ticket);
        arrival.link.send(Kind::Resumed, &Resumed { ticket, received }.to_bytes())?;
        self.tell_line("back\n");
        Ok(())
    }

    fn welcome(&mut self, strand: &mut Link) -> io::Result<()> {
        let welcome = Welcome { wire_version: WIRE_VERSION, status: welcome_status::OK, ..Welcome::default() };
        strand.send(Kind::Welcome, &welcome.to_bytes())
    }

    fn confirm(&mut self) {
        self.expected.tickets().confirm();
    }

    fn tell(&self, line: &str) {
        self.tell_line(line);
    }

    fn stop(&mut self) {}
}

#[cfg(test)]
#[path = "handover_tests.rs"]
mod tests;
