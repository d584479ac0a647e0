//! The gateway: the node's process for one remote connection. It authenticates the peer, reports the tenant to the node and
//! attaches to the node like a guest, in the place of the remote one. Run by `aviary gateway`, which the node starts.
//!
//! Everything that it reads may come from an attacker. Before authentication the peer has [`HANDSHAKE_TIMEOUT`]; then the
//! process ends. After it the peer can use only its own tenant's resources.

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
use aviary_wire::{Hello, Welcome, tenant::is_reserved};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::carry::carrier::Carrier;
use crate::carry::link::{Compression, Link, drain};
use crate::frames::frame::Kind;
use crate::frames::open::Open;
use crate::frames::welcome::{WELCOME_TIMEOUT, refuse_as};
use crate::keys::security::{Identity, NodeSecurity};
use crate::output::Output;
use crate::resuming::handover::{HandOvers, hand_over};
use crate::resuming::resume::{Resume, Resumption, SessionName, Ticket, random};

/// The most time for the peer's authentication; then this process ends.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Length in bytes of the node's line about a tenant's memory limit: 16 hexadecimal digits and a newline.
const LIMIT: usize = 17;
const REVOKED: &str = "this certificate is revoked (`aviary tls revoke`); ask the node's operator for a new one";
const UNKNOWN: &str = "the node does not know this token; ask its operator for a tenant folder (`aviary tls init`)";

pub struct GatewayOptions {
    /// The accepted connection; of [`crate::gateway_again`] the file in which an earlier gateway has left its session.
    pub socket: OwnedFd,
    /// The node's unix socket.
    pub node: PathBuf,
    /// The channel to the node: the gateway writes tenant, guest process and session; the node answers with the bytes of
    /// memory that the tenant's arena may hold, and later passes connections that resume the session.
    pub report: File,
    pub security: NodeSecurity,
    pub compression: Compression,
    /// The longest time without data after which a connection counts as broken, even if the peer asks for a longer one.
    pub longest_patience: Duration,
    /// The most memory, in bytes, that the arena may hold, for any tenant.
    pub memory: usize,
    /// How long the session survives without a connection; zero: it ends with its connection.
    pub grace: Duration,
}

/// Serves one connection; returns the reason of its end.
pub fn gateway(options: GatewayOptions) -> Result<String, String> {
    let known = Arc::new(AtomicBool::new(false));
    limit_handshake(known.clone());
    let mut socket = TcpStream::from(options.socket);
    let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
    let ready = socket.set_nonblocking(false).and_then(|()| socket.set_read_timeout(Some(HANDSHAKE_TIMEOUT)));
    ready.map_err(|e| e.to_string())?;
    let _ = socket.set_nodelay(true);
    if options.security.is_plain() {
        refuse_tls(&mut socket)?;
    }
    let tls = options.security.shake_hands(&mut socket, deadline).map_err(|e| {
        drain(&mut socket);
        format!("the TLS handshake failed: {e}")
    })?;
    let tls_identity = options.security.by_certificate(tls.as_ref());
    let mut link = Link::new(socket, tls, HANDSHAKE_TIMEOUT).map_err(|e| e.to_string())?;
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
    let name: SessionName = random().ok_or("the kernel returned no random bytes")?;
    let ticket = Ticket::random().ok_or("the kernel returned no random bytes")?;
    let strands = Ticket::random().ok_or("the kernel returned no random bytes")?;
    let process = open.process.map(u128::from_be_bytes).unwrap_or_default();
    stranger.tell(&tenant, process, &name, "new")?;
    let Stranger { mut link, mut report, .. } = stranger;
    let attached = attach(&options.node, &open.hello, &mut report, options.memory, options.grace);
    let (carrier, welcome) = attached.or_else(|why| refuse(&mut link, &why))?;
    let patience = Duration::from_secs(open.patience.max(1)).min(options.longest_patience);
    link.set_patience(patience).map_err(|e| e.to_string())?;
    let resumption = Resumption { session: name, ticket, strands, grace: options.grace };
    let greeted = link.send(Kind::Welcome, &welcome.to_bytes());
    greeted.and_then(|()| link.send(Kind::Ticket, &resumption.to_bytes())).map_err(|e| e.to_string())?;
    let compression = if open.compress { options.compression } else { Compression::Off };
    let way = HandOvers::new(report.into(), options.security, tenant, resumption, patience);
    carrier.run(link, compression, Box::new(way)).map_err(|e| e.to_string())
}

/// A peer whose first frame has arrived and that is not authenticated yet.
struct Stranger {
    link: Link,
    /// The identity in the peer's certificate, if it showed one.
    tls_identity: Option<Identity>,
    /// Set once the peer is authenticated; read by the thread of [`limit_handshake`].
    known: Arc<AtomicBool>,
    report: File,
}

