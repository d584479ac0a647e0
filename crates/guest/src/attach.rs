//! Attaching to the node that `AVIARY_SERVER` names.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use aviary_transport::{Arena, ArenaError, ControlError, ControlSocket, DEFAULT_ARENA, Liveness};
use aviary_transport::{receive_greeting, send_greeting};
use aviary_wire::attach::{hello_flag, welcome_flag, welcome_status};
use aviary_wire::{Hello, WIRE_VERSION};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use thiserror::Error;

use crate::ApiDescriptor;
use crate::connection::Connection;

/// A vendor library may take its time to start.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an overloaded node may take to accept.
const CONNECT: Duration = Duration::from_secs(10);
/// How often a waiting thread makes sure that the server lives.
const PROBE: Duration = Duration::from_millis(100);

/// Why there is no connection.
#[derive(Debug, Error)]
pub(crate) enum AttachError {
    /// AVIARY_SERVER is not set; `aviary run` sets it, or set it to unix:/path/of/node.sock
    #[error("AVIARY_SERVER is not set; `aviary run` sets it, or set it to unix:/path/of/node.sock")]
    NoAddress,
    /// AVIARY_SERVER={0} is not of the form unix:/path
    #[error("AVIARY_SERVER={0} is not of the form unix:/path")]
    Address(String),
    /// no node at {path}: {error}
    #[error("no node at {path}: {error}")]
    Connect { path: String, error: rustix::io::Errno },
    /// {0}
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// the node at {path} did not attach us: {error}
    #[error("the node at {path} did not attach us: {error}")]
    Greeting { path: String, error: ControlError },
    /// refused: {0}
    #[error("refused: {0}")]
    Refused(String),
    /// the server speaks wire version {0}, this library {WIRE_VERSION}; update the older of them
    #[error("the server speaks wire version {0}, this library {WIRE_VERSION}; update the older of them")]
    Version(u32),
}

fn server_path() -> Result<String, AttachError> {
    let address = std::env::var("AVIARY_SERVER").map_err(|_| AttachError::NoAddress)?;
    match address.strip_prefix("unix:") {
        Some(path) if !path.is_empty() => Ok(path.to_owned()),
        _ => Err(AttachError::Address(address)),
    }
}

fn connect(path: &str) -> Result<OwnedFd, AttachError> {
    let failed = |error| AttachError::Connect { path: path.to_owned(), error };
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(failed)?;
    // Bounds the time that `connect` waits for a node whose queue is full.
    let timeout = rustix::net::sockopt::Timeout::Send;
    let _ = rustix::net::sockopt::set_socket_timeout(&socket, timeout, Some(CONNECT));
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(failed(e)),
        }
    }
}

/// Parses sizes such as `512M` and `16G`.
fn arena_size(text: Option<&str>) -> usize {
    let parsed = text.and_then(|t| {
        let (digits, shift) = match t.strip_suffix(['G', 'g']) {
            Some(digits) => (digits, 30),
            None => (t.strip_suffix(['M', 'm'])?, 20),
        };
        digits.parse::<usize>().ok()?.checked_mul(1 << shift)
    });
    parsed.filter(|n| *n >= 16 << 20).unwrap_or(DEFAULT_ARENA)
}

/// A process with an address space limit gets a smaller arena.
fn make_arena(mirrored: bool) -> Result<Arc<Arena>, ArenaError> {
    let mut size = arena_size(std::env::var("AVIARY_ARENA").ok().as_deref());
    loop {
        match if mirrored { Arena::mirror(size) } else { Arena::create(size) } {
            Err(ArenaError::System { .. }) if size > 256 << 20 => size /= 4,
            result => return result,
        }
    }
}

pub(crate) fn flag_set(name: &str) -> bool {
    std::env::var(name).is_ok_and(|v| !v.is_empty() && v != "0")
}

/// A standard stream of the application, unless it closed it.
fn stream(number: i32) -> Option<BorrowedFd<'static>> {
    // SAFETY: asking for the flags of a number that may be closed does nothing; the descriptor is only
    // passed on, and if another thread closes it meanwhile, sending fails.
    unsafe { (libc::fcntl(number, libc::F_GETFD) >= 0).then(|| BorrowedFd::borrow_raw(number)) }
}

pub(crate) fn attach(descriptor: &'static ApiDescriptor) -> Result<Connection, AttachError> {
    let path = server_path()?;
    let socket = connect(&path)?;
    let mirrored = std::env::var("AVIARY_TRANSPORT").is_ok_and(|t| t == "stream");
    let arena = make_arena(mirrored)?;
    let mut hello = Hello {
        wire_version: WIRE_VERSION,
        pid: std::process::id(),
        spec_hash: descriptor.spec_hash,
        arena_address: arena.address(),
        arena_size: arena.size() as u64,
        api: descriptor.name.to_owned(),
        api_version: descriptor.version.to_owned(),
        flags: if mirrored { hello_flag::MIRRORED } else { 0 },
    };
    let mut fds: Vec<BorrowedFd> = arena.file().into_iter().collect();
    for (number, flag) in [(1, hello_flag::STDOUT), (2, hello_flag::STDERR)] {
        if let Some(fd) = stream(number) {
            fds.push(fd);
            hello.flags |= flag;
        }
    }
    let failed = |error| AttachError::Greeting { path: path.clone(), error };
    let sent = send_greeting(&socket, &hello.to_bytes(), &fds);
    // A node that refuses at once has hung up already, but it has said why.
    let welcome = receive_greeting(socket.as_fd(), PATIENCE).map_err(|e| failed(sent.err().unwrap_or(e)))?;
    if welcome.status != welcome_status::OK {
        return Err(AttachError::Refused(welcome.text));
    }
    if welcome.wire_version != WIRE_VERSION {
        return Err(AttachError::Version(welcome.wire_version));
    }
    let control = Arc::new(ControlSocket::new(socket));
    let liveness = Arc::new(Liveness::probed(PROBE, {
        let control = control.clone();
        move || control.intact() && control.alive()
    }));
    if welcome.flags & welcome_flag::CARRIED != 0 {
        arena.set_carried();
    }
    let same_address = !arena.mirrored() && welcome.flags & welcome_flag::SAME_ADDRESS != 0;
    Ok(Connection::new(descriptor, arena, control, liveness, same_address, flag_set("AVIARY_SYNC")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_understood() {
        assert_eq!(arena_size(Some("16G")), 16 << 30);
        assert_eq!(arena_size(Some("512m")), 512 << 20);
        for nonsense in [None, Some(""), Some("12"), Some("1M"), Some("99999999999999999999G"), Some("-1G")] {
            assert_eq!(arena_size(nonsense), DEFAULT_ARENA, "{nonsense:?}");
        }
    }
}
