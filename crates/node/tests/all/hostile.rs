//! A node whose API servers were taken over: they say and write whatever they like. The node answers, ends them, and serves
//! others.
//!
//! This test program, started again, is the API server: it greets a guest with its process id, answers `p` with `p`, and
//! takes the guest's other bytes for orders.

use aviary_control::{
    Assignment, FromServer, MAX_MESSAGE_BYTES, OfferName, Patience, Received, SessionDescriptors, ToServer, receive,
    send,
};
use aviary_gate::GrantPage;
use aviary_node::{
    ApiServerCommand, DeviceSettings, EndReport, EndRequest, Level, Node, NodeConfig, PrivateDir, Request, Rules,
    Scheduler, ask, query,
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
    process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open},
};
use std::{
    env,
    ffi::OsString,
    io::{BufRead, BufReader, IoSlice, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::Ordering::SeqCst,
    time::{Duration, Instant},
};

const ROLE: &str = "AVIARY_TEST_HOSTILE_ROLE";
/// Generous: nothing here depends on how fast the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

// The API server.

/// Not a test: the API server, when this program is started as one.
#[test]
fn fake_api_server() {
    if env::var(ROLE).as_deref() != Ok("api-server") {
        return;
    }
    let number = env::args().next_back().and_then(|text| text.parse().ok()).expect("a descriptor number");
    let own = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let control = pidfd_getfd(own, number, PidfdGetfdFlags::empty()).unwrap();
    loop {
        poll(&mut [PollFd::new(&control, PollFlags::IN)], None).unwrap();
        match receive(control.as_fd()) {
            Received::Message(ToServer::Assign(assignment), descriptors) => {
                let control = control.try_clone().unwrap();
                let descriptors = SessionDescriptors::of(descriptors).unwrap();
                std::thread::spawn(move || serve(control, *assignment, descriptors));
            }
            Received::Message(..) | Received::Nothing => {}
            Received::Closed | Received::Garbage(_) => std::process::exit(0),
        }
    }
}

fn serve(control: OwnedFd, assignment: Assignment, descriptors: SessionDescriptors<OwnedFd>) {
    let (session, control) = (assignment.session, control.as_fd());
    let mut guest = UnixStream::from(descriptors.guest.try_clone().unwrap());
    tell(control, &FromServer::Started { session, api: "fake".into(), spec_hash: 0 });
    writeln!(guest, "{}", std::process::id()).unwrap();
    let mut byte = [0];
    while guest.read(&mut byte).is_ok_and(|count| count == 1) {
        match byte[0] {
            b'p' => guest.write_all(b"p").unwrap(),
            b's' => tell(control, &FromServer::Started { session, api: "fake".into(), spec_hash: 0 }),
            b'n' => tell(control, &FromServer::Started { session, api: "\u{1b}[2J\n".into(), spec_hash: 0 }),
            b'e' => tell(control, &FromServer::Ended { session, reason: "\u{1b}bye".into() }),
            b'o' => (1..session)
                .for_each(|other| tell(control, &FromServer::Ended { session: other, reason: String::new() })),
            b'z' => tell(control, &FromServer::Ready),
            b'g' => flood(control, |number| format!("garbage {number}").into_bytes()),
            b'l' => flood(control, |_| vec![b' '; MAX_MESSAGE_BYTES + 1]),
            b'd' => with_descriptors(control, 200),
            b'q' => (0..20_000).for_each(|request| {
                let name = OfferName { session: request, secret: [1, 2] };
                tell(control, &FromServer::Fetch { session, request, name });
            }),
            b'h' => drop(rustix::net::shutdown(control, rustix::net::Shutdown::Both)),
            b'w' => scribble(&descriptors),
            _ => {}
        }
    }
    // It does not end whatever its guest does.
    loop {
        std::thread::park();
    }
}

fn tell(control: BorrowedFd<'_>, event: &FromServer) {
    let _ = send(control, event, &[], Patience::Waits);
}

/// 20,000 messages, as long as the node takes them.
fn flood(control: BorrowedFd<'_>, text: impl Fn(u32) -> Vec<u8>) {
    for number in 0..20_000 {
        if rustix::net::send(control, &text(number), SendFlags::NOSIGNAL).is_err() {
            return;
        }
    }
}

fn with_descriptors(control: BorrowedFd<'_>, count: usize) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let many = vec![control; count];
    ancillary.push(SendAncillaryMessage::ScmRights(&many));
    let text = aviary_control::encode(&FromServer::Born { pid: 1 }).unwrap();
    let _ = sendmsg(control, &[IoSlice::new(&text)], &mut ancillary, SendFlags::NOSIGNAL);
}

/// Everything that the session shares with the node, for ever; and the bell rings all the time.
fn scribble(descriptors: &SessionDescriptors<OwnedFd>) {
    let devices = descriptors.devices.as_ref().expect("a page of grants");
    let page = GrantPage::open(devices.page.as_fd()).unwrap();
    for (number, slot) in page.slots().iter().enumerate() {
        slot.take(if number % 2 == 0 { "card" } else { "no such thing" });
    }
    let mut state = 1u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        [0, 1, u64::MAX, u64::MAX - 1, 1 << 63, state, state >> 33][(state >> 40) as usize % 7]
    };
    loop {
        for slot in page.slots() {
            for word in [&slot.used_ns, &slot.calls, &slot.busy_since, &slot.drains_at, &slot.position, &slot.allowance]
            {
                word.store(next(), SeqCst);
            }
            for word in [&slot.waiters, &slot.waiter_tid, &slot.wanted, &slot.parked] {
                word.store((next() % 9) as u32, SeqCst);
            }
        }
        let _ = rustix::io::write(&devices.bell, &1u64.to_ne_bytes());
    }
}

