//! Every process dies in every stage of every purpose. The stages are those of the table of relocations, as docs/moving.md has
//! it, and so are the fates: a row for `source gone`, `target gone` or `ended` says what becomes of the sessions.
//!
//! A stage is held by an API server that does not answer before a file says so. The node and the program are processes of their
//! own, so that they can die.

use super::{FAULT, Fixture, Guest, ROLE, SOON, kill};
use aviary_control::{MoveOrder, ToServer};
use aviary_node::{
    MoveBegun, MoveRequest, MoveStatus, NodeReport, PrivateDir, Request, SessionReport, TenantChange, TenantReport,
    UnparkStatus, ask, query,
};
use std::{
    collections::BTreeSet,
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

/// A file with the name of the step at which API servers wait until it is another one's.
const HOLD: &str = "AVIARY_TEST_HOLD";

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
    let mut guest = Guest::attach(&socket);
    for line in std::io::stdin().lines() {
        let answer = match line.unwrap().as_str() {
            "server" => guest.server().map(|server| server.to_string()),
            "hold" => Some(guest.asks(b'a').to_string()),
            other => panic!("{other}"),
        };
        println!("answer {}", answer.as_deref().unwrap_or("lost"));
    }
}

/// Not a test: the node.
#[test]
fn node_program() {
    if env::var(ROLE).as_deref() != Ok("node") {
        return;
    }
    let variables = [FAULT, HOLD].map(|name| (name.into(), env::var_os(name).unwrap()));
    let fixture = Fixture::with(variables.into());
    println!("answer {}", fixture.socket().display());
    let _ = std::io::stdin().read(&mut [0]);
}

