//! Socket functions between machines that the safe libraries lack.

use std::net::{IpAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::str::FromStr;
use std::time::Duration;
use std::{fmt, io};

use thiserror::Error;

/// Bounds the unsent bytes in the kernel's queue, because a small message that is written later
/// waits behind them. Best effort: only TCP has the option.
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

/// Where the kernel's `tcp_info` has the shortest round trip of the connection, in microseconds (include/uapi/linux/tcp.h).
const MIN_ROUND_TRIP_AT: usize = 148;

/// The shortest round trip of a TCP connection that the kernel has seen; `None`: another sort of socket, or not one yet.
pub fn min_round_trip(socket: impl AsFd) -> Option<Duration> {
    let mut info = [0u8; 256];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`, and says how many these were.
    let status = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    let told = info.get(..length as usize).filter(|_| status == 0)?;
    let microseconds = u32::from_ne_bytes(*told.get(MIN_ROUND_TRIP_AT..)?.first_chunk()?);
    // The kernel's value for none is all ones.
    (microseconds != 0 && microseconds != u32::MAX).then(|| Duration::from_micros(microseconds.into()))
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
    // SAFETY: `socket` takes no pointers; the answer is checked.
    let fd = unsafe { libc::socket(libc::AF_VSOCK, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor has just been made and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

const ADDRESS_SIZE: libc::socklen_t = size_of::<libc::sockaddr_vm>() as libc::socklen_t;

/// Connects to a port of a virtual machine, or of its host (CID 2).
fn connect_vsock(cid: u32, port: u32) -> io::Result<OwnedFd> {
    let (socket, address) = (vsock()?, vsock_address(cid, port));
    // SAFETY: the address lives through the call and its size is stated.
    match unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), ADDRESS_SIZE) } {
        0 => Ok(socket),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Listens on a port; `u32::MAX` as the CID stands for all addresses of this machine.
fn listen_vsock(cid: u32, port: u32, backlog: i32) -> io::Result<OwnedFd> {
    let (socket, address) = (vsock()?, vsock_address(cid, port));
    // SAFETY: the address lives through the calls and its size is stated; `listen` takes no
    // pointers.
    let result = unsafe {
        match libc::bind(socket.as_raw_fd(), (&raw const address).cast(), ADDRESS_SIZE) {
            0 => libc::listen(socket.as_raw_fd(), backlog),
            error => error,
        }
    };
    if result == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}

/// The address at which a node of another machine listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RemoteAddress {
    Tcp { host: String, port: u16 },
    Vsock { cid: u32, port: u32 },
}

/// `{0}` is no address of a node: expected HOST:PORT, [IPV6]:PORT or vsock:CID:PORT
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[error("`{0}` is no address of a node: expected HOST:PORT, [IPV6]:PORT or vsock:CID:PORT")]
pub struct AddressError(pub String);

/// All addresses of this machine, as a vsock CID.
const ANY_CID: u32 = u32::MAX;
const BACKLOG: i32 = 128;

impl FromStr for RemoteAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError(text.to_owned());
        let (host, port) = text.strip_prefix("tcp:").unwrap_or(text).rsplit_once(':').ok_or_else(wrong)?;
        if let Some(cid) = host.strip_prefix("vsock:") {
            let cid = if cid == "any" { ANY_CID } else { cid.parse().map_err(|_| wrong())? };
            return Ok(RemoteAddress::Vsock { cid, port: port.parse().map_err(|_| wrong())? });
        }
        let plain = host.strip_prefix('[').map_or(Some(host), |h| h.strip_suffix(']')).ok_or_else(wrong)?;
        let well_formed =
            !plain.is_empty() && !plain.contains(['/', '[', ']']) && (plain == host) != plain.contains(':');
        if !well_formed {
            return Err(wrong());
        }
        Ok(RemoteAddress::Tcp { host: plain.to_owned(), port: port.parse().map_err(|_| wrong())? })
    }
}

impl fmt::Display for RemoteAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemoteAddress::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            RemoteAddress::Tcp { host, port } => write!(f, "{host}:{port}"),
            RemoteAddress::Vsock { cid: ANY_CID, port } => write!(f, "vsock:any:{port}"),
            RemoteAddress::Vsock { cid, port } => write!(f, "vsock:{cid}:{port}"),
        }
    }
}

impl RemoteAddress {
    /// True if the other end can only be on this machine.
    pub fn is_loopback(&self) -> bool {
        match self {
            RemoteAddress::Tcp { host, .. } if host == "localhost" => true,
            RemoteAddress::Tcp { host, .. } => host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()),
            RemoteAddress::Vsock { .. } => false,
        }
    }

    /// A listening socket that does not block.
    pub fn listen(&self) -> io::Result<OwnedFd> {
        let listener = match self {
            RemoteAddress::Tcp { host, port } => TcpListener::bind((host.as_str(), *port))?,
            // The type only names the calls; none of them depends on the address family.
            RemoteAddress::Vsock { cid, port } => TcpListener::from(listen_vsock(*cid, *port, BACKLOG)?),
        };
        listener.set_nonblocking(true)?;
        Ok(listener.into())
    }

    /// Tries all addresses of the name, each for at most `timeout`.
    pub fn connect(&self, timeout: Duration) -> io::Result<TcpStream> {
        match self {
            RemoteAddress::Vsock { cid, port } => Ok(connect_vsock(*cid, *port)?.into()),
            RemoteAddress::Tcp { host, port } => {
                let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
                for address in (host.as_str(), *port).to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, timeout) {
                        Ok(stream) => return Ok(stream),
                        Err(error) => failed = error,
                    }
                }
                Err(failed)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for text in ["gpu1:7000", "10.0.0.5:1", "[::1]:7000", "vsock:2:7000", "vsock:any:9"] {
            assert_eq!(text.parse::<RemoteAddress>().unwrap().to_string(), text);
        }
        assert_eq!("tcp:gpu1:7000".parse::<RemoteAddress>().unwrap().to_string(), "gpu1:7000");
        for text in ["gpu1", "gpu1:", ":7000", "gpu1:70000", "unix:/x", "::1:7000", "[::1:7000", "vsock:x:1", "[a]:1"] {
            assert!(text.parse::<RemoteAddress>().is_err(), "{text}");
        }
        assert!("127.0.0.2:1".parse::<RemoteAddress>().unwrap().is_loopback());
        assert!(!"10.0.0.1:1".parse::<RemoteAddress>().unwrap().is_loopback());
    }

    #[test]
    fn the_kernel_knows_the_round_trip_of_a_connection() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let begun = std::time::Instant::now();
        for byte in 0..3 {
            std::io::Write::write_all(&mut near, &[byte]).unwrap();
            std::io::Read::read_exact(&mut far, &mut [0]).unwrap();
        }
        let shortest = min_round_trip(&near).unwrap();
        assert!(
            shortest > Duration::ZERO && shortest <= begun.elapsed().max(Duration::from_millis(100)),
            "{shortest:?}"
        );
        let (pipe, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(min_round_trip(&pipe), None);
    }
}
