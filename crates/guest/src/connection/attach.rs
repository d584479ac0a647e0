//! Attaches to the node that `AVIARY_SERVER` names.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aviary_transport::{Arena, ArenaError, ControlError, ControlSocket, DEFAULT_ARENA, Device, Liveness};
use aviary_transport::{connect_through, out_of_the_way, receive_greeting, send_greeting};
use aviary_wire::attach::{MAX_ENVIRONMENT_BYTES, MAX_VARIABLES, hello_flag, welcome_flag, welcome_status};
use aviary_wire::control::control_kind;
use aviary_wire::{Control, Hello, WIRE_VERSION};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use thiserror::Error;

use crate::connection::door::OpenDoor;
use crate::connection::keeper::Keeper;
use crate::descriptor::ApiDescriptor;
use crate::memory::heap::Heap;
use crate::process::settings::{flag_set, under_valgrind};

/// Time for the node to attach: a vendor library may take long to start.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for an overloaded node to accept the connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of an arena under valgrind, whose search for leaks reads all memory that can be written.
const VALGRIND_ARENA: usize = 64 << 20;
/// Interval at which a waiting thread checks that the server lives.
const LIVENESS_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The reason why there is no connection.
#[derive(Debug, Error, displaydoc::Display)]
pub(crate) enum AttachError {
    /// AVIARY_SERVER is not set and there is no /dev/aviary; `aviary run` sets it, or set it to unix:/path/of/node.sock
    NoAddress,
    /// AVIARY_SERVER={0} is not of the form unix:/path or device:/path
    Address(String),
    /// no node at {path}: {error}
    Connect { path: String, error: rustix::io::Errno },
    /// cannot open {path}: {error}
    Device { path: String, error: rustix::io::Errno },
    /// {0}
    Arena(ArenaError),
    /// the node at {path} did not attach us: {error}
    Greeting { path: String, error: ControlError },
    /// refused: {0}
    Refused(String),
    /// the server speaks wire version {0}, this library {1}; update the older of them
    Version(u32, u32),
}

impl From<ArenaError> for AttachError {
    fn from(error: ArenaError) -> Self {
        AttachError::Arena(error)
    }
}

/// The device file that the driver of a VM creates.
const DEVICE: &str = "/dev/aviary";

/// The transport by which this process reaches its node.
enum AttachTransport {
    /// An API server in this process.
    Door(OwnedFd),
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
            AttachTransport::Door(_) => "the door",
            AttachTransport::Socket(path) | AttachTransport::Device(path) => path,
        }
    }

    /// Connects; the last `heap` bytes of the arena are reserved for the application's own memory.
    fn connect(&self, heap: usize) -> Result<Connected, AttachError> {
        let failed = |error| AttachError::Device { path: self.path().to_owned(), error };
        let apart = |size: usize| Arena::create_apart(size.saturating_add(heap));
        match self {
            AttachTransport::Door(socket) => {
                let control = rustix::io::fcntl_dupfd_cloexec(socket, 3).map(out_of_the_way).map_err(failed)?;
                let (arena, file) = make_arena(usize::MAX, apart)?;
                Ok(Connected { control: ControlSocket::new(control), arena, file: Some(file) })
            }
            AttachTransport::Socket(path) => {
                let mirrored = std::env::var("AVIARY_TRANSPORT").is_ok_and(|t| t == "stream");
                let shared = || make_arena(usize::MAX, apart).map(|(arena, file)| (arena, Some(file)));
                // A process that may make no such file (a limit, a filter of system calls) has memory of its own, whose
                // content travels.
                let mirror = |size: usize| Arena::mirror(size.saturating_add(heap));
                let own = || make_arena(usize::MAX, mirror).map(|arena| (arena, None));
                let (arena, file) = if mirrored { own()? } else { shared().or_else(|_| own())? };
                Ok(Connected { control: ControlSocket::new(connect(path)?), arena, file })
            }
            AttachTransport::Device(path) => {
                let device = Arc::new(Device::open(Path::new(path)).map_err(failed)?);
                let control = rustix::io::fcntl_dupfd_cloexec(&*device, 3).map(out_of_the_way).map_err(failed)?;
                let largest = usize::try_from(device.largest_arena()).unwrap_or(usize::MAX);
                let arena = make_arena(largest, |size| Arena::of_device(device.clone(), size))?;
                Ok(Connected { control: ControlSocket::new(control), arena, file: None })
            }
        }
    }
}

/// A connection that the node has not greeted yet.
struct Connected {
    control: ControlSocket,
    arena: Arc<Arena>,
    /// The arena's file, which the node gets with `Hello`; no number of it is kept.
    file: Option<OwnedFd>,
}

fn connect(path: &str) -> Result<OwnedFd, AttachError> {
    let failed = |error| AttachError::Connect { path: path.to_owned(), error };
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    let socket = match rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None) {
        Ok(socket) => out_of_the_way(socket),
        // A filter of system calls: what this process has inherited leads there as well.
        Err(error) => return connect_by_channel().map(out_of_the_way).ok_or_else(|| failed(error)),
    };
    // Bounds the wait of `connect` for a node whose queue is full.
    let timeout = rustix::net::sockopt::Timeout::Send;
    let _ = rustix::net::sockopt::set_socket_timeout(&socket, timeout, Some(CONNECT_TIMEOUT));
    let direct = connect_to(&socket, &address);
    let by_entry = || inherited_entry().is_some_and(|entry| connect_to(&socket, &entry).is_ok());
    match direct {
        Err(error) if !by_entry() && !connect_by_name(&socket, path) => Err(failed(error)),
        _ => Ok(socket),
    }
}

