//! Which process is at the other end of a connection, as the kernel says.

use crate::error::NodeError;
use aviary_transport::PeerCredentials;
use aviary_wire::Origin;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    os::fd::{BorrowedFd, OwnedFd},
};

/// One guest process. The start time makes it unique: a process id comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Guest {
    pub uid: u32,
    /// 0: the process is in another pid namespace and cannot be named here.
    pub pid: u32,
    /// In clock ticks since boot; 0 where `pid` is 0 or the process is gone.
    pub started: u64,
    /// `pid` is the device of a virtual machine, and the guest is this process in there.
    pub in_vm: Option<InVm>,
}

/// A process in a virtual machine, as the VM's driver tells it apart from others there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InVm {
    pub pid: u32,
    /// In any unit, not 0.
    pub started: u64,
}

impl Guest {
    pub fn of(socket: BorrowedFd<'_>) -> Result<Self, NodeError> {
        let credentials = PeerCredentials::of(socket).map_err(NodeError::Credentials)?;
        let pid = u32::try_from(credentials.pid).unwrap_or(0);
        let started = start_time(pid).unwrap_or(0);
        Ok(Self { uid: credentials.uid, pid, started, in_vm: None })
    }

    /// A child of this process, which runs as this user.
    pub fn of_child(pid: u32, uid: u32) -> Self {
        Self { uid, pid, started: start_time(pid).unwrap_or(0), in_vm: None }
    }

    /// The process in a virtual machine for which its device, `self`, attaches. A driver that does not say when the
    /// process started gets an unnamed one.
    pub fn within(self, origin: &Origin) -> Self {
        let in_vm = (origin.started != 0).then_some(InVm { pid: origin.pid, started: origin.started });
        Self { started: if in_vm.is_some() { self.started } else { 0 }, in_vm, ..self }
    }

    /// Connections of a process that cannot be named are never joined: two of
    /// them may be different processes.
    pub fn is_named(&self) -> bool {
        self.pid != 0 && self.started != 0
    }

    /// Becomes readable when the process ends. `None`: it cannot be watched (any more).
    pub fn watch(&self) -> Option<OwnedFd> {
        if !self.is_named() || self.in_vm.is_some() {
            return None;
        }
        let pid = Pid::from_raw(i32::try_from(self.pid).ok()?)?;
        let watched = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // The id may have been reused between the credentials and now: with the
        // descriptor held, the same start time proves that it is the same process.
        (start_time(self.pid) == Some(self.started)).then_some(watched)
    }

    /// The name of the program, for people.
    pub fn program(&self) -> String {
        let name = fs::read(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        // In any encoding, and cut by the kernel.
        String::from_utf8_lossy(name.trim_ascii_end()).into_owned()
    }
}

fn start_time(pid: u32) -> Option<u64> {
    parse_start_time(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Field 22; the second field is the program's name and may contain anything, also `)`.
fn parse_start_time(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use crate::attach::guest::*;
    use std::os::{fd::AsFd, unix::ffi::OsStrExt, unix::net::UnixStream};

    #[test]
    fn names_itself() {
        let (one, _two) = UnixStream::pair().unwrap();
        let guest = Guest::of(one.as_fd()).unwrap();
        assert_eq!(guest.pid, std::process::id());
        assert!(guest.is_named() && guest.watch().is_some());
        assert!(!guest.program().is_empty());
    }

    #[test]
    fn names_in_other_encodings_are_shown() {
        let folder = crate::PrivateDir::create().unwrap();
        let program = folder.path().join(std::ffi::OsStr::from_bytes(b"gr\xfc\xdfe"));
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let mut child = std::process::Command::new(&program).arg("60").spawn().unwrap();
        // The kernel lets `spawn` return when the new program has its memory, a moment
        // before it gives the process its name; until then it has that of this thread.
        let own = fs::read("/proc/thread-self/comm").unwrap();
        let named = || fs::read(format!("/proc/{}/comm", child.id())).is_ok_and(|name| name != own);
        while !named() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let name = Guest { uid: 0, pid: child.id(), started: 0, in_vm: None }.program();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(name, "gr\u{fffd}\u{fffd}e");
    }

    #[test]
    fn a_reused_id_is_not_watched() {
        let guest = Guest { uid: 0, pid: std::process::id(), started: 1, in_vm: None };
        assert!(guest.watch().is_none());
    }

    #[test]
    fn processes_of_a_vm_are_told_apart() {
        let device = Guest { uid: 1, pid: std::process::id(), started: 5, in_vm: None };
        let process = |pid, started| device.within(&Origin { pid, started, program: String::new() });
        assert_eq!(process(7, 1), process(7, 1));
        assert!(process(7, 1) != process(7, 2) && process(7, 1) != process(8, 1) && process(7, 1) != device);
        assert!(process(7, 1).is_named() && process(7, 1).watch().is_none());
        assert!(!process(7, 0).is_named());
    }

    #[test]
    fn names_with_parentheses() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 99";
        assert_eq!(parse_start_time(stat), Some(4242));
        assert_eq!(parse_start_time("garbage"), None);
    }
}
