//! Helper processes: gateways and VM devices. They read what strangers and VMs send, and attach in their guests' place.
//!
//! Of a node that is root they are users of their own, so that one that was taken over reads no file of root's and reaches no
//! process of others. The node's socket may be closed to those users: they attach at a socket of their own, in a private folder,
//! where nobody else is served.

use crate::attach::foreign::{LISTENER, nobody};
use crate::attach::listener::listen_on;
use crate::attach::private::PrivateDir;
use crate::epoll::{KILL_PATIENCE, ends_by};
use crate::error::NodeError;
use crate::servers::api_server::{ServerEnd, pidfd, reap};
use aviary_control::{Aside, Foreign};
use rustix::process::{Signal, pidfd_send_signal};
use std::{
    fs::{self, Permissions},
    io,
    os::fd::OwnedFd,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

/// Where helper processes attach.
#[derive(Debug)]
pub struct HelperDoor {
    /// Removed with this value.
    _folder: PrivateDir,
    path: PathBuf,
    pub listener: Foreign,
}

impl HelperDoor {
    pub fn open(aside: &Aside) -> Result<HelperDoor, NodeError> {
        let folder = PrivateDir::create()?;
        let path = folder.path().join("helpers.sock");
        let listener = Foreign::new(listen_on(&path, 0o666)?, aside, &nobody(), LISTENER);
        // Into it, not to what is in it.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o711))
            .map_err(|error| NodeError::PrivateDirMode(folder.path().to_owned(), error))?;
        Ok(HelperDoor { _folder: folder, path, listener })
    }
}

/// How a helper process reaches the node, and as whom.
#[derive(Debug, Clone)]
pub struct HelperAccess {
    pub socket: PathBuf,
    /// `None`: it stays the node's user.
    pub user: Option<u32>,
}

impl HelperAccess {
    /// The node's own socket, as the node's user.
    pub fn own(socket: &Path) -> HelperAccess {
        HelperAccess { socket: socket.to_owned(), user: None }
    }

    pub fn through(door: &HelperDoor, user: u32) -> HelperAccess {
        HelperAccess { socket: door.path.clone(), user: Some(user) }
    }

    /// Options of its command line.
    pub fn arguments(&self) -> Vec<std::ffi::OsString> {
        let user = self.user.map(|user| ["--user".into(), user.to_string().into()]);
        ["--node".into(), self.socket.clone().into()].into_iter().chain(user.into_iter().flatten()).collect()
    }
}

/// A child of this process, also after its program was replaced.
#[derive(Debug)]
pub(crate) struct HelperProcess {
    pid: u32,
    /// Readable when it has ended.
    pub exit: OwnedFd,
}

impl HelperProcess {
    pub fn spawn(command: &mut Command, aside: &Aside) -> io::Result<HelperProcess> {
        let mut child = aside.while_spawning(|| command.spawn())?;
        match pidfd(child.id()) {
            Ok(exit) => Ok(HelperProcess { pid: child.id(), exit }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// One that this process has had since before its program was replaced.
    pub fn again(pid: u32, exit: OwnedFd) -> HelperProcess {
        HelperProcess { pid, exit }
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn kill(&self) {
        // It may have ended just now; the descriptor never names another process.
        let _ = pidfd_send_signal(&self.exit, Signal::KILL);
    }

    /// Reaps one that has ended or was killed. `None`: it does not end, as a descriptor of a peer keeps it, and is left behind.
    pub fn part(self) -> Option<ServerEnd> {
        ends_by(&self.exit, Instant::now() + KILL_PATIENCE).then(|| reap(&self.exit))
    }
}
