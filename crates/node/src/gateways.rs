//! Processes that serve connections from other machines: one each, so that what strangers send is never read here.

mod kept;
pub mod yielding;

use crate::attach::foreign::nobody;
use crate::attach::guest::Guest;
use crate::attach::strangers::Strangers;
use crate::error::NodeError;
use crate::helpers::HelperAccess;
use aviary_control::{Aside, Foreign, receive_plain};
use aviary_transport::send_greeting;
use aviary_wire::Control;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::{
    collections::HashMap,
    ffi::OsString,
    io,
    net::TcpStream,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};
use yielding::Yielding;

/// Processes at a time. Those of strangers have far fewer places: tenants that are known do not compete with them.
const MAX_GATEWAYS: usize = 4096;
const MAX_REPORT_BYTES: usize = 256;

/// The command line of a gateway. Its standard input is the connection; on its standard output, a socket, it tells the
/// tenant and the session, and reads how much memory that may make it hold. Over the same socket the node passes on other
/// gateways that have a connection for its session, and it tells when it has none and when it has one again.
#[derive(Debug, Clone)]
pub struct GatewayCommand {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
}

#[derive(Debug)]
pub struct Gateway {
    child: Child,
    /// Readable when the process has ended.
    pub exit: OwnedFd,
    report: Foreign,
    /// Once it has told.
    origin: Option<Origin>,
    /// As whom it attached.
    guest: Option<Guest>,
    reach: Reach,
    yielding: Yielding,
}

/// A gateway's connection, as it says itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    Linked,
    /// On the machine's monotonic clock, in milliseconds.
    Away {
        since: i64,
    },
}

/// The purpose of a gateway's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Intent {
    New,
    /// A session that another gateway has goes on over it.
    Resume,
}

/// A gateway that attaches.
#[derive(Debug, PartialEq, Eq)]
pub enum Admission {
    /// For a new session of this tenant, served as this guest.
    Attach { tenant: String, guest: Guest },
    /// For a session of this tenant that another gateway has.
    Resume { tenant: String, session: u128 },
}

/// Whom a gateway's connection belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Origin {
    /// Empty: this node's own user.
    tenant: String,
    /// Which process on the other machine; 0: unknown. What it says counts within its tenant only.
    process: u128,
    /// A name that the session's gateway has made up. It counts within the tenant only.
    session: u128,
    intent: Intent,
}

impl Origin {
    fn parse(line: &str) -> Option<Origin> {
        let (rest, intent) = line.strip_suffix('\n')?.rsplit_once('\t')?;
        let (rest, session) = rest.rsplit_once('\t')?;
        let (tenant, process) = rest.rsplit_once('\t')?;
        let number = |text| u128::from_str_radix(text, 16).ok();
        let intent = match intent {
            "new" => Intent::New,
            "again" => Intent::Resume,
            _ => return None,
        };
        Some(Origin { tenant: tenant.to_owned(), process: number(process)?, session: number(session)?, intent })
    }
}

/// Connections of other machines: silent ones, then, each in a process, those of strangers and of tenants.
#[derive(Debug, Default)]
pub struct Gateways {
    list: HashMap<u64, Gateway>,
    silent: HashMap<u64, TcpStream>,
    strangers: Strangers,
    last: u64,
}

impl Gateways {
    /// A connection that has said nothing yet: its id, and the one that has to go for it.
    pub fn arrive(&mut self, socket: OwnedFd, now: Instant) -> (u64, Option<u64>) {
        let socket = TcpStream::from(socket);
        let source = socket.peer_addr().ok().map(|address| address.ip());
        if self.strangers.is_full() {
            self.ask_all();
        }
        self.last += 1;
        self.silent.insert(self.last, socket);
        (self.last, self.strangers.arrive(self.last, source, now))
    }

