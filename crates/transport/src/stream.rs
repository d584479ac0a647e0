//! A lane over a stream socket, with the arena mirrored behind the messages.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use aviary_wire::MAX_MESSAGE;

use crate::{Arena, LaneError, Region};

const FRAME: usize = 16;
const MAX_REGIONS: u64 = 1 << 16;

/// One end of a stream lane.
pub struct StreamLane {
    socket: Arc<OwnedFd>,
    arena: Arc<Arena>,
}

fn word(bytes: &[u8; FRAME], at: usize) -> u64 {
    let mut w = [0; 8];
    w.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(w)
}

fn pair(a: u64, b: u64) -> [u8; FRAME] {
    let mut bytes = [0; FRAME];
    bytes[..8].copy_from_slice(&a.to_le_bytes());
    bytes[8..].copy_from_slice(&b.to_le_bytes());
    bytes
}

impl StreamLane {
    pub fn new(socket: OwnedFd, arena: Arc<Arena>) -> Self {
        StreamLane { socket: Arc::new(socket), arena }
    }

    pub(crate) fn socket(&self) -> Arc<OwnedFd> {
        self.socket.clone()
    }

    pub fn send(&mut self, message: &[u8], regions: &[Region]) -> Result<(), LaneError> {
        let (length, count) = (message.len() as u64, regions.len() as u64);
        if message.len() > MAX_MESSAGE || count > MAX_REGIONS {
            return Err(LaneError::Frame { length, regions: count });
        }
        // One system call for a message without regions.
        let mut first = Vec::with_capacity(FRAME + message.len());
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
        let mut frame = [0; FRAME];
        self.receive_bytes(&mut frame)?;
        let (length, regions) = (word(&frame, 0), word(&frame, 8));
        if length > MAX_MESSAGE as u64 || regions > MAX_REGIONS {
            return Err(LaneError::Frame { length, regions });
        }
        into.clear();
        into.resize(length as usize, 0);
        self.receive_bytes(into)?;
        for _ in 0..regions {
            let mut header = [0; FRAME];
            self.receive_bytes(&mut header)?;
            let length = usize::try_from(word(&header, 8)).unwrap_or(usize::MAX);
            let place = self.arena.pointer(word(&header, 0), length)?;
            // SAFETY: `pointer` checked that the region lies in the arena, which `self.arena` keeps mapped.
            // The arena is private memory of this process without references into it.
            unsafe { self.receive_raw(place, length) }?;
        }
        Ok(())
    }

    pub fn try_receive(&mut self, into: &mut Vec<u8>) -> Result<bool, LaneError> {
        let mut fd = libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd; a timeout of 0 returns at once.
        if unsafe { libc::poll(&mut fd, 1, 0) } <= 0 {
            return Ok(false);
        }
        self.receive(into)?;
        Ok(true)
    }

    fn send_bytes(&self, bytes: &[u8]) -> Result<(), LaneError> {
        // SAFETY: the slice is readable.
        unsafe { self.send_raw(bytes.as_ptr(), bytes.len()) }
    }

    fn receive_bytes(&self, bytes: &mut [u8]) -> Result<(), LaneError> {
        // SAFETY: the slice is writable.
        unsafe { self.receive_raw(bytes.as_mut_ptr(), bytes.len()) }
    }

    /// # Safety
    /// `length` bytes at `from` must be mapped readable. They may change meanwhile: the kernel copies.
    unsafe fn send_raw(&self, from: *const u8, length: usize) -> Result<(), LaneError> {
        let mut done = 0;
        while done < length {
            // SAFETY: `done < length`, so the range stays inside what the caller vouches for.
            let n = unsafe {
                libc::send(self.socket.as_raw_fd(), from.add(done).cast(), length - done, libc::MSG_NOSIGNAL)
            };
            done += transferred(n)?;
        }
        Ok(())
    }

    /// # Safety
    /// `length` bytes at `to` must be mapped writable and not be borrowed.
    unsafe fn receive_raw(&self, to: *mut u8, length: usize) -> Result<(), LaneError> {
        let mut done = 0;
        while done < length {
            // SAFETY: `done < length`, so the range stays inside what the caller vouches for.
            let n = unsafe { libc::recv(self.socket.as_raw_fd(), to.add(done).cast(), length - done, 0) };
            if n == 0 {
                return Err(LaneError::Dead);
            }
            done += transferred(n)?;
        }
        Ok(())
    }
}

/// Bytes that a system call moved; an interruption moved none.
fn transferred(n: isize) -> Result<usize, LaneError> {
    if let Ok(n) = usize::try_from(n) {
        return Ok(n);
    }
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(0),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Err(LaneError::Dead),
        _ => Err(LaneError::Socket(error)),
    }
}
