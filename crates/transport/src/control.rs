//! The control socket: greetings, lanes opened and closed, the peer's death. In a VM it is the device.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use aviary_wire::attach::{GreetingError, MAX_GREETING, PREFIX};
use aviary_wire::{Control, Hello, Welcome};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use thiserror::Error;

use crate::device::end_session;

/// Descriptors that one message may carry.
const MAX_FDS: usize = 4;

/// Why the control socket cannot be used any more.
#[derive(Debug, Error)]
pub enum ControlError {
    /// the peer hung up
    #[error("the peer hung up")]
    HungUp,
    /// no answer within {0:?}
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// {what} failed: {error}
    #[error("{what} failed: {error}")]
    System { what: &'static str, error: Errno },
    /// {0}
    #[error(transparent)]
    Greeting(#[from] GreetingError),
}

fn failed(what: &'static str) -> impl Fn(Errno) -> ControlError {
    move |error| match error {
        Errno::PIPE | Errno::CONNRESET => ControlError::HungUp,
        error => ControlError::System { what, error },
    }
}

/// How long the rest of a control message may take.
const REST: Duration = Duration::from_secs(1);

/// Sends all of `bytes`; the descriptors go with the first part. A VM's device takes whole messages, without any.
fn send_all(socket: BorrowedFd, mut bytes: &[u8], fds: &[BorrowedFd]) -> Result<(), ControlError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(ControlError::System { what: "sending descriptors", error: Errno::TOOBIG });
    }
    while !bytes.is_empty() {
        match rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::INTR) => continue,
            Err(Errno::NOTSOCK) if fds.is_empty() => return write_all(socket, bytes),
            Err(e) => return Err(failed("sending on the control socket")(e)),
        }
        ancillary.clear();
    }
    Ok(())
}

fn write_all(device: BorrowedFd, mut bytes: &[u8]) -> Result<(), ControlError> {
    while !bytes.is_empty() {
        match rustix::io::write(device, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            Err(e) => return Err(failed("writing to the device")(e)),
        }
    }
    Ok(())
}

/// Receives into all of `bytes`, collecting descriptors. `None`: the peer hung up before the first byte.
fn receive_all(
    socket: BorrowedFd,
    bytes: &mut [u8],
    fds: &mut Vec<OwnedFd>,
    deadline: Option<(Instant, Duration)>,
) -> Result<Option<()>, ControlError> {
    // Between the look and the reading the descriptor's number may come to mean a file that has nothing to say.
    let patience = if deadline.is_some() { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
    let flags = RecvFlags::CMSG_CLOEXEC | patience;
    let mut done = 0;
    while done < bytes.len() {
        await_readable(socket, deadline)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(&mut bytes[done..])];
        let received = match rustix::net::recvmsg(socket, into, &mut ancillary, flags) {
            Ok(message) => message.bytes,
            Err(Errno::INTR | Errno::AGAIN) => continue,
            // A VM's device.
            Err(Errno::NOTSOCK) => match rustix::io::read(socket, &mut bytes[done..]) {
                Ok(read) => read,
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Err(e) => return Err(failed("reading from the device")(e)),
            },
            Err(e) => return Err(failed("receiving on the control socket")(e)),
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                // Dropping a surplus closes it: a peer cannot fill this process's descriptor table.
                fds.extend(received.take(MAX_FDS.saturating_sub(fds.len())));
            }
        }
        match received {
            0 if done == 0 => return Ok(None),
            0 => return Err(ControlError::HungUp),
            n => done += n,
        }
    }
    Ok(Some(()))
}

fn await_readable(socket: BorrowedFd, deadline: Option<(Instant, Duration)>) -> Result<(), ControlError> {
    let Some((end, whole)) = deadline else { return Ok(()) };
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ControlError::Timeout(whole));
        }
        let timeout = rustix::time::Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match rustix::event::poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => return Ok(()),
            Err(e) => return Err(failed("waiting for the control socket")(e)),
        }
    }
}

/// Sends a [`Hello`] or [`Welcome`] in its byte form.
pub fn send_greeting(socket: impl AsFd, greeting: &[u8], fds: &[BorrowedFd]) -> Result<(), ControlError> {
    send_all(socket.as_fd(), greeting, fds)
}

fn greeting(
    socket: BorrowedFd,
    timeout: Duration,
    length: fn(&[u8; PREFIX]) -> Result<usize, GreetingError>,
) -> Result<(Vec<u8>, Vec<OwnedFd>), ControlError> {
    let deadline = Some((Instant::now() + timeout, timeout));
    let (mut prefix, mut fds) = ([0; PREFIX], Vec::new());
    receive_all(socket, &mut prefix, &mut fds, deadline)?.ok_or(ControlError::HungUp)?;
    let length = length(&prefix)?.min(MAX_GREETING);
    let mut body = vec![0; length - PREFIX];
    if !body.is_empty() {
        receive_all(socket, &mut body, &mut fds, deadline)?.ok_or(ControlError::HungUp)?;
    }
    Ok((body, fds))
}