/// A process of this program with a role, which answers lines.
struct Role {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Role {
    fn start(test: &str, role: &str, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args([&format!("moves::matrix::{test}"), "--exact", "--nocapture"]).env(ROLE, role);
        command.envs(variables.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Self { process, input, output: BufReader::new(output) }
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
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
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

/// The node's steps after an event that no further condition concerns.
fn steps(purpose: &str, stage: &str, event: &str) -> Option<String> {
    let is = |row: &Row| row.has(0, purpose) && row.has(1, stage) && row.has(2, event) && row.0[3].is_empty();
    table().into_iter().find(is).map(|row| row.0[5].clone())
}

/// All stages of all purposes.
fn stages() -> BTreeSet<(String, String)> {
    let mut all = BTreeSet::new();
    for row in table() {
        for purpose in row.0[0].split(", ") {
            all.extend(row.0[1].split(", ").map(|stage| (purpose.to_owned(), stage.to_owned())));
        }
    }
    all
}

// The cases.

const PARKED: [&str; 4] = ["kept", "waiting", "replacing", "rebuilding"];

struct Case {
    node: Role,
    socket: PathBuf,
    program: Role,
    hold: PathBuf,
    _directory: PrivateDir,
    /// Process ids.
    source: u32,
    target: Option<u32>,
    name: String,
}

impl Case {
    /// A session that holds 2 of `memory`, in a stage of a purpose.
    fn new(purpose: &str, stage: &str, victim: &str) -> Self {
        let directory = PrivateDir::create().unwrap();
        let hold = directory.path().join("hold");
        fs::write(&hold, "").unwrap();
        let fault = if stage == "rehearsing" { "rehearse" } else { "" };
        let variables = [(FAULT, fault), (HOLD, hold.to_str().unwrap())];
        let mut node = Role::start("node_program", "node", &variables);
        let socket = PathBuf::from(node.answer().expect("a node"));
        let mut program = Role::start("fake_program", socket.to_str().unwrap(), &[]);
        assert_eq!(program.ask("hold").as_deref(), Some("true"));
        let name = format!("{purpose}, {stage}, {victim} dies");
        let mut case = Self { node, socket, program, hold, _directory: directory, source: 0, target: None, name };
        case.eventually("the session runs", |case| case.session().is_some_and(|session| !session.api.is_empty()));
        let is_parked = purpose == "upgrade" || (purpose == "park" && PARKED.contains(&stage));
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
        let step = match (purpose, stage) {
            ("park", "kept" | "waiting") => "",
            ("park", "replacing" | "settling") | ("move", "rebuilding") | ("upgrade", "settling") => "adopting",
            ("park", "rehearsing") => "rebuilding",
            (_, stage) => stage,
        };
        fs::write(&self.hold, step).unwrap();
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
        let change = TenantChange { name: tenant(), limits, ..TenantChange::default() };
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
        let own = tenants.into_iter().find(|report| report.name == tenant()).expect("a tenant");
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
    fn run(mut self, purpose: &str, stage: &str, victim: &str) {
        let event = match victim {
            "source" => "source gone",
            "target" => "target gone",
            _ => "ended",
        };
        let steps = steps(purpose, stage, event).unwrap_or_else(|| panic!("{}: no row", self.name));
        let gives_up = steps.contains("give up");
        match victim {
            "source" => kill(self.source),
            "target" => kill(self.target.expect("a target")),
            "program" => self.program.kill(),
            _ => self.node.kill(),
        }
        if victim == "source" || victim == "target" {
            let dead = if victim == "source" { self.source } else { self.target.unwrap() };
            self.eventually("it is dead", |_| !is_alive(dead));
        }
        fs::write(&self.hold, "").unwrap();
        match victim {
            "node" => {
                let until = Instant::now() + SOON;
                // An API server that was held may answer a call before it sees that its node has ended.
                while self.program.ask("server").as_deref() != Some("lost") {
                    assert!(Instant::now() < until, "{}: the session is not lost", self.name);
                }
                for server in [Some(self.source), self.target].into_iter().flatten() {
                    self.eventually("its API servers end", |_| !is_alive(server));
                }
                return;
            }
            "program" => return self.expect_nothing(),
            _ => {}
        }
        if stage == "waiting" {
            self.limit(5);
        }
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
        match (victim, gives_up) {
            // Nothing else had the sessions.
            ("source", true) if purpose != "upgrade" => assert_eq!(serves, None, "{}", self.name),
            ("source", _) => assert!(serves.is_some() && serves != Some(self.source), "{}: {serves:?}", self.name),
            (_, true) => assert_eq!(serves, Some(self.source), "{}", self.name),
            (_, false) => panic!("{}: {steps}", self.name),
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

fn tenant() -> String {
    format!("uid-{}", rustix::process::getuid().as_raw())
}

/// A zombie has ended.
fn is_alive(process: u32) -> bool {
    let state = fs::read_to_string(Path::new("/proc").join(process.to_string()).join("stat"));
    state.is_ok_and(|state| !state.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')))
}

/// Runs the cases of some stages, and answers how many there were.
fn kill_in(wanted: impl Fn(&str, &str) -> bool) -> usize {
    let mut cases = 0;
    for (purpose, stage) in stages().iter().filter(|(purpose, stage)| wanted(purpose, stage)) {
        let has_target = steps(purpose, stage, "target gone").is_some();
        let target = has_target.then_some("target");
        for victim in ["source", "program", "node"].into_iter().chain(target) {
            Case::new(purpose, stage, victim).run(purpose, stage, victim);
            cases += 1;
        }
    }
    println!("{cases} cases");
    cases
}

#[test]
fn processes_die_in_every_stage_of_moves_and_checks() {
    assert_eq!(kill_in(|purpose, _| purpose == "move" || purpose == "check"), 4 * 4 + 3);
}

/// The target of a park that is rehearsed is the API server that rehearses.
#[test]
fn processes_die_in_every_stage_of_parks() {
    assert_eq!(kill_in(|purpose, stage| purpose == "park" && !PARKED.contains(&stage)), 4 * 4);
}

#[test]
fn processes_die_in_every_stage_of_parked_sessions() {
    assert_eq!(kill_in(|purpose, stage| purpose == "park" && PARKED.contains(&stage)), 4 * 3);
}

#[test]
fn processes_die_in_every_stage_of_upgrades() {
    assert_eq!(kill_in(|purpose, _| purpose == "upgrade"), 2 * 4);
}
