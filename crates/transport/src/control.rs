//! The control socket: greetings, opened and closed lanes, the peer's death. In a VM it is the
//! device.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use aviary_wire::attach::{GreetingError, MAX_GREETING, PREFIX};
use aviary_wire::{Control, Hello, Welcome};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use thiserror::Error;

use crate::descriptors::KeptFile;
use crate::device::end_session;

/// Descriptors that one message may carry.
const MAX_FDS: usize = 4;

/// The reason why the control socket can no longer be used.
#[derive(Debug, Error, displaydoc::Display)]
pub enum ControlError {
    /// the peer hung up
    HungUp,
    /// no answer within {0:?}
    Timeout(Duration),
    /// {what} failed: {error}
    System { what: &'static str, error: Errno },
    /// {0}
    Greeting(GreetingError),
}

impl From<GreetingError> for ControlError {
    fn from(error: GreetingError) -> Self {
        ControlError::Greeting(error)
    }
}

fn failed(what: &'static str) -> impl Fn(Errno) -> ControlError {
    move |error| match error {
        Errno::PIPE | Errno::CONNRESET => ControlError::HungUp,
        error => ControlError::System { what, error },
    }
}

/// Time for the rest of a control message to arrive after its first bytes.
const MESSAGE_REMAINDER_TIMEOUT: Duration = Duration::from_secs(1);

/// Sends all of `bytes`; the descriptors go with the first part. A VM's device takes whole
/// messages, without descriptors.
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
            Err(Errno::NOTSOCK) if fds.is_empty() && is_device(socket) => return write_all(socket, bytes),
            Err(e) => return Err(failed("sending on the control socket")(e)),
        }
        ancillary.clear();
    }
    Ok(())
}