/// The server's answer.
pub fn receive_greeting(socket: impl AsFd, timeout: Duration) -> Result<Welcome, ControlError> {
    let (body, _) = greeting(socket.as_fd(), timeout, Welcome::length)?;
    Ok(Welcome::from_body(&body)?)
}

/// The guest's first message and its descriptors, in order.
pub fn receive_hello(socket: impl AsFd, timeout: Duration) -> Result<(Hello, Vec<OwnedFd>), ControlError> {
    let (body, fds) = greeting(socket.as_fd(), timeout, Hello::length)?;
    Ok((Hello::from_body(&body)?, fds))
}

/// Who is at the other end of a unix socket, as the kernel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCredentials {
    /// 0: a process of another pid namespace, which cannot be named here.
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
}

impl PeerCredentials {
    /// Not through rustix: its type has no room for process id 0.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: `peer` is a plain C struct that lives through the call, `length` is its size and the kernel
        // writes no more than that; any bit pattern it writes is a valid `ucred`.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut peer).cast(),
                &raw mut length,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        if length as usize != size_of::<libc::ucred>() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(PeerCredentials { pid: peer.pid, uid: peer.uid, gid: peer.gid })
    }
}

/// The control socket after the greetings. Sending is safe from several threads as long as the
/// socket's buffer has room for 32 bytes; callers that may flood it use a lock.
pub struct ControlSocket {
    socket: OwnedFd,
    identity: Option<Identity>,
}

/// What tells an open file from every other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// `None`: the descriptor is closed.
    pub fn of(fd: impl AsFd) -> Option<Self> {
        rustix::fs::fstat(fd).ok().map(|s| Identity { device: s.st_dev, inode: s.st_ino })
    }

    /// Whether the descriptor still means this file.
    pub fn is(self, fd: impl AsFd) -> bool {
        Identity::of(fd) == Some(self)
    }
}

impl ControlSocket {
    pub fn new(socket: OwnedFd) -> Self {
        let identity = Identity::of(&socket);
        ControlSocket { socket, identity }
    }

    /// False if somebody closed the descriptor behind this object's back: daemons close everything they
    /// inherited, and the number may mean another file by now.
    pub fn intact(&self) -> bool {
        self.identity.is_some_and(|identity| identity.is(&self.socket))
    }

    pub fn send(&self, message: Control, fd: Option<BorrowedFd>) -> Result<(), ControlError> {
        match fd {
            Some(fd) => send_all(self.socket.as_fd(), &message.to_bytes(), &[fd]),
            None => send_all(self.socket.as_fd(), &message.to_bytes(), &[]),
        }
    }

    /// Waits for the next message; `None`: the peer hung up. One thread only.
    pub fn receive(&self) -> Result<Option<(Control, Option<OwnedFd>)>, ControlError> {
        self.receive_within(None)
    }

    fn receive_within(
        &self,
        deadline: Option<(Instant, Duration)>,
    ) -> Result<Option<(Control, Option<OwnedFd>)>, ControlError> {
        let (mut bytes, mut fds) = ([0; Control::SIZE], Vec::new());
        let received = receive_all(self.socket.as_fd(), &mut bytes, &mut fds, deadline)?;
        Ok(received.map(|()| (Control::from_bytes(&bytes), fds.into_iter().next())))
    }

    /// What follows a message, all of it. One thread only.
    pub fn receive_rest(&self, bytes: &mut [u8]) -> Result<(), ControlError> {
        let deadline = Some((Instant::now() + REST, REST));
        receive_all(self.socket.as_fd(), bytes, &mut Vec::new(), deadline)?.ok_or(ControlError::HungUp)
    }

    /// Like [`ControlSocket::receive`] if a message has begun to arrive; `Ok(None)` also if there is none.
    pub fn try_receive(&self) -> Result<Option<(Control, Option<OwnedFd>)>, ControlError> {
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        match rustix::event::poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&now)) {
            Ok(0) | Err(Errno::INTR) => Ok(None),
            Ok(_) => self.receive_within(Some((Instant::now() + REST, REST))),
            Err(e) => Err(failed("polling the control socket")(e)),
        }
    }

    /// Returns when the peer has hung up, or when the descriptor means another file. Without a wake-up meanwhile.
    pub fn await_hang_up(&self) {
        while self.intact() && self.alive() {
            let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
            match rustix::event::poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    /// Both sides see a hang-up from now on.
    pub fn hang_up(&self) {
        let both = rustix::net::Shutdown::Both;
        if self.intact() && rustix::net::shutdown(&self.socket, both) == Err(Errno::NOTSOCK) {
            end_session(self.socket.as_fd());
        }
    }

    /// Whether the peer still holds its end. Unread messages do not matter.
    pub fn alive(&self) -> bool {
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        match rustix::event::poll(&mut fds, Some(&now)) {
            Ok(_) => !fds[0].revents().intersects(gone),
            Err(_) => true,
        }
    }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
