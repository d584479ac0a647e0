//! Bytes that wait to be written to an API server's socket; the device never blocks on it.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use aviary_wire::Control;
use aviary_wire::control::control_kind;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Bytes that may wait.
const MAX_QUEUED_BYTES: usize = 4 << 20;
/// Words that may wait to be woken.
const MAX_QUEUED_WAKES: usize = 4096;
/// Bound of the descriptors in flight to an API server that it has not answered: the kernel counts
/// those of all of a user's processes together.
const MAX_FILES_IN_FLIGHT: usize = 16;

/// the API server does not read its socket: too many messages or wake-ups wait for it
#[derive(Debug, thiserror::Error, displaydoc::Display, PartialEq, Eq)]
pub struct Overflow;

#[derive(Debug)]
struct Message {
    bytes: Vec<u8>,
    file: Option<Arc<File>>,
}

/// Bytes in order. A wake may overtake messages that wait longer, but never goes into the middle of
/// a message.
#[derive(Debug, Default)]
pub struct Outbox {
    messages: VecDeque<Message>,
    waiting: usize,
    wakes: BTreeSet<u64>,
    /// Bytes of the first message that have been written.
    written: usize,
    /// Messages with a descriptor that were sent and not answered.
    files: usize,
}

impl Outbox {
    pub fn push(&mut self, bytes: Vec<u8>, file: Option<Arc<File>>) -> Result<(), Overflow> {
        if self.waiting + bytes.len() > MAX_QUEUED_BYTES {
            return Err(Overflow);
        }
        self.waiting += bytes.len();
        self.messages.push_back(Message { bytes, file });
        Ok(())
    }

    /// Queues a wake. Each word is queued once.
    pub fn wake(&mut self, offset: u64) -> Result<(), Overflow> {
        self.wakes.insert(offset);
        if self.wakes.len() > MAX_QUEUED_WAKES { Err(Overflow) } else { Ok(()) }
    }

    /// True if a part of the first message was written.
    pub fn is_within_message(&self) -> bool {
        self.written > 0
    }

    /// Notes that a message with a descriptor was answered.
    pub fn answered(&mut self) {
        self.files = self.files.saturating_sub(1);
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// True if there is something that may be written when the socket has room.
    pub fn wants_room(&self) -> bool {
        !self.wakes.is_empty() || self.messages.front().is_some_and(|first| self.may_go(first))
    }

    fn may_go(&self, first: &Message) -> bool {
        first.file.is_none() || self.files < MAX_FILES_IN_FLIGHT || self.written > 0
    }

    /// Writes as much as the socket takes. An error: the peer is gone.
    pub fn flush(&mut self, socket: impl AsFd) -> Result<(), Errno> {
        loop {
            self.insert_wakes();
            let Some(first) = self.messages.front().filter(|first| self.may_go(first)) else { return Ok(()) };
            // The descriptor is sent with the first byte.
            let file = first.file.as_ref().filter(|_| self.written == 0);
            match send(socket.as_fd(), &first.bytes[self.written..], file.map(AsFd::as_fd)) {
                Ok(sent) => self.advance(sent),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }

    fn insert_wakes(&mut self) {
        if self.written > 0 {
            return;
        }
        while let Some(offset) = self.wakes.pop_last() {
            let control = Control { kind: control_kind::WAKE, offset, ..Control::default() };
            self.waiting += Control::CONTROL_BYTES;
            self.messages.push_front(Message { bytes: control.to_bytes().to_vec(), file: None });
        }
    }

    fn advance(&mut self, sent: usize) {
        let Some(first) = self.messages.front() else { return };
        if self.written == 0 && first.file.is_some() {
            self.files += 1;
        }
        self.waiting = self.waiting.saturating_sub(sent);
        self.written += sent;
        if self.written >= first.bytes.len() {
            self.written = 0;
            self.messages.pop_front();
        }
    }
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn nothing_is_lost_when_the_socket_is_full() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let mut outbox = Outbox::default();
        let message = |n: u8| vec![n; 10_000];
        for n in 0..100 {
            outbox.push(message(n), None).unwrap();
        }
        outbox.flush(&ours).unwrap();
        assert!(outbox.wants_room());
        outbox.wake(64).unwrap();
        outbox.wake(64).unwrap();
        let (mut received, mut buffer) = (Vec::new(), [0; 5_000]);
        while outbox.wants_room() || received.len() < 1_000_032 {
            outbox.flush(&ours).unwrap();
            let n = theirs.read(&mut buffer).unwrap_or(0);
            received.extend_from_slice(&buffer[..n]);
        }
        assert_eq!((received.len(), outbox.waiting), (1_000_032, 0));
        let wake = Control { kind: control_kind::WAKE, offset: 64, ..Control::default() }.to_bytes();
        let at = received.windows(32).position(|bytes| bytes == wake).unwrap();
        assert_eq!(at % 10_000, 0, "a wake went into the middle of a message");
        received.drain(at..at + 32);
        assert_eq!(received, (0..100).flat_map(message).collect::<Vec<_>>());
    }

    #[test]
    fn outbox_is_bounded() {
        let mut outbox = Outbox::default();
        assert_eq!(outbox.push(vec![0; MAX_QUEUED_BYTES], None), Ok(()));
        assert_eq!(outbox.push(vec![0], None), Err(Overflow));
        let full = (0..).map(|n| outbox.wake(n)).position(|result| result.is_err());
        assert_eq!(full, Some(MAX_QUEUED_WAKES));
    }

    #[test]
    fn descriptors_in_flight_are_bounded() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (mut outbox, file) = (Outbox::default(), Arc::new(File::open("/dev/null").unwrap()));
        for _ in 0..MAX_FILES_IN_FLIGHT + 1 {
            outbox.push(vec![1], Some(file.clone())).unwrap();
        }
        outbox.flush(&ours).unwrap();
        assert_eq!((outbox.waiting, outbox.wants_room()), (1, false));
        outbox.answered();
        outbox.flush(&ours).unwrap();
        assert_eq!(outbox.waiting, 0);
    }
}
