//! Moves between API servers that are real processes: this test program, started again. Every process dies, refuses or lies
//! at every step of a move: the sessions are either the new API server's or the old one's, and their accounts exact.
//!
//! The stand-in for the API server answers each byte of a guest: `p` with its process id in a line, `a` with y or n after
//! it has asked for 2 of `memory`, `r` with y after it has returned 2, `u` with y if it was told to go on while it did not
//! stand.

mod matrix;
mod parks;

use crate::support::{control, gate, take_message};
use aviary_control::{
    CaptureDescriptors, CaptureFigures, FromServer, MoveOrder, MoveReport, Patience, SessionDescriptors,
    StateDescriptors, ToServer, send,
};
use aviary_gate::Gate;
use aviary_node::{
    ApiServerCommand, EndReport, EndRequest, GatewayCommand, Level, MoveBegun, MoveRequest, MoveStatus, Node,
    NodeConfig, PrivateDir, Request, TenantReport, UnparkStatus, ask,
};
use aviary_transport::RemoteAddress;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::SealFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    io::{BufRead, BufReader, IoSlice, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

const ROLE: &str = "AVIARY_TEST_ROLE";
/// The step at which an API server does something wrong, and what.
const FAULT: &str = "AVIARY_TEST_FAULT";

// The stand-in.

struct FakeSession {
    guest: UnixStream,
    gate: Gate,
    /// True: the guest is not heard. Locked while a byte is read and answered.
    stands: Mutex<bool>,
    /// True once an order to go on came while it did not stand.
    unasked: AtomicBool,
}

/// Not a test: the API server, when this program is started as one.
#[test]
fn fake_api_server() {
    if env::var(ROLE).as_deref() != Ok("api-server") {
        return;
    }
    let fault = env::var(FAULT).unwrap_or_default();
    let control = control();
    let mut sessions: BTreeMap<u64, Arc<FakeSession>> = BTreeMap::new();
    let mut rehearses = false;
    while let Some((message, descriptors)) = take_message(control.as_fd()) {
        matrix::hold_at(&message);
        match message {
            ToServer::Assign(assignment) => {
                let (id, session) = (assignment.session, take_session(assignment.slot, descriptors, false));
                tell(control.as_fd(), &FromServer::Started { session: id, api: "fake".into(), spec_hash: 77 });
                sessions.insert(id, session);
            }
            ToServer::Prepare(wanted) => match fault.as_str() {
                "prepare:die" => std::process::abort(),
                "prepare:refuse" => {
                    let reason = "a module of another specification".to_owned();
                    let refused = MoveReport::Unmovable { attempt: 0, reason, lasting: true };
                    report(control.as_fd(), wanted.session, refused);
                }
                "prepare:lie" => report(control.as_fd(), wanted.session, MoveReport::Rebuilt { rebuild_us: 0 }),
                _ => {
                    assert_eq!((wanted.api.as_str(), wanted.spec_hash), ("fake", 77));
                    // For a park the module is only loaded: the greeting is not asked for.
                    assert!(descriptors.len() <= 1);
                    report(control.as_fd(), wanted.session, MoveReport::Prepared);
                }
            },
            ToServer::Adopt(assignment) => {
                let (id, session) = (assignment.session, adopt_session(assignment.slot, descriptors));
                sessions.insert(id, session);
                rehearses = assignment.rehearsal;
                match fault.as_str() {
                    "adopt:die" => std::process::abort(),
                    "adopt:refuse" => {
                        tell(control.as_fd(), &FromServer::Ended { session: id, reason: "no such card".into() });
                    }
                    "adopt:lie" => report(control.as_fd(), id, captured(0)),
                    "adopt:hang" => {}
                    "adopt:old" => report(control.as_fd(), id, MoveReport::Rebuilt { rebuild_us: 4 }),
                    _ if assignment.parked => report(control.as_fd(), id, MoveReport::Parked),
                    _ => report(control.as_fd(), id, MoveReport::Rebuilt { rebuild_us: 4 }),
                }
            }
            ToServer::Move { order: MoveOrder::Swap(_), .. } => {}
            ToServer::Move { session, order: MoveOrder::Announce { attempt } } => match fault.as_str() {
                "announce:die" => std::process::abort(),
                "announce:refuse" => {
                    let reason = "fake memory is elsewhere".to_owned();
                    report(control.as_fd(), session, MoveReport::Unmovable { attempt, reason, lasting: true });
                }
                "announce:lie" => report(control.as_fd(), session, MoveReport::Prepared),
                _ => report(control.as_fd(), session, MoveReport::Announced { attempt }),
            },
            ToServer::Move { session, order: MoveOrder::Capture { attempt, .. } } => {
                let known = &sessions[&session];
                *known.stands.lock().unwrap_or_else(PoisonError::into_inner) = true;
                let place = CaptureDescriptors::of(descriptors).expect("descriptors");
                write_state(&place, &known.guest, fault != "capture:open");
                assert!(!fault.starts_with("prepare:") && !fault.starts_with("announce:"), "stopped for nothing");
                match fault.as_str() {
                    "capture:die" => std::process::abort(),
                    "capture:refuse" => {
                        *known.stands.lock().unwrap_or_else(PoisonError::into_inner) = false;
                        let reason = "fake_call did not return".to_owned();
                        report(control.as_fd(), session, MoveReport::Unmovable { attempt, reason, lasting: false });
                    }
                    "capture:lie" => report(control.as_fd(), session, MoveReport::Rebuilt { rebuild_us: 0 }),
                    "capture:garbage" => {
                        with_descriptors(control.as_fd(), &FromServer::Move { session, report: captured(attempt) })
                    }
                    // As one that was slow with an earlier attempt's order.
                    "capture:late" => {
                        report(control.as_fd(), session, captured(attempt - 1));
                        report(control.as_fd(), session, captured(attempt));
                    }
                    "capture:want" => {
                        report(control.as_fd(), session, MoveReport::Wanted);
                        report(control.as_fd(), session, captured(attempt));
                    }
                    _ => report(control.as_fd(), session, captured(attempt)),
                }
                if fault == "captured:die" && sessions.values().all(|session| stands(session)) {
                    std::process::abort();
                }
            }
            ToServer::Move { session, order: MoveOrder::Rebuild } => {
                parks::rebuild(control.as_fd(), session, &fault, rehearses);
            }
            ToServer::Move { session, order: MoveOrder::Go } if fault == "go:die" => {
                drop(sessions.remove(&session));
                std::process::abort();
            }
            ToServer::Move { session, order: MoveOrder::Go | MoveOrder::Resume } => {
                if let Some(session) = sessions.get(&session) {
                    let stood = std::mem::take(&mut *session.stands.lock().unwrap_or_else(PoisonError::into_inner));
                    session.unasked.fetch_or(!stood, Ordering::SeqCst);
                }
            }
            // All of them are the same program's.
            ToServer::Move { order: MoveOrder::End, .. } => break,
            ToServer::Fetch(_) | ToServer::Fetched { .. } => {}
        }
    }
    std::process::exit(0);
}

fn stands(session: &FakeSession) -> bool {
    *session.stands.lock().unwrap_or_else(PoisonError::into_inner)
}

/// 100 bytes that cannot change any more, if they are sealed, and the rest: the guest's socket is the only thing that counts.
fn write_state(place: &CaptureDescriptors<OwnedFd>, guest: &UnixStream, sealed: bool) {
    rustix::fs::ftruncate(&place.file, 100).unwrap();
    if sealed {
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&place.file, seals).unwrap();
    }
    let copy = || guest.try_clone().unwrap().into();
    let snapshot = place.file.try_clone().unwrap();
    let (guest, arena, output, handed) = (copy(), copy(), [copy(), copy()], copy());
    // The node may have given the move up meanwhile.
    let _ = StateDescriptors { snapshot, guest, arena, output, handed, heap: None }.leave(place.rest.as_fd());
}

