//! The connection of a session to an API server, through the node like that of every guest.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use aviary_wire::Origin;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket_with};

use crate::sessions::Node;

pub struct Attach {
    node: PathBuf,
    /// Number of the last socket.
    serial: u64,
}

impl Attach {
    pub fn new(node: PathBuf) -> Self {
        Attach { node, serial: 0 }
    }
}

impl Node for Attach {
    fn connect(&mut self, origin: &Origin) -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        self.serial += 1;
        let name = origin.to_name(std::process::id(), self.serial);
        // If another process has the name, `aviary ps` does not know the program.
        let _ = SocketAddrUnix::new_abstract_name(&name).and_then(|name| bind(&socket, &name));
        connect(&socket, &SocketAddrUnix::new(&*self.node)?)?;
        Ok(socket)
    }
}
