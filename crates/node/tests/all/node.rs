//! A node with API servers and guests that are real processes: this test program, started again.
//!
//! The stand-in for the API server greets a guest with its process id and then
//! does what the guest's bytes say: `c` crash, `h` hang for ever, `a` allocate 2 of `memory` (it answers y or n), `f` and a
//! number fetch what the session of that number offers (it answers y or n; every session offers one thing).

use crate::support::{control, gate, take_message};
use aviary_control::{Assignment, FromServer, OfferName, Patience, SessionDescriptors, ToServer, Wanted, send};
use aviary_gate::Gate;
use aviary_node::{
    ApiServerCommand, EndReport, EndRequest, Level, Node, NodeConfig, PrivateDir, Reload, Request, Settings, Tenant,
    TenantChange, TenantReport, Tenants, ask, query,
};
use rustix::event::{PollFd, PollFlags, poll};
use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    io::{BufRead, BufReader, Lines, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

const ROLE: &str = "AVIARY_TEST_ROLE";
const MARK: &str = "AVIARY_TEST_MARK";

// The stand-ins.

/// Not a test: the API server, when this program is started as one.
#[test]
fn fake_api_server() {
    if env::var(ROLE).as_deref() != Ok("api-server") {
        return;
    }
    let control = Arc::new(control());
    let open = Arc::new(AtomicUsize::new(0));
    let mut guests: BTreeMap<u64, UnixStream> = BTreeMap::new();
    while let Some((message, descriptors)) = take_message(control.as_fd()) {
        let assignment = match message {
            ToServer::Assign(assignment) => assignment,
            ToServer::Prepare(_) => continue,
            ToServer::Fetch(wanted) => {
                hand_over(&descriptors[0], &wanted);
                continue;
            }
            ToServer::Adopt(_) | ToServer::Move { .. } => continue,
            ToServer::Fetched { request, .. } => {
                let good = descriptors.first().is_some_and(|from| {
                    poll(&mut [PollFd::new(from, PollFlags::IN)], None).unwrap();
                    aviary_control::taken(from.as_fd()).is_some_and(|(_, note)| note == 7)
                });
                let _ = guests.get_mut(&request).unwrap().write_all(if good { b"y" } else { b"n" });
                continue;
            }
        };
        let (session, guest, gate) = take_session(&assignment, descriptors);
        guests.insert(session, UnixStream::from(guest.try_clone().unwrap()));
        // The first API server to create the mark ends although a session was given to it.
        if env::var_os(MARK).is_some_and(|mark| std::fs::File::create_new(mark).is_ok()) {
            std::process::exit(0);
        }
        open.fetch_add(1, Ordering::SeqCst);
        let (control, open) = (Arc::clone(&control), Arc::clone(&open));
        std::thread::spawn(move || {
            tell(control.as_fd(), &FromServer::Started { session, api: "fake".into(), spec_hash: 0 });
            serve(guest.into(), &gate, session, control.as_fd());
            tell(control.as_fd(), &FromServer::Ended { session, reason: "bye".into() });
            if open.fetch_sub(1, Ordering::SeqCst) == 1 {
                std::process::exit(0);
            }
        });
    }
    std::process::exit(0);
}

fn serve(mut guest: UnixStream, gate: &Gate, session: u64, control: BorrowedFd<'_>) {
    let _ = writeln!(guest, "{}", std::process::id());
    let mut byte = [0];
    while guest.read(&mut byte).is_ok_and(|count| count == 1) {
        match byte[0] {
            b'c' => std::process::abort(),
            b'h' => loop {
                std::thread::park();
            },
            b'a' => {
                let granted = gate.charge(0, 2).is_ok();
                let _ = guest.write_all(if granted { b"y" } else { b"n" });
            }
            b'f' => {
                let _ = guest.read(&mut byte);
                let name = OfferName { session: byte[0].into(), secret: [1, 2] };
                tell(control, &FromServer::Fetch { session, request: session, name });
            }
            _ => {}
        }
    }
}

/// Gives what was asked for.
fn hand_over(to: &OwnedFd, wanted: &Wanted) {
    assert_eq!(wanted.name.secret, [1, 2]);
    let _ = aviary_control::give(to.as_fd(), std::io::stderr().as_fd(), 7);
}

fn take_session(assignment: &Assignment, descriptors: Vec<OwnedFd>) -> (u64, OwnedFd, Gate) {
    assert_eq!(assignment.modules, [Path::new("/modules")]);
    let SessionDescriptors { guest, tenant_page, .. } = SessionDescriptors::of(descriptors).expect("descriptors");
    (assignment.session, guest, gate(&tenant_page, assignment.slot))
}

fn tell(control: BorrowedFd<'_>, event: &FromServer) {
    let _ = send(control, event, &[], Patience::Waits);
}

/// Not a test: a guest in a process of its own. Prints its API server, sends what it reads.
#[test]
fn fake_guest() {
    let Some(socket) = env::var(ROLE).ok().and_then(|role| role.strip_prefix("guest:").map(str::to_owned)) else {
        return;
    };
    let mut guest = Guest::attach(Path::new(&socket));
    println!("\nserver {}", guest.server);
    for byte in BufReader::new(std::io::stdin()).bytes() {
        guest.send(byte.expect("standard input"));
        println!("sent");
    }
    std::process::exit(0);
}

// The API of the tests.

struct Guest {
    server: u32,
    socket: BufReader<UnixStream>,
}

impl Guest {
    fn attach(socket: &Path) -> Self {
        let mut socket = BufReader::new(UnixStream::connect(socket).unwrap());
        socket.get_ref().set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut line = String::new();
        socket.read_line(&mut line).unwrap();
        Self { server: line.trim().parse().expect("a greeting"), socket }
    }

    fn send(&mut self, byte: u8) {
        self.socket.get_mut().write_all(&[byte]).unwrap();
    }

    /// True if it gets 2 of `memory`.
    fn allocate(&mut self) -> bool {
        self.send(b'a');
        let mut answer = [0];
        self.socket.read_exact(&mut answer).unwrap();
        answer == *b"y"
    }

    /// True if its session gets what the one of that number offers.
    fn fetch(&mut self, session: u8) -> bool {
        self.send(b'f');
        self.send(session);
        let mut answer = [0];
        self.socket.read_exact(&mut answer).unwrap();
        answer == *b"y"
    }

    fn is_lost(&mut self) -> bool {
        self.socket
            .read(&mut [0])
            .map_or_else(|error| error.kind() == std::io::ErrorKind::ConnectionReset, |count| count == 0)
    }
}

/// A guest process, killed when dropped.
struct GuestProcess {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    server: u32,
}

impl GuestProcess {
    fn start(socket: &Path) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["node::fake_guest", "--exact", "--nocapture"])
            .env(ROLE, format!("guest:{}", socket.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let server = lines.by_ref().map_while(Result::ok).find_map(|line| line.strip_prefix("server ")?.parse().ok());
        Self { child, lines, server: server.expect("a greeting") }
    }

    fn send(&mut self, byte: u8) {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(&[byte]).unwrap();
        input.flush().unwrap();
        assert!(self.lines.by_ref().map_while(Result::ok).any(|line| line == "sent"));
    }
}

impl Drop for GuestProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Fixture {
    node: Node,
    directory: PrivateDir,
}

impl Fixture {
    fn new() -> Self {
        Self::with(&[])
    }

    fn with(environment: &[(&str, &str)]) -> Self {
        Self::configured(environment, |_| {})
    }

    fn configured(environment: &[(&str, &str)], change: impl FnOnce(&mut NodeConfig)) -> Self {
        let mut variables: Vec<(OsString, OsString)> = vec![(ROLE.into(), "api-server".into())];
        variables.extend(environment.iter().map(|(name, value)| (name.into(), value.into())));
        let command = ApiServerCommand {
            program: env::current_exe().unwrap(),
            arguments: ["node::fake_api_server", "--exact", "--nocapture"].map(OsString::from).into(),
            environment: variables,
            fixed_addresses: false,
        };
        let directory = PrivateDir::create().unwrap();
        let mut config = NodeConfig::new(directory.path().join("unused"), command);
        config.modules = vec!["/modules".into()];
        config.tenants.limits.insert("memory".into(), 5);
        config.log = Level::Debug;
        change(&mut config);
        let node = Node::start_private(&directory, config).unwrap();
        Self { node, directory }
    }

    fn socket(&self) -> &Path {
        self.node.address().path()
    }

    /// Of the tenant that this user is.
    fn tenant(&self) -> TenantReport {
        let name = format!("uid-{}", rustix::process::getuid().as_raw());
        let tenants: Vec<TenantReport> = ask(self.socket(), &Request::Tenants).unwrap();
        tenants.into_iter().find(|tenant| tenant.name == name).expect("a tenant")
    }

    /// Limit, use and sum of what is held of `memory`.
    fn memory(&self) -> (Option<u64>, u64, u64) {
        let account = &self.tenant().accounts[0];
        (account.limit, account.used, account.held)
    }
}

fn is_alive(pid: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

fn eventually(what: &str, within: Duration, condition: impl Fn() -> bool) {
    let until = Instant::now() + within;
    while !condition() {
        assert!(Instant::now() < until, "{what}: not within {within:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

const SOON: Duration = Duration::from_secs(10);

// The tests.

#[test]
fn connections_of_one_process_share_an_api_server() {
    let fixture = Fixture::new();
    let one = Guest::attach(fixture.socket());
    let two = Guest::attach(fixture.socket());
    let other = GuestProcess::start(fixture.socket());
    assert_eq!(one.server, two.server);
    assert_ne!(one.server, other.server);
}

#[test]
fn the_pool_is_refilled() {
    let fixture = Fixture::new();
    eventually("first spare", SOON, || fixture.node.report().spares == 1);
    let _guest = Guest::attach(fixture.socket());
    eventually("second spare", SOON, || fixture.node.report().spares == 1 && fixture.node.busy() == 1);
}

#[test]
fn a_crash_is_the_crashed_sessions_own() {
    let fixture = Fixture::new();
    let mut bystander = Guest::attach(fixture.socket());
    let mut victim = GuestProcess::start(fixture.socket());
    victim.send(b'c');
    let server = victim.server;
    eventually("end of the crashed API server", SOON, || !is_alive(server));
    eventually("one session is left", SOON, || fixture.node.report().sessions.len() == 1);
    bystander.send(b'x');
    let again = Guest::attach(fixture.socket());
    assert_eq!(again.server, bystander.server);
    let fresh = GuestProcess::start(fixture.socket());
    assert!(is_alive(fresh.server));
}

#[test]
fn a_guest_sees_the_loss_of_its_api_server() {
    let fixture = Fixture::new();
    let mut guest = Guest::attach(fixture.socket());
    let server = guest.server;
    guest.send(b'c');
    assert!(guest.is_lost());
    eventually("reaping", SOON, || !Path::new(&format!("/proc/{server}")).exists());
    let again = Guest::attach(fixture.socket());
    assert_ne!(again.server, server);
}

#[test]
fn a_session_that_was_never_taken_moves() {
    let marks = PrivateDir::create().unwrap();
    let mark = marks.path().join("mark");
    let fixture = Fixture::with(&[(MARK, mark.to_str().unwrap())]);
    let guest = Guest::attach(fixture.socket());
    assert!(mark.exists() && is_alive(guest.server));
}

#[test]
fn an_api_server_does_not_outlive_its_guest() {
    let fixture = Fixture::new();
    let mut guest = GuestProcess::start(fixture.socket());
    guest.send(b'h');
    let server = guest.server;
    drop(guest);
    eventually("kill of the hanging API server", SOON, || !is_alive(server));
    eventually("empty table", SOON, || fixture.node.report().sessions.is_empty());
}

#[test]
fn ps_tells_who_uses_what() {
    let fixture = Fixture::new();
    let guest = Guest::attach(fixture.socket());
    eventually("started", SOON, || {
        query(fixture.socket()).unwrap().sessions.iter().all(|session| session.api == "fake")
    });
    let report = query(fixture.socket()).unwrap();
    assert_eq!(report.sessions.len(), 1);
    let session = &report.sessions[0];
    assert_eq!((session.guest, session.server), (std::process::id(), guest.server));
    drop(guest);
    eventually("ended", SOON, || query(fixture.socket()).unwrap().sessions.is_empty());
}

#[test]
fn nothing_is_left_of_a_stopped_node() {
    let fixture = Fixture::new();
    let mut guest = Guest::attach(fixture.socket());
    let socket = fixture.socket().to_owned();
    eventually("spare", SOON, || fixture.node.report().spares == 1);
    let Fixture { node, directory } = fixture;
    drop(node);
    assert!(!is_alive(guest.server) && guest.is_lost());
    let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["lock"], "beside the private directory's own lock");
    assert!(!socket.exists());
}

#[test]
fn draining_waits_for_the_last_guest() {
    let fixture = Fixture::new();
    let guest = Guest::attach(fixture.socket());
    fixture.node.drain();
    std::thread::sleep(Duration::from_millis(200));
    assert!(!fixture.node.is_finished());
    drop(guest);
    eventually("end", SOON, || fixture.node.is_finished());
}

#[test]
fn an_api_server_that_cannot_start_is_no_end_of_the_node() {
    let directory = PrivateDir::create().unwrap();
    let command = ApiServerCommand {
        program: "/no/such/program".into(),
        arguments: Vec::new(),
        environment: Vec::new(),
        fixed_addresses: false,
    };
    let node = Node::start_private(&directory, NodeConfig::new("unused".into(), command)).unwrap();
    let mut socket = UnixStream::connect(node.address().path()).unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).unwrap();
    assert!(answer.windows(6).any(|part| part == b"cannot"), "the guest is told, then comes the hang-up");
    assert!(!node.is_finished());
}

#[test]
fn all_processes_of_a_tenant_share_its_limit_until_they_are_reaped() {
    let fixture = Fixture::new();
    let mut one = Guest::attach(fixture.socket());
    let mut other = GuestProcess::start(fixture.socket());
    assert!(one.allocate());
    other.send(b'a');
    eventually("the other's part", SOON, || fixture.memory() == (Some(5), 4, 4));
    assert!(!one.allocate(), "the tenant has 1 of 5 left");
    let server = other.server;
    other.send(b'c');
    eventually("a crashed part comes back", SOON, || fixture.memory() == (Some(5), 2, 2));
    assert!(!is_alive(server));
    assert!(one.allocate() && !one.allocate());
    // A connection that ends leaves its API server, which another connection keeps alive, what it holds.
    let again = Guest::attach(fixture.socket());
    assert_eq!(again.server, one.server);
    drop(one);
    eventually("one session is left", SOON, || fixture.node.report().sessions.len() == 1);
    assert_eq!(fixture.memory(), (Some(5), 4, 4));
    drop(again);
    eventually("nothing is held", SOON, || fixture.memory() == (Some(5), 0, 0));
    assert_eq!(fixture.tenant().accounts[0].refused, 2);
}

#[test]
fn a_change_takes_effect_at_once_and_a_reload_takes_it_back() {
    let uid = rustix::process::getuid().as_raw();
    let read = || {
        let limits = [("memory".into(), 7)].into();
        Ok(Settings {
            most_tenants: 1024,
            tenants: Tenants { limits, ..Tenants::default() },
            sessions_per_user: 9,
            attach_rate: 7,
            devices: None,
            vms: Vec::new(),
            cards: Vec::new(),
            fpga_devices: Vec::new(),
            notes: vec!["note".into()],
        })
    };
    let fixture = Fixture::configured(&[], |config| config.reload = Some(Reload::new(read)));
    let mut guest = Guest::attach(fixture.socket());
    assert!(guest.allocate() && guest.allocate() && !guest.allocate());
    let name = format!("uid-{uid}");
    let change = |limit| {
        let limits = [("memory".into(), limit)].into();
        let change = TenantChange { name: name.clone(), limits, weight: Some(4), ..TenantChange::default() };
        ask::<TenantReport>(fixture.socket(), &Request::Set(change)).unwrap()
    };
    assert_eq!(change(Some(6)).weight, 4);
    assert!(guest.allocate() && !guest.allocate());
    // Below what is used: nothing is taken back, nothing more is granted.
    change(Some(1));
    assert_eq!(fixture.memory(), (Some(1), 6, 6));
    assert!(!guest.allocate());
    change(None);
    assert!(guest.allocate());
    let notes: Vec<String> = ask(fixture.socket(), &Request::Reload).unwrap();
    assert_eq!(notes, ["note"]);
    assert_eq!((fixture.memory(), fixture.tenant().weight), ((Some(7), 8, 8), 1));
    assert!(!guest.allocate());
    let unknown = TenantChange { name: "nobody".into(), ..TenantChange::default() };
    let error = ask::<TenantReport>(fixture.socket(), &Request::Set(unknown)).unwrap_err().to_string();
    assert!(error.contains("`nobody`"), "{error}");
}

#[test]
fn an_operator_ends_a_process_and_reload_says_which_would_be_anothers() {
    let uid = rustix::process::getuid().as_raw();
    let anothers = Tenant { users: vec![uid], ..Tenant::new("another") };
    let read = move || {
        let (tenants, notes) = (Tenants { list: vec![anothers.clone()], ..Tenants::default() }, Vec::new());
        Ok(Settings {
            most_tenants: 1024,
            tenants,
            sessions_per_user: 9,
            attach_rate: 7,
            devices: None,
            vms: Vec::new(),
            cards: Vec::new(),
            fpga_devices: Vec::new(),
            notes,
        })
    };
    let fixture = Fixture::configured(&[], |config| config.reload = Some(Reload::new(read)));
    let (mut one, mut two) = (Guest::attach(fixture.socket()), Guest::attach(fixture.socket()));
    let mut process = GuestProcess::start(fixture.socket());
    let notes: Vec<String> = ask(fixture.socket(), &Request::Reload).unwrap();
    let expected =
        format!("user {uid} is tenant another now: sessions 1, 2, 3 keep their old permissions (tenant uid-{uid})");
    assert_eq!(notes[0], expected);
    let third = Guest::attach(fixture.socket());
    assert_eq!(third.server, one.server, "a process stays with its tenant");
    let end = |which| ask::<EndReport>(fixture.socket(), &Request::End(which)).unwrap();
    let report = end(EndRequest::Sessions(vec![2, 77, 2]));
    let ended: Vec<u64> = report.ended.iter().map(|session| session.session).collect();
    assert_eq!((ended, report.unknown), (vec![1, 2, 4], vec![77]));
    assert!(one.is_lost() && two.is_lost());
    process.send(b'x');
    // At once, although the API server may not be reaped yet.
    let again = Guest::attach(fixture.socket());
    assert_ne!(again.server, one.server);
    let sessions = query(fixture.socket()).unwrap().sessions;
    let of_now: Vec<_> = sessions.iter().filter(|session| session.tenant == "another").collect();
    assert!(of_now.len() == 1 && of_now[0].outdated.is_none());
    assert_eq!(end(EndRequest::Outdated).ended[0].session, 3);
    eventually("one session is left", SOON, || fixture.node.report().sessions.len() == 1);
}

#[test]
fn a_failed_reload_changes_nothing_and_says_why() {
    let fixture = Fixture::configured(&[], |config| {
        config.reload = Some(Reload::new(|| Err("line 3: nonsense".into())));
    });
    let mut guest = Guest::attach(fixture.socket());
    let error = ask::<Vec<String>>(fixture.socket(), &Request::Reload).unwrap_err().to_string();
    assert!(error.contains("line 3: nonsense"), "{error}");
    assert!(guest.allocate() && guest.allocate() && !guest.allocate());
}

#[test]
fn offer_passes_to_another_session_of_its_tenant() {
    let fixture = Fixture::new();
    let mut guest = Guest::attach(fixture.socket());
    let process = GuestProcess::start(fixture.socket());
    assert_ne!(guest.server, process.server);
    assert!(guest.fetch(2));
    // From itself; from nobody.
    assert!(guest.fetch(1));
    assert!(!guest.fetch(9));
    drop(process);
    eventually("the other session has ended", SOON, || fixture.node.report().sessions.len() == 1);
    assert!(!guest.fetch(2));
}

#[test]
fn a_tenant_has_no_more_sessions_than_it_may() {
    let fixture = Fixture::configured(&[], |config| {
        let users = vec![rustix::process::getuid().as_raw()];
        config.tenants.list.push(Tenant { users, sessions: Some(2), ..Tenant::new("few") });
    });
    let one = Guest::attach(fixture.socket());
    let _two = Guest::attach(fixture.socket());
    let refused = |socket: &Path| {
        let mut text = Vec::new();
        let _ = UnixStream::connect(socket).unwrap().read_to_end(&mut text);
        String::from_utf8_lossy(&text).contains("tenant few has 2 sessions already")
    };
    assert!(refused(fixture.socket()));
    drop(one);
    eventually("room again", SOON, || fixture.node.report().sessions.len() == 1);
    let _three = Guest::attach(fixture.socket());
}