fn captured(attempt: u64) -> MoveReport {
    let rehearse = env::var(FAULT).is_ok_and(|fault| parks::is_rehearsed(&fault));
    let figures = CaptureFigures { reserve_us: 0, stop_us: 1, drain_us: 2, capture_us: 3, bytes: 100, rehearse };
    MoveReport::Captured { attempt, figures }
}

fn take_session(slot: u32, descriptors: Vec<OwnedFd>, stands: bool) -> Arc<FakeSession> {
    let SessionDescriptors { guest, tenant_page, .. } =
        SessionDescriptors::next(&mut descriptors.into_iter(), false).expect("descriptors");
    begin_session(guest, &tenant_page, slot, stands)
}

/// The state is looked for as a real API server does.
fn adopt_session(slot: u32, descriptors: Vec<OwnedFd>) -> Arc<FakeSession> {
    let mut all = descriptors.into_iter();
    let SessionDescriptors { guest: rest, tenant_page, .. } =
        SessionDescriptors::next(&mut all, false).expect("descriptors");
    let state = StateDescriptors::find(all.next().expect("a file"), rest.as_fd()).expect("a state");
    begin_session(state.guest, &tenant_page, slot, true)
}

fn begin_session(guest: OwnedFd, tenant_page: &OwnedFd, slot: u32, stands: bool) -> Arc<FakeSession> {
    let session = Arc::new(FakeSession {
        guest: guest.into(),
        gate: gate(tenant_page, slot),
        stands: Mutex::new(stands),
        unasked: AtomicBool::new(false),
    });
    let theirs = session.clone();
    std::thread::spawn(move || serve(&theirs));
    session
}

