//! Attaches to the node that `AVIARY_SERVER` names.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aviary_transport::{Arena, ArenaError, ControlError, ControlSocket, DEFAULT_ARENA, Device, Liveness};
use aviary_transport::{out_of_the_way, receive_greeting, send_greeting};
use aviary_wire::attach::{MAX_ENVIRONMENT_BYTES, MAX_VARIABLES, hello_flag, welcome_flag, welcome_status};
use aviary_wire::control::control_kind;
use aviary_wire::{Control, Hello, WIRE_VERSION};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use thiserror::Error;

use crate::ApiDescriptor;
use crate::connection::Connection;
use crate::heap::Heap;
use crate::keeper::Keeper;

/// Time for the node to attach: a vendor library may take long to start.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for an overloaded node to accept the connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of an arena under valgrind, whose search for leaks reads all memory that can be written.
const VALGRIND_ARENA: usize = 64 << 20;
/// Interval at which a waiting thread checks that the server lives.
const LIVENESS_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The reason why there is no connection.
#[derive(Debug, Error)]
pub(crate) enum AttachError {
    /// AVIARY_SERVER is not set and there is no /dev/aviary; `aviary run` sets it, or set it to unix:/path/of/node.sock
    #[error(
        "AVIARY_SERVER is not set and there is no {DEVICE}; `aviary run` sets it, or set it to unix:/path/of/node.sock"
    )]
    NoAddress,
    /// AVIARY_SERVER={0} is not of the form unix:/path or device:/path
    #[error("AVIARY_SERVER={0} is not of the form unix:/path or device:/path")]
    Address(String),
    /// no node at {path}: {error}
    #[error("no node at {path}: {error}")]
    Connect { path: String, error: rustix::io::Errno },
    /// cannot open {path}: {error}
    #[error("cannot open {path}: {error}")]
    Device { path: String, error: rustix::io::Errno },
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

/// The device file that the driver of a VM creates.
const DEVICE: &str = "/dev/aviary";

/// The transport by which this process reaches its node.
enum AttachTransport {
    Socket(String),
    /// The device file inside a VM.
    Device(String),
}

impl AttachTransport {
    fn find() -> Result<AttachTransport, AttachError> {
        match std::env::var("AVIARY_SERVER") {
            Ok(address) => AttachTransport::parse(&address).ok_or(AttachError::Address(address)),
            Err(_) if Path::new(DEVICE).exists() => Ok(AttachTransport::Device(DEVICE.to_owned())),
            Err(_) => Err(AttachError::NoAddress),
        }
    }

    fn parse(address: &str) -> Option<AttachTransport> {
        let (kind, path) = address.split_once(':')?;
        match kind {
            _ if path.is_empty() => None,
            "unix" => Some(AttachTransport::Socket(path.to_owned())),
            "device" => Some(AttachTransport::Device(path.to_owned())),
            _ => None,
        }
    }

    fn path(&self) -> &str {
        match self {
            AttachTransport::Socket(path) | AttachTransport::Device(path) => path,
        }
    }

    /// Connects and returns the control socket and its arena, whose last `heap` bytes are reserved
    /// for the application's own memory.
    fn connect(&self, heap: usize) -> Result<(OwnedFd, Arc<Arena>), AttachError> {
        let failed = |error| AttachError::Device { path: self.path().to_owned(), error };
        match self {
            AttachTransport::Socket(path) => {
                let mirrored = std::env::var("AVIARY_TRANSPORT").is_ok_and(|t| t == "stream");
                let shared = || make_arena(usize::MAX, |size| Arena::create(size.saturating_add(heap)));
                // A process that may make no such file (a limit, a filter of system calls) has memory of its own, whose
                // content travels.
                let own = || make_arena(usize::MAX, |size| Arena::mirror(size.saturating_add(heap)));
                let arena = if mirrored { own()? } else { shared().or_else(|_| own())? };
                Ok((connect(path)?, arena))
            }
            AttachTransport::Device(path) => {
                let device = Arc::new(Device::open(Path::new(path)).map_err(failed)?);
                let control = rustix::io::fcntl_dupfd_cloexec(&*device, 3).map(out_of_the_way).map_err(failed)?;
                let largest = usize::try_from(device.largest_arena()).unwrap_or(usize::MAX);
                let arena = make_arena(largest, |size| Arena::of_device(device.clone(), size))?;
                Ok((control, arena))
            }
        }
    }
}

