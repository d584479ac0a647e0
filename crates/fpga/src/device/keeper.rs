//! The keeper of a VMM's connection: it passes messages on to a worker and replies back, and knows nothing of them but where they
//! end. If the worker dies, another one goes on with the message that was not answered; if the keeper dies, the worker ends the
//! connection in order.

use std::fmt;
use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};

use super::card::{Card, CardSocket};
use super::fpga_device::{FpgaDevice, MessageCounts, VECTORS};
use super::message::{HEADER_BYTES, Header, MAX_DESCRIPTORS, MAX_MESSAGE_BYTES};
use super::passing::{NO_ANSWER, Packet, READY, TOO_MANY, placed, present, receive_packet, send_packet};
use super::state::counts_of;

/// Descriptors that the kernel carries in one message.
const MOST_SENT: usize = 253;
/// Workers that may die with one message, or before they are ready.
const MOST_DEATHS: u32 = 3;

/// The reason why a device ends.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum DeviceFarewell {
    /// the VMM has ended or hung up
    HungUp,
    /// a message of {0} bytes: expected {HEADER_BYTES:} to {MAX_MESSAGE_BYTES:}
    Size(u32),
    /// the process that has started it or keeps its connection has ended
    Unguarded,
    /// cannot wait for messages: {0}
    Wait(Errno),
    /// cannot start a worker: {0}
    NoWorker(std::io::Error),
    /// a message has killed its workers one after the other, or they do not start
    Dying,
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
    bytes: Vec<u8>,
    /// `None`: more came than one message has.
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
        Some(Message { bytes, descriptors: (!too_many).then_some(descriptors) })
    }
}

/// A process, or thread of a test, that serves messages.
pub trait StartedWorker {
    /// Ends it if it has not ended, and says how it ended.
    fn end(&mut self) -> String;
}

/// A VMM's connection and what outlives the workers that serve it.
pub struct Keeper<'a> {
    vmm: &'a UnixStream,
    card: OwnedFd,
    /// The card's ends of interrupts.
    events: [Option<OwnedFd>; VECTORS],
    /// The VMM's.
    irqs: [Option<OwnedFd>; VECTORS],
    /// Behind the last message that was answered.
    state: Vec<u8>,
    unfinished: Unfinished,
    /// The card has not answered all requests of this process: the first worker resumes, too, or would take an answer for another.
    owed: bool,
    /// The message that the worker has, and has not answered.
    waiting: Option<Message>,
    /// Workers that have died with it.
    deaths: u32,
    /// Workers that were started since one was ready.
    starts: u32,
    /// The number of the last worker: not 0.
    number: u8,
}

/// What made the keeper look up.
enum Seen {
    Vmm,
    Worker,
    End(DeviceFarewell),
}