fn serve(session: &FakeSession) {
    let mut guest = &session.guest;
    loop {
        let standing = session.stands.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let mut fds = [PollFd::new(&session.guest, PollFlags::IN)];
        if *standing || poll(&mut fds, Some(&wait)).is_ok_and(|ready| ready == 0) {
            drop(standing);
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let mut byte = [0];
        if !guest.read(&mut byte).is_ok_and(|count| count == 1) {
            std::process::exit(0);
        }
        let answer = match byte[0] {
            b'p' => format!("{}\n", std::process::id()),
            b'a' => (if session.gate.charge(0, 2).is_ok() { "y" } else { "n" }).into(),
            b'r' => {
                session.gate.uncharge(0, 2);
                "y".into()
            }
            b'u' => (if session.unasked.load(Ordering::SeqCst) { "y" } else { "n" }).into(),
            _ => String::new(),
        };
        let _ = guest.write_all(answer.as_bytes());
    }
}

fn tell(control: BorrowedFd<'_>, event: &FromServer) {
    let _ = send(control, event, &[], Patience::Waits);
}

fn report(control: BorrowedFd<'_>, session: u64, report: MoveReport) {
    tell(control, &FromServer::Move { session, report });
}

/// As an API server does that was taken over.
fn with_descriptors(control: BorrowedFd<'_>, event: &FromServer) {
    let bytes = aviary_control::encode(event).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [control];
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let _ = sendmsg(control, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL);
}

// The API of the tests.

struct Guest(BufReader<UnixStream>);

impl Guest {
    fn attach(socket: &Path) -> Self {
        let socket = UnixStream::connect(socket).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        Self(BufReader::new(socket))
    }

    fn send(&mut self, byte: u8) {
        // A guest whose session is lost sees it when it reads.
        let _ = self.0.get_mut().write_all(&[byte]);
    }

    /// Process id of its API server; `None`: the session is lost.
    fn server(&mut self) -> Option<u32> {
        self.send(b'p');
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(line.trim().parse().expect("a process id")),
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
                None
            }
        }
    }

    fn asks(&mut self, byte: u8) -> bool {
        self.send(byte);
        let mut answer = [0];
        self.0.read_exact(&mut answer).unwrap();
        answer == *b"y"
    }
}

struct Fixture {
    node: Node,
    _directory: PrivateDir,
}

const SOON: Duration = Duration::from_secs(60);

impl Fixture {
    fn new(fault: &str) -> Self {
        Self::with(vec![(FAULT.into(), fault.into())], None)
    }

    /// With variables of the stand-ins, and gateways for programs on other machines.
    fn with(mut environment: Vec<(OsString, OsString)>, remote: Option<(Vec<RemoteAddress>, GatewayCommand)>) -> Self {
        environment.push((ROLE.into(), "api-server".into()));
        let command = ApiServerCommand {
            program: env::current_exe().unwrap(),
            arguments: ["moves::fake_api_server", "--exact", "--nocapture"].map(OsString::from).into(),
            environment,
            fixed_addresses: false,
        };
        let directory = PrivateDir::create().unwrap();
        let mut config = NodeConfig::new(directory.path().join("unused"), command);
        config.modules = vec!["/modules".into()];
        config.remote = remote;
        config.tenants.limits.insert("memory".into(), 5);
        config.log = Level::Debug;
        Self { node: Node::start_private(&directory, config).unwrap(), _directory: directory }
    }