/// Connects to the private node that has its path as an abstract name, too: another file may have the path here, and what was inherited
/// may be closed. The name is free for everybody once that node has ended, so that a foreign user's listener is left.
fn connect_by_name(socket: &OwnedFd, path: &str) -> bool {
    let connected = SocketAddrUnix::new_abstract_name(path.as_bytes()).and_then(|name| connect_to(socket, &name));
    let own = rustix::process::geteuid();
    connected.is_ok()
        && rustix::net::sockopt::socket_peercred(socket).is_ok_and(|peer| peer.uid == own || peer.uid.is_root())
}

/// A connection that the channel of `aviary run` has taken over. The application may have closed the channel, or have another file under
/// its number.
fn connect_by_channel() -> Option<OwnedFd> {
    let variable = std::env::var("AVIARY_CHANNEL").ok()?;
    let (number, inode) = variable.split_once(':')?;
    let number: i32 = number.parse().ok().filter(|number| *number > 2)?;
    // SAFETY: the number is only asked about, until it is known to be the channel; if another thread closes that meanwhile, sending
    // fails, or a connection goes to a file of the application's, which nobody answers.
    let channel = unsafe { BorrowedFd::borrow_raw(number) };
    let found = rustix::fs::fstat(channel).ok()?;
    let is_channel = inode.parse() == Ok(found.st_ino)
        && rustix::fs::FileType::from_raw_mode(found.st_mode) == rustix::fs::FileType::Socket;
    is_channel.then(|| connect_through(channel).ok()).flatten()
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

/// Makes an arena; a process with a limit on its address space gets a smaller one.
fn make_arena<T>(largest: usize, make: impl Fn(usize) -> Result<T, ArenaError>) -> Result<T, ArenaError> {
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
                crate::process::log::line(&format!("{name} does not reach {}: its value is too long", descriptor.name));
                return None;
            }
        }
        Some(value)
    };
    descriptor.environment.iter().take(MAX_VARIABLES).map(&mut value).collect()
}

/// The parts of a connection that a node has accepted.
pub(crate) struct Attached {
    pub keeper: Arc<Keeper>,
    pub liveness: Arc<Liveness>,
    pub arena: Arc<Arena>,
    /// The application's large allocations, if the server maps them.
    pub heap: Option<Heap>,
    /// True if the arena has one address on both sides.
    pub same_address: bool,
    /// True if a carrier sends parts of a long input ahead of its message.
    pub ahead: bool,
    /// True with AVIARY_SYNC=1.
    pub synchronous: bool,
    /// The way in which it was reached, if it was that.
    pub door: Option<OpenDoor>,
}

/// What this process says of itself first; which of its descriptors come with it is not in it yet.
fn greeting(descriptor: &ApiDescriptor, arena: &Arena) -> Hello {
    Hello {
        wire_version: WIRE_VERSION,
        pid: std::process::id(),
        spec_hash: descriptor.spec_hash,
        arena_address: arena.address(),
        arena_size: arena.size() as u64,
        api: descriptor.name.to_owned(),
        api_version: descriptor.version.to_owned(),
        flags: hello_flag::EARLY | if arena.streamed() { hello_flag::MIRRORED } else { 0 },
        environment: environment(descriptor),
    }
}

pub(crate) fn attach(descriptor: &ApiDescriptor) -> Result<Attached, AttachError> {
    let (door, transport) = match OpenDoor::connect() {
        Some((door, socket)) => (Some(door), AttachTransport::Door(socket)),
        None => (None, AttachTransport::find()?),
    };
    // A VM's device pins large buffers instead of sharing the heap.
    let heap = if matches!(transport, AttachTransport::Socket(_)) { Heap::find() } else { None };
    let Connected { control, arena, file } = transport.connect(heap.as_ref().map_or(0, |(heap, _)| heap.size))?;
    let mut hello = greeting(descriptor, &arena);
    let mut fds: Vec<BorrowedFd> = file.iter().map(AsFd::as_fd).collect();
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
    let sent = send_greeting(&control, &hello.to_bytes(), &fds);
    // A node that refuses at once may have hung up already; its answer can still be read.
    drop(file);
    let welcome = receive_greeting(&control, ATTACH_TIMEOUT).map_err(|e| failed(sent.err().unwrap_or(e)))?;
    if welcome.status != welcome_status::OK {
        return Err(AttachError::Refused(welcome.text));
    }
    if welcome.wire_version != WIRE_VERSION {
        return Err(AttachError::Version(welcome.wire_version, WIRE_VERSION));
    }
    let control = Arc::new(control);
    let keeper = Arc::new(Keeper::new(control.clone()));
    let liveness = Arc::new(Liveness::probed(LIVENESS_POLL_INTERVAL, {
        let keeper = keeper.clone();
        move || keeper.alive()
    }));
    if welcome.flags & welcome_flag::CARRIED != 0 {
        arena.set_carried();
    }
    let ahead = arena.carried() && welcome.flags & welcome_flag::AHEAD != 0;
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
    Ok(Attached { keeper, liveness, arena, heap, same_address, ahead, synchronous: flag_set("AVIARY_SYNC"), door })
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
