//! The node's side of a broken connection: another one comes to a process of its own, as every connection does, which learns
//! whose it is; the node has it pass the connection to the process that has the session.
//!
//! The process of the session sees connections of its own tenant only. Each begins a TLS session of its own, in which it
//! shows the ticket. One at a time is listened to: a newer one ends that of an older.

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
use aviary_wire::{Hello, WIRE_VERSION, Welcome};
use rustix::net::{SendFlags, send};
use rustix::time::{ClockId, clock_gettime};

use crate::carrier::thread;
use crate::frame::Kind;
use crate::gateway::{WELCOME_TIMEOUT, refuse_as};
use crate::life::{Arrival, Event, Reconnection};
use crate::link::Link;
use crate::resume::{Proof, Resume, Resumed, Resumption, Ticket, Tickets};
use crate::security::{Identity, NodeSecurity};

/// The other gateway passes its connection at once.
const PASS_TIMEOUT: Duration = Duration::from_secs(2);
/// Until then a connection has shown the ticket.
const PROOF_TIMEOUT: Duration = Duration::from_secs(5);
const NOT_OURS: &str = "the session is over, or the ticket is not its own";

/// Passes a connection that resumes a session to the process that has it, as the node says which.
pub(crate) fn hand_over(node: &Path, mut link: Link) -> Result<String, String> {
    let socket = UnixStream::connect(node).map_err(|e| format!("the node does not answer its own gateway: {e}"))?;
    let connection = link.socket().map_err(|e| e.to_string())?;
    let failed = |e: aviary_transport::ControlError| format!("the session's gateway did not take the connection: {e}");
    // A node that has no such session may have answered and hung up before.
    let _ = send_greeting(&socket, &Hello::default().to_bytes(), &[connection.as_fd()]);
    let welcome = receive_greeting(socket.as_fd(), WELCOME_TIMEOUT).map_err(failed)?;
    if welcome.status != welcome_status::OK {
        return refuse_as(&mut link, welcome.status, &welcome.text);
    }
    // The peer begins its next TLS session after this, which the other process answers.
    link.send(Kind::Welcome, &welcome.to_bytes()).map_err(|e| e.to_string())?;
    Ok("passed on".to_owned())
}

/// Marks of the session, with which each connection that comes for it is compared.
struct Expected {
    security: NodeSecurity,
    /// Empty where nobody shows who it is.
    tenant: String,
    resumption: Resumption,
    patience: Duration,
    tickets: Mutex<Tickets>,
}

pub(crate) struct HandOvers {
    expected: Arc<Expected>,
    /// From the node come connections, to it go lines about the session's.
    node: Arc<OwnedFd>,
}

impl HandOvers {
    /// `resumption`: as it was told to the relay. `patience`: without a sign of life for so long a link is given up.
    pub fn new(
        node: OwnedFd,
        security: NodeSecurity,
        tenant: String,
        resumption: Resumption,
        patience: Duration,
    ) -> Self {
        let tickets = Mutex::new(Tickets::Known(resumption.ticket));
        let expected = Arc::new(Expected { security, tenant, resumption, patience, tickets });
        HandOvers { expected, node: Arc::new(node) }
    }