    fn socket(&self) -> &Path {
        self.node.address().path()
    }

    /// Two sessions of this process, one of which holds 2 of `memory`.
    fn two_guests(&self) -> [Guest; 2] {
        let mut guests = [(); 2].map(|()| Guest::attach(self.socket()));
        assert!(guests[0].asks(b'a'));
        assert_eq!(guests[0].server(), guests[1].server());
        self.eventually("both sessions run", || self.sessions().len() == 2);
        guests
    }

    /// Their numbers.
    fn sessions(&self) -> Vec<u64> {
        let report = self.node.report();
        report.sessions.iter().filter(|session| !session.api.is_empty()).map(|session| session.session).collect()
    }

    fn move_one(&self, check: bool) -> MoveStatus {
        self.end_of(check, false)
    }

    fn park(&self) -> MoveStatus {
        self.end_of(false, true)
    }

    fn end_of(&self, check: bool, park: bool) -> MoveStatus {
        let request = MoveRequest { session: self.sessions()[0], check, park, stop_ms: 5000, halt: None };
        let MoveBegun { number } = ask(self.socket(), &Request::Migrate(request)).unwrap();
        let until = Instant::now() + SOON;
        loop {
            match ask(self.socket(), &Request::MoveStatus(number)).unwrap() {
                MoveStatus::UnderWay(stage) => assert!(Instant::now() < until, "still {stage}"),
                status => return status,
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn unpark(&self) {
        let session = self.sessions()[0];
        self.eventually("the sessions run", || {
            ask::<UnparkStatus>(self.socket(), &Request::Unpark(session)).unwrap() == UnparkStatus::Running
        });
    }

    fn memory(&self) -> (u64, u64) {
        let name = format!("uid-{}", rustix::process::getuid().as_raw());
        let tenants: Vec<TenantReport> = ask(self.socket(), &Request::Tenants).unwrap();
        let tenant = tenants.into_iter().find(|tenant| tenant.name == name).expect("a tenant");
        (tenant.accounts[0].used, tenant.accounts[0].held)
    }

    fn eventually(&self, what: &str, condition: impl Fn() -> bool) {
        let until = Instant::now() + SOON;
        while !condition() {
            assert!(Instant::now() < until, "{what}: not within {SOON:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Both sessions are there, in one API server, with an account that is exact.
    fn expect_alive(&self, guests: &mut [Guest; 2]) -> u32 {
        let [one, two] = guests;
        let server = one.server().expect("a session");
        assert_eq!(two.server(), Some(server));
        assert_eq!(self.memory(), (2, 2));
        // The limit is 5: 2 more, and not 2 beyond.
        assert!(two.asks(b'a') && !one.asks(b'a') && two.asks(b'r'));
        assert_eq!(self.memory(), (2, 2));
        server
    }

    fn expect_nothing_left(self, guests: [Guest; 2]) {
        drop(guests);
        self.eventually("no session is left", || self.node.report().sessions.is_empty() && self.node.busy() == 0);
        assert_eq!(self.memory(), (0, 0));
    }
}

// The tests.

#[test]
fn sessions_of_a_process_move_together_and_again() {
    let fixture = Fixture::new("");
    let mut guests = fixture.two_guests();
    let mut before = fixture.expect_alive(&mut guests);
    for moved in 1..=3 {
        let MoveStatus::Moved(figures) = fixture.move_one(false) else { panic!("not moved") };
        assert_eq!((figures.sessions, figures.bytes, figures.stop_us, figures.rebuild_us), (2, 200, 2, 8));
        let after = fixture.expect_alive(&mut guests);
        assert!(after != before && after == figures.server);
        for session in fixture.node.report().sessions {
            assert_eq!((session.server, session.moves.count), (after, moved));
            assert!(session.moves.last_us.is_some() && session.moving.is_none());
        }
        fixture.eventually("the old API server is gone", || !Path::new(&format!("/proc/{before}")).exists());
        before = after;
    }
    // Further connections of the process go where its sessions are.
    assert_eq!(Guest::attach(fixture.socket()).server(), Some(before));
    fixture.expect_nothing_left(guests);
}

#[test]
fn check_moves_nothing() {
    let fixture = Fixture::new("");
    let mut guests = fixture.two_guests();
    let before = fixture.expect_alive(&mut guests);
    let MoveStatus::Movable(figures) = fixture.move_one(true) else { panic!("not movable") };
    assert_eq!((figures.sessions, figures.server, figures.rebuild_us), (2, before, 0));
    assert_eq!(fixture.expect_alive(&mut guests), before);
    assert!(fixture.node.report().sessions.iter().all(|session| session.moves.count == 0));
    fixture.expect_nothing_left(guests);
}

/// A session that were let go on before the end of its move would be executed by two API servers.
#[test]
fn session_that_asks_to_be_moved_while_it_moves_stands_until_the_end_of_the_move() {
    let fixture = Fixture::new("capture:want");
    let mut guests = fixture.two_guests();
    // The second capture begins once every order after the first one was obeyed.
    for _ in 0..2 {
        assert!(matches!(fixture.move_one(true), MoveStatus::Movable(_)));
    }
    assert!(guests.iter_mut().all(|guest| !guest.asks(b'u')));
    assert!(matches!(fixture.move_one(false), MoveStatus::Moved(_)));
    fixture.expect_alive(&mut guests);
    fixture.expect_nothing_left(guests);
}

#[test]
fn late_answer_to_an_earlier_attempt_is_no_lie_and_no_answer() {
    let fixture = Fixture::new("capture:late");
    let mut guests = fixture.two_guests();
    let before = fixture.expect_alive(&mut guests);
    assert!(matches!(fixture.move_one(true), MoveStatus::Movable(_)));
    assert_eq!(fixture.expect_alive(&mut guests), before);
    assert!(matches!(fixture.move_one(false), MoveStatus::Moved(_)));
    assert_ne!(fixture.expect_alive(&mut guests), before);
    fixture.expect_nothing_left(guests);
}

/// The sessions stay in the old API server. The reason that is told contains `reason`.
fn stays(fault: &str, reason: &str) {
    let fixture = Fixture::new(fault);
    let mut guests = fixture.two_guests();
    let before = fixture.expect_alive(&mut guests);
    for _ in 0..2 {
        let MoveStatus::Refused { reason: told, .. } = fixture.move_one(false) else { panic!("{fault}: moved") };
        assert!(told.contains(reason), "{fault}: {told}");
        assert_eq!(fixture.expect_alive(&mut guests), before, "{fault}");
    }
    let told = fixture.node.report().sessions.into_iter().filter_map(|session| session.moves.refused).next();
    assert!(told.is_some_and(|told| told.contains(reason)), "{fault}");
    fixture.eventually("no other API server is left", || fixture.node.busy() == 1);
    fixture.expect_nothing_left(guests);
}

/// The sessions are lost, as they are when their API server dies.
fn is_lost(fault: &str) {
    let fixture = Fixture::new(fault);
    let mut guests = fixture.two_guests();
    let _ = fixture.move_one(false);
    assert!(guests.iter_mut().all(|guest| guest.server().is_none()), "{fault}");
    fixture.eventually("the accounts are empty", || fixture.memory() == (0, 0));
    fixture.expect_nothing_left(guests);
}

/// Lacking modules of the new API server are told before anything is stopped.
#[test]
fn sessions_are_not_stopped_for_an_api_server_that_is_not_prepared() {
    for (fault, reason) in [
        ("prepare:refuse", "of another specification"),
        ("prepare:die", "the new API server has ended"),
        ("prepare:lie", "the new API server has ended"),
    ] {
        stays(fault, reason);
    }
}

#[test]
fn refused_capture_leaves_sessions_where_they_are() {
    stays("announce:refuse", "fake memory is elsewhere");
    stays("capture:refuse", "fake_call did not return");
}

#[test]
fn new_api_server_that_dies_leaves_sessions_where_they_are() {
    stays("adopt:die", "the new API server has ended");
}

#[test]
fn new_api_server_that_cannot_rebuild_leaves_sessions_where_they_are() {
    stays("adopt:refuse", "no such card");
}

#[test]
fn new_api_server_that_lies_leaves_sessions_where_they_are() {
    stays("adopt:lie", "the new API server has ended");
}

#[test]
fn old_api_server_that_dies_while_it_captures_loses_its_sessions() {
    is_lost("announce:die");
    is_lost("capture:die");
}

#[test]
fn old_api_server_that_lies_loses_its_sessions() {
    is_lost("announce:lie");
    is_lost("capture:lie");
    is_lost("capture:garbage");
}

#[test]
fn new_api_server_that_dies_after_the_commit_loses_its_sessions() {
    is_lost("go:die");
}

#[test]
fn sessions_survive_an_old_api_server_that_dies_once_they_are_captured() {
    let fixture = Fixture::new("captured:die");
    let mut guests = fixture.two_guests();
    let before = fixture.expect_alive(&mut guests);
    let MoveStatus::Moved(figures) = fixture.move_one(false) else { panic!("not moved") };
    let after = fixture.expect_alive(&mut guests);
    assert!(after != before && after == figures.server);
    fixture.eventually("the old API server is gone", || !Path::new(&format!("/proc/{before}")).exists());
    assert_eq!(fixture.memory(), (2, 2));
    fixture.expect_nothing_left(guests);
}

fn begin(fixture: &Fixture) -> u64 {
    let request = MoveRequest { session: fixture.sessions()[0], check: false, park: false, stop_ms: 5000, halt: None };
    let MoveBegun { number } = ask(fixture.socket(), &Request::Migrate(request)).unwrap();
    let rebuilding = || {
        let status: MoveStatus = ask(fixture.socket(), &Request::MoveStatus(number)).unwrap();
        status == MoveStatus::UnderWay("rebuilding".into())
    };
    fixture.eventually("the new API server has the state", rebuilding);
    number
}

#[test]
fn operators_end_of_a_session_ends_its_move() {
    let fixture = Fixture::new("adopt:hang");
    let mut guests = fixture.two_guests();
    begin(&fixture);
    let sessions = fixture.sessions();
    let _: EndReport = ask(fixture.socket(), &Request::End(EndRequest::Sessions(sessions))).unwrap();
    assert!(guests.iter_mut().all(|guest| guest.server().is_none()));
    fixture.eventually("the accounts are empty", || fixture.memory() == (0, 0));
    fixture.expect_nothing_left(guests);
}

#[test]
fn killed_processes_leave_sessions_where_they_are_or_moved() {
    for dies in ["old", "new"] {
        let fixture = Fixture::new("adopt:hang");
        let mut guests = fixture.two_guests();
        let before = fixture.expect_alive(&mut guests);
        let number = begin(&fixture);
        if dies == "old" {
            kill(before);
            // The state is complete. The new API server never says that it has rebuilt it, until an operator gives up.
            let status: MoveStatus = ask(fixture.socket(), &Request::MoveStatus(number)).unwrap();
            assert_eq!(status, MoveStatus::UnderWay("rebuilding".into()));
            assert_eq!(fixture.memory(), (2, 2), "an API server that is not reaped holds what it held");
            let sessions = fixture.sessions();
            assert_eq!(sessions.len(), 2);
            let _: EndReport = ask(fixture.socket(), &Request::End(EndRequest::Sessions(sessions))).unwrap();
            assert!(guests.iter_mut().all(|guest| guest.server().is_none()));
        } else {
            // It has no session yet.
            let servers = fixture.node.report().servers;
            assert_eq!(servers.len(), 1);
            kill(servers[0].server);
            fixture.eventually("the move is given up", || {
                matches!(ask(fixture.socket(), &Request::MoveStatus(number)), Ok(MoveStatus::Refused { .. }))
            });
            assert_eq!(fixture.expect_alive(&mut guests), before);
        }
        fixture.expect_nothing_left(guests);
    }
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

#[test]
fn unknown_sessions_and_moves_are_told() {
    let fixture = Fixture::new("");
    let request = MoveRequest { session: 99, check: false, park: false, stop_ms: 1, halt: None };
    let error = ask::<MoveBegun>(fixture.socket(), &Request::Migrate(request)).unwrap_err().to_string();
    assert!(error.contains("there is no session 99"), "{error}");
    let error = ask::<MoveStatus>(fixture.socket(), &Request::MoveStatus(7)).unwrap_err().to_string();
    assert!(error.contains("there was no move 7"), "{error}");
}
