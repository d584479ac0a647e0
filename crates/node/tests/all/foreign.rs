//! Descriptors whose `close` waits for somebody else, at every place at which an API server or a guest can leave one: the node
//! serves others meanwhile, and it ends. Nothing here depends on how long anything takes: those descriptors wait for hours.
//!
//! Every process that this one starts has copies of all its descriptors for a moment, among them the node's, whose last close
//! would then be there: guests are started before anything waits, the tests run one after the
//! other, and they are a program of their own.
//!
//! This test program, started again, is the API server: it answers `p` of a guest with `p`, and takes two other bytes, a place
//! and a kind, for the order to leave such a descriptor there.

use crate::support::{control, take_message};
use aviary_control::{
    Assignment, CaptureDescriptors, CaptureFigures, FromServer, MAX_MESSAGE_BYTES, MoveOrder, MoveReport, OfferName,
    Patience, SessionDescriptors, ToServer, encode, send,
};
use aviary_node::{
    ApiServerCommand, Level, MoveBegun, MoveRequest, MoveStatus, Node, NodeConfig, PrivateDir, Request, ask, query,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{OFlags, SealFlags, fcntl_setfl},
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt::set_socket_linger},
};
use std::{
    env,
    ffi::OsString,
    io::{IoSlice, Read, Write},
    mem::{ManuallyDrop, MaybeUninit},
    net::{TcpListener, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

const ROLE: &str = "AVIARY_TEST_FOREIGN_ROLE";
/// Of the listener whose connections nobody reads.
const PORT: &str = "AVIARY_TEST_FOREIGN_PORT";
/// Bounds a hang of the node, and nothing else.
const PATIENCE: Duration = Duration::from_secs(60);
/// For longer than any test.
const LINGER: Duration = Duration::from_secs(30_000);

/// Descriptors that wait while they are closed.
const KINDS: &[u8] = b"lnzcfpt";
/// Places at which an API server leaves one and ends.
const PLACES: &[u8] = b"og";
/// The first message as a place; the others follow.
const MESSAGES: u8 = 0x80;

fn pair() -> (OwnedFd, OwnedFd) {
    let (one, other) = UnixStream::pair().unwrap();
    (one.into(), other.into())
}

/// A connection to a peer that does not read, which is closed in LINGER.
fn lingering() -> OwnedFd {
    let port: u16 = env::var(PORT).unwrap().parse().unwrap();
    let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
    set_socket_linger(&socket, Some(LINGER)).unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 1 << 16]).is_ok() {}
    socket.into()
}

