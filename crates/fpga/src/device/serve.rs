//! The connection of one VMM: messages in, replies out, interrupts of the card on.

use std::fmt;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

use super::card::{Card, CardSocket};
use super::fpga_device::{FpgaDevice, VECTORS};
use super::message::{HEADER_BYTES, Header, MAX_DESCRIPTORS, MAX_MESSAGE_BYTES};

/// Descriptors that the kernel carries in one message.
const MOST_SENT: usize = 253;
/// Messages between two looks at the card's interrupts.
const MESSAGES_PER_LOOK: usize = 16;

/// The reason why a device ends.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum DeviceFarewell {
    /// the VMM has ended or hung up
    HungUp,
    /// a message of {0} bytes: expected {HEADER_BYTES:} to {MAX_MESSAGE_BYTES:}
    Size(u32),
    /// the process that keeps its connection has ended
    Unguarded,
    /// cannot wait for messages: {0}
    Wait(Errno),
}

/// A message that is under way.
#[derive(Debug, Default)]
struct Unfinished {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    /// More descriptors came than one message has.
    too_many: bool,
}

/// A message as it came.
struct Message {
    header: Header,
    body: Vec<u8>,
    descriptors: Option<Vec<OwnedFd>>,
}

impl Unfinished {
    /// Bytes that the message still lacks, as far as that is known.
    fn lacks(&self) -> Result<usize, DeviceFarewell> {
        let Some(header) = Header::parse(&self.bytes) else { return Ok(HEADER_BYTES - self.bytes.len()) };
        let body = header.body_bytes().ok_or(DeviceFarewell::Size(header.size))?;
        Ok((HEADER_BYTES + body).saturating_sub(self.bytes.len()))
    }

    /// Takes what has come, and never a byte of the next message, whose descriptors come with its first one.
    fn receive(&mut self, vmm: &UnixStream) -> Result<Option<Message>, DeviceFarewell> {
        loop {
            let lacks = self.lacks()?;
            if lacks == 0 {
                return Ok(self.finished());
            }
            let mut bytes = vec![0; lacks];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SENT))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let message = match recvmsg(vmm, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
                Ok(message) if message.bytes > 0 => message,
                Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(None),
                Ok(_) | Err(_) => return Err(DeviceFarewell::HungUp),
            };
            self.bytes.extend(bytes.iter().take(message.bytes));
            self.too_many |= message.flags.contains(ReturnFlags::CTRUNC);
            for part in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = part {
                    self.descriptors.extend(descriptors);
                }
            }
            if self.descriptors.len() > MAX_DESCRIPTORS {
                self.too_many = true;
                self.descriptors.clear();
            }
        }
    }

    fn finished(&mut self) -> Option<Message> {
        let Unfinished { bytes, descriptors, too_many } = std::mem::take(self);
        let header = Header::parse(&bytes)?;
        let body = bytes.get(HEADER_BYTES..).unwrap_or_default().to_vec();
        Some(Message { header, body, descriptors: (!too_many).then_some(descriptors) })
    }
}

/// Serves a VMM until it ends, or the peer of `guard`. `log` gets a line if the card ends before.
pub fn serve_vmm(
    device: &mut FpgaDevice<CardSocket>,
    vmm: &UnixStream,
    guard: Option<&UnixStream>,
    log: &dyn Fn(fmt::Arguments<'_>),
) -> DeviceFarewell {
    let mut events: Vec<Option<OwnedFd>> =
        (0..VECTORS as u32).map(|vector| device.card.event(vector).unwrap_or(None)).collect();
    let mut unfinished = Unfinished::default();
    let mut told = false;
    loop {
        if let Err(errno) = wait(vmm, guard, device, &events) {
            return DeviceFarewell::Wait(errno);
        }
        pass_interrupts(device, &mut events);
        if guard.is_some_and(|guard| has_hung_up(guard.as_fd())) {
            return DeviceFarewell::Unguarded;
        }
        if has_hung_up(device.card.socket().as_fd()) {
            device.card.note_end();
        }
        if !device.card.lives() && !std::mem::replace(&mut told, true) {
            log(format_args!("the card has ended: the virtual machine's accelerator reads as all ones from now on"));
        }
        for _ in 0..MESSAGES_PER_LOOK {
            let message = match unfinished.receive(vmm) {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(farewell) => return farewell,
            };
            let reply = device.execute(&message.header, &message.body, message.descriptors);
            if let Some(reply) = reply
                && (&*vmm).write_all(&reply).is_err()
            {
                return DeviceFarewell::HungUp;
            }
        }
    }
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

fn wait(
    vmm: &UnixStream,
    guard: Option<&UnixStream>,
    device: &FpgaDevice<CardSocket>,
    events: &[Option<OwnedFd>],
) -> Result<(), Errno> {
    let mut polled = vec![PollFd::new(vmm, PollFlags::IN)];
    polled.extend(guard.map(|guard| PollFd::new(guard, PollFlags::empty())));
    if device.card.lives() {
        polled.push(PollFd::new(device.card.socket(), PollFlags::empty()));
    }
    polled.extend(events.iter().flatten().map(|event| PollFd::new(event, PollFlags::IN)));
    match poll(&mut polled, None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Vectors that the card has raised. An end that the card has closed is given up.
fn pass_interrupts(device: &FpgaDevice<CardSocket>, events: &mut [Option<OwnedFd>]) {
    for (vector, place) in events.iter_mut().enumerate() {
        let Some(event) = place else { continue };
        let mut bytes = [0; 8];
        let mut ancillary = RecvAncillaryBuffer::default();
        let read = recvmsg(event.as_fd(), &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::DONTWAIT);
        match read.map(|message| message.bytes) {
            Ok(0) => *place = None,
            Ok(_) => device.interrupt(vector),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(_) => *place = None,
        }
    }
}

fn has_hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::new(&socket, PollFlags::empty())];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}
