//! Helper processes: gateways and VM devices. They read what strangers and VMs send, and attach in their guests' place.
//!
//! Of a node that is root they are users of their own, so that one that was taken over reads no file of root's and reaches no
//! process of others. The node's socket may be closed to those users: they attach at a socket of their own, in a private folder,
//! where nobody else is served.

use crate::attach::foreign::{LISTENER, nobody};
use crate::attach::listener::listen_on;
use crate::attach::private::PrivateDir;
use crate::error::NodeError;
use aviary_control::{Aside, Foreign};
use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
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