impl<'a> Keeper<'a> {
    /// Keeps the connection of `vmm` to a device whose accelerator is there.
    pub fn new(mut device: FpgaDevice<CardSocket>, vmm: &'a UnixStream) -> Keeper<'a> {
        let mut events: [Option<OwnedFd>; VECTORS] = Default::default();
        for (vector, place) in (0..).zip(&mut events) {
            *place = device.card.event(vector).unwrap_or(None);
        }
        let owed = device.card.owes();
        let state = device.state(device.card.asked());
        Keeper {
            vmm,
            card: device.card.into_socket(),
            events,
            irqs: Default::default(),
            state,
            unfinished: Unfinished::default(),
            owed,
            waiting: None,
            deaths: 0,
            starts: 0,
            number: 0,
        }
    }

    /// The messages that were answered.
    pub fn counts(&self) -> MessageCounts {
        counts_of(&self.state)
    }

    /// Serves the VMM until it ends, or one of `guards` is readable. `start` starts a worker with its end of the connection to
    /// this process. `log` gets a line for each that dies.
    pub fn serve<W: StartedWorker>(
        &mut self,
        guards: &[BorrowedFd<'_>],
        mut start: impl FnMut(OwnedFd) -> std::io::Result<W>,
        log: &dyn Fn(fmt::Arguments<'_>),
    ) -> DeviceFarewell {
        let mut resumes = self.owed;
        loop {
            self.starts += 1;
            self.number = self.number.checked_add(1).unwrap_or(1);
            let flags = SocketFlags::CLOEXEC;
            // What it begins with is there before it is, with the VMM's connection: from its start on it ends that in order if
            // this process is killed.
            let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
            let begun = pair.and_then(|(own, theirs)| self.begin(&own, resumes).map(|()| (own, theirs)));
            let started = match begun {
                Ok((own, theirs)) => start(theirs).map(|worker| (own, worker)),
                Err(errno) => Err(errno.into()),
            };
            let (socket, mut worker) = match started {
                Ok(started) => started,
                Err(error) => return DeviceFarewell::NoWorker(error),
            };
            let farewell = self.serve_by(&socket, guards);
            drop(socket);
            let how = worker.end();
            if let Some(farewell) = farewell {
                return farewell;
            }
            self.deaths += u32::from(self.waiting.is_some());
            if self.deaths.max(self.starts) >= MOST_DEATHS {
                return DeviceFarewell::Dying;
            }
            log(format_args!("its worker has died ({how}): another one goes on"));
            resumes = true;
        }
    }

    /// `None`: the worker has died.
    fn serve_by(&mut self, worker: &OwnedFd, guards: &[BorrowedFd<'_>]) -> Option<DeviceFarewell> {
        if let Some(message) = &self.waiting {
            message.pass(worker).ok()?;
        }
        loop {
            match self.look(worker, guards) {
                Seen::End(farewell) => return Some(farewell),
                Seen::Worker => {
                    let packet = receive_packet(worker).ok()?;
                    if packet.is_some_and(|packet| self.take_answer(packet).is_none()) {
                        return Some(DeviceFarewell::HungUp);
                    }
                }
                Seen::Vmm => match self.unfinished.receive(self.vmm) {
                    Ok(None) => {}
                    Ok(Some(message)) => self.waiting.insert(message).pass(worker).ok()?,
                    Err(farewell) => return Some(farewell),
                },
            }
        }
    }

    fn begin(&self, worker: &OwnedFd, resumes: bool) -> Result<(), Errno> {
        let (events, of_card) = present(&self.events);
        let (irqs, of_vmm) = present(&self.irqs);
        let mut descriptors = vec![self.card.as_fd(), self.vmm.as_fd()];
        descriptors.extend(of_card.into_iter().chain(of_vmm));
        send_packet(worker, &[&[if resumes { self.number } else { 0 }, events, irqs], &self.state], &descriptors)
    }

    /// The next message is not read before this one is answered.
    fn look(&self, worker: &OwnedFd, guards: &[BorrowedFd<'_>]) -> Seen {
        let of_vmm = if self.waiting.is_some() { PollFlags::empty() } else { PollFlags::IN };
        let mut polled = vec![PollFd::new(self.vmm, of_vmm), PollFd::new(worker, PollFlags::IN)];
        polled.extend(guards.iter().map(|guard| PollFd::from_borrowed_fd(*guard, PollFlags::IN)));
        loop {
            match poll(&mut polled, None) {
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Seen::End(DeviceFarewell::Wait(errno)),
            }
        }
        let seen = |place: usize| polled.get(place).is_some_and(|one| !one.revents().is_empty());
        match () {
            () if (2..polled.len()).any(seen) => Seen::End(DeviceFarewell::Unguarded),
            () if seen(1) => Seen::Worker,
            // Its end while a message is under way: that one is answered to nobody.
            () if self.waiting.is_some() => Seen::End(DeviceFarewell::HungUp),
            () => Seen::Vmm,
        }
    }

    /// `None`: the VMM has hung up.
    fn take_answer(&mut self, packet: Packet) -> Option<()> {
        self.starts = 0;
        if packet.bytes == READY {
            return Some(());
        }
        let (length, rest) = packet.bytes.split_first_chunk()?;
        if u32::from_ne_bytes(*length) == NO_ANSWER {
            self.state = rest.to_vec();
            return Some(());
        }
        (self.waiting, self.deaths) = (None, 0);
        let (irqs, rest) = rest.split_first()?;
        let (reply, state) = rest.split_at_checked(usize::try_from(u32::from_ne_bytes(*length)).ok()?)?;
        self.state = state.to_vec();
        self.irqs = placed(*irqs, &mut packet.descriptors.into_iter())?;
        let mut vmm = self.vmm;
        vmm.write_all(reply).ok()
    }
}

impl Message {
    fn pass(&self, worker: &OwnedFd) -> Result<(), Errno> {
        let flags = if self.descriptors.is_none() { TOO_MANY } else { 0 };
        let descriptors: Vec<_> = self.descriptors.iter().flatten().map(AsFd::as_fd).collect();
        send_packet(worker, &[&[flags], &self.bytes], &descriptors)
    }
}
