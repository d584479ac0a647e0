//! The guest's side: a unix socket that looks like a node's, and one remote connection for each that comes in.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aviary_transport::{Arena, ControlSocket, RemoteAddress, receive_hello, send_greeting};
use aviary_wire::attach::{PREFIX, hello_flag, welcome_flag, welcome_status};
use aviary_wire::{Hello, WIRE_VERSION, Welcome};

use crate::carrier::Carrier;
use crate::frame::Kind;
use crate::link::{Compression, Link};
use crate::open::{Open, VERSION};
use crate::output::Output;
use crate::processes::{ProcessKey, Processes};
use crate::redial::Redial;
use crate::resume::Resumption;
use crate::security::{ClientSecurity, explain};

/// A guest that connects says hello at once.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A vendor library may take its time to start.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(60);

pub struct RelayOptions {
    pub node: RemoteAddress,
    pub security: ClientSecurity,
    /// Without a sign of life for so long a link is given up.
    pub patience: Duration,
    pub compression: Compression,
    /// Say on standard error why connections end.
    pub verbose: bool,
}

/// Dropping it takes no further guests; those that it carries end with this process.
pub struct Relay {
    shared: Arc<RelayState>,
    listener: Arc<UnixListener>,
    thread: Option<JoinHandle<()>>,
}

pub(crate) struct RelayState {
    pub options: RelayOptions,
    processes: Processes,
    carried: AtomicUsize,
    closing: AtomicBool,
}

impl Relay {
    pub fn start(socket: &Path, options: RelayOptions) -> io::Result<Self> {
        let listener = Arc::new(UnixListener::bind(socket)?);
        let shared = Arc::new(RelayState {
            options,
            processes: Processes::default(),
            carried: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
        });
        let thread = std::thread::Builder::new().name("relay".into()).spawn({
            let (listener, shared) = (listener.clone(), shared.clone());
            move || accept(&listener, &shared)
        })?;
        Ok(Relay { shared, listener, thread: Some(thread) })
    }

