//! The node's socket: addresses, permissions, one node per socket.

use crate::attach::foreign::{LISTENER, nobody};
use crate::attach::private::runtime_directory;
use crate::error::NodeError;
use aviary_control::{Aside, Foreign};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use std::{
    fmt,
    fs::{self, File, Permissions},
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    str::FromStr,
    time::{Duration, Instant},
};

const LISTEN_BACKLOG: i32 = 1024;
const LOCK_MODE: u32 = 0o600;
/// A node that was killed while it started a process is gone when that process has closed what it inherited.
const PREDECESSOR_TIMEOUT: Duration = Duration::from_millis(500);
const BIND_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Where a node is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = NodeError;

    fn from_str(text: &str) -> Result<Self, NodeError> {
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(Address::Unix(path.into())),
            _ => Err(NodeError::Address(text.into())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Address::Unix(path) = self;
        write!(f, "unix:{}", path.display())
    }
}

impl Address {
    pub fn path(&self) -> &Path {
        let Address::Unix(path) = self;
        path
    }
}

/// Where `aviary serve` listens by default.
pub fn default_socket() -> PathBuf {
    let own = if rustix::process::geteuid().is_root() { None } else { runtime_directory().unwrap_or(None) };
    let base = own.unwrap_or_else(|| PathBuf::from("/run"));
    base.join("aviary").join("node.sock")
}

/// A listening socket and the lock that makes this node the only one on it.
/// Dropping it removes both files.
#[derive(Debug)]
pub struct Listener {
    pub socket: Foreign,
    pub(crate) path: PathBuf,
    lock_path: PathBuf,
    /// Held, and passed on when the node's program is replaced.
    pub(crate) lock: File,
}

impl Listener {
    /// Listens on `path`; `mode` are the socket's permissions.
    pub fn bind(path: &Path, mode: u32) -> Result<Self, NodeError> {
        Self::bind_type(path, mode, SocketType::STREAM)
    }

    /// The same with a socket of another type.
    pub fn bind_type(path: &Path, mode: u32, kind: SocketType) -> Result<Self, NodeError> {
        let deadline = Instant::now() + PREDECESSOR_TIMEOUT;
        loop {
            match Self::try_bind(path, mode, kind) {
                Err(NodeError::AlreadyRunning(_)) if Instant::now() < deadline => {
                    std::thread::sleep(BIND_RETRY_INTERVAL)
                }
                result => return result,
            }
        }
    }

    fn try_bind(path: &Path, mode: u32, kind: SocketType) -> Result<Self, NodeError> {
        let failed = |error: io::Error| NodeError::Listen(path.into(), error);
        create_parent(path).map_err(failed)?;
        let lock_path = path.with_extension("lock");
        let lock = lock(&lock_path).map_err(failed)?.ok_or_else(|| NodeError::AlreadyRunning(path.into()))?;
        remove_stale(path, kind)?;
        let socket = Foreign::own(listen_with(path, mode, kind)?);
        Ok(Self { socket, path: path.into(), lock_path, lock })
    }

    /// One that this process has had since before its program was replaced.
    pub(crate) fn again(path: &Path, socket: OwnedFd, lock: File) -> Self {
        Self { socket: Foreign::own(socket), path: path.into(), lock_path: path.with_extension("lock"), lock }
    }

    /// A connection may have something in it before it is taken.
    pub fn guard(&mut self, aside: &Aside) {
        self.socket.becomes(aside, &nobody(), LISTENER);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        // Last, and while still locked: a process that waits for the lock checks that
        // the file it locked is still the one in the directory.
        let _ = fs::remove_file(&self.lock_path);
    }
}

fn create_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.exists() => fs::DirBuilder::new().mode(0o755).recursive(true).create(parent),
        _ => Ok(()),
    }
}

/// `None`: somebody else holds it. A lock can be held by all who can open the file, if only to read it, and then no node
/// starts: nobody but the node's user can, also where an earlier version made it.
fn lock(path: &Path) -> io::Result<Option<File>> {
    loop {
        // In a folder that others can write to, a link of theirs would have the permissions of any file changed.
        let flags = OFlags::NOFOLLOW.bits() as i32;
        let options = &mut File::options();
        let file = options.write(true).create(true).truncate(false).mode(LOCK_MODE).custom_flags(flags).open(path)?;
        if file.metadata()?.mode() & 0o777 != LOCK_MODE {
            file.set_permissions(Permissions::from_mode(LOCK_MODE))?;
        }
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            other => other?,
        }
        let held = file.metadata()?;
        if fs::metadata(path).is_ok_and(|found| found.ino() == held.ino() && found.dev() == held.dev()) {
            return Ok(Some(file));
        }
    }
}