fn connect(path: &str) -> Result<OwnedFd, AttachError> {
    let failed = |error| AttachError::Connect { path: path.to_owned(), error };
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(failed)?;
    let socket = out_of_the_way(socket);
    // Bounds the wait of `connect` for a node whose queue is full.
    let timeout = rustix::net::sockopt::Timeout::Send;
    let _ = rustix::net::sockopt::set_socket_timeout(&socket, timeout, Some(CONNECT_TIMEOUT));
    let direct = connect_to(&socket, &address);
    match direct {
        Err(error) => match inherited_entry().map(|entry| connect_to(&socket, &entry)) {
            Some(Ok(())) => Ok(socket),
            _ => Err(failed(error)),
        },
        Ok(()) => Ok(socket),
    }
}

fn connect_to(socket: &OwnedFd, address: &SocketAddrUnix) -> Result<(), Errno> {
    loop {
        match rustix::net::connect(socket, address) {
            Err(Errno::INTR) => continue,
            result => return result,
        }
    }
}

/// The socket of `aviary run` as a descriptor that the program has inherited: it leads there when the path does not,
/// because the process has another user or another `/tmp` by now. The application may have closed it.
fn inherited_entry() -> Option<SocketAddrUnix> {
    let number: i32 = std::env::var("AVIARY_SERVER_DESCRIPTOR").ok()?.parse().ok().filter(|number| *number > 2)?;
    // SAFETY: the number is only asked about; one that is closed, or a file of the application, is told apart.
    let entry = unsafe { BorrowedFd::borrow_raw(number) };
    let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(entry).ok()?.st_mode);
    (kind == rustix::fs::FileType::Socket)
        .then(|| SocketAddrUnix::new(format!("/proc/self/fd/{number}")).ok())
        .flatten()
}

/// Parses a size such as `512M` or `16G`; the default if it is absent or malformed.
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

/// True if valgrind runs the process, which then has a preloaded library of its.
pub(crate) fn under_valgrind() -> bool {
    std::env::var("LD_PRELOAD").is_ok_and(|list| list.contains("/vgpreload_"))
}