    /// Guests that are connected now.
    pub fn busy(&self) -> usize {
        self.shared.carried.load(Ordering::SeqCst)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept(listener: &UnixListener, shared: &Arc<RelayState>) {
    while !shared.closing.load(Ordering::SeqCst) {
        let Ok((guest, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        shared.carried.fetch_add(1, Ordering::SeqCst);
        let theirs = shared.clone();
        let life = move || {
            serve(&theirs, guest);
            theirs.carried.fetch_sub(1, Ordering::SeqCst);
        };
        if std::thread::Builder::new().name("session".into()).spawn(life).is_err() {
            shared.carried.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

fn serve(shared: &Arc<RelayState>, guest: UnixStream) {
    let options = &shared.options;
    match attach(options, &guest, shared.processes.key(&guest)) {
        Ok((carrier, link, resumption)) => {
            let compression = options.compression;
            let way = Box::new(Redial::new(shared.clone(), resumption));
            let reason = carrier.run(link, compression, way).unwrap_or_else(|error| error.to_string());
            if options.verbose {
                eprintln!("aviary: the connection to {} ended: {reason}", options.node);
            }
        }
        Err(text) => {
            let refusal =
                Welcome { wire_version: WIRE_VERSION, status: welcome_status::REFUSED, text, ..Welcome::default() };
            let _ = send_greeting(guest.as_fd(), &refusal.to_bytes(), &[]);
        }
    }
}

fn attach(
    options: &RelayOptions,
    guest: &UnixStream,
    process: Option<ProcessKey>,
) -> Result<(Arc<Carrier>, Link, Resumption), String> {
    let (hello, fds) = receive_hello(guest, HELLO_TIMEOUT).map_err(|e| e.to_string())?;
    if hello.flags & hello_flag::MIRRORED != 0 {
        return Err("a remote node needs no AVIARY_TRANSPORT=stream (--mirror); leave it out".into());
    }
    let (arena, output) = open_arena(&hello, fds)?;
    let mut link = connect(options, CONNECT_TIMEOUT).map_err(|why| format!("node {}: {why}", options.node))?;
    let welcome =
        introduce(options, &mut link, &hello, process).map_err(|why| format!("node {}: {why}", options.node))?;
    if welcome.status != welcome_status::OK {
        return Err(welcome.text);
    }
    let resumption = link.receive(Kind::Ticket, Instant::now() + CONNECT_TIMEOUT).map_err(|e| lost(&e, options))?;
    let resumption = Resumption::from_bytes(&resumption).map_err(|e| format!("node {}: {e}", options.node))?;
    let answer = Welcome { flags: welcome_flag::CARRIED, ..welcome };
    send_greeting(guest.as_fd(), &answer.to_bytes(), &[]).map_err(|e| e.to_string())?;
    let control = guest.try_clone().map_err(|e| e.to_string())?;
    let control = ControlSocket::new(control.into());
    Ok((Carrier::relay(arena, control, output, resumption.grace), link, resumption))
}

fn open_arena(hello: &Hello, fds: Vec<OwnedFd>) -> Result<(Arc<Arena>, Output), String> {
    let mut fds = fds.into_iter();
    let file = fds.next().ok_or("the greeting came without the arena's descriptor")?;
    let arena = Arena::open(file, 0, hello.arena_size).map_err(|e| e.to_string())?;
    let mut sink = |flag| if hello.flags & flag != 0 { fds.next() } else { None };
    let sinks = [sink(hello_flag::STDOUT), sink(hello_flag::STDERR)];
    Ok((arena, Output::sinks(sinks)))
}

/// `timeout`: for each step.
pub(crate) fn connect(options: &RelayOptions, timeout: Duration) -> Result<Link, String> {
    let node = &options.node;
    let unreachable = |e: io::Error| match e.kind() {
        io::ErrorKind::ConnectionRefused => "nobody listens there; is `aviary serve --listen` running?".to_owned(),
        io::ErrorKind::TimedOut => "no answer; is the address right and the port open?".to_owned(),
        _ => format!("cannot be reached: {e}"),
    };
    let socket = node.connect(timeout).map_err(unreachable)?;
    let _ = socket.set_nodelay(true);
    secure(options, socket, timeout)
}

/// A TLS session over a connection, which has none or no longer has one.
pub(crate) fn secure(options: &RelayOptions, mut socket: TcpStream, timeout: Duration) -> Result<Link, String> {
    let limited = socket.set_read_timeout(Some(timeout)).and_then(|()| socket.set_write_timeout(Some(timeout)));
    limited.map_err(|e| e.to_string())?;
    let tls = options.security.shake_hands(&options.node, &mut socket).map_err(|e| lost(&e, options))?;
    Link::new(socket, tls, options.patience).map_err(|e| e.to_string())
}

fn lost(error: &io::Error, options: &RelayOptions) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset if options.security.is_plain() => {
            "closed the connection; does it speak TLS? then leave out --plain-loopback and give --tls-dir".into()
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            "closed the connection; it may be busy, or it is no Aviary node".into()
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "does not answer".into(),
        _ => explain(error, &options.node),
    }
}

fn introduce(
    options: &RelayOptions,
    link: &mut Link,
    hello: &Hello,
    process: Option<ProcessKey>,
) -> Result<Welcome, String> {
    let open = Open {
        version: VERSION,
        compress: options.compression == Compression::Auto,
        patience: options.patience.as_secs().max(1),
        token: options.security.token.clone(),
        hello: hello.clone(),
        process,
    };
    let failed = |e: io::Error| lost(&e, options);
    link.send(Kind::Open, &open.to_bytes()).map_err(failed)?;
    let welcome = link.receive(Kind::Welcome, Instant::now() + WELCOME_TIMEOUT).map_err(failed)?;
    Welcome::from_body(welcome.get(PREFIX..).unwrap_or_default()).map_err(|e| e.to_string())
}