/// Called with the lock held: a socket that is still there was left by a dead node,
/// unless it belongs to a program that does not know the lock.
fn remove_stale(path: &Path, kind: SocketType) -> Result<(), NodeError> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(NodeError::NotASocket(path.into()));
    }
    let failed = |error: io::Error| NodeError::Listen(path.into(), error);
    let probe = local_socket(kind).map_err(|errno| failed(errno.into()))?;
    if connect(&probe, &socket_address(path)?).is_ok() {
        return Err(NodeError::AlreadyRunning(path.into()));
    }
    fs::remove_file(path).map_err(failed)
}

/// No process can connect before the permissions are `mode`.
pub fn listen_on(path: &Path, mode: u32) -> Result<OwnedFd, NodeError> {
    listen_with(path, mode, SocketType::STREAM)
}

fn listen_with(path: &Path, mode: u32, kind: SocketType) -> Result<OwnedFd, NodeError> {
    let failed = |errno: rustix::io::Errno| NodeError::Listen(path.into(), errno.into());
    let socket = local_socket(kind).map_err(failed)?;
    bind(&socket, &socket_address(path)?).map_err(failed)?;
    // Permissions before `listen`: until then nobody can connect, whatever the umask was.
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(|error| NodeError::Listen(path.into(), error))?;
    listen(&socket, LISTEN_BACKLOG).map_err(failed)?;
    Ok(socket)
}

fn local_socket(kind: SocketType) -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

fn socket_address(path: &Path) -> Result<SocketAddrUnix, NodeError> {
    SocketAddrUnix::new(path).map_err(|_| NodeError::PathTooLong(path.into()))
}

#[cfg(test)]
mod tests {
    use crate::attach::listener::*;
    use crate::attach::private::PrivateDir;

    #[test]
    fn addresses() {
        let address: Address = "unix:/run/x.sock".parse().unwrap();
        assert_eq!(address.to_string(), "unix:/run/x.sock");
        assert!("tcp:1.2.3.4".parse::<Address>().is_err());
        assert!("unix:relative".parse::<Address>().is_err());
    }

    #[test]
    fn one_node_per_socket() {
        let directory = PrivateDir::create().unwrap();
        let path = directory.path().join("node.sock");
        let first = Listener::bind(&path, 0o600).unwrap();
        assert!(matches!(Listener::bind(&path, 0o600), Err(NodeError::AlreadyRunning(_))));
        drop(first);
        assert!(!path.exists());
        Listener::bind(&path, 0o600).unwrap();
    }

    #[test]
    fn a_lock_that_is_about_to_go_is_waited_for() {
        let directory = PrivateDir::create().unwrap();
        let path = directory.path().join("node.sock");
        let held = lock(&path.with_extension("lock")).unwrap().unwrap();
        let holder = std::thread::spawn(move || {
            std::thread::sleep(PREDECESSOR_TIMEOUT / 5);
            drop(held);
        });
        Listener::bind(&path, 0o600).unwrap();
        holder.join().unwrap();
    }

    #[test]
    fn stale_sockets_are_replaced_and_files_kept() {
        let directory = PrivateDir::create().unwrap();
        let path = directory.path().join("node.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        drop(Listener::bind(&path, 0o640).unwrap());
        fs::write(&path, "precious").unwrap();
        assert!(matches!(Listener::bind(&path, 0o600), Err(NodeError::NotASocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn nobody_else_can_open_the_lock() {
        let directory = PrivateDir::create().unwrap();
        let path = directory.path().join("node.sock");
        let mode = || fs::metadata(path.with_extension("lock")).unwrap().permissions().mode() & 0o777;
        let listener = Listener::bind(&path, 0o666).unwrap();
        assert_eq!(mode(), 0o600);
        drop(listener);
        // Left by an earlier version that was killed.
        fs::write(path.with_extension("lock"), "").unwrap();
        fs::set_permissions(path.with_extension("lock"), Permissions::from_mode(0o644)).unwrap();
        let listener = Listener::bind(&path, 0o666).unwrap();
        assert_eq!(mode(), 0o600);
        drop(listener);
        let precious = directory.path().join("precious");
        fs::write(&precious, "").unwrap();
        fs::set_permissions(&precious, Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink(&precious, path.with_extension("lock")).unwrap();
        assert!(matches!(Listener::bind(&path, 0o666), Err(NodeError::Listen(..))));
        assert_eq!(fs::metadata(&precious).unwrap().permissions().mode() & 0o777, 0o644);
    }

    #[test]
    fn permissions_are_as_asked() {
        let directory = PrivateDir::create().unwrap();
        let path = directory.path().join("node.sock");
        let _listener = Listener::bind(&path, 0o660).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    }
}
