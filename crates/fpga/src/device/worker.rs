//! The worker of a device: it understands what the VMM sends. If it dies, another one goes on.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recvmsg};

use super::card::{Card, CardSocket};
use super::fpga_device::{FpgaDevice, VECTORS};
use super::message::{HEADER_BYTES, Header};
use super::passing::{
    NO_ANSWER, Packet, READY, TOO_MANY, end_connection, has_hung_up, placed, present, receive_packet, send_packet,
};

/// A worker cannot begin.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum WorkerError {
    /// the keeper of the connection has ended
    Unguarded,
    /// cannot wait for the keeper: {0}
    Wait(Errno),
    /// the keeper has sent no state of a device
    NoState,
}

/// A device, as far as it is served by this process.
#[derive(Debug)]
pub struct Worker {
    device: FpgaDevice<CardSocket>,
    keeper: OwnedFd,
    vmm: UnixStream,
    /// The card's ends of interrupts.
    events: [Option<OwnedFd>; VECTORS],
    /// The end of the card was told.
    told: bool,
}

impl Worker {
    /// Waits for what the keeper of the connection has.
    ///
    /// # Errors
    /// See [`WorkerError`].
    pub fn start(keeper: OwnedFd) -> Result<Worker, WorkerError> {
        let packet = loop {
            match poll(&mut [PollFd::new(&keeper, PollFlags::IN)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(WorkerError::Wait(errno)),
            }
            if let Some(packet) = receive_packet(&keeper).map_err(|_| WorkerError::Unguarded)? {
                break packet;
            }
        };
        let worker = Worker::with(keeper, packet).ok_or(WorkerError::NoState)?;
        if send_packet(&worker.keeper, &[&READY], &[]).is_err() {
            end_connection(&worker.vmm);
            return Err(WorkerError::Unguarded);
        }
        Ok(worker)
    }

    fn with(keeper: OwnedFd, packet: Packet) -> Option<Worker> {
        let (&[resumes, events, irqs], state) = packet.bytes.split_first_chunk()?;
        let mut descriptors = packet.descriptors.into_iter();
        let (card, vmm) = (descriptors.next()?, UnixStream::from(descriptors.next()?));
        let (events, irqs) = (placed(events, &mut descriptors)?, placed(irqs, &mut descriptors)?);
        let (mut device, asked) = FpgaDevice::again(CardSocket::from(card), state)?;
        device.irqs = irqs;
        device.card.watch(vmm.try_clone().ok()?.into());
        device.card.go_on(asked, (resumes > 0).then_some(resumes));
        Some(Worker { device, keeper, vmm, events, told: false })
    }

    /// Serves until the keeper has gone; then the VMM's connection is ended. `log` gets a line if the card ends before.
    ///
    /// # Errors
    /// See [`WorkerError`].
    pub fn serve(&mut self, log: &dyn Fn(fmt::Arguments<'_>)) -> Result<(), WorkerError> {
        loop {
            if self.wait().map_err(WorkerError::Wait)? {
                self.settle(false);
            }
            self.pass_interrupts();
            if has_hung_up(self.device.card.socket().as_fd()) {
                self.device.card.note_end();
            }
            if !self.device.card.lives() && !std::mem::replace(&mut self.told, true) {
                log(format_args!(
                    "the card has ended: the virtual machine's accelerator reads as all ones from now on"
                ));
            }
            match self.hear() {
                Ok(Some(packet)) => {
                    let reply = self.execute(packet);
                    if self.answer(&reply).is_ok() {
                        continue;
                    }
                }
                Ok(None) => continue,
                Err(_) => {}
            }
            end_connection(&self.vmm);
            return Ok(());
        }
    }

    /// The next message of the VMM, if there is one.
    ///
    /// # Errors
    /// The keeper has gone.
    pub fn hear(&self) -> Result<Option<Packet>, Errno> {
        receive_packet(&self.keeper)
    }

    /// The reply for the VMM, which may be empty.
    pub fn execute(&mut self, packet: Packet) -> Vec<u8> {
        let Some((flags, message)) = packet.bytes.split_first() else { return Vec::new() };
        let Some(header) = Header::parse(message) else { return Vec::new() };
        let body = message.get(HEADER_BYTES..).unwrap_or_default();
        self.settle(!header.may_be_late(body));
        let descriptors = (flags & TOO_MANY == 0).then_some(packet.descriptors);
        let reply = self.device.execute(&header, body, descriptors);
        self.device.card.end_of_message();
        reply.unwrap_or_default()
    }

    /// Learns what a worker that has died had asked of the card, and makes requests that have waited for that.
    fn settle(&mut self, waits: bool) {
        if self.device.card.settle(waits) {
            self.keep();
            self.device.card.make_late();
            self.keep();
        }
    }

    /// Gives the keeper the state before a message. If it has gone, it takes no answer, either.
    fn keep(&self) {
        let state = self.device.state(self.device.card.asked());
        let _ = send_packet(&self.keeper, &[&NO_ANSWER.to_ne_bytes(), &state], &[]);
    }

    /// Gives the keeper the reply, and the state behind the message.
    ///
    /// # Errors
    /// The keeper has gone.
    pub fn answer(&self, reply: &[u8]) -> Result<(), Errno> {
        let (irqs, descriptors) = present(&self.device.irqs);
        let state = self.device.state(self.device.card.asked());
        let length = u32::try_from(reply.len()).unwrap_or(0).to_ne_bytes();
        send_packet(&self.keeper, &[&length, &[irqs], reply, &state], &descriptors)
    }

    /// True: the card, which was silent, says something.
    fn wait(&self) -> Result<bool, Errno> {
        let card = &self.device.card;
        let of_card = if card.is_unsettled() { PollFlags::IN } else { PollFlags::empty() };
        let mut polled = vec![PollFd::new(&self.keeper, PollFlags::IN)];
        polled.extend(card.lives().then(|| PollFd::new(card.socket(), of_card)));
        polled.extend(self.events.iter().flatten().map(|event| PollFd::new(event, PollFlags::IN)));
        match poll(&mut polled, None) {
            Ok(_) => Ok(card.lives() && polled.get(1).is_some_and(|card| card.revents().contains(PollFlags::IN))),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Vectors that the card has raised: told first and taken then, so that none is lost with this process. An end that the card has
    /// closed is given up.
    fn pass_interrupts(&mut self) {
        for (vector, place) in self.events.iter_mut().enumerate() {
            let Some(event) = place else { continue };
            let mut polled = [PollFd::new(&*event, PollFlags::IN)];
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            if poll(&mut polled, Some(&now)) != Ok(1) {
                continue;
            }
            if polled[0].revents().contains(PollFlags::IN) && !polled[0].revents().contains(PollFlags::HUP) {
                self.device.interrupt(vector);
            }
            let mut bytes = [0; 8];
            let (mut parts, mut none) = ([std::io::IoSliceMut::new(&mut bytes)], RecvAncillaryBuffer::default());
            match recvmsg(event.as_fd(), &mut parts, &mut none, RecvFlags::DONTWAIT).map(|message| message.bytes) {
                Ok(0) => *place = None,
                Ok(_) | Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(_) => *place = None,
            }
        }
    }
}
