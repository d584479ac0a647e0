//! The virtio device of a virtual machine (docs/virtio-aviary.md), served over vhost-user by a process of its own.
//!
//! To the VM it is a device with three queues, to the node a process that attaches guests. Lanes
//! and data lie in the VM's memory, which API servers map; this process passes on the control
//! stream of each session, requests about memory, and wake-ups.
//!
//! From the bottom up: `request`, `stream` and `ranges` handle bytes and numbers only. `memory`
//! finds the VM's memory in files, `outbox` queues bytes for a socket. A `session` is one open
//! `/dev/aviary`; `sessions` holds all of a VM with their sockets. `chain` and `device` are the
//! queues, `backend` has the functions that the vhost-user library calls.
//!
//! The driver may be hostile and so may be the VMM: each VM's device is a process of its own, and
//! no device waits for another. A reset of the driver ends all sessions: the guest's memory may have
//! another meaning afterwards. A pause of the VM keeps them, if the VMM tells resets from pauses.

#![forbid(unsafe_code)]

mod backend;
mod chain;
mod device;
#[cfg(test)]
mod fuzz_tests;
mod log;
mod memory;
mod node;
mod request;
mod session;
mod sessions;

use std::io;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thiserror::Error;
use vhost::vhost_user::{Error as ProtocolError, Listener};
use vhost_user_backend::{Error as DaemonError, VhostUserDaemon};
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};

use backend::{Backend, Sockets};
use device::Device;
use log::Log;
use node::Attach;
use sessions::Sessions;

/// Time for an announced VMM to connect; without a connection it counts as gone.
const VMM_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

pub struct DeviceOptions {
    /// The VM's name, for the log.
    pub name: String,
    /// The socket to which the VMM connects.
    pub listener: UnixListener,
    /// The node's unix socket.
    pub node: PathBuf,
}

/// A VM cannot be served, or its service has ended.
#[derive(Debug, Error, displaydoc::Display)]
pub enum DeviceError {
    /// cannot set up the event loop: {0}
    EventLoop(io::Error),
    /// error of the vhost-user connection to the VMM: {0}
    Protocol(DaemonError),
}

/// Serves one VM until it hangs up. Returns at once if no VMM connects.
pub fn serve(options: DeviceOptions) -> Result<(), DeviceError> {
    let DeviceOptions { name, listener, node } = options;
    if !is_wanted(&listener).map_err(DeviceError::EventLoop)? {
        return Ok(());
    }
    let (memory, sockets) = (GuestMemoryAtomic::new(GuestMemoryMmap::new()), Arc::new(Sockets::default()));
    let sessions = Sessions::new(Box::new(Attach::new(node)), Box::new(sockets.clone()), Log::new(&name));
    let backend = Backend::new(Device::new(sessions, memory.clone()), sockets).map_err(DeviceError::EventLoop)?;
    let backend = Arc::new(backend);
    let mut daemon =
        VhostUserDaemon::new("vhost-user".into(), backend.clone(), memory).map_err(DeviceError::Protocol)?;
    for events in daemon.get_epoll_handlers() {
        backend.start(&events).map_err(DeviceError::EventLoop)?;
    }
    // The library takes one connection; the node keeps the listener.
    daemon.start(&mut Listener::from(listener)).map_err(DeviceError::Protocol)?;
    if let Some(connection) = daemon.shutdown_handle() {
        backend.connected(connection);
    }
    let result = daemon.wait();
    backend.device().end();
    match result {
        Ok(()) | Err(DaemonError::HandleRequest(ProtocolError::Disconnected | ProtocolError::PartialMessage)) => Ok(()),
        Err(error) => Err(DeviceError::Protocol(error)),
    }
}

fn is_wanted(listener: &UnixListener) -> io::Result<bool> {
    let timeout = Timespec { tv_sec: VMM_CONNECT_TIMEOUT.as_secs() as i64, tv_nsec: 0 };
    match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&timeout)) {
        Err(rustix::io::Errno::INTR) => is_wanted(listener),
        ready => Ok(ready? > 0),
    }
}
