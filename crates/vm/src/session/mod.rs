//! One open `/dev/aviary`: its requests in flight, and the events that the guest has not received.
//! No I/O but the outbox's.

pub(crate) mod outbox;
pub(crate) mod ranges;
pub(crate) mod stream;

use std::collections::{BTreeSet, VecDeque};

use aviary_wire::Control;
use aviary_wire::control::control_kind;
use rustix::io::Errno;

use crate::memory::MappedFragment;
use crate::request::Range;
use crate::session::outbox::{Outbox, Overflow};
use crate::session::ranges::Ranges;
use crate::session::stream::{GuestStream, Said, ServerStream, StreamError};

/// Number of a request that is answered later.
pub type Ticket = u64;

#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub ticket: Ticket,
    pub result: Result<(), Errno>,
}

/// An event for the events queue.
#[derive(Debug, PartialEq, Eq)]
pub enum SessionEvent {
    Data(Vec<u8>),
    Wake(u64),
    Closed,
}

/// Bytes that may wait for the guest; beyond, the socket is not read.
const MAX_QUEUED_BYTES: usize = 16 << 10;
/// Words that may wait to be woken in the guest.
const MAX_QUEUED_WAKES: usize = 4096;
const MAX_ERRNO: u32 = 4095;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionState {
    Open,
    /// Ended from this side: the API server was told, and has not hung up. It may still access the
    /// memory.
    Ending,
    /// The API server has hung up.
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MemoryOperation {
    Map,
    Unmap,
    /// Unmaps the part that a failed `Map` has mapped already.
    Undo(Errno),
}

/// A request about memory in flight to the API server.
#[derive(Debug)]
struct MemoryRequest {
    ticket: Ticket,
    operation: MemoryOperation,
    range: Range,
    /// Answers of the API server that are still missing.
    left: usize,
    failed: Option<Errno>,
}

#[derive(Debug)]
pub struct Session {
    /// The process id in the guest.
    pid: u32,
    state: SessionState,
    from_guest: GuestStream,
    from_server: ServerStream,
    ranges: Ranges,
    /// Requests in flight, in the order in which the API server answers.
    requests: VecDeque<MemoryRequest>,
    pub outbox: Outbox,
    data: VecDeque<u8>,
    wakes: BTreeSet<u64>,
    closed: bool,
    close: Option<Ticket>,
    answers: Vec<Answer>,
}

impl Session {
    pub fn new(pid: u32) -> Self {
        Session {
            pid,
            state: SessionState::Open,
            from_guest: GuestStream::default(),
            from_server: ServerStream::default(),
            ranges: Ranges::default(),
            requests: VecDeque::new(),
            outbox: Outbox::default(),
            data: VecDeque::new(),
            wakes: BTreeSet::new(),
            closed: false,
            close: None,
            answers: Vec::new(),
        }
    }

    // Requests of the driver.

    /// Passes bytes of the guest on. The outer error ends the session and gives the reason for the
    /// log; the inner one is the guest's answer.
    pub fn send(&mut self, bytes: &[u8]) -> Result<Result<(), Errno>, SessionError> {
        if self.state != SessionState::Open {
            return Ok(Err(Errno::PIPE));
        }
        let out = self.from_guest.pass(bytes, self.pid)?;
        if !out.is_empty() {
            self.outbox.push(out, None)?;
        }
        Ok(Ok(()))
    }

    /// Claims a range for mapping; a refusal has no effect.
    fn claim(&mut self, range: Range) -> Result<(), Errno> {
        if self.state != SessionState::Open {
            return Err(Errno::PIPE);
        }
        if self.from_guest.arena().is_none_or(|size| range.end() > size) {
            return Err(Errno::INVAL);
        }
        self.ranges.claim(range)
    }

    pub fn map(
        &mut self,
        ticket: Ticket,
        range: Range,
        flags: u64,
        fragments: Vec<MappedFragment>,
    ) -> Result<(), SessionError> {
        if let Err(errno) = self.claim(range) {
            self.answer(ticket, Err(errno));
            return Ok(());
        }
        self.requests.push_back(MemoryRequest {
            ticket,
            operation: MemoryOperation::Map,
            range,
            left: fragments.len(),
            failed: None,
        });
        let mut offset = range.offset;
        for fragment in fragments {
            let lane = fragment.extents.len() as u32;
            let control = Control { kind: control_kind::MEMORY_MAP, lane, offset, length: fragment.length, flags };
            let mut bytes = control.to_bytes().to_vec();
            for (start, length) in fragment.extents {
                bytes.extend_from_slice(&start.to_le_bytes());
                bytes.extend_from_slice(&length.to_le_bytes());
            }
            offset += fragment.length;
            self.outbox.push(bytes, Some(fragment.file))?;
        }
        Ok(())
    }

    pub fn unmap(&mut self, ticket: Ticket, range: Range) -> Result<(), SessionError> {
        let ready = if self.state == SessionState::Gone { Err(Errno::PIPE) } else { self.ranges.withdraw(range) };
        match (ready, self.state) {
            (Err(errno), _) => {
                self.answer(ticket, Err(errno));
                Ok(())
            }
            (Ok(()), SessionState::Open) => self.send_unmap(ticket, MemoryOperation::Unmap, range),
            // The API server receives nothing any more; the request is answered when it hangs up.
            (Ok(()), _) => {
                self.requests.push_back(MemoryRequest {
                    ticket,
                    operation: MemoryOperation::Unmap,
                    range,
                    left: 1,
                    failed: None,
                });
                Ok(())
            }
        }
    }

    fn send_unmap(&mut self, ticket: Ticket, operation: MemoryOperation, range: Range) -> Result<(), SessionError> {
        self.requests.push_back(MemoryRequest { ticket, operation, range, left: 1, failed: None });
        let Range { offset, length } = range;
        let control = Control { kind: control_kind::MEMORY_UNMAP, offset, length, ..Control::default() };
        Ok(self.outbox.push(control.to_bytes().to_vec(), None)?)
    }

    /// Rings the doorbell of a word. A word outside the arena has no sleeper and is ignored.
    pub fn ring(&mut self, offset: u64) -> Result<(), SessionError> {
        let inside = self.from_guest.arena().is_some_and(|size| offset.is_multiple_of(4) && offset < size);
        if self.state == SessionState::Open && inside {
            self.outbox.wake(offset)?;
        }
        Ok(())
    }

    /// Closes the session; the answer follows when the API server has hung up. True: the API server
    /// must be told.
    pub fn close(&mut self, ticket: Ticket) -> bool {
        if self.close.is_some() {
            self.answer(ticket, Err(Errno::NODEV));
            return false;
        }
        self.data.clear();
        self.wakes.clear();
        self.closed = false;
        if self.state == SessionState::Gone {
            self.close = Some(ticket);
            self.answer(ticket, Ok(()));
            return false;
        }
        self.close = Some(ticket);
        self.end()
    }

    /// Ends the session. True if it was open: the API server must be told.
    pub fn end(&mut self) -> bool {
        let was_open = self.state == SessionState::Open;
        if was_open {
            self.state = SessionState::Ending;
            self.outbox.clear();
        }
        was_open
    }

    /// Ends the session because the guest's memory has another meaning from now on: the API server lets go of it
    /// before anything else. True: there is a message for it.
    pub fn revoke_memory(&mut self) -> bool {
        // A message cannot go into the middle of another one, nor before the greeting.
        let may_tell = !self.outbox.is_within_message() && self.from_guest.arena().is_some();
        if !self.end() || !may_tell {
            return false;
        }
        let control = Control { kind: control_kind::WINDOW_CLOSE, ..Control::default() };
        self.outbox.push(control.to_bytes().to_vec(), None).is_ok()
    }

    // Messages of the API server.

    pub fn hear(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        if self.state != SessionState::Open {
            return Ok(());
        }
        let mut received = Vec::new();
        self.from_server.pass(bytes, |word| received.push(word))?;
        for word in received {
            match word {
                Said::Bytes(bytes) if self.close.is_none() => self.data.extend(bytes),
                Said::Bytes(_) => {}
                Said::Wake(offset) => {
                    self.wakes.insert(offset);
                    if self.wakes.len() > MAX_QUEUED_WAKES {
                        return Err(SessionError::Wakes);
                    }
                }
                Said::Done(errno) => self.carried_out(errno)?,
            }
        }
        Ok(())
    }

    fn carried_out(&mut self, errno: u32) -> Result<(), SessionError> {
        let request = self.requests.front_mut().ok_or(StreamError::Unasked)?;
        let failed = match errno {
            0 => None,
            1..=MAX_ERRNO => Some(Errno::from_raw_os_error(errno as i32)),
            _ => Some(Errno::IO),
        };
        request.failed = request.failed.or(failed);
        request.left = request.left.saturating_sub(1);
        if request.operation == MemoryOperation::Map {
            self.outbox.answered();
        }
        if request.left > 0 {
            return Ok(());
        }
        let Some(MemoryRequest { ticket, operation, range, failed, .. }) = self.requests.pop_front() else {
            return Ok(());
        };
        match (operation, failed) {
            (MemoryOperation::Map, None) => {
                self.ranges.settle(range, true);
                self.answer(ticket, Ok(()));
            }
            // Some of its fragments may be mapped.
            (MemoryOperation::Map, Some(errno)) => return self.send_unmap(ticket, MemoryOperation::Undo(errno), range),
            (MemoryOperation::Unmap, None) => {
                self.ranges.settle(range, false);
                self.answer(ticket, Ok(()));
            }
            (MemoryOperation::Unmap, Some(errno)) => {
                self.ranges.settle(range, true);
                self.answer(ticket, Err(errno));
            }
            (MemoryOperation::Undo(errno), None) => {
                self.ranges.settle(range, false);
                self.answer(ticket, Err(errno));
            }
            // The request is answered when the API server has ended.
            (MemoryOperation::Undo(_), Some(_)) => {
                self.requests.push_front(MemoryRequest { ticket, operation, range, left: 1, failed });
                return Err(SessionError::Stuck);
            }
        }
        Ok(())
    }

    /// Notes that the API server has hung up: it accesses the memory no more.
    pub fn hung_up(&mut self) {
        if self.state == SessionState::Gone {
            return;
        }
        self.state = SessionState::Gone;
        self.outbox.clear();
        let requests = std::mem::take(&mut self.requests);
        requests.iter().for_each(|request| self.answer(request.ticket, Err(Errno::PIPE)));
        self.ranges = Ranges::default();
        match self.close {
            Some(ticket) => self.answer(ticket, Ok(())),
            None => self.closed = true,
        }
    }

    // The device's next steps.

    fn answer(&mut self, ticket: Ticket, result: Result<(), Errno>) {
        self.answers.push(Answer { ticket, result });
    }

    pub fn take_answers(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.answers)
    }

    pub fn has_events(&self) -> bool {
        !self.data.is_empty() || !self.wakes.is_empty() || self.closed
    }

    /// The next event, for a buffer with room for `room` bytes of data.
    pub fn next_event(&mut self, room: usize) -> Option<SessionEvent> {
        if let Some(offset) = self.wakes.pop_first() {
            return Some(SessionEvent::Wake(offset));
        }
        if !self.data.is_empty() {
            let length = self.data.len().min(room);
            return Some(SessionEvent::Data(self.data.drain(..length).collect()));
        }
        std::mem::take(&mut self.closed).then_some(SessionEvent::Closed)
    }

    /// True if the socket may be read: received bytes must first be taken by the guest.
    pub fn wants_to_read(&self) -> bool {
        match self.state {
            SessionState::Open => self.data.len() < MAX_QUEUED_BYTES,
            SessionState::Ending => true,
            SessionState::Gone => false,
        }
    }

    /// True if the session can be dropped: the guest has closed it and the API server has hung up.
    pub fn is_over(&self) -> bool {
        self.state == SessionState::Gone && self.close.is_some()
    }

    pub fn mapped(&self) -> usize {
        self.ranges.len()
    }
}

/// The reason why a session ends although both sides are alive.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum SessionError {
    /// {0}
    Stream(#[from] StreamError),
    /// {0}
    Overflow(#[from] Overflow),
    /// the guest's driver does not read its wake-ups
    Wakes,
    /// the API server could neither map the guest's memory nor unmap it again
    Stuck,
}
