//! The node's side: a process of its own for each remote connection, which attaches to the node as a guest would.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use aviary_transport::{Arena, ControlSocket, receive_greeting, send_greeting};
use aviary_wire::attach::{hello_flag, welcome_flag, welcome_status};
use aviary_wire::{Hello, WIRE_VERSION, Welcome, tenant::is_reserved};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::carrier::Carrier;
use crate::frame::Kind;
use crate::handover::{HandOvers, hand_over};
use crate::link::{Compression, Link, drain};
use crate::open::Open;
use crate::output::Output;
use crate::resume::{Resume, Resumption, SessionName, Ticket, random};
use crate::security::{Identity, NodeSecurity};

/// Until then a peer has shown who it is, or this process ends.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A vendor library may take its time to start.
pub(crate) const WELCOME_TIMEOUT: Duration = Duration::from_secs(60);
/// The node's line about a tenant: 16 hexadecimal digits and the line's end.
const LIMIT: usize = 17;
const REVOKED: &str =
    "the node does not take this certificate any more (`aviary tls revoke`); ask its operator for a new one";
const UNKNOWN: &str = "the node does not know this token; ask its operator for a tenant folder (`aviary tls init`)";

pub struct GatewayOptions {
    /// The accepted connection.
    pub socket: OwnedFd,
    /// The node's unix socket.
    pub node: PathBuf,
    /// Where the node reads which tenant this is, which of its processes and which session, and then says how many bytes of
    /// memory the tenant's arena may hold. Later connections that resume the session come from there.
    pub report: File,
    pub security: NodeSecurity,
    pub compression: Compression,
    /// Without a sign of life for so long a peer is given up, whatever it asks for.
    pub longest_patience: Duration,
    /// Bytes of memory that an arena may hold, whatever the tenant.
    pub memory: usize,
    /// Time without a connection that a session survives; zero: none.
    pub grace: Duration,
}

/// Serves one connection and says why it ended.
pub fn gateway(options: GatewayOptions) -> Result<String, String> {
    let known = Arc::new(AtomicBool::new(false));
    limit_handshake(known.clone());
    let mut socket = TcpStream::from(options.socket);
    let ready = socket.set_nonblocking(false).and_then(|()| socket.set_read_timeout(Some(HANDSHAKE_TIMEOUT)));
    ready.map_err(|e| e.to_string())?;
    let _ = socket.set_nodelay(true);
    if options.security.is_plain() {
        refuse_tls(&mut socket)?;
    }
    let tls = options.security.shake_hands(&mut socket).map_err(|e| {
        drain(&mut socket);
        format!("no TLS session: {e}")
    })?;
    let tls_identity = options.security.by_certificate(tls.as_ref());
    let mut link = Link::new(socket, tls, HANDSHAKE_TIMEOUT).map_err(|e| e.to_string())?;
    let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
    let (kind, first) = link.receive_one_of(&[Kind::Open, Kind::Resume], deadline).map_err(|e| e.to_string())?;
    let mut stranger = Stranger { link, tls_identity, known, report: options.report };
    if kind == Kind::Resume {
        let resume = Resume::from_bytes(&first).or_else(|e| refuse(&mut stranger.link, &e.to_string()))?;
        let tenant = stranger.identify(&options.security, &resume.token)?;
        stranger.tell(&tenant, 0, &resume.session, "again")?;
        return hand_over(&options.node, stranger.link);
    }
    let open = Open::from_bytes(&first).or_else(|e| refuse(&mut stranger.link, &e.to_string()))?;
    let tenant = stranger.identify(&options.security, &open.token)?;
    let name: SessionName = random().ok_or("the kernel has no random bytes")?;
    let ticket = Ticket::random().ok_or("the kernel has no random bytes")?;
    let process = open.process.map(u128::from_be_bytes).unwrap_or_default();
    stranger.tell(&tenant, process, &name, "new")?;
    let Stranger { mut link, mut report, .. } = stranger;
    let attached = attach(&options.node, &open.hello, &mut report, options.memory, options.grace);
    let (carrier, welcome) = attached.or_else(|why| refuse(&mut link, &why))?;
    let patience = Duration::from_secs(open.patience.max(1)).min(options.longest_patience);
    link.set_patience(patience).map_err(|e| e.to_string())?;
    let resumption = Resumption { session: name, ticket, grace: options.grace };
    let greeted = link.send(Kind::Welcome, &welcome.to_bytes());
    greeted.and_then(|()| link.send(Kind::Ticket, &resumption.to_bytes())).map_err(|e| e.to_string())?;
    let compression = if open.compress { options.compression } else { Compression::Off };
    let way = HandOvers::new(report.into(), options.security, tenant, resumption, patience);
    carrier.run(link, compression, Box::new(way)).map_err(|e| e.to_string())
}

/// A peer that has said something.
struct Stranger {
    link: Link,
    /// The identity in its certificate.
    tls_identity: Option<Identity>,
    /// It has shown who it is.
    known: Arc<AtomicBool>,
    report: File,
}

