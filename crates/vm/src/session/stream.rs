//! The two byte streams of a session: the guest's to its API server, and back.

use aviary_wire::attach::{GreetingError, PREFIX, hello_flag};
use aviary_wire::control::control_kind;
use aviary_wire::{Control, Hello, Welcome};
use thiserror::Error;

/// The reason why a session ends although both sides are alive.
#[derive(Debug, Error, displaydoc::Display, Clone, PartialEq, Eq)]
pub enum StreamError {
    /// {0}
    Greeting(#[from] GreetingError),
    /// the guest asked for an arena of {0} bytes; at most {MAX_ARENA_BYTES:} are possible
    Arena(u64),
    /// the guest sent a control message of kind {0}, which only API servers may send
    Kind(u32),
    /// the API server answered a request that was not made
    Unasked,
}

pub const MAX_ARENA_BYTES: u64 = 64 << 30;

/// Collects bytes that arrive in fragments until a whole is complete.
#[derive(Debug, Default)]
struct Gathered(Vec<u8>);

impl Gathered {
    /// Moves bytes over until `whole` of them are there; true then.
    fn fill(&mut self, bytes: &mut &[u8], whole: usize) -> bool {
        let (taken, rest) = bytes.split_at(bytes.len().min(whole.saturating_sub(self.0.len())));
        self.0.extend_from_slice(taken);
        *bytes = rest;
        self.0.len() >= whole
    }

    fn prefix(&self) -> Option<&[u8; PREFIX]> {
        self.0.first_chunk()
    }

    fn control(&mut self) -> Option<Control> {
        let control = self.0.first_chunk().map(Control::from_bytes);
        self.0.clear();
        control
    }
}

/// The guest's stream: its greeting, then control messages.
#[derive(Debug, Default)]
pub struct GuestStream {
    gathered: Gathered,
    arena: Option<u64>,
}

impl GuestStream {
    /// Size of the arena in bytes, once the greeting has arrived.
    pub fn arena(&self) -> Option<u64> {
        self.arena
    }

    /// Checks the guest's bytes and returns those for the API server.
    pub fn pass(&mut self, mut bytes: &[u8], pid: u32) -> Result<Vec<u8>, StreamError> {
        let mut out = Vec::with_capacity(bytes.len());
        while !bytes.is_empty() {
            if self.arena.is_some() {
                if self.gathered.fill(&mut bytes, Control::CONTROL_BYTES)
                    && let Some(control) = self.gathered.control()
                {
                    match control.kind {
                        control_kind::LANE_OPEN | control_kind::LANE_CLOSE => out.extend(control.to_bytes()),
                        other => return Err(StreamError::Kind(other)),
                    }
                }
            } else if self.gathered.fill(&mut bytes, PREFIX)
                && let Some(prefix) = self.gathered.prefix()
            {
                let length = Hello::length(prefix)?;
                if self.gathered.fill(&mut bytes, length) {
                    out.extend(self.greet(pid)?);
                }
            }
        }
        Ok(out)
    }

    /// The greeting, with the fields that the guest may not choose.
    fn greet(&mut self, pid: u32) -> Result<Vec<u8>, StreamError> {
        let theirs = Hello::from_body(self.gathered.0.get(PREFIX..).unwrap_or_default())?;
        self.gathered.0.clear();
        if theirs.arena_size > MAX_ARENA_BYTES {
            return Err(StreamError::Arena(theirs.arena_size));
        }
        self.arena = Some(theirs.arena_size);
        let flags = hello_flag::WINDOW | (theirs.flags & hello_flag::PRINTED);
        Ok(Hello { flags, pid, ..theirs }.to_bytes())
    }
}

/// A part of the API server's stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    /// Bytes for the guest.
    Bytes(Vec<u8>),
    Wake(u64),
    /// The oldest request about memory was carried out (0) or failed: an errno value.
    Done(u32),
}

/// The API server's stream: its welcome, then control messages.
#[derive(Debug, Default)]
pub struct ServerStream {
    gathered: Gathered,
    welcomed: bool,
}

impl ServerStream {
    pub fn pass(&mut self, mut bytes: &[u8], mut tell: impl FnMut(Said)) -> Result<(), StreamError> {
        while !bytes.is_empty() {
            if self.welcomed {
                if self.gathered.fill(&mut bytes, Control::CONTROL_BYTES)
                    && let Some(control) = self.gathered.control()
                {
                    tell(match control.kind {
                        control_kind::WAKE => Said::Wake(control.offset),
                        control_kind::MEMORY_DONE => Said::Done(control.lane),
                        _ => Said::Bytes(control.to_bytes().to_vec()),
                    });
                }
            } else if self.gathered.fill(&mut bytes, PREFIX)
                && let Some(prefix) = self.gathered.prefix()
            {
                let length = Welcome::length(prefix)?;
                if self.gathered.fill(&mut bytes, length) {
                    self.welcomed = true;
                    tell(Said::Bytes(std::mem::take(&mut self.gathered.0)));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        let flags = hello_flag::MIRRORED | hello_flag::STDOUT | hello_flag::PRINTED;
        Hello { wire_version: 3, flags, pid: 1, arena_size: 1 << 20, api: "x".into(), ..Hello::default() }
    }

    fn control(kind: u32) -> [u8; 32] {
        Control { kind, lane: 5, offset: 64, ..Control::default() }.to_bytes()
    }

    #[test]
    fn identity_and_sharing_flags_of_a_guest_are_overwritten() {
        let (mut stream, mut out) = (GuestStream::default(), Vec::new());
        let sent = [hello().to_bytes(), control(control_kind::LANE_OPEN).to_vec()].concat();
        for piece in sent.chunks(3) {
            out.extend(stream.pass(piece, 99).unwrap());
        }
        let expected = Hello { flags: hello_flag::WINDOW | hello_flag::PRINTED, pid: 99, ..hello() }.to_bytes();
        assert_eq!(out, [expected, control(control_kind::LANE_OPEN).to_vec()].concat());
        assert_eq!(stream.arena(), Some(1 << 20));
    }

    #[test]
    fn guest_may_not_send_memory_messages() {
        for kind in [0, 3, 4, control_kind::MEMORY_MAP, control_kind::MEMORY_UNMAP, control_kind::WAKE, u32::MAX] {
            let mut stream = GuestStream::default();
            stream.pass(&hello().to_bytes(), 1).unwrap();
            assert_eq!(stream.pass(&control(kind), 1), Err(StreamError::Kind(kind)));
        }
        assert!(GuestStream::default().pass(b"GET / HTTP/1.1", 1).is_err());
        let huge = Hello { arena_size: MAX_ARENA_BYTES + 1, ..hello() };
        assert_eq!(GuestStream::default().pass(&huge.to_bytes(), 1), Err(StreamError::Arena(MAX_ARENA_BYTES + 1)));
    }

    #[test]
    fn answers_are_recognised_in_any_fragments() {
        let welcome = Welcome { text: "hello".into(), ..Welcome::default() }.to_bytes();
        let parts = [control_kind::WAKE, control_kind::LANE_CLOSED, control_kind::MEMORY_DONE].map(control);
        let sent = [welcome.clone(), parts.concat()].concat();
        for size in [1, 7, 32, 4096] {
            let (mut stream, mut received) = (ServerStream::default(), Vec::new());
            for piece in sent.chunks(size) {
                stream.pass(piece, |word| received.push(word)).unwrap();
            }
            let closed = Said::Bytes(parts[1].to_vec());
            assert_eq!(received, [Said::Bytes(welcome.clone()), Said::Wake(64), closed, Said::Done(5)]);
        }
    }
}
