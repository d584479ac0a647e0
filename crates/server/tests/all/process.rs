//! Real processes: a guest program, an API server with a module, and this test as the node.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use aviary_control::stats::{MAGIC, StatsPage};
use aviary_control::{
    Assignment, FromServer, Heard, MoveReport, OfferName, Patience, Preparation, SessionDescriptors, ToServer, Wanted,
    hear, send,
};
use aviary_gate::TenantPage;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// A wait that takes longer is a hang: it bounds tests and claims nothing about speed.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// Of the fake API, as the module and the guest of the examples have it.
const SPEC_HASH: u64 = 0x1234;

fn example(name: &str) -> PathBuf {
    let here = std::env::current_exe().expect("this test's path");
    let examples = here.ancestors().nth(2).expect("target directory").join("examples");
    let path = examples.join(name);
    assert!(path.exists(), "{} is missing: cargo builds it with the tests", path.display());
    path
}

/// A node with one API server process.
struct Node {
    folder: PathBuf,
    listener: UnixListener,
    control: OwnedFd,
    server: Child,
    sessions: u64,
    /// Of the session that was handed over last.
    stats: Option<StatsPage>,
    /// In place of the system's.
    vendor: Option<PathBuf>,
}

impl Node {
    fn start(name: &str) -> Node {
        let folder = std::env::temp_dir().join(format!("aviary-server-test-{}-{name}", std::process::id()));
        let module = folder.join("modules/fake");
        std::fs::create_dir_all(&module).expect("a folder");
        std::fs::copy(example("libfake_module.so"), module.join("server.so")).expect("the module");
        let listener = UnixListener::bind(folder.join("node.sock")).expect("a socket");
        let (control, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("a pair");
        let number = theirs.as_raw_fd();
        let mut command = Command::new(example("api_server"));
        command.arg("20").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // SAFETY: dup2 is async-signal-safe; it gives the child its control socket.
        unsafe {
            command.pre_exec(
                move || if libc::dup2(number, 20) < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) },
            )
        };
        let server = command.spawn().expect("the API server");
        Node { folder, listener, control, server, sessions: 0, stats: None, vendor: None }
    }

    fn guest(&self, scenario: &str, mirrored: bool) -> Child {
        let mut command = Command::new(example("fake_guest"));
        command.arg(scenario).env("AVIARY_SERVER", format!("unix:{}", self.folder.join("node.sock").display()));
        command.env("AVIARY_TRANSPORT", if mirrored { "stream" } else { "" }).env("AVIARY_ARENA", "1G");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a guest")
    }

    /// Accepts a guest and hands it over.
    fn hand_over(&mut self) {
        let (socket, _) = self.listener.accept().expect("a guest");
        self.sessions += 1;
        let modules = vec![self.folder.join("modules")];
        let vendors = self.vendor.iter().map(|vendor| ("fake".to_owned(), vendor.display().to_string())).collect();
        let (session, tenant) = (self.sessions, "t".to_owned());
        let assignment = Assignment { session, tenant, guest: 1, modules, vendors, ..Assignment::default() };
        let (page, tenant_page) = TenantPage::create().expect("a page");
        page.set_limit("memory", Some(1000)).expect("a limit");
        page.note_slot(0);
        let stats = StatsPage::create().expect("a page");
        self.stats = Some(StatsPage::open(stats.as_fd()).expect("a page"));
        let orders = aviary_control::order_sockets().expect("sockets");
        let descriptors = SessionDescriptors { guest: socket.into(), tenant_page, stats, orders, devices: None };
        self.tell(&ToServer::Assign(Box::new(assignment)), &descriptors);
    }

    fn tell(&self, message: &ToServer, descriptors: &SessionDescriptors<OwnedFd>) {
        send(self.control.as_fd(), message, &descriptors.list(), Patience::Waits).expect("told");
    }

    /// The next event of the API server, after the greeting of a guest.
    fn event(&self) -> FromServer {
        loop {
            poll(&mut [PollFd::new(&self.control, PollFlags::IN)], None).expect("an event");
            match hear(self.control.as_fd()) {
                Heard::Message(FromServer::Greeted { session }) => assert_eq!(session, self.sessions),
                Heard::Message(event) => return event,
                other => panic!("{other:?}"),
            }
        }
    }

    fn has_started(&self) -> bool {
        self.event() == FromServer::Started { session: self.sessions, api: "fake".into(), spec_hash: SPEC_HASH }
    }

    /// Why its session ended.
    fn end(&self) -> String {
        match self.event() {
            FromServer::Ended { session, reason } if session == self.sessions => reason,
            other => panic!("{other:?}"),
        }
    }

    fn finish(mut self) -> ExitStatus {
        let status = exit(&mut self.server, HANG_TIMEOUT);
        let _ = std::fs::remove_dir_all(&self.folder);
        status
    }
}

