//! One open `/dev/aviary`: what was asked, what is under way, what the guest has yet to hear. No I/O but the outbox's.

use std::collections::{BTreeSet, VecDeque};

use aviary_wire::Control;
use aviary_wire::control::control_kind;
use rustix::io::Errno;

use crate::memory::Piece;
use crate::outbox::{Outbox, Overflow};
use crate::ranges::Ranges;
use crate::request::Range;
use crate::stream::{GuestStream, Said, ServerStream, StreamError};

/// A request that is answered later.
pub type Ticket = u64;

#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub ticket: Ticket,
    pub result: Result<(), Errno>,
}

/// For the events queue.
#[derive(Debug, PartialEq, Eq)]
pub enum News {
    Data(Vec<u8>),
    Wake(u64),
    Closed,
}

/// Bytes that may wait for the guest; then the socket is not read any more.
const MOST_DATA: usize = 16 << 10;
/// Words that may wait to be woken in the guest.
const MOST_WAKES: usize = 4096;
const LARGEST_ERRNO: u32 = 4095;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Open,
    /// Ended from this side: the API server is told, and has yet to hang up. Until then it may touch the memory.
    Ending,
    /// The API server has hung up.
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    Map,
    Unmap,
    /// Of what a failed `Map` has mapped already.
    Undo(Errno),
}

/// A request about memory that the API server carries out.
#[derive(Debug)]
struct Job {
    ticket: Ticket,
    task: Task,
    range: Range,
    /// Answers that are still to come.
    left: usize,
    failed: Option<Errno>,
}

