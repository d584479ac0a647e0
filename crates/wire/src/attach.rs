//! The first message of each side: who speaks which version of what.

use thiserror::Error;

use crate::decode::{DecodeError, Decoder};
use crate::encode::Encoder;

const HELLO_MAGIC: u32 = u32::from_le_bytes(*b"AVhi");
const WELCOME_MAGIC: u32 = u32::from_le_bytes(*b"AVok");

/// Bytes before the body: magic and length, 4 bytes each. The length counts the whole message.
pub const PREFIX: usize = 8;
/// A greeting longer than this is refused unread.
pub const MAX_GREETING: usize = 16 << 10;
const MAX_NAME: usize = 256;
const MAX_TEXT: usize = 4096;
/// Variables that a greeting may carry.
pub const MAX_VARIABLES: usize = 64;
/// Bytes of all their values together, so that a greeting stays below [`MAX_GREETING`].
pub const MAX_ENVIRONMENT_BYTES: usize = 8 << 10;

/// Flags of [`Hello`].
pub mod hello_flag {
    /// There is no shared arena: lanes are streams and the arena is mirrored.
    pub const MIRRORED: u64 = 1;
    /// A descriptor of the guest's standard output follows the arena's.
    pub const STDOUT: u64 = 2;
    /// A descriptor of the guest's standard error follows.
    pub const STDERR: u64 = 4;
    /// The arena is shared with a carrier: what a message names must be carried to the guest.
    pub const CARRIED: u64 = 8;
    /// The arena is empty, and memory of a VM is mapped into it piece by piece.
    pub const WINDOW: u64 = 16;
    /// No descriptors of the guest can follow: what the vendor's library prints shall come with replies.
    pub const PRINTED: u64 = 32;
    /// The guest copies parts of long outputs ahead of the reply, if the carrier says that they are there.
    pub const EARLY: u64 = 64;
}

/// Flags of [`Welcome`].
pub mod welcome_flag {
    /// The arena has the same address on both sides.
    pub const SAME_ADDRESS: u64 = 1;
    /// The arena is shared with a carrier, not with the server.
    pub const CARRIED: u64 = 2;
    /// The carrier takes messages of no bytes, whose regions belong to a message that follows.
    pub const AHEAD: u64 = 4;
}

/// Outcome of an attachment.
pub mod welcome_status {
    pub const OK: u64 = 0;
    /// The server speaks another wire version.
    pub const WIRE_VERSION: u64 = 1;
    /// The server has no such API, or another version of its specification.
    pub const API: u64 = 2;
    /// The node does not admit this tenant, or not now.
    pub const REFUSED: u64 = 3;
    /// Something went wrong on the server.
    pub const FAILED: u64 = 4;
    /// To a relay: the session that it wants to resume is over, or not its own.
    pub const OVER: u64 = 5;
}

/// Why a greeting could not be understood.
///
/// ```
/// use aviary_wire::Hello;
///
/// let error = Hello::length(b"GET / HT").unwrap_err();
/// assert!(error.to_string().starts_with("this is not an Aviary peer"));
/// ```
#[derive(Debug, Error, displaydoc::Display, Clone, Copy, PartialEq, Eq)]
pub enum GreetingError {
    /// this is not an Aviary peer (first bytes {0:#010x})
    Magic(u32),
    /// a greeting of {0} bytes is not between 8 and 16384
    Length(u32),
    /// the greeting is malformed: {0}
    Malformed(#[from] DecodeError),
    /// the greeting's variables are more than 64, longer than 8192 bytes, or have a zero in them
    Environment,
    /// the greeting's {0} is too long or not text
    Text(&'static str),
}

/// The first message of a guest library.
///
/// ```
/// use aviary_wire::{Hello, attach::PREFIX};
///
/// let hello = Hello { api: "opencl".to_owned(), pid: 7, ..Hello::default() };
/// let bytes = hello.to_bytes();
/// assert_eq!(Hello::from_body(&bytes[PREFIX..])?, hello);
/// # Ok::<(), aviary_wire::attach::GreetingError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hello {
    pub wire_version: u32,
    pub flags: u64,
    pub pid: u32,
    pub spec_hash: u64,
    pub arena_address: u64,
    pub arena_size: u64,
    pub api: String,
    pub api_version: String,
    /// Values of the variables that the specification names, in its order; `None`: not set. Fewer than there are names:
    /// the rest is not told.
    pub environment: Vec<Option<Vec<u8>>>,
}

/// The server's answer.
///
/// ```
/// use aviary_wire::{Welcome, attach::PREFIX};
///
/// let welcome = Welcome { session: 3, text: "served".to_owned(), ..Welcome::default() };
/// let bytes = welcome.to_bytes();
/// assert_eq!(Welcome::from_body(&bytes[PREFIX..])?, welcome);
/// # Ok::<(), aviary_wire::attach::GreetingError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Welcome {
    pub wire_version: u32,
    /// One of [`welcome_status`].
    pub status: u64,
    pub flags: u64,
    pub session: u64,
    /// For people: why it was refused and what to do.
    pub text: String,
}