/// False for a file or a pipe of the program, which has closed the socket's number and reused it: no byte of the connection
/// gets into them, and none of theirs into the connection.
fn is_device(file: BorrowedFd) -> bool {
    let device = |stat: rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    rustix::fs::fstat(file).is_ok_and(device)
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
    // Between the poll and the read the descriptor's number may come to refer to a file without
    // data, on which a read would block.
    let blocking = if deadline.is_some() { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
    let flags = RecvFlags::CMSG_CLOEXEC | blocking;
    let mut done = 0;
    while done < bytes.len() {
        await_readable(socket, deadline)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(&mut bytes[done..])];
        let received = match rustix::net::recvmsg(socket, into, &mut ancillary, flags) {
            Ok(message) => message.bytes,
            Err(Errno::INTR | Errno::AGAIN) => continue,
            // A VM's device is no socket.
            Err(Errno::NOTSOCK) if is_device(socket) => match rustix::io::read(socket, &mut bytes[done..]) {
                Ok(read) => read,
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Err(e) => return Err(failed("reading from the device")(e)),
            },
            Err(e) => return Err(failed("receiving on the control socket")(e)),
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                // Dropping surplus descriptors closes them: a peer cannot fill this process's
                // descriptor table.
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

/// Receives the server's answer to `Hello`.
pub fn receive_greeting(socket: impl AsFd, timeout: Duration) -> Result<Welcome, ControlError> {
    let (body, _) = greeting(socket.as_fd(), timeout, Welcome::length)?;
    Ok(Welcome::from_body(&body)?)
}

/// Receives the guest's first message and its descriptors, in order.
pub fn receive_hello(socket: impl AsFd, timeout: Duration) -> Result<(Hello, Vec<OwnedFd>), ControlError> {
    let (body, fds) = greeting(socket.as_fd(), timeout, Hello::length)?;
    Ok((Hello::from_body(&body)?, fds))
}

/// The process at the other end of a unix socket, as the kernel reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCredentials {
    /// 0: a process of another pid namespace, which has no number in this one.
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
}

impl PeerCredentials {
    /// Reads the credentials without rustix, whose type cannot represent process id 0.
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

/// The control socket after the greetings. Several threads may send as long as the socket's buffer
/// has room for 32 bytes; callers that may fill it use a lock.
pub struct ControlSocket {
    socket: KeptFile,
}

impl ControlSocket {
    pub fn new(socket: OwnedFd) -> Self {
        ControlSocket { socket: KeptFile::new(socket) }
    }

    /// False if the application closed the descriptor without this object's knowledge: daemons
    /// close all inherited descriptors, and the number may refer to another file since.
    pub fn intact(&self) -> bool {
        self.kept().is_some()
    }

    /// The descriptor; `None`: it is closed, or its number refers to another file.
    pub fn kept(&self) -> Option<BorrowedFd<'_>> {
        self.socket.get()
    }

    pub fn send(&self, message: Control, fd: Option<BorrowedFd>) -> Result<(), ControlError> {
        match fd {
            Some(fd) => send_all(self.as_fd(), &message.to_bytes(), &[fd]),
            None => send_all(self.as_fd(), &message.to_bytes(), &[]),
        }
    }

    /// Waits for the next message; `None`: the peer hung up. Called by one thread only.
    pub fn receive(&self) -> Result<Option<(Control, Option<OwnedFd>)>, ControlError> {
        self.receive_within(None)
    }

    fn receive_within(
        &self,
        deadline: Option<(Instant, Duration)>,
    ) -> Result<Option<(Control, Option<OwnedFd>)>, ControlError> {
        let (mut bytes, mut fds) = ([0; Control::CONTROL_BYTES], Vec::new());
        let received = receive_all(self.as_fd(), &mut bytes, &mut fds, deadline)?;
        Ok(received.map(|()| (Control::from_bytes(&bytes), fds.into_iter().next())))
    }

    /// Receives all bytes that follow a message. Called by one thread only.
    pub fn receive_rest(&self, bytes: &mut [u8]) -> Result<(), ControlError> {
        let deadline = Some((Instant::now() + MESSAGE_REMAINDER_TIMEOUT, MESSAGE_REMAINDER_TIMEOUT));
        receive_all(self.as_fd(), bytes, &mut Vec::new(), deadline)?.ok_or(ControlError::HungUp)
    }

    /// Receives a message if one has begun to arrive, as [`ControlSocket::receive`] does;
    /// `Ok(None)` also if there is none.
    pub fn try_receive(&self) -> Result<Option<(Control, Option<OwnedFd>)>, ControlError> {
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        match rustix::event::poll(&mut [PollFd::new(self, PollFlags::IN)], Some(&now)) {
            Ok(0) | Err(Errno::INTR) => Ok(None),
            Ok(_) => self.receive_within(Some((Instant::now() + MESSAGE_REMAINDER_TIMEOUT, MESSAGE_REMAINDER_TIMEOUT))),
            Err(e) => Err(failed("polling the control socket")(e)),
        }
    }

    /// Sleeps until the peer has hung up, or the descriptor refers to another file.
    pub fn await_hang_up(&self) {
        while self.intact() && self.alive() {
            let mut fds = [PollFd::new(self, PollFlags::RDHUP)];
            match rustix::event::poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    /// Ends the connection: both sides see a hang-up afterwards.
    pub fn hang_up(&self) {
        let both = rustix::net::Shutdown::Both;
        if let Some(socket) = self.kept()
            && rustix::net::shutdown(socket, both) == Err(Errno::NOTSOCK)
        {
            end_session(socket);
        }
    }

    /// True if the peer has read everything that was sent. False also if the kernel does not say so.
    pub fn is_read(&self) -> bool {
        let mut unread: libc::c_int = -1;
        // SAFETY: the request writes one int to `unread`, which lives through the call. The peer decides what the kernel counts,
        // and a wrong number only makes this side wait.
        let result = unsafe { libc::ioctl(self.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut unread) };
        result == 0 && unread == 0
    }

    /// True if the peer still holds its end. Unread messages do not matter.
    pub fn alive(&self) -> bool {
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(self, PollFlags::RDHUP)];
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        match rustix::event::poll(&mut fds, Some(&now)) {
            Ok(_) => !fds[0].revents().intersects(gone),
            Err(_) => true,
        }
    }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.number()
    }
}
