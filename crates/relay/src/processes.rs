//! Keys of guest processes: the relay gives each a random key, by which the node joins its connections to one API server.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use aviary_transport::PeerCredentials;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::rand::{GetRandomFlags, getrandom};

/// The key of a guest process. It cannot be guessed, so no other process can join its sessions.
pub type ProcessKey = [u8; 16];

#[derive(Default)]
pub struct Processes(Mutex<HashMap<u32, Process>>);

struct Process {
    /// A pidfd: while the process lives, its id is not reused.
    life: OwnedFd,
    key: ProcessKey,
}

impl Process {
    fn lives(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut [PollFd::new(&self.life, PollFlags::IN)], Some(&now)), Ok(0))
    }
}

impl Processes {
    /// The key of the process at the other end. `None`: the kernel does not identify it; its connections are not joined.
    pub fn key(&self, guest: &UnixStream) -> Option<ProcessKey> {
        let pid = u32::try_from(PeerCredentials::of(guest).ok()?.pid).ok()?;
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, process| process.lives());
        if let Some(process) = known.get(&pid) {
            return Some(process.key);
        }
        let life = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
        let mut key = ProcessKey::default();
        if getrandom(&mut key, GetRandomFlags::empty()) != Ok(key.len()) {
            return None;
        }
        known.insert(pid, Process { life, key });
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_one_key() {
        let processes = Processes::default();
        let (one, other) = UnixStream::pair().unwrap();
        let key = processes.key(&one).unwrap();
        assert_eq!(processes.key(&other), Some(key));
        assert_ne!(Processes::default().key(&one), Some(key), "another relay says something else");
    }

    #[test]
    fn an_ended_process_is_forgotten() {
        let processes = Processes::default();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let life = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        processes.0.lock().unwrap().insert(child.id(), Process { life, key: [7; 16] });
        child.wait().unwrap();
        processes.key(&UnixStream::pair().unwrap().0).unwrap();
        assert!(!processes.0.lock().unwrap().contains_key(&child.id()));
    }
}