fn text(d: &mut Decoder, what: &'static str, limit: usize) -> Result<String, GreetingError> {
    let bytes = d.bytes()?;
    match std::str::from_utf8(bytes) {
        Ok(text) if text.len() <= limit => Ok(text.to_owned()),
        _ => Err(GreetingError::Text(what)),
    }
}

/// The variables at a greeting's end. A greeting without them is one of a version that does not know them.
fn environment(d: &mut Decoder) -> Result<Vec<Option<Vec<u8>>>, GreetingError> {
    if d.remaining() == 0 {
        return Ok(Vec::new());
    }
    let count = d.word()?;
    if count > MAX_VARIABLES as u64 {
        return Err(GreetingError::Environment);
    }
    let mut values = Vec::new();
    let mut left = MAX_ENVIRONMENT_BYTES;
    for _ in 0..count {
        let value = d.optional_bytes()?.map(<[u8]>::to_vec);
        let bytes = value.as_ref().map_or(0, Vec::len);
        // A value with a zero in it would be another one in the server's environment.
        if value.as_ref().is_some_and(|value| value.contains(&0)) {
            return Err(GreetingError::Environment);
        }
        left = left.checked_sub(bytes).ok_or(GreetingError::Environment)?;
        values.push(value);
    }
    Ok(values)
}

/// Length of the whole greeting, from its first [`PREFIX`] bytes.
fn greeting_length(prefix: &[u8; PREFIX], magic: u32) -> Result<usize, GreetingError> {
    let word = u64::from_le_bytes(*prefix);
    let (found, length) = (word as u32, (word >> 32) as u32);
    if found != magic {
        return Err(GreetingError::Magic(found));
    }
    if (length as usize) < PREFIX || length as usize > MAX_GREETING {
        return Err(GreetingError::Length(length));
    }
    Ok(length as usize)
}

fn with_prefix(magic: u32, e: &Encoder) -> Vec<u8> {
    let body = e.body();
    let length = (PREFIX + body.len()) as u32;
    let mut out = Vec::with_capacity(length as usize);
    out.extend_from_slice(&magic.to_le_bytes());
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(body);
    out
}

/// At most `limit` bytes of `text`, cut between characters.
fn clipped(text: &str, limit: usize) -> &[u8] {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text.as_bytes()[..end]
}

impl Hello {
    /// Length of the whole message, from its first bytes.
    pub fn length(prefix: &[u8; PREFIX]) -> Result<usize, GreetingError> {
        greeting_length(prefix, HELLO_MAGIC)
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        e.start();
        e.word(u64::from(self.wire_version));
        e.word(self.flags);
        e.word(u64::from(self.pid));
        e.word(self.spec_hash);
        e.word(self.arena_address);
        e.word(self.arena_size);
        e.bytes(clipped(&self.api, MAX_NAME));
        e.bytes(clipped(&self.api_version, MAX_NAME));
        let told = &self.environment[..self.environment.len().min(MAX_VARIABLES)];
        e.word(told.len() as u64);
        for value in told {
            e.optional_bytes(value.as_deref());
        }
        with_prefix(HELLO_MAGIC, &e)
    }

    /// From what follows the prefix. A longer body than this version knows is accepted.
    pub fn from_body(body: &[u8]) -> Result<Self, GreetingError> {
        let mut d = Decoder::new(body);
        Ok(Hello {
            wire_version: d.word()? as u32,
            flags: d.word()?,
            pid: d.word()? as u32,
            spec_hash: d.word()?,
            arena_address: d.word()?,
            arena_size: d.word()?,
            api: text(&mut d, "API name", MAX_NAME)?,
            api_version: text(&mut d, "API version", MAX_NAME)?,
            environment: environment(&mut d)?,
        })
    }
}

impl Welcome {
    /// Length of the whole message, from its first bytes.
    pub fn length(prefix: &[u8; PREFIX]) -> Result<usize, GreetingError> {
        greeting_length(prefix, WELCOME_MAGIC)
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        e.start();
        e.word(u64::from(self.wire_version));
        e.word(self.status);
        e.word(self.flags);
        e.word(self.session);
        e.bytes(clipped(&self.text, MAX_TEXT));
        with_prefix(WELCOME_MAGIC, &e)
    }

    /// From what follows the prefix. A longer body than this version knows is accepted.
    pub fn from_body(body: &[u8]) -> Result<Self, GreetingError> {
        let mut d = Decoder::new(body);
        Ok(Welcome {
            wire_version: d.word()? as u32,
            status: d.word()?,
            flags: d.word()?,
            session: d.word()?,
            text: text(&mut d, "text", MAX_TEXT)?,
        })
    }
}
