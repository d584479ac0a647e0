//! Ways into a private node for processes that cannot connect to its socket: one whose path is another file for them (a `/tmp` or a mount
//! namespace of their own) and that have closed what they inherited, and one that may make no sockets (a filter of system calls).
//!
//! Each way has a thread of its own, which ends with this process. A program can send what it likes: what is no connection is closed
//! here, and all connections are this program's, whoever's they are.

use aviary_node::Doorway;
use aviary_transport::connections_through;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with, sockopt,
};
use rustix::process::geteuid;
use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{ffi::OsStrExt, net::UnixStream},
    },
    path::Path,
    thread::Builder,
};

const BACKLOG: i32 = 128;

/// Takes what comes by the channel to the program, and by the name in no folder that is the node's path.
pub fn open(entrance: &Doorway, channel: &UnixStream, socket: &Path) -> io::Result<()> {
    let (channel, of_channel) = (OwnedFd::from(channel.try_clone()?), entrance.clone());
    Builder::new().name("channel".into()).spawn(move || serve_channel(&channel, &of_channel))?;
    // Without network namespaces of this kernel's, or where the name is taken: programs have the other ways.
    if let Ok(listener) = listen_by_name(socket) {
        let of_name = entrance.clone();
        Builder::new().name("name".into()).spawn(move || serve_name(&listener, &of_name))?;
    }
    Ok(())
}

fn serve_channel(channel: &OwnedFd, entrance: &Doorway) {
    loop {
        match connections_through(channel.as_fd()) {
            Ok(Some(connections)) => connections.into_iter().for_each(|connection| entrance.admit(connection)),
            Err(Errno::INTR) => {}
            Ok(None) | Err(_) => return,
        }
    }
}

/// The path as an abstract name. Everybody in the network namespace can read and use it, so that only this user's processes get in.
fn listen_by_name(socket: &Path) -> rustix::io::Result<OwnedFd> {
    let name = SocketAddrUnix::new_abstract_name(socket.as_os_str().as_bytes())?;
    let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&listener, &name)?;
    listen(&listener, BACKLOG)?;
    Ok(listener)
}

fn serve_name(listener: &OwnedFd, entrance: &Doorway) {
    loop {
        match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(connection) => {
                let is_own = sockopt::socket_peercred(&connection).is_ok_and(|peer| peer.uid == geteuid());
                if is_own {
                    entrance.admit(connection);
                }
            }
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(_) => return,
        }
    }
}
