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

use crate::link::{MESSAGE_BYTES, RESUMED, Reply, Request};

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
    /// Requests so far, also those of processes that had this connection before.
    requests: u64,
    replay: Replay,
}

/// The requests of a message whose process has died before it answered: the card has done some of them already.
#[derive(Debug, Default)]
struct Replay {
    /// Requests that the card has done.
    done: u64,
    /// Those that were made again.
    again: u64,
    /// The answer to the last one that is done.
    last: Reply,
}

impl Replay {
    /// The answer to a request that must not be done twice, if it was done: all that came before the last one were no refusals,
    /// since the device went on. `None`: it is made, as for the first time.
    fn answer(&mut self, request: &Request) -> Option<Reply> {
        if self.again >= self.done {
            return None;
        }
        self.again += 1;
        let once = matches!(
            request,
            Request::Read { .. }
                | Request::Write { .. }
                | Request::Base { .. }
                | Request::State { .. }
                | Request::Memory { .. }
                | Request::Map { .. }
        );
        once.then(|| if self.again == self.done { self.last } else { Reply::default() })
    }
}

impl From<OwnedFd> for CardSocket {
    /// A connection to a card, which may have answered already that it takes no more clients.
    fn from(socket: OwnedFd) -> CardSocket {
        CardSocket { socket, vmm: None, owed: 0, lives: true, requests: 0, replay: Replay::default() }
    }
}

impl CardSocket {
    /// # Errors
    /// As socket(2) and connect(2).
    pub fn connect(path: &Path) -> Result<CardSocket, Errno> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(CardSocket::from(socket))
    }

    /// Requests were given up whose answers are still to come.
    pub fn owes(&self) -> bool {
        self.owed > 0
    }

    /// From now on the end of this connection ends a wait.
    pub fn watch(&mut self, vmm: OwnedFd) {
        self.vmm = Some(vmm);
    }

    /// Goes on with a connection on which so many requests were made. `resumes`: by a process that has died since.
    pub fn go_on(&mut self, requests: u64, resumes: bool) {
        self.requests = requests;
        if resumes {
            self.resume(requests);
        }
    }

    /// Goes on with the connection of a process that has died, which had made so many requests when it last answered its VMM.
    /// The requests of the message that comes next are made once, whichever of them the card has done.
    fn resume(&mut self, requests: u64) {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        if self.send(&Request::Resume, None).is_err() {
            return;
        }
        loop {
            // Answers that nobody has read come first.
            self.owed = self.owed.max(1);
            let Ok((reply, _)) = self.receive(deadline) else {
                self.lives = false;
                return;
            };
            let [count, errno, value, .., mark] = reply.words;
            if mark == RESUMED {
                let last = Reply { errno: errno as u32, ..Reply::with(&[value]) };
                self.replay = Replay { done: count.saturating_sub(requests), again: 0, last };
                (self.requests, self.owed) = (count, 0);
                return;
            }
        }
    }

    /// Nothing of a message that was begun by another process is left.
    pub fn end_of_message(&mut self) {
        self.replay = Replay::default();
    }

    /// For another process, which goes on.
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }

    pub fn requests(&self) -> u64 {
        self.requests
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
        if let Some(done) = self.replay.answer(request) {
            return Ok((done, None));
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
        self.requests += 1;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_are_done_are_not_made_again() {
        let map = Request::Map { address: 0, length: 4096, memory: 0, offset: 0, rights: aviary_card::Rights::Read };
        let memory = Request::Memory { id: 0, length: 4096, rights: aviary_card::Rights::Read };
        let last = Reply::refused(Errno::NOMEM);
        let mut replay = Replay { done: 2, again: 0, last };
        assert_eq!(replay.answer(&memory), Some(Reply::default()));
        assert_eq!(replay.answer(&map), Some(last));
        assert_eq!(replay.answer(&map), None);
        // A reset is made again.
        let mut replay = Replay { done: 2, again: 0, last };
        assert_eq!([Request::Reset, Request::Reset, map].map(|request| replay.answer(&request)), [None; 3]);
        assert_eq!(Replay::default().answer(&Request::Read { offset: 0, bytes: 8 }), None);
    }
}
