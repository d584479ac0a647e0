//! The device's own connection to its card: it is a client of the link like any program.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, socket_with,
};

use crate::link::{MESSAGE_BYTES, Reply, Request};

/// Time in which the card answers. A VMM stops its machine while it waits for an answer of ours, and gives up after 5 s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The card or the virtual machine has ended, or the card has not answered in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CardLost;

/// A card, as the device uses it.
pub trait Card {
    /// Sends a request, with a descriptor if it has one, and returns the words of the reply or its errno.
    ///
    /// # Errors
    /// No answer will come, or none came in time.
    fn ask(&mut self, request: &Request, file: Option<OwnedFd>) -> Result<Result<(), Errno>, CardLost> {
        Ok(self.ask_words(request, file)?.map(|_| ()))
    }

    /// The same with the words of the reply.
    ///
    /// # Errors
    /// As [`Card::ask`].
    fn ask_words(&mut self, request: &Request, file: Option<OwnedFd>) -> Result<Result<[u64; 7], Errno>, CardLost>;

    /// The descriptor that is readable after a vector was raised.
    ///
    /// # Errors
    /// As [`Card::ask`].
    fn event(&mut self, vector: u32) -> Result<Option<OwnedFd>, CardLost>;

    /// False: it has ended, and each further request fails.
    fn lives(&self) -> bool;
}

/// A card's socket.
#[derive(Debug)]
pub struct CardSocket {
    socket: OwnedFd,
    /// The end of the virtual machine's connection ends a wait for the card.
    vmm: Option<OwnedFd>,
    /// Replies to requests that were given up: they come before later ones.
    owed: u32,
    lives: bool,
}

impl CardSocket {
    /// # Errors
    /// As socket(2) and connect(2).
    pub fn connect(path: &Path) -> Result<CardSocket, Errno> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(CardSocket { socket, vmm: None, owed: 0, lives: true })
    }

    /// From now on the end of this connection ends a wait.
    pub fn watch(&mut self, vmm: OwnedFd) {
        self.vmm = Some(vmm);
    }

    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// The card has hung up.
    pub fn note_end(&mut self) {
        self.lives = false;
    }

    fn exchange(&mut self, request: &Request, file: Option<OwnedFd>) -> Result<(Reply, Option<OwnedFd>), CardLost> {
        if !self.lives {
            return Err(CardLost);
        }
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        while self.owed > 0 {
            self.receive(deadline)?;
        }
        self.send(request, file)?;
        self.receive(deadline)
    }

    fn send(&mut self, request: &Request, file: Option<OwnedFd>) -> Result<(), CardLost> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = file.iter().map(AsFd::as_fd).collect();
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        // A reply that a card owes is waited for first, so the socket has room for one request.
        let sent = sendmsg(&self.socket, &[IoSlice::new(&request.to_bytes())], &mut ancillary, SendFlags::NOSIGNAL);
        // A node or card that takes no more clients answers before the first request, and hangs up.
        if !matches!(sent, Ok(_) | Err(Errno::PIPE | Errno::CONNRESET)) {
            self.lives = false;
            return Err(CardLost);
        }
        self.owed += 1;
        Ok(())
    }

    fn receive(&mut self, deadline: Instant) -> Result<(Reply, Option<OwnedFd>), CardLost> {
        self.await_reply(deadline)?;
        let mut bytes = [0; MESSAGE_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut receive = || recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags);
        // The kernel tells once that a request was not read before it gives the answer that came earlier.
        let received = receive().or_else(|errno| if errno == Errno::CONNRESET { receive() } else { Err(errno) });
        if received.map(|message| message.bytes) != Ok(MESSAGE_BYTES) {
            self.lives = false;
            return Err(CardLost);
        }
        self.owed -= 1;
        let rights = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        Ok((Reply::from_bytes(&bytes), rights))
    }

    fn await_reply(&self, deadline: Instant) -> Result<(), CardLost> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut polled = vec![PollFd::new(&self.socket, PollFlags::IN)];
            polled.extend(self.vmm.iter().map(|vmm| PollFd::new(vmm, PollFlags::empty())));
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut polled, Some(&timeout)) {
                Ok(0) => return Err(CardLost),
                Ok(_) if polled[0].revents().is_empty() => return Err(CardLost),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(_) => return Err(CardLost),
            }
        }
    }
}

impl Card for CardSocket {
    fn ask_words(&mut self, request: &Request, file: Option<OwnedFd>) -> Result<Result<[u64; 7], Errno>, CardLost> {
        let (reply, _) = self.exchange(request, file)?;
        Ok(reply.result())
    }

    fn event(&mut self, vector: u32) -> Result<Option<OwnedFd>, CardLost> {
        Ok(self.exchange(&Request::Interrupt { vector }, None)?.1)
    }

    fn lives(&self) -> bool {
        self.lives
    }
}
