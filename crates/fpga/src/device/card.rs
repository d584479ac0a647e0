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
    asked: Asked,
    /// A process that has died had this connection, and the card has not said yet what it asked. The number of this one, which tells
    /// the answer from those to others that have died since.
    resumes: Option<u8>,
    replay: Replay,
}

/// What was asked of a card, as far as a process that goes on with its connection has to know it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// Requests until the VMM was last answered, also those of processes that had the connection before; while the card has not
    /// said what such a one asked, those that are known.
    pub requests: u64,
    /// The message with which that process died has been answered since, as far as that was possible without the card.
    pub is_over: bool,
    /// Requests that wait until the card says it: they are made in this order.
    pub held: Vec<Request>,
    /// So many of them may have been made: what follows the known requests begins with them.
    pub perhaps_made: usize,
}

/// Requests of one machine that are made or held while the card is silent. With one more the card counts as lost.
pub(super) const MOST_LATE: usize = 64;

/// A request that may be late: nobody waits for what it does. A machine's writes are of this kind, and vanish never: they are made
/// after all others, or the card is lost.
fn may_be_late(request: &Request) -> bool {
    matches!(request, Request::Write { .. } | Request::Reset)
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
        let (asked, replay) = (Asked::default(), Replay::default());
        CardSocket { socket, vmm: None, owed: 0, lives: true, asked, resumes: None, replay }
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

    /// Goes on with a connection on which this was asked when the VMM was last answered. `resumes`: by a process that has died since; another
    /// number than that of other processes.
    pub fn go_on(&mut self, asked: Asked, resumes: Option<u8>) {
        self.resumes = resumes.filter(|number| self.send(&Request::Resume { number: (*number).into() }, None).is_ok());
        self.asked = asked;
    }

    /// The card has not said yet what a process that has died had asked.
    pub fn is_unsettled(&self) -> bool {
        self.lives && self.resumes.is_some()
    }

    /// Before a message of the VMM: learns what the process that has died had asked, so that requests of the message that it had
    /// are made once, whichever of them the card has done. A card that does not say it in time is asked nothing in this message,
    /// and may say it later; `waits`: it is waited for also where it was with an earlier message. True: it was said, and no process knew it: it has to be kept, and then late requests are to be made
    /// ([`CardSocket::make_late`]), before the message is begun.
    pub fn settle(&mut self, waits: bool) -> bool {
        let waits = waits || !self.asked.is_over;
        let deadline = Instant::now() + if waits { ANSWER_TIMEOUT } else { Duration::ZERO };
        while self.is_unsettled() {
            // Answers that nobody has read come first.
            let Ok((reply, _)) = self.receive_any(deadline) else { return false };
            let [count, errno, value, number, .., mark] = reply.words;
            // A card of an earlier release repeats no number.
            if mark == RESUMED && (number == 0 || Some(number) == self.resumes.map(u64::from)) {
                let done = count.saturating_sub(self.asked.requests);
                let asked = &mut self.asked;
                let made = asked.perhaps_made.min(asked.held.len()).min(usize::try_from(done).unwrap_or(usize::MAX));
                asked.held.drain(..made);
                if !asked.is_over {
                    let last = Reply { errno: errno as u32, ..Reply::with(&[value]) };
                    self.replay = Replay { done: done - made as u64, again: 0, last };
                }
                let is_news = asked.is_over || made > 0 || !asked.held.is_empty();
                (asked.requests, asked.is_over, asked.perhaps_made) = (count, false, asked.held.len());
                (self.owed, self.resumes) = (0, None);
                return is_news;
            }
        }
        false
    }

    /// Makes the requests that have waited.
    pub fn make_late(&mut self) {
        for request in std::mem::take(&mut self.asked.held) {
            let _ = self.send(&request, None);
        }
        self.asked.perhaps_made = 0;
    }

    /// Nothing of a message that was begun by another process is left.
    pub fn end_of_message(&mut self) {
        self.replay = Replay::default();
        self.asked.is_over = self.resumes.is_some();
    }

    /// For another process, which goes on.
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// For a process that goes on.
    pub fn asked(&self) -> &Asked {
        &self.asked
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
        if self.resumes.is_some() {
            return self.hold(request);
        }
        if let Some(done) = self.replay.answer(request) {
            return Ok((done, None));
        }
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        if may_be_late(request) {
            self.receive_what_has_come();
        }
        while self.owed > 0 {
            if may_be_late(request) && (self.owed as usize) < MOST_LATE {
                return self.send(request, None).map(|()| (Reply::default(), None));
            }
            if let Err(CardLost) = self.receive(deadline) {
                // What the virtual machine has written would be lost, and the card with it.
                self.lives &= !may_be_late(request);
                return Err(CardLost);
            }
        }
        self.send(request, file)?;
        self.receive(deadline)
    }

    fn receive_what_has_come(&mut self) {
        let now = Instant::now();
        while self.owed > 0 && self.receive(now).is_ok() {}
    }

    /// Keeps a request until the card says what a process that has died had asked.
    fn hold(&mut self, request: &Request) -> Result<(Reply, Option<OwnedFd>), CardLost> {
        if !may_be_late(request) {
            return Err(CardLost);
        }
        if self.asked.held.len() >= MOST_LATE {
            self.lives = false;
            return Err(CardLost);
        }
        // The first request of the message with which that process died.
        if self.asked.held.is_empty() && !self.asked.is_over {
            self.asked.perhaps_made = 1;
        }
        self.asked.held.push(request.clone());
        Ok((Reply::default(), None))
    }

    fn send(&mut self, request: &Request, file: Option<OwnedFd>) -> Result<(), CardLost> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = file.iter().map(AsFd::as_fd).collect();
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        // The socket has room for all requests whose answers are owed.
        let sent = sendmsg(&self.socket, &[IoSlice::new(&request.to_bytes())], &mut ancillary, SendFlags::NOSIGNAL);
        // A node or card that takes no more clients answers before the first request, and hangs up.
        if !matches!(sent, Ok(_) | Err(Errno::PIPE | Errno::CONNRESET)) {
            self.lives = false;
            return Err(CardLost);
        }
        self.owed += 1;
        self.asked.requests += 1;
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

    fn connected() -> (CardSocket, OwnedFd) {
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (own, card) = pair.unwrap();
        (CardSocket::from(own), card)
    }

    fn asked(requests: u64) -> Asked {
        Asked { requests, ..Asked::default() }
    }

    fn write(value: u64) -> Request {
        Request::Write { offset: 0x40, bytes: 8, value }
    }

    /// The next request that the card has got.
    fn got(card: &OwnedFd) -> Option<Request> {
        let mut bytes = [0; MESSAGE_BYTES];
        let message = rustix::net::recv(card, &mut bytes, RecvFlags::DONTWAIT).ok()?;
        Request::parse(bytes.get(..message.0)?, 0).ok()
    }

    #[test]
    fn writes_to_a_silent_card_are_made_late_and_in_order() {
        let (mut own, card) = connected();
        own.owed = 1;
        for value in 1..MOST_LATE as u64 {
            assert_eq!(own.ask(&write(value), None), Ok(Ok(())));
        }
        assert_eq!((own.lives(), own.asked().requests), (true, MOST_LATE as u64 - 1));
        for value in 1..MOST_LATE as u64 {
            assert_eq!(got(&card), Some(write(value)));
        }
        // It answers again: the next one waits as usual.
        for _ in 0..=MOST_LATE {
            rustix::io::write(&card, &Reply::default().to_bytes()).unwrap();
        }
        assert_eq!(own.ask(&Request::Reset, None), Ok(Ok(())));
        assert!(!own.owes());
    }

    #[test]
    fn card_that_is_silent_for_too_many_writes_is_lost() {
        let (mut own, _card) = connected();
        own.owed = MOST_LATE as u32;
        // Whoever asks waits, and may ask again.
        assert_eq!((own.ask_words(&Request::Info, None), own.lives()), (Err(CardLost), true));
        assert_eq!((own.ask(&write(1), None), own.lives()), (Err(CardLost), false));
    }

    /// The card says how many requests it has done.
    fn say(card: &OwnedFd, count: u64, number: u32) {
        let resumed = Reply::with(&[count, 0, 0, number.into(), 0, 0, RESUMED]);
        rustix::io::write(card, &resumed.to_bytes()).unwrap();
    }

    /// A process goes on with a card that does not say what the one before had asked, until the machine has written thrice.
    fn silent_while_written(own: &mut CardSocket) {
        own.go_on(asked(5), Some(1));
        for value in 1..=3 {
            assert_eq!((own.ask(&write(value), None), own.lives()), (Ok(Ok(())), true));
            own.end_of_message();
        }
    }

    #[test]
    fn writes_are_made_once_where_a_process_dies_while_the_card_is_silent() {
        for made in [0, 1] {
            let (mut own, card) = connected();
            silent_while_written(&mut own);
            // The first of them may be that with which the process died. Another one dies, too, and its state is kept.
            let kept = own.asked().clone();
            assert_eq!((kept.requests, kept.held.len(), kept.perhaps_made), (5, 3, 1));
            own.go_on(kept, Some(2));
            for number in [1, 2] {
                assert_eq!(got(&card), Some(Request::Resume { number }));
                say(&card, 5 + made, number);
            }
            assert_eq!((got(&card), own.settle(true)), (None, true));
            let kept = own.asked().clone();
            own.make_late();
            for value in made + 1..=3 {
                assert_eq!(got(&card), Some(write(value)));
            }
            assert_eq!((got(&card), own.asked()), (None, &asked(8)));
            // One that dies before this is kept makes none of them again.
            own.go_on(kept, Some(3));
            // What the card has said to one that has died is not meant.
            say(&card, 5 + made, 2);
            say(&card, 8, 3);
            assert!(own.settle(true));
            assert_eq!((own.asked(), own.replay.done), (&asked(8), 0));
        }
    }

    #[test]
    fn card_that_never_says_what_it_was_asked_is_lost_with_too_many_writes() {
        let (mut own, _card) = connected();
        own.go_on(asked(5), Some(1));
        for value in 0..MOST_LATE as u64 {
            assert_eq!(own.ask(&write(value), None), Ok(Ok(())));
        }
        assert_eq!((own.ask(&write(64), None), own.lives()), (Err(CardLost), false));
    }

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
        let (mut own, card) = connected();
        let resumed = Reply::with(&[7, 0, 0, 0, 0, 0, RESUMED]);
        let info = |own: &mut CardSocket| own.ask_words(&Request::Info, None);
        own.go_on(asked(5), Some(1));
        // It is busy with what the process that has died had asked. The message is over, and then another one comes.
        assert!(!own.settle(true));
        assert_eq!((info(&mut own), own.lives(), own.asked().requests), (Err(CardLost), true, 5));
        own.end_of_message();
        // Two processes have asked, and one has died again. Of this message nothing was done.
        for reply in [Reply::default(), resumed, resumed, Reply::with(&[9])] {
            rustix::io::write(&card, &reply.to_bytes()).unwrap();
        }
        assert!(own.settle(true));
        assert_eq!(own.asked(), &asked(7));
        assert_eq!(info(&mut own).map(|told| told.map(|words| words[0])), Ok(Ok(9)));
        assert_eq!((own.asked().requests, own.owes(), own.settle(true)), (8, false, false));
    }

    #[test]
    fn process_that_goes_on_learns_what_was_done_since_the_last_message() {
        let (mut own, card) = connected();
        rustix::io::write(&card, &Reply::with(&[7, 12, 0, 0, 0, 0, RESUMED]).to_bytes()).unwrap();
        own.go_on(asked(5), Some(1));
        assert!(!own.settle(true));
        assert_eq!((own.asked.requests, own.replay.done, own.replay.last), (7, 2, Reply::refused(Errno::NOMEM)));
        assert_eq!(own.ask(&Request::Base { address: 0 }, None), Ok(Ok(())));
        assert_eq!(own.ask(&Request::Base { address: 0 }, None), Ok(Err(Errno::NOMEM)));
    }
}
