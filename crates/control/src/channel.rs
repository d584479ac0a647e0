//! One message on the control socket: its form, its descriptors, its bounds.

use crate::messages::form::Message;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::de::IgnoredAny;
use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd},
};

/// Of the messages' form and meaning. Node and API servers are one program; after an update of the file a running node may
/// start newer ones.
pub const VERSION: u32 = 9;
/// Longest message, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 64 << 10;
/// Most descriptors of one message to an API server, a zygote or a card; the kernel closes those for which there is no room. A
/// message to the node has none ([`hear`]).
pub const MAX_DESCRIPTORS: usize = 14;

/// Behaviour of a sender while the other end does not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// The node waits for no API server: the message is not sent.
    None,
    /// API servers wait for the node.
    Waits,
}

/// Bytes that are no message of this direction.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum Garbage {
    /// a message of more than 65536 bytes
    Long,
    /// a message of version {0} of the control protocol, expected {1}: start the node again after an update of its program
    Version(u32, u32),
    /// no message of the control protocol: {0}
    Text(serde_json::Error),
    /// a message with {came} descriptors, expected {least} to {most}
    Descriptors { came: usize, least: usize, most: usize },
    /// a message with descriptors, which none to the node has
    Foreign,
}

/// Result of [`receive`].
#[derive(Debug)]
pub enum Received<M> {
    /// With as many descriptors as it may have.
    Message(M, Vec<OwnedFd>),
    /// Descriptors that came with it are closed.
    Garbage(Garbage),
    Nothing,
    Closed,
}

/// Result of [`hear`].
#[derive(Debug)]
pub enum Heard<M> {
    Message(M),
    /// After [`Garbage::Foreign`] the message is where it was: nothing more is heard from that socket.
    Garbage(Garbage),
    Nothing,
    Closed,
}

/// The bytes of a message: its version and itself, as a JSON list of two.
pub fn encode<M: Message>(message: &M) -> io::Result<Vec<u8>> {
    let bytes = serde_json::to_vec(&(VERSION, message))?;
    if bytes.len() > MAX_MESSAGE_BYTES {
        return Err(invalid(Garbage::Long));
    }
    Ok(bytes)
}

/// Decodes the bytes of a message that came with `descriptors` descriptors.
pub fn decode<M: Message>(bytes: &[u8], descriptors: usize) -> Result<M, Garbage> {
    if bytes.len() > MAX_MESSAGE_BYTES {
        return Err(Garbage::Long);
    }
    let message = match serde_json::from_slice::<(u32, M)>(bytes) {
        Ok((VERSION, message)) => message,
        Ok((version, _)) => return Err(Garbage::Version(version, VERSION)),
        // Of another version also the form may be another.
        Err(error) => {
            return Err(match serde_json::from_slice::<(u32, IgnoredAny)>(bytes) {
                Ok((version, _)) if version != VERSION => Garbage::Version(version, VERSION),
                _ => Garbage::Text(error),
            });
        }
    };
    let expected = message.descriptors();
    if !expected.contains(&descriptors) {
        return Err(Garbage::Descriptors { came: descriptors, least: *expected.start(), most: *expected.end() });
    }
    Ok(message)
}

fn invalid(garbage: Garbage) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, garbage)
}

/// Sends one message with its descriptors.
pub fn send<M: Message>(
    control: BorrowedFd<'_>,
    message: &M,
    descriptors: &[BorrowedFd<'_>],
    patience: Patience,
) -> io::Result<()> {
    let bytes = encode(message)?;
    let (came, expected) = (descriptors.len(), message.descriptors());
    if !expected.contains(&came) {
        return Err(invalid(Garbage::Descriptors { came, least: *expected.start(), most: *expected.end() }));
    }
    send_with(control, &bytes, descriptors, patience)
}

/// Sends bytes with descriptors, at most [`MAX_DESCRIPTORS`].
pub(crate) fn send_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    patience: Patience,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let waits = if patience == Patience::None { SendFlags::DONTWAIT } else { SendFlags::empty() };
    loop {
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL | waits) {
            Err(Errno::INTR) => {}
            other => return Ok(other.map(drop)?),
        }
    }
}

/// Bytes of a message, its flags, and its descriptors.
pub(crate) type ReceivedWith = (usize, ReturnFlags, Vec<OwnedFd>);

/// Receives bytes and the descriptors that come with them, without waiting. `peek`: they stay, and the descriptors are copies.
pub(crate) fn receive_with(socket: BorrowedFd<'_>, bytes: &mut [u8], peek: RecvFlags) -> Result<ReceivedWith, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT | peek;
    let message = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, flags)?;
    Ok((message.bytes, message.flags, descriptors(&mut ancillary)))
}

/// The next message from the node, without waiting.
pub fn receive<M: Message>(control: BorrowedFd<'_>) -> Received<M> {
    let mut bytes = vec![0; MAX_MESSAGE_BYTES];
    let (length, flags, descriptors) = match receive_with(control, &mut bytes, RecvFlags::empty()) {
        Ok(message) => message,
        Err(Errno::WOULDBLOCK | Errno::INTR) => return Received::Nothing,
        Err(_) => return Received::Closed,
    };
    if length == 0 {
        return Received::Closed;
    }
    if flags.contains(ReturnFlags::TRUNC) {
        return Received::Garbage(Garbage::Long);
    }
    match decode(&bytes[..length], descriptors.len()) {
        Ok(message) => Received::Message(message, descriptors),
        Err(garbage) => Received::Garbage(garbage),
    }
}

/// The next bytes of a socket, of which at most `bytes.len()`, without waiting and without descriptors: with those it is
/// [`Errno::BADMSG`], and they stay where they are, since whoever took them would have to close them. 0: the other end hung up.
///
/// # Errors
/// As recvmsg(2).
pub fn receive_plain(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<(usize, ReturnFlags), Errno> {
    // Without room for descriptors the kernel says that there are some, and of a message that stays it closes none.
    let (none, look) = (&mut RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT | RecvFlags::PEEK);
    let seen = recvmsg(socket, &mut [IoSliceMut::new(bytes)], none, look)?;
    if seen.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::BADMSG);
    }
    // Of a stream no more than was looked at: what has come meanwhile may have descriptors.
    let taken = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes[..seen.bytes])], none, RecvFlags::DONTWAIT)?;
    Ok((taken.bytes, seen.flags))
}

/// The next message to the node, without waiting. The node never takes a descriptor out of a peer's socket.
pub fn hear<M: Message>(control: BorrowedFd<'_>) -> Heard<M> {
    let mut bytes = vec![0; MAX_MESSAGE_BYTES];
    let (length, flags) = match receive_plain(control, &mut bytes) {
        Ok(message) => message,
        Err(Errno::WOULDBLOCK | Errno::INTR) => return Heard::Nothing,
        Err(Errno::BADMSG) => return Heard::Garbage(Garbage::Foreign),
        Err(_) => return Heard::Closed,
    };
    if length == 0 {
        return Heard::Closed;
    }
    if flags.contains(ReturnFlags::TRUNC) {
        return Heard::Garbage(Garbage::Long);
    }
    match decode(&bytes[..length], 0) {
        Ok(message) => Heard::Message(message),
        Err(garbage) => Heard::Garbage(garbage),
    }
}

fn descriptors(ancillary: &mut RecvAncillaryBuffer<'_>) -> Vec<OwnedFd> {
    let rights = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    rights.flatten().collect()
}

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;
