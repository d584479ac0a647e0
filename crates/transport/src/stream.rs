//! A lane over a stream socket, with the arena mirrored behind the messages.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use aviary_ring::{Interruption, Liveness, WaitPoint, uninterrupted};
use aviary_wire::MAX_MESSAGE;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags};
use rustix::time::Timespec;

use crate::LaneError;
use crate::Region;
use crate::descriptors::KeptFile;
use crate::memory::arena::Arena;

const FRAME_HEADER_BYTES: usize = 16;
const MAX_REGIONS: u64 = 1 << 16;

/// One end of a stream lane.
pub struct StreamLane {
    socket: Arc<KeptFile>,
    arena: Arc<Arena>,
    /// Set for an end in a process whose other code may close or replace any descriptor.
    watch: Option<Arc<Liveness>>,
}

/// Interval at which a waiting, watched end checks that its peer lives.
const LIVENESS_POLL_INTERVAL: Duration = Duration::from_millis(100);

fn word(bytes: &[u8; FRAME_HEADER_BYTES], at: usize) -> u64 {
    let mut w = [0; 8];
    w.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(w)
}

fn pair(a: u64, b: u64) -> [u8; FRAME_HEADER_BYTES] {
    let mut bytes = [0; FRAME_HEADER_BYTES];
    bytes[..8].copy_from_slice(&a.to_le_bytes());
    bytes[8..].copy_from_slice(&b.to_le_bytes());
    bytes
}

impl StreamLane {
    pub fn new(socket: OwnedFd, arena: Arc<Arena>) -> Self {
        StreamLane { socket: Arc::new(KeptFile::new(socket)), arena, watch: None }
    }

