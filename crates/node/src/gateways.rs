//! Processes that serve connections from other machines: one each, so that what strangers send is never read here.

use crate::{NodeError, guest::Guest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::{
    collections::HashMap,
    ffi::OsString,
    io::{self, Read, Write},
    net::{IpAddr, TcpStream},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

/// Connections at a time that have not shown who they are.
const UNKNOWN: usize = 64;
/// The same for one address, so that one source cannot take all the places.
const UNKNOWN_OF_ONE: usize = 16;
const ALL: usize = 4096;
const LONGEST_REPORT: usize = 192;

/// The command line of a gateway. Its standard input is the connection; on its standard output, a socket, it tells the
/// tenant and reads how much memory that may make it hold.
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
    report: UnixStream,
    source: Option<IpAddr>,
    /// Once it has told.
    origin: Option<Origin>,
    /// As whom it attached.
    guest: Option<Guest>,
}

/// Whom a gateway's connection belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Origin {
    /// Empty: this node's own user.
    tenant: String,
    /// Which process on the other machine; 0: unknown. What it says counts within its tenant only.
    process: u128,
}

impl Origin {
    fn parse(line: &str) -> Option<Origin> {
        let (tenant, process) = line.strip_suffix('\n')?.rsplit_once('\t')?;
        Some(Origin { tenant: tenant.to_owned(), process: u128::from_str_radix(process, 16).ok()? })
    }
}

#[derive(Debug, Default)]
pub struct Gateways {
    list: HashMap<u64, Gateway>,
    last: u64,
}

impl Gateways {
    /// Starts a gateway for an accepted connection, unless there are too many.
    pub fn start(&mut self, command: &GatewayCommand, node: &Path, socket: OwnedFd) -> Result<u64, NodeError> {
        let socket = TcpStream::from(socket);
        let source = socket.peer_addr().ok().map(|address| address.ip());
        self.check_room(source)?;
        let failed = |error: io::Error| NodeError::Spawn(command.program.clone(), error);
        let gateway = spawn(command, node, socket, source).map_err(failed)?;
        self.last += 1;
        self.list.insert(self.last, gateway);
        Ok(self.last)
    }

    fn check_room(&mut self, source: Option<IpAddr>) -> Result<(), NodeError> {
        self.list.values_mut().for_each(Gateway::ask);
        let unknown = self.list.values().filter(|gateway| gateway.origin.is_none());
        let of_one = unknown.clone().filter(|gateway| source.is_some() && gateway.source == source).count();
        if self.list.len() >= ALL || unknown.count() >= UNKNOWN || of_one >= UNKNOWN_OF_ONE {
            return Err(NodeError::Crowded(source.map_or("another machine".into(), |ip| ip.to_string())));
        }
        Ok(())
    }

    pub fn get(&self, id: u64) -> Option<&Gateway> {
        self.list.get(&id)
    }

    /// The tenant of the gateway that `guest` is, and as whom it is served: as the first of all gateways of the same process
    /// on the other machine. `None`: it is no gateway.
    pub fn admit(&mut self, guest: Guest) -> Option<Result<(String, Guest), NodeError>> {
        let (id, gateway) = self.list.iter_mut().find(|(_, gateway)| gateway.child.id() == guest.pid)?;
        gateway.ask();
        let Some(origin) = gateway.origin.clone() else { return Some(Err(NodeError::NoTenant(guest.pid))) };
        let id = *id;
        let mut others = self.list.iter().filter(|(other, _)| **other != id).map(|(_, gateway)| gateway);
        let same = others.find(|other| origin.process != 0 && other.origin.as_ref() == Some(&origin));
        let first = same.and_then(|other| other.guest).unwrap_or(guest);
        if let Some(gateway) = self.list.get_mut(&id) {
            gateway.guest = Some(first);
        }
        Some(Ok((origin.tenant, first)))
    }

