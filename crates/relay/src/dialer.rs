//! A process that makes connections to one address, for a relay that may make none itself. It reads a byte for each connection, and
//! nothing of what crosses them: what a guest or a node sends cannot reach it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aviary_transport::RemoteAddress;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// For each address of the name.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// The answer's bytes: the number of an error; 0: the connection comes with it; all ones: an error without a number.
const ANSWER: usize = 4;
const UNNUMBERED: i32 = -1;

/// The relay's end.
pub struct Dialer(Mutex<UnixStream>);

impl Dialer {
    pub fn new(channel: UnixStream) -> Self {
        Self(Mutex::new(channel))
    }

    /// A connection to the dialer's address, one at a time.
    pub(crate) fn connect(&self) -> io::Result<TcpStream> {
        let channel = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        io::Write::write_all(&mut &*channel, &[1])?;
        let (mut answer, mut space) = ([0; ANSWER], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let buffers = &mut [IoSliceMut::new(&mut answer)];
        let received = recvmsg(channel.as_fd(), buffers, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        if received.bytes != ANSWER {
            return Err(io::Error::other("the process that makes connections has ended"));
        }
        let mut sockets = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(sockets) => Some(sockets),
            _ => None,
        });
        match (i32::from_ne_bytes(answer), sockets.next().and_then(|mut sockets| sockets.next())) {
            (0, Some(socket)) => Ok(TcpStream::from(socket)),
            (UNNUMBERED | 0, _) => {
                Err(io::Error::other("the name of the node has no address, or it cannot be reached"))
            }
            (number, _) => Err(io::Error::from_raw_os_error(number)),
        }
    }
}

/// Serves until the other end is closed.
pub fn dial(channel: &OwnedFd, node: &RemoteAddress) -> io::Result<()> {
    let mut byte = [0];
    while rustix::io::read(channel, &mut byte)? == 1 {
        match node.connect(DIAL_TIMEOUT) {
            Ok(socket) => answer(channel.as_fd(), 0, Some(socket.as_fd()))?,
            // The relay's words for it are the usual ones.
            Err(error) => answer(channel.as_fd(), error.raw_os_error().unwrap_or(numbered(&error)), None)?,
        }
    }
    Ok(())
}

fn numbered(error: &io::Error) -> i32 {
    match error.kind() {
        io::ErrorKind::TimedOut => rustix::io::Errno::TIMEDOUT.raw_os_error(),
        _ => UNNUMBERED,
    }
}

fn answer(channel: BorrowedFd<'_>, number: i32, socket: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let sockets: Vec<BorrowedFd<'_>> = socket.into_iter().collect();
    if !sockets.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&sockets));
    }
    let bytes = number.to_ne_bytes();
    sendmsg(channel, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn connections_and_errors_cross() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let node: RemoteAddress = listener.local_addr().unwrap().to_string().parse().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let dialing = std::thread::spawn(move || dial(&theirs.into(), &node));
        let dialer = Dialer::new(ours);
        for _ in 0..2 {
            let mut one = dialer.connect().unwrap();
            let (mut other, _) = listener.accept().unwrap();
            io::Write::write_all(&mut one, b"x").unwrap();
            let mut byte = [0];
            io::Read::read_exact(&mut other, &mut byte).unwrap();
            assert_eq!(&byte, b"x");
        }
        drop(listener);
        assert_eq!(dialer.connect().unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        drop(dialer);
        dialing.join().unwrap().unwrap();
    }

    #[test]
    fn a_dialer_that_has_ended_is_an_error() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(Dialer::new(ours).connect().is_err());
    }
}