// Guests.

/// Not a test: a guest in a process of its own, which says what it reads.
#[test]
fn fake_guest() {
    let Some(socket) = env::var(ROLE).ok().and_then(|role| role.strip_prefix("guest:").map(str::to_owned)) else {
        return;
    };
    let mut socket = BufReader::new(UnixStream::connect(socket).unwrap());
    let mut line = String::new();
    socket.read_line(&mut line).unwrap();
    println!("\nserver {}", line.trim());
    for byte in BufReader::new(std::io::stdin()).bytes().map_while(Result::ok) {
        let _ = socket.get_mut().write_all(&[byte]);
        if byte == b'p' {
            let answered = socket.read_exact(&mut [0]).is_ok();
            println!("answered {answered}");
        }
    }
    std::process::exit(0);
}

struct Guest {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    server: u32,
}

impl Guest {
    fn attach(socket: &Path) -> Guest {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["hostile::fake_guest", "--exact", "--nocapture"])
            .env(ROLE, format!("guest:{}", socket.display()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut guest = Guest { child, output, server: 0 };
        guest.server = guest.line("server ").parse().expect("a greeting");
        guest
    }

    /// The rest of the next line that begins like this.
    fn line(&mut self, begins: &str) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).is_ok_and(|count| count > 0) {
            if let Some(rest) = line.trim().strip_prefix(begins) {
                return rest.to_owned();
            }
            line.clear();
        }
        panic!("the guest said nothing");
    }

    fn send(&mut self, byte: u8) {
        self.child.stdin.as_mut().unwrap().write_all(&[byte]).unwrap();
    }

    fn works(&mut self) -> bool {
        self.send(b'p');
        self.line("answered ") == "true"
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Fixture {
    node: Node,
    _directory: PrivateDir,
}

impl Fixture {
    fn new(change: impl FnOnce(&mut NodeConfig)) -> Fixture {
        let command = ApiServerCommand {
            program: env::current_exe().unwrap(),
            arguments: ["hostile::fake_api_server", "--exact", "--nocapture"].map(OsString::from).into(),
            environment: vec![(ROLE.into(), "api-server".into())],
            fixed_addresses: false,
        };
        let directory = PrivateDir::create().unwrap();
        let mut config = NodeConfig::new(directory.path().join("unused"), command);
        config.log = Level::Debug;
        change(&mut config);
        let node = Node::start_private(&directory, config).unwrap();
        Fixture { node, _directory: directory }
    }

    fn socket(&self) -> &Path {
        self.node.address().path()
    }

    fn attach(&self) -> Guest {
        Guest::attach(self.socket())
    }

    /// Another process's session, in another API server, works; and the node answers.
    fn serves_others(&self, attached: &mut Guest) {
        assert!(attached.works(), "the one that was there");
        let mut new = self.attach();
        assert!(new.works(), "a new one");
        let report = query(self.socket()).unwrap();
        assert!([attached.server, new.server].iter().all(|pid| report.sessions.iter().any(|s| s.server == *pid)));
    }
}

fn is_alive(pid: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// An API server does this and is ended, and nobody else notices.
fn is_ended_for(lies: &[u8]) {
    for lie in lies {
        let fixture = Fixture::new(|_| {});
        let mut other = fixture.attach();
        let mut taken_over = fixture.attach();
        assert!(taken_over.works() && taken_over.server != other.server);
        taken_over.send(*lie);
        let lie = char::from(*lie);
        eventually(&format!("{lie}: it is ended"), || !is_alive(taken_over.server));
        fixture.serves_others(&mut other);
        eventually(&format!("{lie}: nothing of it is left"), || {
            let report = query(fixture.socket()).unwrap();
            report.servers.is_empty() && report.sessions.iter().all(|session| session.server != taken_over.server)
        });
    }
}

#[test]
fn a_session_that_starts_twice_ends_its_api_server() {
    is_ended_for(b"s");
}

#[test]
fn a_name_that_no_api_has_ends_its_api_server() {
    is_ended_for(b"n");
}

#[test]
fn an_api_server_that_speaks_of_anothers_session_is_ended() {
    is_ended_for(b"o");
}

#[test]
fn garbage_floods_long_messages_descriptors_and_words_of_a_zygote_end_an_api_server() {
    is_ended_for(b"glzd");
}

#[test]
fn an_api_server_that_hangs_up_and_stays_is_ended() {
    is_ended_for(b"h");
}

#[test]
fn twenty_thousand_questions_are_answered_beside_the_others() {
    let fixture = Fixture::new(|_| {});
    let mut other = fixture.attach();
    let mut busy = fixture.attach();
    busy.send(b'q');
    fixture.serves_others(&mut other);
    assert!(busy.works(), "it did nothing that is forbidden");
}

#[test]
fn an_api_server_without_sessions_is_shown_and_then_killed() {
    let fixture = Fixture::new(|_| {});
    let mut other = fixture.attach();
    let mut hidden = fixture.attach();
    hidden.send(b'e');
    let is_shown = || query(fixture.socket()).unwrap().servers.iter().any(|server| server.server == hidden.server);
    eventually("it is shown, or was", || is_shown() || !is_alive(hidden.server));
    eventually("it is killed", || !is_alive(hidden.server));
    fixture.serves_others(&mut other);
    // The node reaps it a moment after its end.
    eventually("it is not shown any more", || !is_shown());
}

#[test]
fn ending_a_tenant_ends_its_api_servers_without_sessions_too() {
    let fixture = Fixture::new(|_| {});
    let mut hidden = fixture.attach();
    let tenant = query(fixture.socket()).unwrap().sessions[0].tenant.clone();
    hidden.send(b'e');
    eventually("its session is over", || query(fixture.socket()).unwrap().sessions.is_empty());
    let report: EndReport = ask(fixture.socket(), &Request::End(EndRequest::Tenant(tenant))).unwrap();
    // Unless the clock was faster.
    assert!(report.ended.is_empty() && report.servers.len() <= 1);
    eventually("it is killed", || !is_alive(hidden.server));
    fixture.serves_others(&mut fixture.attach());
}

#[test]
fn pages_full_of_lies_hang_no_scheduler() {
    use Scheduler::*;
    for scheduler in [Fair, WfqPoll, WfqAimd, RoundRobin, Slices, Priority, Credit] {
        let settings = DeviceSettings { scheduler, ..DeviceSettings::default() };
        let fixture = Fixture::new(|config| config.devices = Rules(vec![("card".into(), settings)]));
        let mut other = fixture.attach();
        let mut taken_over = fixture.attach();
        assert!(taken_over.works());
        taken_over.send(b'w');
        eventually("the scheduler has seen it", || !query(fixture.socket()).unwrap().devices.is_empty());
        (0..5).for_each(|_| fixture.serves_others(&mut other));
        // Leaving asks for the scheduler's lock, too.
        drop(taken_over);
        eventually("it is gone", || query(fixture.socket()).unwrap().sessions.len() <= 2);
        fixture.serves_others(&mut other);
    }
}
