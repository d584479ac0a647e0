//! The kill matrix: every process dies in every stage of every purpose. The cases are made from the table of relocations, as
//! docs/moving.md has it: a row for `source gone`, `target gone` or `ended` is a case in each of its stages, and says what
//! becomes of the sessions. A row that has no case fails a test.
//!
//! A stage is held by an API server that does not answer before a file says so. Node, program and gateway are processes of
//! their own, so that they can die.

use super::{FAULT, Fixture, Guest, ROLE, SOON, kill};
use aviary_control::{MoveOrder, ToServer};
use aviary_node::{
    GatewayCommand, MoveBegun, MoveRequest, MoveStatus, NodeReport, PrivateDir, Request, SessionReport, TenantChange,
    TenantReport, UnparkStatus, ask, query,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, getpid, pidfd_getfd, pidfd_open, pidfd_send_signal};
use std::{
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// A file with the name of the step at which API servers wait until it is another one's.
const HOLD: &str = "AVIARY_TEST_HOLD";
/// Where the node listens for programs on other machines, and the tenant that they are.
const REMOTE: &str = "AVIARY_TEST_REMOTE";
const REMOTE_TENANT: &str = "remote";

// The stand-ins.

/// Waits while the file names the step of this message.
pub fn hold_at(message: &ToServer) {
    let Some(file) = env::var_os(HOLD).map(PathBuf::from) else { return };
    let step = match message {
        ToServer::Prepare(_) => "preparing",
        ToServer::Adopt(_) => "adopting",
        ToServer::Move { order: MoveOrder::Announce { .. }, .. } => "announcing",
        ToServer::Move { order: MoveOrder::Capture { .. }, .. } => "capturing",
        ToServer::Move { order: MoveOrder::Rebuild, .. } => "rebuilding",
        _ => return,
    };
    let is_held = || fs::read_to_string(&file).is_ok_and(|held| held == step);
    if is_held() {
        fs::write(file.with_extension("at"), step).unwrap();
    }
    // A node that has ended waits for nobody.
    let node = rustix::process::getppid();
    while is_held() && rustix::process::getppid() == node {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Not a test: the program, when this one is started as that. It makes a call for each line of its input.
#[test]
fn fake_program() {
    let Ok(socket) = env::var(ROLE).map(PathBuf::from) else { return };
    if !socket.is_absolute() {
        return;
    }
    serve(Guest::attach(&socket), std::io::stdin().lock(), std::io::stdout());
}

/// Makes a call for each line.
fn serve(mut guest: Guest, lines: impl BufRead, mut answers: impl Write) {
    for line in lines.lines() {
        let answer = match line.unwrap().as_str() {
            "server" => guest.server().map(|server| server.to_string()),
            "hold" => Some(guest.asks(b'a').to_string()),
            other => panic!("{other}"),
        };
        writeln!(answers, "answer {}", answer.as_deref().unwrap_or("lost")).unwrap();
    }
}

/// Not a test: a gateway, whose connection is a program on another machine. The report is descriptor 3: libtest speaks on
/// standard output.
#[test]
fn fake_gateway() {
    let Some(node) = env::args().skip_while(|argument| argument != "--node").nth(1) else { return };
    let connection = TcpStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    connection.set_nonblocking(false).unwrap();
    let report = pidfd_getfd(pidfd_open(getpid(), PidfdFlags::empty()).unwrap(), 3, PidfdGetfdFlags::empty()).unwrap();
    let own = std::process::id();
    rustix::io::write(report, format!("{REMOTE_TENANT}\t{own:x}\t{own:x}\tnew\n").as_bytes()).unwrap();
    serve(Guest::attach(Path::new(&node)), BufReader::new(connection.try_clone().unwrap()), connection);
}

/// Not a test: the node.
#[test]
fn node_program() {
    if env::var(ROLE).as_deref() != Ok("node") {
        return;
    }
    let variables = [FAULT, HOLD].map(|name| (name.into(), env::var_os(name).unwrap()));
    let remote = env::var(REMOTE).unwrap().parse().ok();
    let script = r#"exec "$0" moves::matrix::fake_gateway --exact --nocapture -- "$@" 3>&1 1>/dev/null"#;
    let arguments = vec!["-c".into(), script.into(), env::current_exe().unwrap().into()];
    let gateway = GatewayCommand { program: "/bin/sh".into(), arguments };
    let fixture = Fixture::with(variables.into(), remote.map(|address| (vec![address], gateway)));
    println!("answer {}", fixture.socket().display());
    let _ = std::io::stdin().read(&mut [0]);
}

/// Somebody who answers lines.
struct Role {
    /// None of a program on another machine.
    process: Option<Child>,
    input: Box<dyn Write>,
    output: Box<dyn BufRead>,
}

impl Role {
    /// A process of this program.
    fn start(test: &str, role: &str, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args([&format!("moves::matrix::{test}"), "--exact", "--nocapture"]).env(ROLE, role);
        command.envs(variables.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Self { process: Some(process), input: Box::new(input), output: Box::new(BufReader::new(output)) }
    }

    fn connect(address: &str) -> Self {
        let connection = TcpStream::connect(address).unwrap();
        let output = BufReader::new(connection.try_clone().unwrap());
        Self { process: None, input: Box::new(connection), output: Box::new(output) }
    }

    /// The next answer; `None`: it has ended.
    fn answer(&mut self) -> Option<String> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.output.read_line(&mut line).ok()? == 0 {
                return None;
            }
            // The test harness writes before it on the same line.
            if let Some((_, answer)) = line.trim_end().split_once("answer ") {
                return Some(answer.to_owned());
            }
        }
    }

    fn ask(&mut self, line: &str) -> Option<String> {
        writeln!(self.input, "{line}").ok()?;
        self.answer()
    }

    fn kill(&mut self) {
        if let Some(process) = &mut self.process {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

// The table.

/// Purposes, stages, events, condition, next stage and the node's steps.
struct Row([String; 6]);

impl Row {
    fn has(&self, column: usize, word: &str) -> bool {
        self.0[column].split(", ").any(|has| has == word)
    }
}

fn table() -> Vec<Row> {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/moving.md")).unwrap();
    let (_, page) = page.split_once("<!-- relocation: written from the table -->").unwrap();
    let (page, _) = page.split_once("<!-- relocation: end -->").unwrap();
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    page.lines()
        .filter(|line| line.starts_with("| "))
        .skip(1)
        .map(|line| Row(cells(line).try_into().unwrap()))
        .collect()
}

/// A process that dies in one stage of one purpose, in the circumstances that a row of the table is about.
struct Kill {
    purpose: String,
    stage: String,
    victim: &'static str,
    /// The row's condition.
    guard: String,
    /// The node's steps.
    steps: String,
}

/// The cases of a table. An error names a row that has none.
fn kills(table: &[Row]) -> Result<Vec<Kill>, String> {
    let mut all: Vec<Kill> = Vec::new();
    for (at, row) in table.iter().enumerate() {
        let Row([purposes, stages, events, guard, _, steps]) = row;
        // A node that ends keeps sessions, and nobody asks it for that: tests/restart has those cases.
        let purposes = purposes.split(", ").filter(|purpose| *purpose != "keep");
        for (purpose, stage) in purposes.flat_map(|purpose| stages.split(", ").map(move |it| (purpose, it))) {
            let kill = |victim: &'static str| Kill {
                purpose: purpose.into(),
                stage: stage.into(),
                victim,
                guard: guard.clone(),
                steps: steps.clone(),
            };
            held_step(purpose, stage).ok_or_else(|| format!("no case is in the stage {stage} of a {purpose}"))?;
            if !all.iter().any(|known| known.purpose == purpose && known.stage == stage && known.victim == "node") {
                all.push(kill("node"));
            }
            for event in events.split(", ") {
                let victims: &[&'static str] = match event {
                    "source gone" => &["source"],
                    "target gone" => &["target"],
                    "ended" => &["program", "gateway"],
                    _ => continue,
                };
                let earlier =
                    |row: &Row| row.has(0, purpose) && row.has(1, stage) && row.has(2, event) && row.0[3].is_empty();
                if table[..at].iter().any(earlier) {
                    continue;
                }
                match (guard.as_str(), stage) {
                    ("", _) | ("no way back", _) | ("hopeless", "replacing") => {
                        all.extend(victims.iter().map(|it| kill(it)))
                    }
                    // Only once the sessions were wanted for a minute: the machine's tests have that time.
                    ("hopeless", "kept" | "waiting" | "rebuilding") => {}
                    _ => return Err(format!("no case has an API server, program or gateway die {guard:?} in {stage}")),
                }
            }
        }
    }
    Ok(all)
}

// The cases.

const PARKED: [&str; 4] = ["kept", "waiting", "replacing", "rebuilding"];
/// API servers that fail with parked sessions, after which those are lost.
const MOST_FAILURES: usize = 5;

/// The step of an API server at which a stage is held; empty: it lasts by itself. `None`: there is no such stage.
fn held_step(purpose: &str, stage: &str) -> Option<&'static str> {
    Some(match (purpose, stage) {
        ("park", "kept" | "waiting") => "",
        ("park", "replacing" | "settling") | ("move", "rebuilding") | ("upgrade", "settling") => "adopting",
        ("park", "rehearsing" | "rebuilding") => "rebuilding",
        ("move", "announcing") => "announcing",
        ("move" | "park" | "upgrade", "preparing") => "preparing",
        ("move" | "park" | "check", "capturing") => "capturing",
        _ => return None,
    })
}

struct Case {
    node: Role,
    socket: PathBuf,
    program: Role,
    hold: PathBuf,
    _directory: PrivateDir,
    tenant: String,
    /// Process ids.
    source: u32,
    target: Option<u32>,
    name: String,
}

impl Case {
    /// A session that holds 2 of `memory`, in a stage of a purpose.
    fn new(Kill { purpose, stage, victim, guard, .. }: &Kill) -> Self {
        let directory = PrivateDir::create().unwrap();
        let hold = directory.path().join("hold");
        fs::write(&hold, "").unwrap();
        let fault = if stage == "rehearsing" { "rehearse" } else { "" };
        let is_remote = *victim == "gateway";
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let remote = if is_remote { address.as_str() } else { "" };
        let variables = [(FAULT, fault), (HOLD, hold.to_str().unwrap()), (REMOTE, remote)];
        let mut node = Role::start("node_program", "node", &variables);
        let socket = PathBuf::from(node.answer().expect("a node"));
        let mut program = match is_remote {
            true => Role::connect(&address),
            false => Role::start("fake_program", socket.to_str().unwrap(), &[]),
        };
        assert_eq!(program.ask("hold").as_deref(), Some("true"));
        let name = format!("{purpose}, {stage}, {victim} dies {guard}");
        let user = format!("uid-{}", rustix::process::getuid().as_raw());
        let tenant = if is_remote { REMOTE_TENANT.to_owned() } else { user };
        let mut case =
            Self { node, socket, program, hold, _directory: directory, tenant, source: 0, target: None, name };
        case.eventually("the session runs", |case| case.session().is_some_and(|session| !session.api.is_empty()));
        let is_parked = purpose == "upgrade" || (purpose == "park" && PARKED.contains(&stage.as_str()));
        if is_parked {
            case.park();
        }
        case.reach(purpose, stage, is_parked);
        case.source = case.session().expect("a session").server;
        case.target = case.report().servers.first().map(|server| server.server);
        case
    }

    fn park(&self) {
        let number = self.begin(true, false);
        self.eventually("it is parked", |case| matches!(case.status(number), MoveStatus::Parked(_)));
    }

    fn reach(&mut self, purpose: &str, stage: &str, is_parked: bool) {
        fs::write(&self.hold, held_step(purpose, stage).expect("a stage of the table")).unwrap();
        match (purpose, stage) {
            ("park", "kept") => return,
            ("park", "waiting") => {
                self.limit(1);
                self.unpark();
                let waits = |it: SessionReport| it.parked.is_some_and(|parked| parked.state.contains("cannot resume"));
                return self.eventually("it waits for room", |case| case.session().is_some_and(waits));
            }
            ("park", "replacing") => kill(self.session().expect("a session").server),
            ("park", "rebuilding") => self.unpark(),
            _ => {
                self.begin(purpose == "park" && !is_parked, purpose == "check");
            }
        }
        self.eventually("an API server waits", |case| fs::read_to_string(case.hold.with_extension("at")).is_ok());
    }

    fn begin(&self, park: bool, check: bool) -> u64 {
        let session = self.session().expect("a session").session;
        let request = MoveRequest { session, check, park, stop_ms: 5000, halt: None };
        ask::<MoveBegun>(&self.socket, &Request::Migrate(request)).unwrap().number
    }

    fn status(&self, number: u64) -> MoveStatus {
        ask(&self.socket, &Request::MoveStatus(number)).unwrap()
    }

    fn unpark(&self) {
        let session = self.session().expect("a session").session;
        // One that is lost at this moment is not known.
        let _ = ask::<UnparkStatus>(&self.socket, &Request::Unpark(session));
    }

    fn limit(&self, most: u64) {
        let limits = [("memory".to_owned(), Some(most))].into();
        let change = TenantChange { name: self.tenant.clone(), limits, ..TenantChange::default() };
        let _: serde_json::Value = ask(&self.socket, &Request::Set(change)).unwrap();
    }

    fn report(&self) -> NodeReport {
        query(&self.socket).unwrap()
    }

    fn session(&self) -> Option<SessionReport> {
        self.report().sessions.into_iter().next()
    }

    fn memory(&self) -> (u64, u64) {
        let tenants: Vec<TenantReport> = ask(&self.socket, &Request::Tenants).unwrap();
        let own = tenants.into_iter().find(|report| report.name == self.tenant).expect("a tenant");
        (own.accounts[0].used, own.accounts[0].held)
    }

    fn eventually(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let until = Instant::now() + SOON;
        while !condition(self) {
            assert!(Instant::now() < until, "{}: {what}: not within {SOON:?}", self.name);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Kills, lets whoever waits continue, and compares the outcome with the table's.
    fn run(mut self, kill: &Kill) {
        match (kill.victim, kill.guard.as_str()) {
            ("source", "hopeless") => self.kill_watchers(),
            ("source", _) => self.kill_server(self.source),
            ("target", guard) => {
                if guard == "no way back" {
                    self.kill_server(self.source);
                }
                self.kill_server(self.target.expect("a target"));
            }
            ("gateway", _) => super::kill(self.session().expect("a session").guest),
            ("program", _) => self.program.kill(),
            _ => self.node.kill(),
        }
        fs::write(&self.hold, "").unwrap();
        match kill.victim {
            "node" => return self.expect_lost(),
            "program" => return self.expect_nothing(),
            "gateway" => {
                assert_eq!(self.program.ask("server"), None, "{}", self.name);
                return self.expect_nothing();
            }
            _ => {}
        }
        if kill.stage == "waiting" {
            self.limit(5);
        }
        self.expect_table(kill);
    }

    /// With all threads: before that a process is no zombie that the node could see.
    fn kill_server(&self, server: u32) {
        let end = pidfd_open(Pid::from_raw(server as i32).unwrap(), PidfdFlags::empty()).expect(&self.name);
        pidfd_send_signal(&end, Signal::KILL).unwrap();
        let time = Timespec { tv_sec: SOON.as_secs() as i64, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&time)), Ok(1), "{}", self.name);
    }

    /// Each that takes the place of the one before, until the sessions are lost.
    fn kill_watchers(&self) {
        for _ in 0..MOST_FAILURES {
            let server = self.session().expect("a session").server;
            self.kill_server(server);
            self.eventually("it is replaced", |case| case.session().is_none_or(|session| session.server != server));
        }
    }

    /// An API server that was held may answer a call before it sees that its node has ended.
    fn expect_lost(&mut self) {
        let until = Instant::now() + SOON;
        while self.program.ask("server").as_deref() != Some("lost") {
            assert!(Instant::now() < until, "{}: the session is not lost", self.name);
        }
        for server in [Some(self.source), self.target].into_iter().flatten() {
            self.eventually("its API servers end", |_| !is_alive(server));
        }
    }

    fn expect_table(mut self, Kill { purpose, victim, steps, .. }: &Kill) {
        // The stand-in does not watch for calls.
        self.eventually("it runs, or is lost", |case| match case.session() {
            Some(session) if session.moving.is_some() => false,
            Some(session) if session.parked.is_some() => {
                case.unpark();
                false
            }
            _ => true,
        });
        let serves = self.program.ask("server").unwrap_or_else(|| panic!("{}: no answer", self.name));
        let serves: Option<u32> = (serves != "lost").then(|| serves.parse().unwrap());
        let is_new = serves.is_some() && serves != Some(self.source) && (*victim == "source" || serves != self.target);
        match (*victim, steps.as_str()) {
            // Nothing else had the sessions.
            ("source", "give up") if purpose != "upgrade" => assert_eq!(serves, None, "{}", self.name),
            ("source", "lose") => assert_eq!(serves, None, "{}", self.name),
            ("source", _) | ("target", "replace target, hand over") => assert!(is_new, "{}: {serves:?}", self.name),
            (_, "give up") => assert_eq!(serves, Some(self.source), "{}", self.name),
            (_, steps) => panic!("{}: {steps}", self.name),
        }
        if serves.is_some() {
            self.eventually("the accounts are exact", |case| case.memory() == (2, 2));
        }
        self.program.kill();
        self.expect_nothing();
    }

    fn expect_nothing(&self) {
        let is_empty = |report: NodeReport| report.sessions.is_empty() && report.servers.is_empty();
        self.eventually("nothing is left", |case| is_empty(case.report()) && case.memory() == (0, 0));
        assert_eq!(self.report().parked.used, 0, "{}", self.name);
    }
}

/// A zombie has ended.
fn is_alive(process: u32) -> bool {
    let state = fs::read_to_string(Path::new("/proc").join(process.to_string()).join("stat"));
    state.is_ok_and(|state| !state.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')))
}

/// Runs the cases of some stages, and answers how many there were.
fn kill_in(wanted: impl Fn(&str, &str) -> bool) -> usize {
    let mut all = kills(&table()).unwrap();
    all.retain(|kill| wanted(&kill.purpose, &kill.stage));
    all.iter().for_each(|kill| Case::new(kill).run(kill));
    println!("\nfigure: kill matrix: {} cases", all.len());
    all.len()
}

#[test]
fn processes_die_in_every_stage_of_moves_and_checks() {
    assert_eq!(kill_in(|purpose, _| purpose == "move" || purpose == "check"), 4 * 5 + 4);
}

/// The target of a park that is rehearsed is the API server that rehearses.
#[test]
fn processes_die_in_every_stage_of_parks() {
    assert_eq!(kill_in(|purpose, stage| purpose == "park" && !PARKED.contains(&stage)), 4 * 5 + 1);
}

#[test]
fn processes_die_in_every_stage_of_parked_sessions() {
    assert_eq!(kill_in(|purpose, stage| purpose == "park" && PARKED.contains(&stage)), 4 * 4 + 1);
}

#[test]
fn processes_die_in_every_stage_of_upgrades() {
    assert_eq!(kill_in(|purpose, _| purpose == "upgrade"), 2 * 5);
}

/// Neither a stage that no case reaches nor a condition that no case brings about goes unnoticed.
#[test]
fn row_without_a_kill_case_is_an_error() {
    let with = |row: [&str; 6]| {
        let table: Vec<_> = std::iter::once(Row(row.map(str::to_owned))).chain(table()).collect();
        kills(&table).map(|all| all.len())
    };
    let known = kills(&table()).unwrap().len();
    assert_eq!(with(["park", "kept", "source gone", "", "", "lose"]), Ok(known));
    assert!(with(["move", "swapping", "due", "", "", "give up"]).is_err_and(|error| error.contains("swapping")));
    assert!(
        with(["move", "capturing", "target gone", "unlucky", "", "give up"]).is_err_and(|it| it.contains("unlucky"))
    );
}
