//! Identities at a node, and the messages that its API servers may send: node, API servers, gateways and guests are
//! processes, this test program started again. The node's standard error is a file, which an API server could truncate
//! if it had it.

use aviary_control::{FromServer, Patience, Received, SessionDescriptors, ToServer, receive, send};
use aviary_node::{ApiServerCommand, GatewayCommand, Level, Node, NodeConfig, PrivateDir};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use std::{
    env,
    ffi::OsString,
    fs::{self, File, Permissions},
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::{
        fd::AsFd,
        unix::{fs::PermissionsExt, net::UnixStream, process::CommandExt},
    },
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const ROLE: &str = "AVIARY_TEST_IDENTITY_ROLE";
const SETTING: &str = "AVIARY_TEST_IDENTITY_";
/// No assertion: a node that hangs ends the test.
const SOON: Duration = Duration::from_secs(20);
const FIRST_USER: u32 = 71_000;

fn is(role: &str) -> bool {
    env::var(ROLE).as_deref() == Ok(role)
}

fn setting(name: &str) -> Option<String> {
    env::var(format!("{SETTING}{name}")).ok()
}

fn this(role: &str) -> (PathBuf, Vec<OsString>) {
    (env::current_exe().unwrap(), [role, "--exact", "--nocapture"].map(OsString::from).into())
}

/// Not a test: the node.
#[test]
fn node_process() {
    if !is("node") {
        return;
    }
    let (program, arguments) = this("identity::fake_api_server");
    let environment = vec![(ROLE.into(), "api-server".into())];
    let command = ApiServerCommand { program: program.clone(), arguments, environment, fixed_addresses: false };
    let mut config = NodeConfig::new(setting("SOCKET").unwrap().into(), command);
    config.mode = 0o666;
    config.spares = 0;
    config.sessions_per_user = setting("SESSIONS").map_or(4096, |text| text.parse().unwrap());
    config.pass_environment = vec!["ACME_*".into()];
    config.log = Level::Info;
    if setting("USERS").is_some() {
        config.server_users = Some(format!("{FIRST_USER}-{}", FIRST_USER + 9).parse().unwrap());
    }
    if let Some(address) = setting("REMOTE") {
        // The report has a descriptor of its own: libtest speaks on standard output.
        let script = r#"exec "$0" identity::fake_gateway --exact --nocapture -- "$@" 3>&1 1>/dev/null"#;
        let arguments = vec!["-c".into(), script.into(), program.into()];
        let gateway = GatewayCommand { program: "/bin/sh".into(), arguments };
        config.remote = Some((vec![address.parse().unwrap()], gateway));
    }
    let _node = Node::start(config).unwrap();
    // Until the test has gone.
    let _ = std::io::stdin().read(&mut [0]);
    drop(_node);
    std::process::exit(0);
}

/// Not a test: an API server. For each session it tells its guest its user id; then for each byte: `e` the names in its
/// environment, `l` hostile lines for the log, `t` what truncating its standard error answers.
#[test]
fn fake_api_server() {
    if !is("api-server") {
        return;
    }
    let number = env::args().next_back().and_then(|text| text.parse().ok()).expect("a descriptor number");
    let own = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let control = pidfd_getfd(own, number, PidfdGetfdFlags::empty()).unwrap();
    loop {
        poll(&mut [PollFd::new(&control, PollFlags::IN)], None).unwrap();
        let (assignment, descriptors) = match receive(control.as_fd()) {
            Received::Message(ToServer::Assign(assignment), descriptors) => (assignment, descriptors),
            Received::Message(..) | Received::Nothing => continue,
            Received::Closed | Received::Garbage(_) => std::process::exit(0),
        };
        let session = assignment.session;
        let mut guest = UnixStream::from(SessionDescriptors::of(descriptors).expect("descriptors").guest);
        let started = FromServer::Started { session, api: "fake".into(), spec_hash: 0 };
        send(control.as_fd(), &started, &[], Patience::None).unwrap();
        let id = assignment.user.map_or("null".to_owned(), |user| user.id.to_string());
        writeln!(guest, "{id} {}", assignment.own).unwrap();
        std::thread::spawn(move || answer(guest, session));
    }
}

fn answer(mut guest: UnixStream, session: u64) {
    let (mut byte, mut errors) = ([0], std::io::stderr());
    while guest.read(&mut byte).is_ok_and(|count| count == 1) {
        match byte[0] {
            b'e' => {
                let names: Vec<String> = env::vars_os().map(|(name, _)| name.into_string().unwrap()).collect();
                writeln!(guest, "{}", names.join(" ")).unwrap();
            }
            b't' => {
                let done = rustix::fs::ftruncate(std::io::stderr(), 0).is_ok();
                writeln!(guest, "{done}").unwrap();
            }
            _ => {
                let mut text = format!("aviary[{session}]: mine\naviary[{}]: not mine\n", session + 1);
                text += "\x1b]0;owned\x07aviary[node]: info: all is well\r\x1b[2K\n";
                text += &"x".repeat(10_000);
                text += "\n";
                text += &"flood\n".repeat(500);
                errors.write_all(text.as_bytes()).unwrap();
                writeln!(guest, "said").unwrap();
            }
        }
    }
}

/// Not a test: a gateway for the tenant that the connection names in its first line; it answers what the node says first.
#[test]
fn fake_gateway() {
    let Some(node) = env::args().skip_while(|argument| argument != "--node").nth(1) else { return };
    let mut line = String::new();
    let connection = TcpStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    connection.set_nonblocking(false).unwrap();
    BufReader::new(connection.try_clone().unwrap()).read_line(&mut line).unwrap();
    let own = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let report = pidfd_getfd(own, 3, PidfdGetfdFlags::empty()).unwrap();
    let told = format!("{}\t{:x}\t{:x}\tnew\n", line.trim(), std::process::id(), std::process::id());
    rustix::io::write(report, told.as_bytes()).unwrap();
    let attached = UnixStream::connect(node).unwrap();
    let answer = first_answer(&attached);
    let mut connection = connection;
    let _ = writeln!(connection, "{answer}");
    let _ = connection.read(&mut [0]);
    std::process::exit(0);
}

/// A line of the fake API server, or the node's refusal, whose text ends it.
fn first_answer(socket: &UnixStream) -> String {
    socket.set_read_timeout(Some(SOON)).unwrap();
    let (mut all, mut part) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = (&mut &*socket).read(&mut part) {
        all.extend_from_slice(&part[..count]);
        if all.ends_with(b"\n") || all.starts_with(b"AVwe") {
            break;
        }
    }
    String::from_utf8_lossy(&all).replace('\0', "").trim().to_owned()
}

struct Fixture {
    node: Child,
    directory: PrivateDir,
    remote: Option<String>,
}

impl Fixture {
    fn start(settings: &[(&str, &str)]) -> Self {
        let directory = PrivateDir::create().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o711)).unwrap();
        let (program, arguments) = this("identity::node_process");
        let log = File::create(directory.path().join("log")).unwrap();
        let mut command = Command::new(program);
        command.args(arguments).env(ROLE, "node").env(format!("{SETTING}SOCKET"), directory.path().join("node.sock"));
        command.env("SECRET_OF_A_SERVICE", "x").env("ACME_LICENSE", "x").env("CUDA_CACHE_MAXSIZE", "1");
        command.envs(settings.iter().map(|(name, value)| (format!("{SETTING}{name}"), value)));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        let remote = settings.iter().find(|(name, _)| *name == "REMOTE").map(|(_, address)| (*address).to_owned());
        let fixture = Self { node: command.spawn().unwrap(), directory, remote };
        eventually("the node listens", || fixture.log().contains("listening on"));
        fixture
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("node.sock")
    }

    fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.directory.path().join("log")).unwrap()).into_owned()
    }

    fn attach(&self) -> (UnixStream, String) {
        let socket = UnixStream::connect(self.socket()).unwrap();
        let answer = first_answer(&socket);
        (socket, answer)
    }

    /// As a guest of another machine.
    fn attach_as(&self, tenant: &str) -> (TcpStream, String) {
        let mut socket = TcpStream::connect(self.remote.as_ref().unwrap()).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        writeln!(socket, "{tenant}").unwrap();
        let mut answer = String::new();
        BufReader::new(socket.try_clone().unwrap()).read_line(&mut answer).unwrap();
        (socket, answer.trim().to_owned())
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        drop(self.node.stdin.take());
        let _ = self.node.wait();
    }
}