    pub fn silent(&self, id: u64) -> Option<BorrowedFd<'_>> {
        self.silent.get(&id).map(AsFd::as_fd)
    }

    pub fn take_silent(&mut self, id: u64) -> Option<TcpStream> {
        self.silent.remove(&id)
    }

    /// Starts a gateway for a connection that says something. False: it only said that it ends.
    pub fn start(
        &mut self,
        command: &GatewayCommand,
        node: &HelperAccess,
        id: u64,
        socket: TcpStream,
        aside: &Aside,
    ) -> Result<bool, NodeError> {
        let result = self.try_start(command, node, id, socket, aside);
        match result {
            Ok(true) => self.strangers.speaks(id),
            _ => self.strangers.leave(id),
        }
        result
    }

    fn try_start(
        &mut self,
        command: &GatewayCommand,
        node: &HelperAccess,
        id: u64,
        socket: TcpStream,
        aside: &Aside,
    ) -> Result<bool, NodeError> {
        let peeked = recv(&socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        if !peeked.is_ok_and(|(n, _)| n > 0) {
            return Ok(false);
        }
        if self.list.len() >= MAX_GATEWAYS {
            let peer = socket.peer_addr().map_or("another machine".into(), |peer| peer.ip().to_string());
            return Err(NodeError::Crowded(peer));
        }
        let failed = |error: io::Error| NodeError::Spawn(command.program.clone(), error);
        self.list.insert(id, spawn(command, node, socket.into(), aside).map_err(failed)?);
        Ok(true)
    }

    /// Takes what gateways have told since: who has shown who it is is no stranger.
    fn ask_all(&mut self) {
        for (id, gateway) in &mut self.list {
            gateway.ask();
            if gateway.origin.is_some() {
                self.strangers.leave(*id);
            }
        }
    }

    /// Strangers whose time is over.
    pub fn overdue(&mut self, now: Instant) -> Vec<u64> {
        if self.next_deadline().is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.ask_all();
        self.strangers.overdue(now)
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.strangers.next_deadline()
    }

    /// Ends a stranger's process, or gives its silent connection back.
    pub fn turn_out(&mut self, id: u64) -> Option<TcpStream> {
        self.strangers.leave(id);
        if let Some(gateway) = self.list.get(&id) {
            gateway.end();
        }
        self.take_silent(id)
    }

    pub fn get(&self, id: u64) -> Option<&Gateway> {
        self.list.get(&id)
    }

    /// The purpose for which the gateway that `guest` is attaches. A new session's is served as the first of all gateways of
    /// the same process on the other machine. `None`: it is no gateway.
    pub fn admit(&mut self, guest: Guest) -> Option<Result<Admission, NodeError>> {
        let (id, gateway) = self.list.iter_mut().find(|(_, gateway)| gateway.child.id() == guest.pid)?;
        gateway.ask();
        let Some(origin) = gateway.origin.clone() else { return Some(Err(NodeError::NoTenant(guest.pid))) };
        let id = *id;
        self.strangers.leave(id);
        if origin.intent == Intent::Resume {
            return Some(Ok(Admission::Resume { tenant: origin.tenant, session: origin.session }));
        }
        let mut others = self.list.iter().filter(|(other, _)| **other != id).map(|(_, gateway)| gateway);
        let same = others.find(|other| origin.process != 0 && other.is_of_process(&origin));
        let first = same.and_then(|other| other.guest).unwrap_or(guest);
        if let Some(gateway) = self.list.get_mut(&id) {
            gateway.guest = Some(first);
        }
        Some(Ok(Admission::Attach { tenant: origin.tenant, guest: first }))
    }

    /// Passes a gateway's socket to the gateway that has a session of the tenant under this name. False: there is none.
    pub fn pass(&mut self, tenant: &str, session: u128, socket: BorrowedFd<'_>) -> bool {
        let has = |gateway: &&mut Gateway| {
            let origin = gateway.origin.as_ref();
            origin.is_some_and(|o| o.intent == Intent::New && o.tenant == tenant && o.session == session)
        };
        let Some(gateway) = self.list.values_mut().find(has) else { return false };
        // One line for each connection that was lost: they do not pile up.
        gateway.hear();
        // A gateway that takes none of those that came before gets no more.
        send_greeting(&gateway.report, &Control::default().to_bytes(), &[socket]).is_ok()
    }

    /// Takes what gateways have told about their connections.
    pub fn hear_all(&mut self) {
        self.list.values_mut().filter(|gateway| gateway.guest.is_some()).for_each(Gateway::hear);
    }

    /// How long the gateway `pid` has had no connection. `None`: it has one, or is none.
    pub fn away(&self, pid: u32, now_ms: i64) -> Option<Duration> {
        let gateway = self.list.values().find(|gateway| gateway.child.id() == pid)?;
        let Reach::Away { since } = gateway.reach else { return None };
        Some(Duration::from_millis(u64::try_from(now_ms.saturating_sub(since)).unwrap_or(0)))
    }

    /// Tells the gateway `pid` how many bytes of memory its arena may hold, at the time when it attaches.
    pub fn tell_memory(&mut self, pid: u32, bytes: u64) {
        if let Some(gateway) = self.list.values_mut().find(|gateway| gateway.child.id() == pid) {
            // Without the line it ends by itself.
            let line = format!("{bytes:016x}\n");
            let _ = send(&gateway.report, line.as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    /// The exit of a gateway that is served as `guest` and lives.
    pub fn living(&self, guest: &Guest) -> Option<io::Result<OwnedFd>> {
        let gateway = self.list.values().find(|gateway| gateway.guest.as_ref() == Some(guest) && gateway.lives())?;
        Some(gateway.exit.try_clone())
    }

    pub fn remove(&mut self, id: u64) -> Option<Gateway> {
        self.strangers.leave(id);
        self.list.remove(&id)
    }

    pub fn drain(&mut self) -> Vec<Gateway> {
        self.silent.clear();
        self.list.drain().map(|(_, gateway)| gateway).collect()
    }
}

impl Gateway {
    /// Takes what it has told since.
    fn ask(&mut self) {
        let mut line = [0; MAX_REPORT_BYTES];
        if self.origin.is_some() {
            return;
        }
        // Its line is written at once, and shorter than what a socket cuts.
        let n = self.take(&mut line);
        if let Some(origin) = std::str::from_utf8(&line[..n]).ok().and_then(Origin::parse) {
            self.origin = Some(origin);
        }
    }

    /// Bytes that it has told since, without waiting. One that sends descriptors was taken over.
    fn take(&self, bytes: &mut [u8]) -> usize {
        match receive_plain(self.report.as_fd(), bytes) {
            Ok((count, _)) => count,
            Err(Errno::BADMSG) => {
                let _ = pidfd_send_signal(&self.exit, Signal::KILL);
                0
            }
            Err(_) => 0,
        }
    }

    /// It is for a session of the same process of the same tenant.
    fn is_of_process(&self, origin: &Origin) -> bool {
        self.origin.as_ref().is_some_and(|own| {
            own.intent == Intent::New && own.tenant == origin.tenant && own.process == origin.process
        })
    }

    /// Takes what it has told about its connection since. It may tell anything: as much as is there is read, and the last
    /// line that means something counts.
    pub fn hear(&mut self) {
        let mut lines = [0; 4096];
        let n = self.take(&mut lines);
        let told = String::from_utf8_lossy(&lines[..n]).into_owned();
        for line in told.lines() {
            match line.split_once(' ') {
                Some(("away", since)) => {
                    if let Ok(since) = since.parse() {
                        self.reach = Reach::Away { since };
                    }
                }
                _ if line == "back" => self.reach = Reach::Linked,
                _ => self.yielding = Yielding::of(line).unwrap_or_else(|| std::mem::take(&mut self.yielding)),
            }
        }
    }

    fn lives(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut [PollFd::new(&self.exit, PollFlags::IN)], Some(&now)), Ok(0))
    }

    /// It has a session, or is about to have one, and ends with its API server.
    pub fn serves(&self) -> bool {
        self.guest.is_some()
    }

    pub fn end(&self) {
        let _ = pidfd_send_signal(&self.exit, Signal::TERM);
    }

    /// What it has said last of a session that goes on in another process.
    pub fn yielding(&self) -> &Yielding {
        &self.yielding
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn wait(mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }
}

/// `input`: its connection, or the session that it goes on with.
fn spawn(command: &GatewayCommand, node: &HelperAccess, input: OwnedFd, aside: &Aside) -> io::Result<Gateway> {
    let (report, theirs) = UnixStream::pair()?;
    report.set_nonblocking(true)?;
    let report = Foreign::new(report.into(), aside, &nobody(), "the socket of a gateway");
    let mut process = Command::new(&command.program);
    process
        .arg0("aviary")
        .args(&command.arguments)
        .args(node.arguments())
        // It reads what strangers send, and needs nothing of the node's.
        .env_clear()
        .stdin(Stdio::from(input))
        .stdout(Stdio::from(OwnedFd::from(theirs)))
        // Signals from the terminal are for the node, which ends its gateways itself.
        .process_group(0);
    let mut child = aside.while_spawning(|| process.spawn())?;
    let exit = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData.into());
    match exit.and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::empty())?)) {
        Ok(exit) => {
            let yielding = Yielding::default();
            Ok(Gateway { child, exit, report, origin: None, guest: None, reach: Reach::Linked, yielding })
        }
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::strangers::{FIRST_BYTE_TIMEOUT, MAX_UNIDENTIFIED};
    use std::io::Write;

    #[test]
    fn reports_are_understood() {
        let origin =
            |tenant: &str, process, session, intent| Some(Origin { tenant: tenant.into(), process, session, intent });
        let line = "alice\t0000000000000000000000000000001f\t00000000000000000000000000000020\tnew\n";
        assert_eq!(Origin::parse(line), origin("alice", 31, 32, Intent::New));
        assert_eq!(Origin::parse("\t0\t2\tagain\n"), origin("", 0, 2, Intent::Resume));
        assert_eq!(Origin::parse("a\tb\t1\t2\tnew\n"), origin("a\tb", 1, 2, Intent::New));
        for nonsense in ["", "alice\n", "alice\t1\t2\t\n", "alice\t1\t2\tnew", "alice\tx\t2\tnew\n", "a\t1\tx\tnew\n"] {
            assert_eq!(Origin::parse(nonsense), None, "{nonsense:?}");
        }
    }

    /// A process that stands for a gateway, which has told this.
    fn gateway(line: &str) -> Gateway {
        let child = Command::new("sleep").arg("60").stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let exit = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        let (report, mut told) = UnixStream::pair().unwrap();
        told.write_all(line.as_bytes()).unwrap();
        let report = Foreign::own(report.into());
        let yielding = Yielding::default();
        Gateway { child, exit, report, origin: None, guest: None, reach: Reach::Linked, yielding }
    }

    #[test]
    fn only_connections_of_one_process_and_tenant_are_joined() {
        let mut gateways = Gateways::default();
        let lines = ["a\t7", "a\t7", "b\t7", "a\t8", "a\t0", "a\t0", "\t7"];
        let mut admitted = Vec::new();
        for (id, line) in lines.iter().enumerate() {
            gateways.list.insert(id as u64, gateway(&format!("{line}\t{id}\tnew\n")));
            let own = Guest { uid: 1, pid: gateways.list[&(id as u64)].child.id(), started: 5, in_vm: None };
            let Ok(Admission::Attach { tenant, guest }) = gateways.admit(own).unwrap() else { panic!("{line}") };
            admitted.push((tenant, guest, own));
        }
        let (_, first, _) = admitted[0];
        for (at, (tenant, guest, own)) in admitted.iter().enumerate() {
            assert_eq!(*tenant, lines[at].split('\t').next().unwrap());
            assert_eq!(*guest, if at == 1 { first } else { *own }, "{:?}", lines[at]);
        }
        // The first one ends: the process is there as long as the other is.
        let one = gateways.remove(0).unwrap();
        one.end();
        one.wait().unwrap();
        assert!(gateways.living(&first).unwrap().is_ok());
        gateways.list[&1].end();
        gateways.list.get_mut(&1).unwrap().child.wait().unwrap();
        assert!(gateways.living(&first).is_none());
        for gateway in gateways.drain() {
            gateway.end();
            let _ = gateway.wait();
        }
    }

    #[test]
    fn a_session_is_resumed_for_its_own_tenant_only() {
        let mut gateways = Gateways::default();
        let lines = ["a\t7\t5\tnew\n", "a\t0\t5\tagain\n", "b\t0\t5\tagain\n", "a\t0\t6\tagain\n"];
        let mut admit = |id: u64| {
            gateways.list.insert(id, gateway(lines[id as usize]));
            let pid = gateways.list[&id].child.id();
            gateways.admit(Guest { uid: 1, pid, started: 5, in_vm: None }).unwrap().unwrap()
        };
        let admitted = [0, 1, 2, 3].map(&mut admit);
        assert!(matches!(admitted[0], Admission::Attach { .. }));
        let (ours, theirs) = UnixStream::pair().unwrap();
        gateways.list.get_mut(&0).unwrap().report = Foreign::own(ours.into());
        let (socket, _) = UnixStream::pair().unwrap();
        let passed: Vec<bool> = admitted[1..]
            .iter()
            .map(|admission| {
                let Admission::Resume { tenant, session } = admission else { panic!("{admission:?}") };
                gateways.pass(tenant, *session, socket.as_fd())
            })
            .collect();
        assert_eq!(passed, [true, false, false], "not another tenant's, and not another session's");
        let (_, descriptor) = aviary_transport::ControlSocket::new(theirs.into()).receive().unwrap().unwrap();
        assert!(descriptor.is_some());
        for gateway in gateways.drain() {
            gateway.end();
            let _ = gateway.wait();
        }
    }

    #[test]
    fn gateway_tells_when_it_has_no_connection_and_may_tell_nonsense() {
        let mut gateways = Gateways::default();
        let mut one = gateway("");
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        (one.report, one.guest) = (Foreign::own(ours.into()), Some(Guest { uid: 1, pid: 2, started: 3, in_vm: None }));
        let pid = one.child.id();
        gateways.list.insert(1, one);
        for (line, away) in [
            ("", None),
            ("away 4000\n", Some(1000)),
            ("", Some(1000)),
            ("nonsense\naway x\naway\n\u{1}\n", Some(1000)),
            ("back\n", None),
            ("away 1\nback\naway 6000\n", Some(0)),
            ("away -9223372036854775808\n", Some(i64::MAX as u64)),
            ("back\n", None),
        ] {
            theirs.write_all(line.as_bytes()).unwrap();
            gateways.hear_all();
            assert_eq!(gateways.away(pid, 5000), away.map(Duration::from_millis), "{line:?}");
        }
        assert_eq!(gateways.away(pid.wrapping_add(1), 5000), None);
        gateways.list[&1].end();
        let _ = gateways.remove(1).unwrap().wait();
    }

    #[test]
    fn silent_connections_cost_no_process_and_tenants_take_no_strangers_place() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = || {
            let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (there, OwnedFd::from(listener.accept().unwrap().0))
        };
        let (mut gateways, now) = (Gateways::default(), Instant::now());
        let command = GatewayCommand { program: "/bin/true".into(), arguments: Vec::new() };
        let mut peers = Vec::new();
        for _ in 0..MAX_UNIDENTIFIED {
            let (there, here) = connect();
            assert_eq!(gateways.arrive(here, now).1, None);
            peers.push(there);
        }
        assert_eq!((gateways.list.len(), gateways.silent.len()), (0, MAX_UNIDENTIFIED));
        // One of them shows who it is: its place is free.
        let socket = gateways.take_silent(1).unwrap();
        gateways.list.insert(1, gateway("a\t7\t1\tnew\n"));
        drop(socket);
        let (_peer, here) = connect();
        let (known, displaced) = gateways.arrive(here, now);
        assert_eq!(displaced, None);
        // The next one displaces the oldest.
        let (_other, here) = connect();
        let (_, displaced) = gateways.arrive(here, now);
        assert_eq!(displaced, Some(2));
        assert!(gateways.turn_out(2).is_some() && gateways.turn_out(2).is_none());
        // One hangs up without a word.
        drop(peers.swap_remove(2));
        let socket = gateways.take_silent(3).unwrap();
        poll(&mut [PollFd::new(&socket, PollFlags::IN)], None).unwrap();
        assert!(!gateways.start(&command, &HelperAccess::own("/".as_ref()), 3, socket, &Aside::default()).unwrap());
        assert_eq!((gateways.list.len(), known), (1, MAX_UNIDENTIFIED as u64 + 1));
        assert_eq!(
            gateways.overdue(now + FIRST_BYTE_TIMEOUT).len(),
            MAX_UNIDENTIFIED - 1,
            "all but the tenant's and those that left"
        );
        for gateway in gateways.drain() {
            gateway.end();
            let _ = gateway.wait();
        }
    }
}