impl Stranger {
    /// The peer's tenant. A peer without a valid identity is refused with the reason.
    fn identify(&mut self, security: &NodeSecurity, token: &[u8]) -> Result<String, String> {
        let tenant = if security.is_plain() {
            String::new()
        } else {
            match security.identify(self.tls_identity.take(), token) {
                Identity::Tenant(tenant) if is_reserved(&tenant) => {
                    return refuse(
                        &mut self.link,
                        &format!(
                            "`{tenant}` is the name of a local user without a tenant, which is not allowed in certificates and tokens; ask the node's operator for another one (`aviary tls init`)"
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

    /// Reports the peer to the node. `intent`: `new` for a new session, `again` to resume one.
    fn tell(&mut self, tenant: &str, process: u128, session: &SessionName, intent: &str) -> Result<(), String> {
        let session = u128::from_be_bytes(*session);
        let line = format!("{tenant}\t{process:032x}\t{session:032x}\t{intent}\n");
        self.report
            .write_all(line.as_bytes())
            .map_err(|e| format!("cannot report the peer to the node, which may have ended: {e}"))
    }
}

/// Ends this process after [`HANDSHAKE_TIMEOUT`] unless the peer is authenticated: a peer that sends a byte now and then
/// would reset the socket's timeouts.
fn limit_handshake(known: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        std::thread::sleep(HANDSHAKE_TIMEOUT);
        if !known.load(Ordering::SeqCst) {
            std::process::exit(1);
        }
    });
}

/// Refuses a peer that speaks TLS to a node without it, with plain text, so that the other side can explain the error.
fn refuse_tls(socket: &mut TcpStream) -> Result<(), String> {
    let mut first = [0; 2];
    match socket.peek(&mut first) {
        Ok(2) if first == [0x16, 0x03] => {
            let _ = socket.write_all(b"this Aviary node does not speak TLS\n");
            drain(socket);
            Err("the peer uses TLS, but this node was started with --plain-loopback".into())
        }
        Ok(_) => Ok(()),
        Err(e) => Err(e.to_string()),
    }
}

fn refuse<T>(link: &mut Link, why: &str) -> Result<T, String> {
    refuse_as(link, welcome_status::REFUSED, why)
}

/// Bytes of memory that the arena may hold: the node's limit for this tenant, `of_node` at most. The node sends it before
/// it passes the session to an API server.
fn memory_limit(report: &mut File, of_node: usize) -> Result<usize, String> {
    let mut line = [0; LIMIT];
    report.read_exact(&mut line).map_err(|e| format!("cannot read the tenant's memory limit from the node: {e}"))?;
    let of_tenant = std::str::from_utf8(&line).ok().and_then(|line| u64::from_str_radix(line.trim_end(), 16).ok());
    let of_tenant = of_tenant.ok_or("the node sent a malformed memory limit")?;
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
    let socket = UnixStream::connect(node).map_err(|e| format!("cannot connect to the node: {e}"))?;
    let (stdout, stdout_end) = new_pipe()?;
    let (stderr, stderr_end) = new_pipe()?;
    let hello = Hello {
        flags: hello_flag::CARRIED | hello_flag::STDOUT | hello_flag::STDERR,
        pid: std::process::id(),
        arena_address: arena.address(),
        arena_size: arena.size() as u64,
        ..theirs.clone()
    };
    let file = arena.file().ok_or("internal error: the arena has no file")?;
    let fds: [BorrowedFd; 3] = [file, stdout_end.as_fd(), stderr_end.as_fd()];
    let failed = |e: aviary_transport::ControlError| format!("the node did not accept the attach: {e}");
    let sent = send_greeting(&socket, &hello.to_bytes(), &fds);
    // A node that refuses at once has answered, and may have gone before the greeting could be sent.
    let welcome = match (receive_greeting(socket.as_fd(), WELCOME_TIMEOUT), sent) {
        (Ok(welcome), _) => welcome,
        (Err(_), Err(error)) | (Err(error), Ok(())) => return Err(failed(error)),
    };
    if welcome.status != welcome_status::OK {
        return Err(welcome.text);
    }
    let output = Output::sources([Some(stdout), Some(stderr)]);
    let memory = memory_limit(report, memory)?;
    let carrier = Carrier::gateway(arena, memory, ControlSocket::new(socket.into()), output, grace);
    Ok((carrier, Welcome { flags: welcome.flags & !welcome_flag::SAME_ADDRESS, ..welcome }))
}

pub(crate) fn new_pipe() -> Result<(OwnedFd, OwnedFd), String> {
    pipe_with(PipeFlags::CLOEXEC)
        .map_err(io::Error::from)
        .map_err(|e| format!("cannot create a pipe for the output: {e}"))
}
