//! The relay: a local unix socket that acts like a node's, and one connection to the remote node for each guest that
//! connects. Run by `aviary run --server HOST:PORT` in its own process; its guests are this user's programs.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aviary_transport::{Arena, ControlSocket, receive_hello, send_greeting};
use aviary_wire::attach::{PREFIX, hello_flag, welcome_flag, welcome_status};
use aviary_wire::{Hello, WIRE_VERSION, Welcome};

use crate::carry::carrier::Carrier;
use crate::carry::link::{Compression, Link};
use crate::dial::{RelayOptions, connect, lost};
use crate::frames::frame::Kind;
use crate::frames::open::{Open, VERSION};
use crate::output::Output;
use crate::processes::{ProcessKey, Processes};
use crate::resuming::redial::Redial;
use crate::resuming::resume::{Resumption, random};

/// The most time for a guest's greeting.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The most time for the node's answer to an attach: a vendor's library may take long to start.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(60);

/// A running relay. After dropping it no further guests are accepted; sessions end with this process.
pub struct Relay {
    shared: Arc<RelayState>,
    listener: Arc<UnixListener>,
    thread: Option<JoinHandle<()>>,
}

struct RelayState {
    options: Arc<RelayOptions>,
    /// `None`: all guests are one process.
    processes: Option<Processes>,
    /// The key of that process.
    own: Option<ProcessKey>,
    carried: AtomicUsize,
    closing: AtomicBool,
}

impl Relay {
    pub fn start(socket: &Path, options: RelayOptions) -> io::Result<Self> {
        let listener = Arc::new(UnixListener::bind(socket)?);
        let shared = Arc::new(RelayState {
            options: Arc::new(options),
            processes: Some(Processes::default()),
            own: None,
            carried: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
        });
        let thread = std::thread::Builder::new().name("relay".into()).spawn({
            let (listener, shared) = (listener.clone(), shared.clone());
            move || accept(&listener, &shared)
        })?;
        Ok(Relay { shared, listener, thread: Some(thread) })
    }

    /// The number of guests that are connected now.
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

/// Carries the connections of one guest process, which somebody else has accepted.
pub struct Carrying(Arc<RelayState>);

impl Carrying {
    /// # Errors
    /// The kernel gives no random bytes.
    pub fn new(options: RelayOptions) -> io::Result<Self> {
        let own = random().ok_or_else(|| io::Error::other("the kernel returned no random bytes"))?;
        Ok(Self(Arc::new(RelayState {
            options: Arc::new(options),
            processes: None,
            own: Some(own),
            carried: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
        })))
    }

    pub fn carry(&self, guest: UnixStream) {
        take(&self.0, guest);
    }

    /// Connections that are carried now.
    pub fn busy(&self) -> usize {
        self.0.carried.load(Ordering::SeqCst)
    }
}

fn accept(listener: &UnixListener, shared: &Arc<RelayState>) {
    while !shared.closing.load(Ordering::SeqCst) {
        let Ok((guest, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        take(shared, guest);
    }
}

/// Serves a guest on a thread of its own.
fn take(shared: &Arc<RelayState>, guest: UnixStream) {
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

fn serve(shared: &Arc<RelayState>, guest: UnixStream) {
    let options = &shared.options;
    let key = shared.own.or_else(|| shared.processes.as_ref()?.key(&guest));
    match attach(options, &guest, key) {
        Ok((carrier, link, resumption)) => {
            let compression = options.compression;
            let way = Box::new(Redial::new(options.clone(), resumption));
            let reason = carrier.run(link, compression, way).unwrap_or_else(|error| error.to_string());
            if options.verbose {
                eprintln!("aviary: the session on {} ended ({reason}): its device is lost", options.node);
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
        return Err("AVIARY_TRANSPORT=stream (--mirror) does not work with a remote node; leave it out".into());
    }
    let (arena, output) = open_arena(&hello, fds)?;
    let mut link =
        connect(options, CONNECT_TIMEOUT).map_err(|why| format!("cannot use node {}: {why}", options.node))?;
    let welcome = introduce(options, &mut link, &hello, process)
        .map_err(|why| format!("cannot use node {}: {why}", options.node))?;
    if welcome.status != welcome_status::OK {
        return Err(welcome.text);
    }
    let resumption = link
        .receive(Kind::Ticket, Instant::now() + CONNECT_TIMEOUT)
        .map_err(|e| format!("cannot use node {}: {}", options.node, lost(&e, options)))?;
    let resumption =
        Resumption::from_bytes(&resumption).map_err(|e| format!("cannot use node {}: {e}", options.node))?;
    let answer = Welcome { flags: welcome_flag::CARRIED | welcome_flag::AHEAD, ..welcome };
    send_greeting(guest.as_fd(), &answer.to_bytes(), &[]).map_err(|e| e.to_string())?;
    let control = guest.try_clone().map_err(|e| e.to_string())?;
    let control = ControlSocket::new(control.into());
    let carrier = Carrier::relay(arena, control, output, resumption.grace);
    if hello.flags & hello_flag::EARLY != 0 {
        carrier.set_early();
    }
    Ok((carrier, link, resumption))
}

fn open_arena(hello: &Hello, fds: Vec<OwnedFd>) -> Result<(Arc<Arena>, Output), String> {
    let mut fds = fds.into_iter();
    let file = fds.next().ok_or("the guest's greeting came without the arena's descriptor")?;
    let arena = Arena::open(file, 0, hello.arena_size).map_err(|e| e.to_string())?;
    let mut sink = |flag| if hello.flags & flag != 0 { fds.next() } else { None };
    let sinks = [sink(hello_flag::STDOUT), sink(hello_flag::STDERR)];
    Ok((arena, Output::sinks(sinks)))
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
