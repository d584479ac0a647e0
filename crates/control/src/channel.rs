//! One message on the control socket: its form, its descriptors, its bounds.

use crate::Message;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::de::IgnoredAny;
use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    ops::RangeInclusive,
    os::fd::{BorrowedFd, OwnedFd},
};

/// Of the messages' form and meaning. Node and API servers are one program; after an update of the file a running node may
/// start newer ones.
pub const VERSION: u32 = 8;
/// Longest message, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 64 << 10;
/// Most descriptors of one message. The kernel closes those for which there is no room.
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
#[derive(Debug, thiserror::Error)]
pub enum Garbage {
    /// a message of more than 65536 bytes
    #[error("a message of more than {MAX_MESSAGE_BYTES} bytes")]
    Long,
    /// a message of version {0} of the control protocol, expected {VERSION}: start the node again after an update of its program
    #[error(
        "a message of version {0} of the control protocol, expected {VERSION}: start the node again after an update \
         of its program"
    )]
    Version(u32),
    /// no message of the control protocol: {0}
    #[error("no message of the control protocol: {0}")]
    Text(serde_json::Error),
    /// a message with {came} descriptors, expected {least} to {most}
    #[error("a message with {came} descriptors, expected {} to {}", .expected.start(), .expected.end())]
    Descriptors { came: usize, expected: RangeInclusive<usize> },
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
        Ok((version, _)) => return Err(Garbage::Version(version)),
        // Of another version also the form may be another.
        Err(error) => {
            return Err(match serde_json::from_slice::<(u32, IgnoredAny)>(bytes) {
                Ok((version, _)) if version != VERSION => Garbage::Version(version),
                _ => Garbage::Text(error),
            });
        }
    };
    let expected = message.descriptors();
    if !expected.contains(&descriptors) {
        return Err(Garbage::Descriptors { came: descriptors, expected });
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
        return Err(invalid(Garbage::Descriptors { came, expected }));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let waits = if patience == Patience::None { SendFlags::DONTWAIT } else { SendFlags::empty() };
    loop {
        match sendmsg(control, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL | waits) {
            Err(Errno::INTR) => {}
            other => return Ok(other.map(drop)?),
        }
    }
}

/// The next message, without waiting.
pub fn receive<M: Message>(control: BorrowedFd<'_>) -> Received<M> {
    let mut bytes = vec![0; MAX_MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = match recvmsg(control, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
        Ok(message) => message,
        Err(Errno::WOULDBLOCK | Errno::INTR) => return Received::Nothing,
        Err(_) => return Received::Closed,
    };
    let descriptors = descriptors(&mut ancillary);
    if message.bytes == 0 {
        return Received::Closed;
    }
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Received::Garbage(Garbage::Long);
    }
    match decode(&bytes[..message.bytes], descriptors.len()) {
        Ok(message) => Received::Message(message, descriptors),
        Err(garbage) => Received::Garbage(garbage),
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