#[derive(Debug)]
pub struct Session {
    /// The process id in the guest.
    pid: u32,
    life: Life,
    from_guest: GuestStream,
    from_server: ServerStream,
    ranges: Ranges,
    /// In the order in which the API server answers.
    jobs: VecDeque<Job>,
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
            life: Life::Open,
            from_guest: GuestStream::default(),
            from_server: ServerStream::default(),
            ranges: Ranges::default(),
            jobs: VecDeque::new(),
            outbox: Outbox::default(),
            data: VecDeque::new(),
            wakes: BTreeSet::new(),
            closed: false,
            close: None,
            answers: Vec::new(),
        }
    }

    // What the driver asks.

    /// The error ends the session: an answer for the guest and a reason for the log.
    pub fn send(&mut self, bytes: &[u8]) -> Result<Result<(), Errno>, SessionError> {
        if self.life != Life::Open {
            return Ok(Err(Errno::PIPE));
        }
        let out = self.from_guest.pass(bytes, self.pid)?;
        if !out.is_empty() {
            self.outbox.push(out, None)?;
        }
        Ok(Ok(()))
    }

    /// Whether a range may be mapped now; what is refused has no effect.
    fn claim(&mut self, range: Range) -> Result<(), Errno> {
        if self.life != Life::Open {
            return Err(Errno::PIPE);
        }
        if self.from_guest.arena().is_none_or(|size| range.end() > size) {
            return Err(Errno::INVAL);
        }
        self.ranges.claim(range)
    }

    pub fn map(&mut self, ticket: Ticket, range: Range, flags: u64, pieces: Vec<Piece>) -> Result<(), SessionError> {
        if let Err(errno) = self.claim(range) {
            self.answer(ticket, Err(errno));
            return Ok(());
        }
        self.jobs.push_back(Job { ticket, task: Task::Map, range, left: pieces.len(), failed: None });
        let mut offset = range.offset;
        for piece in pieces {
            let lane = piece.extents.len() as u32;
            let control = Control { kind: control_kind::MEMORY_MAP, lane, offset, length: piece.length, flags };
            let mut bytes = control.to_bytes().to_vec();
            for (start, length) in piece.extents {
                bytes.extend_from_slice(&start.to_le_bytes());
                bytes.extend_from_slice(&length.to_le_bytes());
            }
            offset += piece.length;
            self.outbox.push(bytes, Some(piece.file))?;
        }
        Ok(())
    }

    pub fn unmap(&mut self, ticket: Ticket, range: Range) -> Result<(), SessionError> {
        let ready = if self.life == Life::Gone { Err(Errno::PIPE) } else { self.ranges.withdraw(range) };
        match (ready, self.life) {
            (Err(errno), _) => {
                self.answer(ticket, Err(errno));
                Ok(())
            }
            (Ok(()), Life::Open) => self.send_unmap(ticket, Task::Unmap, range),
            // The API server hears nothing any more; its end answers.
            (Ok(()), _) => {
                self.jobs.push_back(Job { ticket, task: Task::Unmap, range, left: 1, failed: None });
                Ok(())
            }
        }
    }

    fn send_unmap(&mut self, ticket: Ticket, task: Task, range: Range) -> Result<(), SessionError> {
        self.jobs.push_back(Job { ticket, task, range, left: 1, failed: None });
        let Range { offset, length } = range;
        let control = Control { kind: control_kind::MEMORY_UNMAP, offset, length, ..Control::default() };
        Ok(self.outbox.push(control.to_bytes().to_vec(), None)?)
    }

    /// The doorbell: nobody sleeps at a word outside the arena.
    pub fn ring(&mut self, offset: u64) -> Result<(), SessionError> {
        let inside = self.from_guest.arena().is_some_and(|size| offset.is_multiple_of(4) && offset < size);
        if self.life == Life::Open && inside {
            self.outbox.wake(offset)?;
        }
        Ok(())
    }

    /// Answered when the API server has hung up. True: the API server is to be told.
    pub fn close(&mut self, ticket: Ticket) -> bool {
        if self.close.is_some() {
            self.answer(ticket, Err(Errno::NODEV));
            return false;
        }
        self.data.clear();
        self.wakes.clear();
        self.closed = false;
        if self.life == Life::Gone {
            self.close = Some(ticket);
            self.answer(ticket, Ok(()));
            return false;
        }
        self.close = Some(ticket);
        self.end()
    }

    /// True if it was not ending yet: the API server is to be told.
    pub fn end(&mut self) -> bool {
        let was_open = self.life == Life::Open;
        if was_open {
            self.life = Life::Ending;
            self.outbox.clear();
        }
        was_open
    }

    // What the API server does.

    pub fn hear(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        if self.life != Life::Open {
            return Ok(());
        }
        let mut said = Vec::new();
        self.from_server.pass(bytes, |word| said.push(word))?;
        for word in said {
            match word {
                Said::Bytes(bytes) if self.close.is_none() => self.data.extend(bytes),
                Said::Bytes(_) => {}
                Said::Wake(offset) => {
                    self.wakes.insert(offset);
                    if self.wakes.len() > MOST_WAKES {
                        return Err(SessionError::Wakes);
                    }
                }
                Said::Done(errno) => self.carried_out(errno)?,
            }
        }
        Ok(())
    }

    fn carried_out(&mut self, errno: u32) -> Result<(), SessionError> {
        let job = self.jobs.front_mut().ok_or(StreamError::Unasked)?;
        let failed = match errno {
            0 => None,
            1..=LARGEST_ERRNO => Some(Errno::from_raw_os_error(errno as i32)),
            _ => Some(Errno::IO),
        };
        job.failed = job.failed.or(failed);
        job.left = job.left.saturating_sub(1);
        if job.task == Task::Map {
            self.outbox.answered();
        }
        if job.left > 0 {
            return Ok(());
        }
        let Some(Job { ticket, task, range, failed, .. }) = self.jobs.pop_front() else { return Ok(()) };
        match (task, failed) {
            (Task::Map, None) => {
                self.ranges.settle(range, true);
                self.answer(ticket, Ok(()));
            }
            // Some of its pieces may be mapped.
            (Task::Map, Some(errno)) => return self.send_unmap(ticket, Task::Undo(errno), range),
            (Task::Unmap, None) => {
                self.ranges.settle(range, false);
                self.answer(ticket, Ok(()));
            }
            (Task::Unmap, Some(errno)) => {
                self.ranges.settle(range, true);
                self.answer(ticket, Err(errno));
            }
            (Task::Undo(errno), None) => {
                self.ranges.settle(range, false);
                self.answer(ticket, Err(errno));
            }
            // The API server's end answers it.
            (Task::Undo(_), Some(_)) => {
                self.jobs.push_front(Job { ticket, task, range, left: 1, failed });
                return Err(SessionError::Stuck);
            }
        }
        Ok(())
    }

    /// The API server has hung up: it touches no memory any more.
    pub fn hung_up(&mut self) {
        if self.life == Life::Gone {
            return;
        }
        self.life = Life::Gone;
        self.outbox.clear();
        let jobs = std::mem::take(&mut self.jobs);
        jobs.iter().for_each(|job| self.answer(job.ticket, Err(Errno::PIPE)));
        self.ranges = Ranges::default();
        match self.close {
            Some(ticket) => self.answer(ticket, Ok(())),
            None => self.closed = true,
        }
    }

    // What the device does next.

    fn answer(&mut self, ticket: Ticket, result: Result<(), Errno>) {
        self.answers.push(Answer { ticket, result });
    }

    pub fn take_answers(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.answers)
    }

    pub fn has_news(&self) -> bool {
        !self.data.is_empty() || !self.wakes.is_empty() || self.closed
    }

    /// For a buffer that holds so many bytes of data.
    pub fn next_news(&mut self, room: usize) -> Option<News> {
        if let Some(offset) = self.wakes.pop_first() {
            return Some(News::Wake(offset));
        }
        if !self.data.is_empty() {
            let length = self.data.len().min(room);
            return Some(News::Data(self.data.drain(..length).collect()));
        }
        std::mem::take(&mut self.closed).then_some(News::Closed)
    }

    /// What was read waits for buffers of the guest first.
    pub fn wants_to_read(&self) -> bool {
        match self.life {
            Life::Open => self.data.len() < MOST_DATA,
            Life::Ending => true,
            Life::Gone => false,
        }
    }

    /// The guest has closed it, and nobody else knows it.
    pub fn is_over(&self) -> bool {
        self.life == Life::Gone && self.close.is_some()
    }

    pub fn mapped(&self) -> usize {
        self.ranges.len()
    }
}

/// Why a session ends although both sides are there.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// {0}
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// {0}
    #[error(transparent)]
    Overflow(#[from] Overflow),
    /// the guest does not take its wakes
    #[error("the guest does not take its wakes")]
    Wakes,
    /// the API server can neither map memory nor undo it
    #[error("the API server can neither map memory nor undo it")]
    Stuck,
}