impl Stranger {
    /// The tenant of the peer; one without an identity is told so.
    fn identify(&mut self, security: &NodeSecurity, token: &[u8]) -> Result<String, String> {
        let tenant = if security.is_plain() {
            String::new()
        } else {
            match security.identify(self.tls_identity.take(), token) {
                Identity::Tenant(tenant) if is_reserved(&tenant) => {
                    return refuse(
                        &mut self.link,
                        &format!(
                            "`{tenant}` is the name of a local user without a tenant, which no certificate or token can have; ask the node's operator for another one (`aviary tls init`)"
                        ),
                    );
                }
                Identity::Tenant(tenant) => tenant,
                Identity::Revoked => return refuse(&mut self.link, REVOKED),
                Identity::Unknown => return refuse(&mut self.link, UNKNOWN),
            }
        };
        self.known.store(true, Ordering::SeqCst);
        Ok(tenant)
    }

    /// Tells the node. `intent`: `new` or `again`.
    fn tell(&mut self, tenant: &str, process: u128, session: &SessionName, intent: &str) -> Result<(), String> {
        let session = u128::from_be_bytes(*session);
        let line = format!("{tenant}\t{process:032x}\t{session:032x}\t{intent}\n");
        self.report.write_all(line.as_bytes()).map_err(|e| format!("the node is gone: {e}"))
    }
}

/// A peer that sends a byte now and then keeps no timeout from passing here.
fn limit_handshake(known: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        std::thread::sleep(HANDSHAKE_TIMEOUT);
        if !known.load(Ordering::SeqCst) {
            std::process::exit(1);
        }
    });
}

/// Says something that is not TLS, so that the other side can tell what is wrong.
fn refuse_tls(socket: &mut TcpStream) -> Result<(), String> {
    let mut first = [0; 2];
    match socket.peek(&mut first) {
        Ok(2) if first == [0x16, 0x03] => {
            let _ = socket.write_all(b"this Aviary node does not speak TLS\n");
            drain(socket);
            Err("the peer speaks TLS, this node was started with --plain-loopback".into())
        }
        Ok(_) => Ok(()),
        Err(e) => Err(e.to_string()),
    }
}

fn refuse<T>(link: &mut Link, why: &str) -> Result<T, String> {
    refuse_as(link, welcome_status::REFUSED, why)
}

/// `status`: one of [`welcome_status`].
pub(crate) fn refuse_as<T>(link: &mut Link, status: u64, why: &str) -> Result<T, String> {
    let welcome = Welcome { wire_version: WIRE_VERSION, status, text: why.to_owned(), ..Welcome::default() };
    let _ = link.send(Kind::Welcome, &welcome.to_bytes());
    link.end();
    Err(why.to_owned())
}

/// Bytes that the arena may hold. The node has said what it says about the tenant before the session is handed over.
fn memory_limit(report: &mut File, of_node: usize) -> Result<usize, String> {
    let mut line = [0; LIMIT];
    report.read_exact(&mut line).map_err(|e| format!("the node does not say what the tenant may use: {e}"))?;
    let of_tenant = std::str::from_utf8(&line).ok().and_then(|line| u64::from_str_radix(line.trim_end(), 16).ok());
    let of_tenant = of_tenant.ok_or("the node does not say what the tenant may use")?;
    Ok(usize::try_from(of_tenant).unwrap_or(usize::MAX).min(of_node))
}

/// Attaches to the node in the remote guest's place.
fn attach(
    node: &Path,
    theirs: &Hello,
    report: &mut File,
    memory: usize,
    grace: Duration,
) -> Result<(Arc<Carrier>, Welcome), String> {
    let arena = Arena::create(usize::try_from(theirs.arena_size).unwrap_or(0)).map_err(|e| e.to_string())?;
    let socket = UnixStream::connect(node).map_err(|e| format!("the node does not answer its own gateway: {e}"))?;
    let (stdout, stdout_end) = new_pipe()?;
    let (stderr, stderr_end) = new_pipe()?;
    let hello = Hello {
        flags: hello_flag::CARRIED | hello_flag::STDOUT | hello_flag::STDERR,
        pid: std::process::id(),
        arena_address: arena.address(),
        arena_size: arena.size() as u64,
        ..theirs.clone()
    };
    let file = arena.file().ok_or("the arena has no file")?;
    let fds: [BorrowedFd; 3] = [file, stdout_end.as_fd(), stderr_end.as_fd()];
    let failed = |e: aviary_transport::ControlError| format!("the node did not attach us: {e}");
    send_greeting(&socket, &hello.to_bytes(), &fds).map_err(failed)?;
    let welcome = receive_greeting(socket.as_fd(), WELCOME_TIMEOUT).map_err(failed)?;
    if welcome.status != welcome_status::OK {
        return Err(welcome.text);
    }
    let output = Output::sources([Some(stdout), Some(stderr)]);
    let memory = memory_limit(report, memory)?;
    let carrier = Carrier::gateway(arena, memory, ControlSocket::new(socket.into()), output, grace);
    Ok((carrier, Welcome { flags: welcome.flags & !welcome_flag::SAME_ADDRESS, ..welcome }))
}

fn new_pipe() -> Result<(OwnedFd, OwnedFd), String> {
    pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from).map_err(|e| format!("no pipe for the output: {e}"))
}