    /// A node that does not read it must not stop this process.
    fn tell(&self, line: &str) {
        let _ = send(&*self.node, line.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

impl Expected {
    fn tickets(&self) -> std::sync::MutexGuard<'_, Tickets> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, if it is of the tenant and shows the ticket of the session.
    fn listen(&self, mut socket: TcpStream) -> Result<Arrival, String> {
        let text = |e: io::Error| e.to_string();
        socket.set_nonblocking(false).map_err(text)?;
        socket.set_read_timeout(Some(PROOF_TIMEOUT)).map_err(text)?;
        socket.set_write_timeout(Some(PROOF_TIMEOUT)).map_err(text)?;
        let tls = self.security.shake_hands(&mut socket).map_err(text)?;
        let certified = self.security.by_certificate(tls.as_ref());
        let mut link = Link::new(socket, tls, self.patience).map_err(text)?;
        let resume = link.receive(Kind::Resume, Instant::now() + PROOF_TIMEOUT).map_err(text)?;
        let resume = Resume::from_bytes(&resume).map_err(|e| e.to_string())?;
        let same_tenant = self.security.is_plain()
            || self.security.identify(certified, &resume.token) == Identity::Tenant(self.tenant.clone());
        match resume.proof {
            Some(Proof { ticket, received })
                if same_tenant && resume.session == self.resumption.session && self.tickets().counts(&ticket) =>
            {
                Ok(Arrival { link, received, shown: Some(ticket) })
            }
            _ => refuse_as(&mut link, welcome_status::OVER, NOT_OURS),
        }
    }
}

/// The state of a connection that is listened to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hearing {
    /// It has not shown the ticket yet.
    Open,
    /// It has shown the ticket, and is the session's to admit or refuse.
    Shown,
    /// A newer one came first.
    Displaced,
}

/// The connection that is listened to.
struct Listening {
    socket: TcpStream,
    hearing: Arc<Mutex<Hearing>>,
    thread: JoinHandle<()>,
}

impl Listening {
    /// For a newer one. A connection that has shown the ticket by now goes on.
    fn end(self) {
        if leave_open(&self.hearing, Hearing::Displaced) {
            let _ = self.socket.shutdown(Shutdown::Both);
        }
        let _ = self.thread.join();
    }
}

/// True: the connection was open, and is `next` now.
fn leave_open(hearing: &Mutex<Hearing>, next: Hearing) -> bool {
    let mut hearing = hearing.lock().unwrap_or_else(PoisonError::into_inner);
    let open = *hearing == Hearing::Open;
    if open {
        *hearing = next;
    }
    open
}

/// Takes connections from the node until it is gone.
fn take_all(expected: &Arc<Expected>, node: &ControlSocket, events: &Sender<Event>) {
    let mut listening: Option<Listening> = None;
    while let Ok(Some((_, passed))) = node.receive() {
        let Some(socket) = passed.and_then(|gateway| take(&gateway)) else { continue };
        if let Some(older) = listening.take() {
            older.end();
        }
        let Ok(copy) = socket.try_clone() else { continue };
        let (expected, events) = (expected.clone(), events.clone());
        let hearing = Arc::new(Mutex::new(Hearing::Open));
        let heard = hearing.clone();
        let listen = move || {
            if let Ok(arrival) = expected.listen(socket)
                && leave_open(&heard, Hearing::Shown)
            {
                let _ = events.send(Event::Back(arrival));
            }
        };
        listening = thread("resume", listen).ok().map(|thread| Listening { socket: copy, hearing, thread });
    }
}

/// The connection that another gateway passes.
fn take(gateway: &OwnedFd) -> Option<TcpStream> {
    let (_, descriptors) = receive_hello(gateway, PASS_TIMEOUT).ok()?;
    let connection = descriptors.into_iter().next()?;
    let welcome = Welcome { wire_version: WIRE_VERSION, status: welcome_status::OK, ..Welcome::default() };
    send_greeting(gateway, &welcome.to_bytes(), &[]).ok()?;
    Some(TcpStream::from(connection))
}

/// On the clock of the whole machine, in milliseconds.
fn monotonic_ms() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000)
}

impl Reconnection for HandOvers {
    fn begin(&mut self, events: &Sender<Event>) -> io::Result<()> {
        let (expected, events) = (self.expected.clone(), events.clone());
        let node = ControlSocket::new(self.node.try_clone()?);
        // Its end is that of the process.
        thread("resumptions", move || take_all(&expected, &node, &events)).map(drop)
    }

    fn search(&mut self, _: u64, _: Instant, _: &Sender<Event>) {
        self.tell(&format!("away {}\n", monotonic_ms()));
    }

    fn admits(&self, arrival: &Arrival) -> bool {
        arrival.shown.is_some_and(|ticket| self.expected.tickets().counts(&ticket))
    }

    fn answer(&mut self, arrival: &mut Arrival, received: u64) -> io::Result<()> {
        let none = || io::Error::other("the kernel has no random bytes");
        let ticket = Ticket::random().ok_or_else(none)?;
        self.expected.tickets().renew(arrival.shown.ok_or_else(none)?, ticket);
        arrival.link.send(Kind::Resumed, &Resumed { ticket, received }.to_bytes())?;
        self.tell("back\n");
        Ok(())
    }

    fn confirm(&mut self) {
        self.expected.tickets().confirm();
    }

    fn stop(&mut self) {}
}

#[cfg(test)]
#[path = "handover_tests.rs"]
mod tests;