fn ask(socket: &mut UnixStream, byte: u8) -> String {
    socket.write_all(&[byte]).unwrap();
    first_answer(socket)
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let until = Instant::now() + SOON;
    while !condition() {
        assert!(Instant::now() < until, "{what}: not within {SOON:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Not a test: a guest of another user; its exit status says whether the node's answer has the expected text in it.
#[test]
fn guest_process() {
    if !is("guest") {
        return;
    }
    let answer = first_answer(&UnixStream::connect(setting("SOCKET").unwrap()).unwrap());
    let good = answer.contains(&setting("EXPECTED").unwrap());
    eprintln!("{answer}");
    std::process::exit(if good { 0 } else { 7 });
}

fn guest_of(fixture: &Fixture, user: u32, expected: &str) -> bool {
    // Where the program itself lies may be out of that user's reach.
    let program = fixture.directory.path().join("guest");
    // By another process: one that a test beside this one starts at that moment would have the file open for writing, and then
    // nobody can execute it.
    assert!(Command::new("cp").arg(env::current_exe().unwrap()).arg(&program).status().unwrap().success());
    let mut command = Command::new(program);
    command.args(["identity::guest_process", "--exact", "--nocapture"]).env(ROLE, "guest").uid(user).gid(user);
    command.env(format!("{SETTING}SOCKET"), fixture.socket()).env(format!("{SETTING}EXPECTED"), expected);
    command.current_dir("/").stdout(Stdio::null()).status().unwrap().success()
}

#[test]
fn an_api_server_is_no_guest() {
    if !is_root() {
        return; // only root starts processes as other users
    }
    let fixture = Fixture::start(&[("USERS", "")]);
    assert!(guest_of(&fixture, FIRST_USER, "user 71000 belongs to this node's API servers"));
    assert!(guest_of(&fixture, FIRST_USER + 9, "belongs to this node's API servers"));
    assert!(guest_of(&fixture, FIRST_USER + 10, "false"), "others attach");
    assert!(fixture.log().contains("refused: user 71000 belongs to"), "{}", fixture.log());
}

#[test]
fn a_name_makes_nobody_root() {
    if !is_root() {
        return;
    }
    let address = free_address();
    let fixture = Fixture::start(&[("USERS", ""), ("REMOTE", &address)]);
    assert_eq!(fixture.attach().1, "null true", "root's own API server is root");
    let (_, answer) = fixture.attach_as("uid-0");
    assert!(answer.contains("`uid-0` is the name of a local user"), "{answer}");
    let (_, answer) = fixture.attach_as("uid-1001");
    assert!(answer.contains("`uid-1001` is the name of a local user"), "{answer}");
    let answer = fixture.attach_as("alice").1;
    assert!(answer.starts_with("710") && answer.ends_with(" false"), "{answer}");
    // A peer that shows nothing (--plain-loopback) is not the node's user, though its gateway is.
    let answer = fixture.attach_as("").1;
    assert!(answer.starts_with("710") && answer.ends_with(" false"), "{answer}");
}

#[test]
fn remote_sessions_are_counted_by_tenant() {
    let address = free_address();
    let fixture = Fixture::start(&[("SESSIONS", "2"), ("REMOTE", &address)]);
    let carol: Vec<_> = (0..2).map(|_| fixture.attach_as("carol")).collect();
    assert!(carol.iter().all(|(_, answer)| answer.ends_with(" false")), "{carol:?}");
    let (_, answer) = fixture.attach_as("carol");
    assert!(answer.contains("tenant carol has 2 sessions already"), "{answer}");
    assert!(fixture.attach_as("eve").1.ends_with(" false"), "another tenant has its own");
    assert!(fixture.attach().1.ends_with(" true"), "and so has the node's user");
}

#[test]
fn a_process_has_so_many_connections() {
    let fixture = Fixture::start(&[]);
    let all: Vec<_> = (0..64).map(|_| fixture.attach()).collect();
    assert!(all.iter().all(|(_, answer)| answer == &all[0].1));
    let (_, answer) = fixture.attach();
    assert!(answer.contains("the process has 64 connections already"), "{answer}");
}

#[test]
fn the_nodes_environment_stays_with_it() {
    let fixture = Fixture::start(&[]);
    let (mut guest, _) = fixture.attach();
    let names = ask(&mut guest, b'e');
    let has = |name: &str| names.split(' ').any(|other| other == name);
    assert!(has(ROLE) && has("PATH") && has("CUDA_CACHE_MAXSIZE") && has("ACME_LICENSE"), "{names}");
    assert!(!has("SECRET_OF_A_SERVICE") && !names.contains("SOCKET"), "{names}");
}

#[test]
fn an_api_server_neither_forges_nor_floods_nor_truncates_the_log() {
    let fixture = Fixture::start(&[]);
    let (mut guest, _) = fixture.attach();
    assert_eq!(ask(&mut guest, b't'), "false", "it does not have the log");
    assert_eq!(ask(&mut guest, b'l'), "said");
    eventually("the number of lines that were left out", || fixture.log().contains("more lines"));
    drop(guest);
    let log = fixture.log();
    let lines: Vec<&str> = log.lines().collect();
    assert!(lines.iter().all(|line| line.starts_with("aviary[")), "{log}");
    assert!(!log.chars().any(|letter| letter.is_control() && letter != '\n'), "{log:?}");
    assert!(lines.contains(&"aviary[1]: mine"), "{log}");
    let of_server = |line: &&&str| line.starts_with("aviary[api-server ");
    assert!(lines.iter().filter(of_server).any(|line| line.ends_with("]: aviary[2]: not mine")), "{log}");
    assert!(!lines.iter().any(|line| line.starts_with("aviary[node]: info: all is well")), "{log}");
    assert!(!lines.iter().any(|line| line.starts_with("aviary[node]: info: forged")), "{log}");
    assert!(lines.iter().all(|line| line.len() < 4500), "{log}");
    assert!(lines.iter().filter(|line| line.ends_with(" flood")).count() <= 20, "{log}");
}