/// Makes an arena; a process with a limit on its address space gets a smaller one.
fn make_arena(
    largest: usize,
    make: impl Fn(usize) -> Result<Arc<Arena>, ArenaError>,
) -> Result<Arc<Arena>, ArenaError> {
    let asked = std::env::var("AVIARY_ARENA").ok();
    let mut size = match asked {
        None if under_valgrind() => VALGRIND_ARENA,
        asked => arena_size(asked.as_deref()),
    };
    size = size.min(largest);
    loop {
        match make(size) {
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
    // SAFETY: reading the flags of a number that may be closed has no effect; the descriptor is
    // only passed on, and if another thread closes it meanwhile, sending fails.
    unsafe { (libc::fcntl(number, libc::F_GETFD) >= 0).then(|| BorrowedFd::borrow_raw(number)) }
}

/// Values of the variables that the specification names, as the application has set them. One that does not fit is not set.
fn environment(descriptor: &ApiDescriptor) -> Vec<Option<Vec<u8>>> {
    let mut left = MAX_ENVIRONMENT_BYTES;
    let mut value = |name: &&str| {
        let value = std::env::var_os(name)?.into_vec();
        match left.checked_sub(value.len()) {
            Some(rest) => left = rest,
            None => {
                crate::log::line(&format!("{name} does not reach {}: its value is too long", descriptor.name));
                return None;
            }
        }
        Some(value)
    };
    descriptor.environment.iter().take(MAX_VARIABLES).map(&mut value).collect()
}

pub(crate) fn attach(descriptor: &'static ApiDescriptor) -> Result<Connection, AttachError> {
    let transport = AttachTransport::find()?;
    // A VM's device pins large buffers instead of sharing the heap.
    let heap = if matches!(transport, AttachTransport::Socket(_)) { Heap::find() } else { None };
    let (socket, arena) = transport.connect(heap.as_ref().map_or(0, |(heap, _)| heap.size))?;
    let mut hello = Hello {
        wire_version: WIRE_VERSION,
        pid: std::process::id(),
        spec_hash: descriptor.spec_hash,
        arena_address: arena.address(),
        arena_size: arena.size() as u64,
        api: descriptor.name.to_owned(),
        api_version: descriptor.version.to_owned(),
        flags: if arena.streamed() { hello_flag::MIRRORED } else { 0 },
        environment: environment(descriptor),
    };
    let mut fds: Vec<BorrowedFd> = arena.file().into_iter().collect();
    // Descriptors cannot leave a VM.
    let local = arena.device().is_none();
    if !local {
        hello.flags |= hello_flag::PRINTED;
    }
    for (number, flag) in [(1, hello_flag::STDOUT), (2, hello_flag::STDERR)] {
        if let Some(fd) = stream(number).filter(|_| local) {
            fds.push(fd);
            hello.flags |= flag;
        }
    }
    let failed = |error| AttachError::Greeting { path: transport.path().to_owned(), error };
    let sent = send_greeting(&socket, &hello.to_bytes(), &fds);
    // A node that refuses at once may have hung up already; its answer can still be read.
    let welcome = receive_greeting(socket.as_fd(), ATTACH_TIMEOUT).map_err(|e| failed(sent.err().unwrap_or(e)))?;
    if welcome.status != welcome_status::OK {
        return Err(AttachError::Refused(welcome.text));
    }
    if welcome.wire_version != WIRE_VERSION {
        return Err(AttachError::Version(welcome.wire_version));
    }
    let control = Arc::new(ControlSocket::new(socket));
    let keeper = Arc::new(Keeper::new(control.clone()));
    let liveness = Arc::new(Liveness::probed(LIVENESS_POLL_INTERVAL, {
        let keeper = keeper.clone();
        move || keeper.alive()
    }));
    if welcome.flags & welcome_flag::CARRIED != 0 {
        arena.set_carried();
    }
    let same_address = !arena.mirrored() && welcome.flags & welcome_flag::SAME_ADDRESS != 0;
    let heap = match heap {
        Some((heap, file)) if !arena.mirrored() => {
            let heap = heap.at((arena.size() - heap.size) as u64);
            let (kind, length) = (control_kind::HEAP, heap.size as u64);
            let message = Control { kind, offset: heap.offset, length, ..Control::default() };
            control.send(message, Some(file.as_fd())).map_err(failed)?;
            Some(heap)
        }
        _ => None,
    };
    Ok(Connection::new(descriptor, arena, heap, keeper, liveness, same_address, flag_set("AVIARY_SYNC")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        assert!(
            matches!(AttachTransport::parse("unix:/run/x"), Some(AttachTransport::Socket(path)) if path == "/run/x")
        );
        assert!(
            matches!(AttachTransport::parse("device:/dev/aviary"), Some(AttachTransport::Device(path)) if path == "/dev/aviary")
        );
        for nonsense in ["", "unix:", "device:", "tcp:1.2.3.4:5", "/run/x", "unix"] {
            assert!(AttachTransport::parse(nonsense).is_none(), "{nonsense}");
        }
    }

    #[test]
    fn sizes_are_parsed() {
        assert_eq!(arena_size(Some("16G")), 16 << 30);
        assert_eq!(arena_size(Some("512m")), 512 << 20);
        for nonsense in [None, Some(""), Some("12"), Some("1M"), Some("99999999999999999999G"), Some("-1G")] {
            assert_eq!(arena_size(nonsense), DEFAULT_ARENA, "{nonsense:?}");
        }
    }
}