fn exit(child: &mut Child, at_most: Duration) -> ExitStatus {
    let deadline = Instant::now() + at_most;
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("process {} goes on for ever: {}", child.id(), errors(child));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn errors(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(pipe) = &mut child.stderr {
        let _ = pipe.read_to_string(&mut text);
    }
    text
}

fn line(output: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    line.trim().to_owned()
}

fn output(child: &mut Child) -> BufReader<ChildStdout> {
    BufReader::new(child.stdout.take().expect("piped"))
}

fn whole_api(name: &str, mirrored: bool) {
    let mut node = Node::start(name);
    let mut guest = node.guest("all", mirrored);
    node.hand_over();
    assert!(node.has_started());
    let stats = node.stats.take().expect("a page");
    let status = exit(&mut guest, HANG_TIMEOUT);
    assert!(status.success(), "{}", errors(&mut guest));
    assert_eq!(line(&mut output(&mut guest)), "all is well");
    assert_eq!(stats.magic.load(std::sync::atomic::Ordering::Acquire), MAGIC);
    assert!(stats.async_calls.load(std::sync::atomic::Ordering::Relaxed) > 20_000);
    assert_eq!(stats.resources[0].used.load(std::sync::atomic::Ordering::Relaxed), 0);
    node.end();
    assert!(node.finish().success());
}

#[test]
fn the_whole_api_in_shared_memory() {
    whole_api("shm", false);
}

#[test]
fn the_whole_api_over_streams() {
    whole_api("stream", true);
}

/// Kills the API server while the guest does `scenario`; the guest learns of it.
fn server_dies(name: &str, scenario: &str, mirrored: bool) {
    let mut node = Node::start(name);
    let mut guest = node.guest(scenario, mirrored);
    node.hand_over();
    let mut lines = output(&mut guest);
    assert_eq!(line(&mut lines), "ready");
    std::thread::sleep(Duration::from_millis(50));
    node.server.kill().expect("killed");
    assert_eq!(line(&mut lines), "lost");
    assert!(exit(&mut guest, HANG_TIMEOUT).success());
    assert!(!node.finish().success());
}

#[test]
fn a_guest_survives_the_death_of_its_server() {
    server_dies("busy", "hold", false);
    server_dies("waiting", "wait", false);
    server_dies("busy-stream", "hold", true);
    server_dies("waiting-stream", "wait", true);
}

#[test]
fn a_server_does_not_wait_for_a_vendor_library_that_loads_for_ever_once_its_guest_has_gone() {
    for mirrored in [false, true] {
        let mut node = Node::start(&format!("loading-{mirrored}"));
        // A reader that opens it waits for a writer.
        let library = node.folder.join("library.so");
        rustix::fs::mknodat(rustix::fs::CWD, &library, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a fifo");
        node.vendor = Some(library);
        let mut guest = node.guest("hold", mirrored);
        node.hand_over();
        std::thread::sleep(Duration::from_secs(2));
        assert!(node.server.try_wait().expect("a child").is_none(), "its guest is still there");
        guest.kill().expect("killed");
        guest.wait().expect("a child");
        assert!(!node.finish().success());
    }
}

#[test]
fn a_server_ends_with_its_killed_guest_even_inside_the_vendor_library() {
    for (scenario, mirrored) in [("hold", false), ("hold", true), ("wait", false), ("wait", true)] {
        let mut node = Node::start(&format!("kill-{scenario}-{mirrored}"));
        let mut guest = node.guest(scenario, mirrored);
        node.hand_over();
        assert_eq!(line(&mut output(&mut guest)), "ready");
        std::thread::sleep(Duration::from_millis(50));
        guest.kill().expect("killed");
        guest.wait().expect("a child");
        assert!(node.finish().success());
    }
}

#[test]
fn a_server_without_guests_ends_with_its_node() {
    let mut node = Node::start("idle");
    std::thread::sleep(Duration::from_millis(50));
    assert!(node.server.try_wait().expect("a child").is_none());
    let (other, _) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a pair");
    drop(std::mem::replace(&mut node.control, other));
    assert!(node.finish().success());
}

/// A node that comes back knows nothing of them, so that nobody would account for what they hold.
#[test]
fn sessions_end_with_their_node() {
    for (scenario, mirrored) in [("hold", false), ("hold", true), ("wait", false)] {
        let mut node = Node::start(&format!("orphan-{scenario}-{mirrored}"));
        let mut guest = node.guest(scenario, mirrored);
        node.hand_over();
        assert_eq!(line(&mut output(&mut guest)), "ready");
        let (other, _) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .expect("a pair");
        drop(std::mem::replace(&mut node.control, other));
        assert!(node.finish().success());
        exit(&mut guest, HANG_TIMEOUT);
    }
}

#[test]
fn fetch_of_an_unknown_offer_is_answered() {
    let mut node = Node::start("offers");
    let mut guest = node.guest("hold", false);
    node.hand_over();
    assert_eq!(line(&mut output(&mut guest)), "ready");
    assert!(node.has_started());
    let wanted = Wanted { asker: 5, request: 3, name: OfferName { session: 1, secret: [1, 2] } };
    let [to, from] = aviary_control::state_sockets().expect("sockets");
    send(node.control.as_fd(), &ToServer::Fetch(wanted), &[to.as_fd()], Patience::Waits).expect("asked");
    drop(to);
    poll(&mut [PollFd::new(&from, PollFlags::IN)], None).expect("an answer");
    assert!(aviary_control::taken(from.as_fd()).is_none());
    // An answer that nobody asked for does no harm.
    send(node.control.as_fd(), &ToServer::Fetched { request: 8, note: 0 }, &[], Patience::Waits).expect("told");
    guest.kill().expect("killed");
    node.end();
    let _ = guest.wait();
    assert!(node.finish().success());
}

/// A process that a session may move to says whether it has a module of the session's specification, and serves on.
#[test]
fn process_is_prepared_for_its_own_specification_only() {
    let mut node = Node::start("prepare");
    let modules = vec![Path::new(&node.folder).join("modules")];
    let answer = |session, api: &str, spec_hash| {
        let (modules, api) = (modules.clone(), api.to_owned());
        let wanted = Preparation { session, modules, api, spec_hash, user: None, private: false, vendors: [].into() };
        send(node.control.as_fd(), &ToServer::Prepare(wanted), &[], Patience::Waits).expect("asked");
        match node.event() {
            FromServer::Move { session: of, report } if of == session => report,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(answer(5, "fake", SPEC_HASH), MoveReport::Prepared);
    for (api, hash, why) in
        [("fake", SPEC_HASH + 1, "from another specification"), ("../fake", 0, "no module"), ("none", 0, "no module")]
    {
        let MoveReport::Unmovable { attempt: 0, reason, lasting: true } = answer(6, api, hash) else {
            panic!("{api} {hash}")
        };
        assert!(reason.contains(why), "{reason}");
    }
    let mut guest = node.guest("hold", false);
    node.hand_over();
    assert_eq!(line(&mut output(&mut guest)), "ready");
    assert!(node.has_started());
    guest.kill().expect("killed");
    node.end();
    let _ = guest.wait();
    assert!(node.finish().success());
}

#[test]
fn a_missing_module_is_refused_with_its_name() {
    let mut node = Node::start("missing");
    std::fs::remove_dir_all(Path::new(&node.folder).join("modules")).expect("removed");
    let mut guest = node.guest("all", false);
    node.hand_over();
    assert!(!exit(&mut guest, HANG_TIMEOUT).success());
    let said = errors(&mut guest);
    assert!(said.contains("no module for the API \"fake\""), "{said}");
    assert!(node.end().contains("refused"));
    assert!(node.finish().success());
}
