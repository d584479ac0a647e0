//! What sockets between machines need beyond the safe libraries.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Keeps what waits unsent in the kernel short: a small message that is written later has to pass it. Best effort:
/// only TCP knows the option.
pub fn limit_unsent(socket: impl AsFd, bytes: u32) {
    // SAFETY: the option's value is read from `bytes`, which lives through the call.
    unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            (&raw const bytes).cast(),
            size_of::<u32>() as libc::socklen_t,
        )
    };
}

fn vsock_address(cid: u32, port: u32) -> libc::sockaddr_vm {
    // SAFETY: a plain C struct for which all zeros is a valid value.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    address.svm_family = libc::AF_VSOCK as libc::sa_family_t;
    address.svm_cid = cid;
    address.svm_port = port;
    address
}

fn vsock() -> io::Result<OwnedFd> {
    // SAFETY: no pointers; the answer is checked.
    let fd = unsafe { libc::socket(libc::AF_VSOCK, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

const ADDRESS_SIZE: libc::socklen_t = size_of::<libc::sockaddr_vm>() as libc::socklen_t;

/// Connects to a port of a virtual machine, or of its host (CID 2).
pub fn connect_vsock(cid: u32, port: u32) -> io::Result<OwnedFd> {
    let (socket, address) = (vsock()?, vsock_address(cid, port));
    // SAFETY: the address lives through the call and its size is stated.
    match unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), ADDRESS_SIZE) } {
        0 => Ok(socket),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Listens on a port; `u32::MAX` as the CID stands for all addresses of this machine.
pub fn listen_vsock(cid: u32, port: u32, backlog: i32) -> io::Result<OwnedFd> {
    let (socket, address) = (vsock()?, vsock_address(cid, port));
    // SAFETY: as in `connect_vsock`; `listen` takes no pointers.
    let result = unsafe {
        match libc::bind(socket.as_raw_fd(), (&raw const address).cast(), ADDRESS_SIZE) {
            0 => libc::listen(socket.as_raw_fd(), backlog),
            error => error,
        }
    };
    if result == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}