fn with_descriptors(to: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    let _ = sendmsg(to, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// A socket in which this is in flight.
fn around(inner: &OwnedFd) -> OwnedFd {
    let (one, other) = pair();
    with_descriptors(other.as_fd(), b"x", &[inner.as_fd()]);
    one
}

fn waiting(kind: u8) -> OwnedFd {
    match kind {
        b'l' => lingering(),
        // In flight in a socket, and in one that is in flight.
        b'n' => around(&lingering()),
        b'z' => around(&around(&lingering())),
        // In flight in itself: only the kernel's garbage collection ends it.
        b'c' => {
            let (one, other) = pair();
            with_descriptors(other.as_fd(), b"x", &[one.as_fd(), lingering().as_fd()]);
            one
        }
        // A pipe that is full, and nobody reads.
        b'f' => {
            let (reader, writer) = std::io::pipe().unwrap();
            fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
            while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
            std::mem::forget(reader);
            writer.into()
        }
        // The end of a pipe that is read: nothing waits, as usual.
        b'p' => std::io::pipe().unwrap().1.into(),
        // A terminal with output that nobody takes.
        _ => {
            let flags = rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY;
            let Ok(main) = rustix::pty::openpt(flags) else { return lingering() };
            let _ = rustix::pty::unlockpt(&main);
            let terminal = rustix::pty::ptsname(&main, Vec::new()).unwrap();
            let options = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK;
            let Ok(terminal) = rustix::fs::open(&*terminal, options, rustix::fs::Mode::empty()) else { return main };
            while rustix::io::write(&terminal, &[b'x'; 1024]).is_ok() {}
            std::mem::forget(main);
            terminal
        }
    }
}

// The API server.

struct Hostile {
    control: OwnedFd,
    /// The descriptor that it leaves when it is asked for one, and the place.
    place: Mutex<Option<(u8, OwnedFd)>>,
}

/// Not a test: the API server, when this program is started as one.
#[test]
fn fake_api_server() {
    if env::var(ROLE).as_deref() != Ok("api-server") {
        return;
    }
    let hostile = Arc::new(Hostile { control: control(), place: Mutex::new(None) });
    while let Some((message, descriptors)) = take_message(hostile.control.as_fd()) {
        match message {
            ToServer::Assign(assignment) => {
                let (hostile, descriptors) = (hostile.clone(), SessionDescriptors::of(descriptors).unwrap());
                std::thread::spawn(move || serve(&hostile, &assignment, &descriptors));
            }
            ToServer::Move { session, order: MoveOrder::Capture { attempt, .. } } => {
                hostile.capture(session, attempt, &CaptureDescriptors::of(descriptors).unwrap());
            }
            ToServer::Move { session, order: MoveOrder::Announce { attempt } } => {
                hostile.tell(&FromServer::Move { session, report: MoveReport::Announced { attempt } });
            }
            ToServer::Prepare(wanted) => {
                hostile.tell(&FromServer::Move { session: wanted.session, report: MoveReport::Prepared });
            }
            // The new one of a move: it never answers.
            ToServer::Adopt(_) | ToServer::Move { .. } | ToServer::Fetched { .. } => {}
            ToServer::Fetch(_) => {
                let given = hostile.place.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some((_, waiting)) = given {
                    // The asker may have gone.
                    let _ = aviary_control::give(descriptors[0].as_fd(), waiting.as_fd(), 0);
                }
            }
        }
    }
    std::process::exit(0);
}

impl Hostile {
    fn tell(&self, message: &FromServer) {
        let _ = send(self.control.as_fd(), message, &[], Patience::Waits);
    }

    fn capture(&self, session: u64, attempt: u64, place: &CaptureDescriptors<OwnedFd>) {
        let left = self.place.lock().unwrap_or_else(PoisonError::into_inner).take();
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        rustix::fs::fcntl_add_seals(&place.file, seals).unwrap();
        if let Some((_, waiting)) = left {
            for socket in [&place.rest, &place.handing[0], &place.handing[1]] {
                with_descriptors(socket.as_fd(), b"rest", &[waiting.as_fd(); 6]);
            }
        }
        let figures = CaptureFigures::default();
        self.tell(&FromServer::Move { session, report: MoveReport::Captured { attempt, figures } });
    }

    /// Leaves it, so that nobody but the node has it.
    fn leave(&self, session: u64, descriptors: &SessionDescriptors<OwnedFd>, place: u8, waiting: OwnedFd) {
        let messages = messages(session);
        match place {
            // Until it is asked to capture, or for what it offers.
            b's' | b'x' => {
                *self.place.lock().unwrap_or_else(PoisonError::into_inner) = Some((place, waiting));
            }
            b'o' => {
                descriptors.orders.iter().for_each(|end| with_descriptors(end.as_fd(), b"x", &[waiting.as_fd()]));
                drop(waiting);
                std::process::exit(0);
            }
            // Without anything else, and the process ends: the control socket has it.
            b'g' => {
                (0..8).for_each(|_| with_descriptors(self.control.as_fd(), b"garbage", &[waiting.as_fd(); 253]));
                drop(waiting);
                std::process::exit(0);
            }
            place => {
                let at = usize::from(place - MESSAGES);
                with_descriptors(self.control.as_fd(), &messages[at % messages.len()], &[waiting.as_fd()]);
            }
        }
    }
}

/// Of every type, and some that are none.
fn messages(session: u64) -> Vec<Vec<u8>> {
    let (text, name) = (String::new, OfferName { session, secret: [0; 2] });
    let reports = [
        MoveReport::Announced { attempt: 1 },
        MoveReport::Prepared,
        MoveReport::Captured { attempt: 1, figures: CaptureFigures::default() },
        MoveReport::Unmovable { attempt: 1, reason: text(), lasting: true },
        MoveReport::Differs { reason: text() },
        MoveReport::Rebuilt { rebuild_us: 0 },
        MoveReport::Parked,
        MoveReport::Wanted,
    ];
    let moves = reports.map(|report| FromServer::Move { session, report });
    let others = [
        FromServer::Started { session, api: "fake".into(), spec_hash: 0 },
        FromServer::Ended { session, reason: text() },
        FromServer::Fetch { session, request: 0, name },
        FromServer::Card { session, request: 0 },
        FromServer::Init { pid: 1 },
        FromServer::Born { pid: 1 },
        FromServer::Ready,
        FromServer::Unfit { reason: text() },
    ];
    let garbage = [Vec::new(), b"garbage".to_vec(), vec![b' '; MAX_MESSAGE_BYTES + 1]];
    moves.iter().chain(&others).map(|message| encode(message).unwrap()).chain(garbage).collect()
}

fn serve(hostile: &Hostile, assignment: &Assignment, descriptors: &SessionDescriptors<OwnedFd>) {
    let session = assignment.session;
    let mut guest = UnixStream::from(descriptors.guest.try_clone().unwrap());
    hostile.tell(&FromServer::Started { session, api: "fake".into(), spec_hash: 0 });
    let mut byte = [0];
    while guest.read(&mut byte).is_ok_and(|count| count == 1) {
        match byte[0] {
            b'p' => guest.write_all(b"p").unwrap(),
            // Another session of the tenant fetches what this one offers.
            b'F' => {
                let _ = guest.read(&mut byte);
                let name = OfferName { session: byte[0].into(), secret: [0; 2] };
                hostile.tell(&FromServer::Fetch { session, request: 0, name });
            }
            place => {
                let _ = guest.read(&mut byte);
                hostile.leave(session, descriptors, place, waiting(byte[0]));
                let _ = guest.write_all(b"d");
            }
        }
    }
    // It does not end by itself.
    loop {
        std::thread::park();
    }
}

// Guests.

/// Connections of one process are one API server's: each guest is a process of its own that carries bytes.
struct Guest(std::process::Child);

/// Not a test: a guest in a process of its own.
#[test]
fn fake_guest() {
    let Some(socket) = env::var(ROLE).ok().and_then(|role| role.strip_prefix("guest:").map(str::to_owned)) else {
        return;
    };
    let (mut orders, mut byte, mut connected) = (std::io::stdin(), [0], None);
    while orders.read(&mut byte).is_ok_and(|count| count == 1) {
        // With its first order.
        let socket = connected.get_or_insert_with(|| UnixStream::connect(&socket).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = socket.write_all(&byte);
        let answered = byte[0] != b'p' || socket.read_exact(&mut byte).is_ok();
        std::io::stderr().write_all(if answered { b"y" } else { b"n" }).unwrap();
    }
    std::process::exit(0);
}

impl Guest {
    fn start(socket: &Path) -> Guest {
        let mut command = std::process::Command::new(env::current_exe().unwrap());
        command
            .args(["foreign::fake_guest", "--exact", "--nocapture"])
            .env(ROLE, format!("guest:{}", socket.display()));
        let pipe = std::process::Stdio::piped;
        Guest(command.stdin(pipe()).stdout(std::process::Stdio::null()).stderr(pipe()).spawn().unwrap())
    }

    /// False: the node or the API server did not answer.
    fn sends(&mut self, bytes: &[u8]) -> bool {
        bytes.iter().all(|byte| {
            let (to, from) = (self.0.stdin.as_mut().unwrap(), self.0.stderr.as_mut().unwrap());
            let mut answer = [0];
            to.write_all(&[*byte]).is_ok() && from.read_exact(&mut answer).is_ok() && answer == *b"y"
        })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Fixture {
    /// A node that hangs is left where it is: its end would hang, too.
    node: ManuallyDrop<Node>,
    _directory: PrivateDir,
    /// Its connections are neither taken nor read.
    listener: TcpListener,
    /// They have not connected yet.
    guests: Vec<Guest>,
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl Fixture {
    fn new() -> Fixture {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let command = ApiServerCommand {
            program: env::current_exe().unwrap(),
            arguments: ["foreign::fake_api_server", "--exact", "--nocapture"].map(OsString::from).into(),
            environment: vec![(ROLE.into(), "api-server".into()), (PORT.into(), port.into())],
            fixed_addresses: false,
        };
        let directory = PrivateDir::create().unwrap();
        let mut config = NodeConfig::new(directory.path().join("unused"), command);
        (config.log, config.movable) = (Level::Error, true);
        let node = Node::start_private(&directory, config).unwrap();
        let guests = (0..4).map(|_| Guest::start(node.address().path())).collect();
        Fixture { node: ManuallyDrop::new(node), _directory: directory, listener, guests, _alone: alone }
    }

    fn socket(&self) -> &Path {
        self.node.address().path()
    }

    /// It has attached.
    fn guest(&mut self) -> Guest {
        let mut guest = self.guests.pop().unwrap();
        assert!(guest.sends(b"p"), "a session begins");
        guest
    }

    fn session(&self) -> u64 {
        query(self.socket()).unwrap().sessions.last().unwrap().session
    }

    /// Others are served, before and after the guest has gone, and the node ends.
    fn serves_on(mut self, hostile: Guest, what: &str) {
        let mut other = self.guests.pop().unwrap();
        assert!(other.sends(b"p"), "{what}: another guest");
        query(self.socket()).unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(hostile);
        eventually(what, || query(self.socket()).unwrap().sessions.len() == 1);
        let mut last = self.guest();
        assert!(other.sends(b"p") && last.sends(b"p"), "{what}: afterwards");
        let Fixture { node, listener, _alone, .. } = self;
        let ended = std::thread::spawn(move || drop(ManuallyDrop::into_inner(node)));
        eventually(what, || ended.is_finished());
        drop(listener);
    }
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn messages_of_every_type() {
    for at in 0..messages(0).len() {
        let mut fixture = Fixture::new();
        let mut hostile = fixture.guest();
        let kind = KINDS[at % KINDS.len()];
        assert!(hostile.sends(&[MESSAGES + at as u8]));
        // The message is sent now; the node may kill its sender before the guest is told so.
        hostile.sends(&[kind]);
        fixture.serves_on(hostile, &format!("message {at}, kind {}", char::from(kind)));
    }
}

#[test]
fn garbage_with_all_that_the_kernel_carries_and_sockets_for_orders() {
    for kind in KINDS {
        for place in PLACES {
            let mut fixture = Fixture::new();
            let mut hostile = fixture.guest();
            hostile.sends(&[*place, *kind]);
            fixture.serves_on(hostile, &format!("place {}, kind {}", char::from(*place), char::from(*kind)));
        }
    }
}

#[test]
fn states_of_moves_and_parks() {
    for (at, kind) in KINDS.iter().enumerate() {
        let (mut fixture, park) = (Fixture::new(), at % 2 == 0);
        let mut hostile = fixture.guest();
        assert!(hostile.sends(&[b's', *kind]) && hostile.sends(b"p"));
        let session = fixture.session();
        let request = MoveRequest { session, check: false, park, stop_ms: 1000, halt: None };
        let begun: MoveBegun = ask(fixture.socket(), &Request::Migrate(request)).unwrap();
        // The new one does not answer: everything is held by the node and it.
        eventually("its state is written", || {
            let status: MoveStatus = ask(fixture.socket(), &Request::MoveStatus(begun.number)).unwrap();
            !matches!(status, MoveStatus::UnderWay(stage) if stage.contains("announc") || stage.contains("prepar") || stage.contains("captur"))
        });
        fixture.serves_on(hostile, &format!("park {park}, kind {}", char::from(*kind)));
    }
}

#[test]
fn offers_to_other_api_servers() {
    for kind in KINDS {
        let mut fixture = Fixture::new();
        let mut hostile = fixture.guest();
        let giver = fixture.session();
        assert!(hostile.sends(&[b'x', *kind]) && hostile.sends(b"p"));
        let mut asker = fixture.guest();
        assert!(asker.sends(&[b'F', u8::try_from(giver).unwrap()]) && asker.sends(b"p"));
        drop(asker);
        fixture.serves_on(hostile, &format!("an offer, kind {}", char::from(*kind)));
    }
}

/// A guest needs no API server for that.
#[test]
fn connections_that_the_node_refuses_or_closes() {
    for kind in KINDS {
        let mut fixture = Fixture::new();
        let port = fixture.listener.local_addr().unwrap().port().to_string();
        let hostile = fixture.guest();
        let left = std::process::Command::new(env::current_exe().unwrap())
            .args(["foreign::fake_intruder", "--exact", "--nocapture"])
            .env(ROLE, format!("intruder:{}:{}", char::from(*kind), fixture.socket().display()))
            .env(PORT, port)
            .status()
            .unwrap();
        assert!(left.success());
        fixture.serves_on(hostile, &format!("connections, kind {}", char::from(*kind)));
    }
}

/// Not a test: a guest that leaves something in more connections than one process may have, and goes.
#[test]
fn fake_intruder() {
    let role = env::var(ROLE).unwrap_or_default();
    let Some((kind, socket)) = role.strip_prefix("intruder:").and_then(|role| role.split_once(':')) else { return };
    let waiting = waiting(kind.as_bytes()[0]);
    let connections: Vec<UnixStream> = (0..70).map_while(|_| UnixStream::connect(socket).ok()).collect();
    for connection in &connections {
        with_descriptors(connection.as_fd(), b"x", &[waiting.as_fd()]);
    }
    drop(waiting);
    // Until all were taken or refused: one of a process that has gone is nobody's. The last one is refused.
    let wait = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let last = connections.last().unwrap();
    assert_eq!(poll(&mut [PollFd::new(last, PollFlags::IN)], Some(&wait)), Ok(1));
    std::process::exit(0);
}