    /// Tells the gateway `pid` how many bytes of memory its arena may hold, at the time when it attaches.
    pub fn tell_memory(&mut self, pid: u32, bytes: u64) {
        if let Some(gateway) = self.list.values_mut().find(|gateway| gateway.child.id() == pid) {
            // Without the line it ends by itself.
            let _ = gateway.report.write_all(format!("{bytes:016x}\n").as_bytes());
        }
    }

    /// The exit of a gateway that is served as `guest` and lives.
    pub fn living(&self, guest: &Guest) -> Option<io::Result<OwnedFd>> {
        let gateway = self.list.values().find(|gateway| gateway.guest.as_ref() == Some(guest) && gateway.lives())?;
        Some(gateway.exit.try_clone())
    }

    pub fn remove(&mut self, id: u64) -> Option<Gateway> {
        self.list.remove(&id)
    }

    pub fn drain(&mut self) -> Vec<Gateway> {
        self.list.drain().map(|(_, gateway)| gateway).collect()
    }
}

impl Gateway {
    /// Takes what it has told since.
    fn ask(&mut self) {
        let mut line = [0; LONGEST_REPORT];
        if self.origin.is_some() {
            return;
        }
        // Its line is written at once, and shorter than what a socket cuts.
        if let Ok(n) = self.report.read(&mut line)
            && let Some(origin) = std::str::from_utf8(&line[..n]).ok().and_then(Origin::parse)
        {
            self.origin = Some(origin);
        }
    }

    fn lives(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut [PollFd::new(&self.exit, PollFlags::IN)], Some(&now)), Ok(0))
    }

    pub fn end(&self) {
        let _ = pidfd_send_signal(&self.exit, Signal::TERM);
    }

    pub fn wait(mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }
}

fn spawn(command: &GatewayCommand, node: &Path, socket: TcpStream, source: Option<IpAddr>) -> io::Result<Gateway> {
    let (report, theirs) = UnixStream::pair()?;
    report.set_nonblocking(true)?;
    let mut child = Command::new(&command.program)
        .arg0("aviary")
        .args(&command.arguments)
        .arg("--node")
        .arg(node)
        .env_remove("AVIARY_SERVER")
        .stdin(Stdio::from(OwnedFd::from(socket)))
        .stdout(Stdio::from(OwnedFd::from(theirs)))
        // Signals from the terminal are for the node, which ends its gateways itself.
        .process_group(0)
        .spawn()?;
    let exit = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData.into());
    match exit.and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::empty())?)) {
        Ok(exit) => Ok(Gateway { child, exit, report, source, origin: None, guest: None }),
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

    #[test]
    fn reports_are_understood() {
        let origin = |tenant: &str, process| Some(Origin { tenant: tenant.into(), process });
        assert_eq!(Origin::parse("alice\t0000000000000000000000000000001f\n"), origin("alice", 31));
        assert_eq!(Origin::parse("\t0\n"), origin("", 0));
        assert_eq!(Origin::parse("a\tb\t1\n"), origin("a\tb", 1));
        for nonsense in ["", "alice\n", "alice\t\n", "alice\t1", "alice\tx\n"] {
            assert_eq!(Origin::parse(nonsense), None, "{nonsense:?}");
        }
    }

    /// A process that stands for a gateway, which has told this.
    fn gateway(line: &str) -> Gateway {
        let child = Command::new("sleep").arg("60").stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let exit = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        let (report, mut told) = UnixStream::pair().unwrap();
        told.write_all(line.as_bytes()).unwrap();
        Gateway { child, exit, report, source: None, origin: None, guest: None }
    }

    #[test]
    fn only_connections_of_one_process_and_tenant_are_joined() {
        let mut gateways = Gateways::default();
        let lines = ["a\t7\n", "a\t7\n", "b\t7\n", "a\t8\n", "a\t0\n", "a\t0\n", "\t7\n"];
        let mut admitted = Vec::new();
        for (id, line) in lines.iter().enumerate() {
            gateways.list.insert(id as u64, gateway(line));
            let own = Guest { uid: 1, pid: gateways.list[&(id as u64)].child.id(), started: 5, in_vm: None };
            let (tenant, guest) = gateways.admit(own).unwrap().unwrap();
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
}
