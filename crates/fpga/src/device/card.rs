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
    /// As many of them as were made when the VMM was last answered; [`UNKNOWN`]: none was made since.
    answered: u64,
    /// A process that has died had this connection, and the card has not said yet what it asked.
    resumes: bool,
    replay: Replay,
}

/// The count of requests of a process that went on with a connection and has not learnt it.
const UNKNOWN: u64 = u64::MAX;

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
    /// The answer to a request that must not be done twice, if it was done: that of all that came before the last one is known,
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
                | Request::Unmap { .. }
        );
        let earlier = || match request {
            // A second one is made only where the first was refused for this. In a reset, where others follow, nothing counts it.
            Request::Unmap { .. } => Reply::refused(Errno::TOOBIG),
            _ => Reply::default(),
        };
        once.then(|| if self.again == self.done { self.last } else { earlier() })
    }
}

impl From<OwnedFd> for CardSocket {
    /// A connection to a card, which may have answered already that it takes no more clients.
    fn from(socket: OwnedFd) -> CardSocket {
        let replay = Replay::default();
        CardSocket { socket, vmm: None, owed: 0, lives: true, requests: 0, answered: 0, resumes: false, replay }
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

    /// Goes on with a connection on which so many requests were made when the VMM was last answered. `resumes`: by a process that
    /// has died since.
    pub fn go_on(&mut self, requests: u64, resumes: bool) {
        (self.requests, self.answered) = (requests, requests);
        self.resumes = resumes && self.send(&Request::Resume, None).is_ok();
    }

    /// Before a message of the VMM: learns what the process that has died had asked, so that requests of the message that it had
    /// are made once, whichever of them the card has done. A card that does not say it in time is asked nothing in this message,
    /// and may say it later. True: it was said, and no process knew it: it has to be kept before the message is begun.
    pub fn settle(&mut self) -> bool {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        while self.resumes && self.lives {
            // Answers that nobody has read come first.
            let Ok((reply, _)) = self.receive_any(deadline) else { return false };
            let [count, errno, value, .., mark] = reply.words;
            if mark == RESUMED {
                let last = Reply { errno: errno as u32, ..Reply::with(&[value]) };
                self.replay = Replay { done: count.saturating_sub(self.answered), again: 0, last };
                (self.requests, self.owed, self.resumes) = (count, 0, false);
                return self.answered == UNKNOWN;
            }
        }
        false
    }

    /// Nothing of a message that was begun by another process is left.
    pub fn end_of_message(&mut self) {
        self.replay = Replay::default();
        self.answered = self.requests();
    }

    /// For another process, which goes on.
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Requests so far, for a process that goes on.
    pub fn requests(&self) -> u64 {
        if self.resumes { UNKNOWN } else { self.requests }
    }

    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// The card has hung up.
    pub fn note_end(&mut self) {
        self.lives = false;
    }

    fn exchange(&mut self, request: &Request, file: Option<OwnedFd>) -> Result<(Reply, Option<OwnedFd>), CardLost> {
        if !self.lives || self.resumes {
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

    /// The next answer. Those to processes that have asked to resume and died are none.
    fn receive(&mut self, deadline: Instant) -> Result<(Reply, Option<OwnedFd>), CardLost> {
        loop {
            let owed = self.owed;
            let received = self.receive_any(deadline)?;
            if received.0.words[6] != RESUMED {
                return Ok(received);
            }
            self.owed = owed;
        }
    }

    fn receive_any(&mut self, deadline: Instant) -> Result<(Reply, Option<OwnedFd>), CardLost> {
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
        self.owed = self.owed.saturating_sub(1);
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

/// A card of tests that answers or does not.
#[cfg(test)]
#[derive(Debug)]
pub(super) struct SlowCard {
    pub answers: bool,
    pub lives: bool,
    pub done: Vec<Request>,
}

#[cfg(test)]
impl Card for SlowCard {
    fn ask_words(&mut self, request: &Request, _: Option<OwnedFd>) -> Result<Result<[u64; 7], Errno>, CardLost> {
        if !self.answers {
            return Err(CardLost);
        }
        self.done.push(request.clone());
        Ok(Ok([0; 7]))
    }

    fn event(&mut self, _: u32) -> Result<Option<OwnedFd>, CardLost> {
        Ok(None)
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
        // An unmap that was refused, and the one in its place.
        let unmap = Request::Unmap { address: 0, length: 4096 };
        let mut replay = Replay { done: 2, again: 0, last: Reply::default() };
        assert_eq!(replay.answer(&unmap), Some(Reply::refused(Errno::TOOBIG)));
        assert_eq!([replay.answer(&unmap), replay.answer(&unmap)], [Some(Reply::default()), None]);
        // A reset is made again.
        let mut replay = Replay { done: 2, again: 0, last };
        assert_eq!([Request::Reset, Request::Reset, map].map(|request| replay.answer(&request)), [None; 3]);
        assert_eq!(Replay::default().answer(&Request::Read { offset: 0, bytes: 8 }), None);
    }

    #[test]
    fn card_that_says_late_what_it_was_asked_is_not_lost() {
        let (own, card) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let resumed = Reply::with(&[7, 0, 0, 0, 0, 0, RESUMED]);
        let info = |own: &mut CardSocket| own.ask_words(&Request::Info, None);
        let mut own = CardSocket::from(own);
        own.go_on(5, true);
        // It is busy with what the process that has died had asked. The message is over, and then another one comes.
        assert!(!own.settle());
        assert_eq!((info(&mut own), own.lives(), own.requests()), (Err(CardLost), true, UNKNOWN));
        own.end_of_message();
        // Two processes have asked, and one has died again. Of this message nothing was done.
        for reply in [Reply::default(), resumed, resumed, Reply::with(&[9])] {
            rustix::io::write(&card, &reply.to_bytes()).unwrap();
        }
        assert!(own.settle());
        assert_eq!(own.requests(), 7);
        assert_eq!(info(&mut own).map(|told| told.map(|words| words[0])), Ok(Ok(9)));
        assert_eq!((own.requests(), own.owes(), own.settle()), (8, false, false));
    }

    #[test]
    fn process_that_goes_on_learns_what_was_done_since_the_last_message() {
        let (own, card) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        rustix::io::write(&card, &Reply::with(&[7, 12, 0, 0, 0, 0, RESUMED]).to_bytes()).unwrap();
        let mut own = CardSocket::from(own);
        own.go_on(5, true);
        assert!(!own.settle());
        assert_eq!((own.requests(), own.replay.done, own.replay.last), (7, 2, Reply::refused(Errno::NOMEM)));
        assert_eq!(own.ask(&Request::Base { address: 0 }, None), Ok(Ok(())));
        assert_eq!(own.ask(&Request::Base { address: 0 }, None), Ok(Err(Errno::NOMEM)));
    }
}