    /// An end that does not rely on its socket to report the peer's death: a forked child may hold
    /// a copy of the peer's end, and the application may close this descriptor, whose number then
    /// refers to another file.
    pub fn watched(socket: OwnedFd, arena: Arc<Arena>, liveness: Arc<Liveness>) -> Result<Self, LaneError> {
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, direction, Some(LIVENESS_POLL_INTERVAL)).map_err(io::Error::from)?;
        }
        Ok(StreamLane { socket: Arc::new(KeptFile::new(socket)), arena, watch: Some(liveness) })
    }

    /// The descriptor for one system call, checked as the peer is; `waited`: the call before took too long.
    fn look(&self, waited: bool) -> Result<BorrowedFd<'_>, LaneError> {
        let Some(liveness) = &self.watch else { return Ok(self.socket.number()) };
        let lives = if waited { liveness.check() } else { !liveness.dead() };
        self.socket.get().filter(|_| lives).ok_or(LaneError::Dead)
    }

    pub(crate) fn socket(&self) -> Arc<KeptFile> {
        self.socket.clone()
    }

    pub fn send(&mut self, message: &[u8], regions: &[Region]) -> Result<(), LaneError> {
        let (length, count) = (message.len() as u64, regions.len() as u64);
        if message.len() > MAX_MESSAGE || count > MAX_REGIONS {
            return Err(LaneError::Frame { length, regions: count });
        }
        // A message without regions takes one system call.
        let mut first = Vec::with_capacity(FRAME_HEADER_BYTES + message.len());
        first.extend_from_slice(&pair(length, count));
        first.extend_from_slice(message);
        self.send_bytes(&first)?;
        for region in regions {
            let data = self.arena.pointer(region.offset, region.length)?;
            self.send_bytes(&pair(region.offset, region.length as u64))?;
            // SAFETY: `pointer` checked that the region lies in the arena, which `self.arena` keeps mapped.
            unsafe { self.send_raw(data, region.length) }?;
        }
        Ok(())
    }

    pub fn receive(&mut self, into: &mut Vec<u8>) -> Result<(), LaneError> {
        self.receive_unless(&mut uninterrupted, into)
    }

    /// Receives as [`StreamLane::receive`] does, unless `interrupted` returns true before the message begins.
    pub fn receive_unless(&mut self, interrupted: &mut Interruption, into: &mut Vec<u8>) -> Result<(), LaneError> {
        let mut frame = [0; FRAME_HEADER_BYTES];
        interrupted(WaitPoint::Begin);
        // SAFETY: the array is writable.
        let received = unsafe { self.receive_raw(interrupted, frame.as_mut_ptr(), FRAME_HEADER_BYTES) };
        interrupted(WaitPoint::End);
        received?;
        let (length, regions) = (word(&frame, 0), word(&frame, 8));
        if length > MAX_MESSAGE as u64 || regions > MAX_REGIONS {
            return Err(LaneError::Frame { length, regions });
        }
        into.clear();
        into.resize(length as usize, 0);
        self.receive_bytes(into)?;
        for _ in 0..regions {
            let mut header = [0; FRAME_HEADER_BYTES];
            self.receive_bytes(&mut header)?;
            let length = usize::try_from(word(&header, 8)).unwrap_or(usize::MAX);
            let place = self.arena.pointer(word(&header, 0), length)?;
            // SAFETY: `pointer` checked that the region lies in the arena, which `self.arena` keeps mapped.
            // The arena is private memory of this process without references into it.
            unsafe { self.receive_raw(&mut uninterrupted, place, length) }?;
        }
        Ok(())
    }

    pub fn try_receive(&mut self, into: &mut Vec<u8>) -> Result<bool, LaneError> {
        let there = self.await_message(Duration::ZERO);
        if there {
            self.receive(into)?;
        }
        Ok(there)
    }

    /// Waits at most `at_most` for a message, in whole milliseconds, rounded up.
    pub fn await_message(&mut self, at_most: Duration) -> bool {
        let milliseconds = at_most.as_micros().div_ceil(1000).min(60_000) as i64;
        let timeout = Timespec { tv_sec: milliseconds / 1000, tv_nsec: milliseconds % 1000 * 1_000_000 };
        let mut fd = [PollFd::from_borrowed_fd(self.socket.number(), PollFlags::IN)];
        rustix::event::poll(&mut fd, Some(&timeout)).is_ok_and(|ready| ready > 0)
    }

    fn send_bytes(&self, bytes: &[u8]) -> Result<(), LaneError> {
        // SAFETY: the slice is readable.
        unsafe { self.send_raw(bytes.as_ptr(), bytes.len()) }
    }

    fn receive_bytes(&self, bytes: &mut [u8]) -> Result<(), LaneError> {
        // SAFETY: the slice is writable.
        unsafe { self.receive_raw(&mut uninterrupted, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// # Safety
    /// `length` bytes at `from` must be mapped readable. They may change meanwhile: the kernel copies.
    unsafe fn send_raw(&self, from: *const u8, length: usize) -> Result<(), LaneError> {
        let (mut done, mut waited) = (0, false);
        while done < length {
            let socket = self.look(waited)?;
            // SAFETY: `done < length`, so the range stays inside what the caller vouches for.
            let part = unsafe { std::slice::from_raw_parts(from.add(done), length - done) };
            let moved = transferred(rustix::net::send(socket, part, SendFlags::NOSIGNAL))?;
            waited = moved.is_none();
            done += moved.unwrap_or(0);
        }
        Ok(())
    }

    /// # Safety
    /// `length` bytes at `to` must be mapped writable and not be borrowed.
    unsafe fn receive_raw(&self, interrupted: &mut Interruption, to: *mut u8, length: usize) -> Result<(), LaneError> {
        let (mut done, mut waited) = (0, false);
        while done < length {
            let socket = self.look(waited)?;
            // A message that has begun is received to its end.
            if waited && done == 0 && interrupted(WaitPoint::Check) {
                return Err(LaneError::Interrupted);
            }
            // SAFETY: `done < length`, so the range stays inside what the caller vouches for.
            let part = unsafe { std::slice::from_raw_parts_mut(to.add(done), length - done) };
            let n = rustix::net::recv(socket, part, RecvFlags::empty()).map(|(n, _)| n);
            if n == Ok(0) {
                return Err(LaneError::Dead);
            }
            let moved = transferred(n)?;
            waited = moved.is_none();
            done += moved.unwrap_or(0);
        }
        Ok(())
    }
}

/// Bytes that a system call moved; `None` if it was interrupted or took too long.
fn transferred(n: Result<usize, Errno>) -> Result<Option<usize>, LaneError> {
    match n {
        Ok(n) => Ok(Some(n)),
        Err(Errno::INTR | Errno::AGAIN) => Ok(None),
        Err(Errno::PIPE | Errno::CONNRESET) => Err(LaneError::Dead),
        Err(error) => Err(LaneError::Socket(error.into())),
    }
}
