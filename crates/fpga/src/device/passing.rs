//! What the keeper of a VMM's connection and the worker that serves it say to each other: packets with descriptors.
//!
//! The keeper sends what the worker begins with, then one message of the VMM after the other; the worker answers each with one
//! packet, which has the reply to the VMM and the device's state behind it. A packet is there whole or not at all, so a worker that
//! dies at any moment has either answered a message or not.

use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use super::fpga_device::VECTORS;
use super::message::{MAX_DESCRIPTORS, MAX_MESSAGE_BYTES};

/// A reply and a state: a VM with so many files of memory that a state is longer has its device no more.
const MAX_PACKET: usize = 4 * MAX_MESSAGE_BYTES;
/// Card, VMM, and two for each vector.
const MOST_PASSED: usize = 2 + 2 * VECTORS;
const _: () = assert!(MAX_DESCRIPTORS <= MOST_PASSED);

/// Descriptors came with the message that nobody could take.
pub(super) const TOO_MANY: u8 = 1;
/// The first packet of a worker, which is no answer.
pub(super) const READY: [u8; 1] = [1];
/// The length of a reply that is none: what follows is the state before a message, of which the worker has learnt more.
pub(super) const NO_ANSWER: u32 = u32::MAX;

/// A packet as it came.
#[derive(Debug)]
pub struct Packet {
    pub bytes: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

/// # Errors
/// The other end has gone, or the packet is too long.
pub fn send_packet(socket: &OwnedFd, parts: &[&[u8]], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_PASSED))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let parts: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    sendmsg(socket, &parts, &mut ancillary, SendFlags::NOSIGNAL).map(|_| ())
}

/// The next packet, if there is one.
///
/// # Errors
/// The other end has gone.
pub fn receive_packet(socket: &OwnedFd) -> Result<Option<Packet>, Errno> {
    let mut bytes = vec![0; MAX_PACKET];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_PASSED))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
        Ok(message) if message.bytes > 0 => message,
        Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(None),
        Ok(_) => return Err(Errno::PIPE),
        Err(errno) => return Err(errno),
    };
    bytes.truncate(message.bytes);
    let rights = ancillary.drain().filter_map(|part| match part {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptors = rights.flatten().collect();
    Ok(Some(Packet { bytes, descriptors }))
}

/// Which of the vectors have a descriptor, a bit each, and those.
pub fn present(all: &[Option<OwnedFd>; VECTORS]) -> (u8, Vec<BorrowedFd<'_>>) {
    let mask = all.iter().enumerate().fold(0, |mask, (vector, one)| mask | u8::from(one.is_some()) << vector);
    (mask, all.iter().flatten().map(AsFd::as_fd).collect())
}

/// As [`present`] took them apart. `None`: there are not so many.
pub fn placed(mask: u8, descriptors: &mut impl Iterator<Item = OwnedFd>) -> Option<[Option<OwnedFd>; VECTORS]> {
    let mut all: [Option<OwnedFd>; VECTORS] = Default::default();
    for (vector, place) in all.iter_mut().enumerate().filter(|(vector, _)| mask >> vector & 1 == 1) {
        let _ = vector;
        *place = Some(descriptors.next()?);
    }
    Some(all)
}

/// Ends a VMM's connection so that it reads an end: QEMU 11.1 aborts where it reads an error, which it does if its peer is closed
/// with bytes unread.
pub fn end_connection(vmm: &UnixStream) {
    // Nothing more comes from here on.
    let _ = vmm.shutdown(Shutdown::Both);
    let _ = vmm.set_nonblocking(true);
    let mut bytes = [0; 4096];
    while (&*vmm).read(&mut bytes).is_ok_and(|count| count > 0) {}
}

pub(super) fn has_hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::new(&socket, PollFlags::empty())];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}
