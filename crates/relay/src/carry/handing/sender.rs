//! The sending half of a connection. Used by one thread at a time, whose turn it is ([`crate::carry::handing::turn`]): the
//! thread of a lane sends without waiting, the writer waits for a socket that takes no more.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use aviary_transport::{limit_unsent, min_round_trip};

use crate::carry::compressing::Compressing;
use crate::carry::handing::packet::Packet;
use crate::carry::pace::Pace;
use crate::frames::frame::{PACKET_HEADER, put_signs};
use crate::tls::stream::Writer;

/// The kernel is asked for the round trip so often.
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(crate) struct Sender {
    writer: Writer,
    /// Of the writer; asked for its round trip.
    socket: TcpStream,
    looked: Option<Instant>,
    compressing: Compressing,
    pace: Pace,
    /// Why a thread of a lane could not send; the writer reports it.
    failed: Option<io::Error>,
}

impl Sender {
    pub fn new(writer: Writer, socket: TcpStream, compressing: Compressing) -> Self {
        Sender { writer, socket, looked: None, compressing, pace: Pace::new(), failed: None }
    }

    /// The shortest round trip that the kernel has measured, if it is time to ask for it. The kernel measures all the time; a
    /// ping waits for the other machine's threads, too.
    pub fn look_at_round_trip(&mut self, now: Instant) -> Option<Duration> {
        if self.looked.is_some_and(|at| now.duration_since(at) < LOOK_EVERY) {
            return None;
        }
        self.looked = Some(now);
        min_round_trip(&self.socket)
    }

    /// The most bytes of a piece of bulk data.
    pub fn piece(&self) -> usize {
        self.pace.piece
    }

    /// The writer's: sends signs, then the packet, if there are any; waits until the socket has taken them.
    pub fn send(&mut self, packet: &mut Packet, round_trip: Duration) -> io::Result<()> {
        let signed = signs(packet).map_or(Ok(()), |signs| self.writer.write(&signs));
        if !packet.has_frames() {
            return signed;
        }
        // It is made in any case, because it has its number.
        let bytes = self.encode(packet, round_trip);
        signed?;
        let start = Instant::now();
        self.writer.write(&packet.encoded)?;
        self.measure(bytes, packet.encoded.len(), start.elapsed());
        Ok(())
    }

    fn measure(&mut self, frames: usize, bytes: usize, took: Duration) {
        self.compressing.sent(frames, bytes, took);
        if self.pace.sent(bytes, took) {
            limit_unsent(&self.socket, self.pace.unsent);
        }
    }

    /// The writer's: sends a packet of another connection again, after signs.
    pub fn send_again(&mut self, packet: &mut Packet) -> io::Result<()> {
        signs(packet).map_or(Ok(()), |signs| self.writer.write(&signs))?;
        self.writer.write(&packet.encoded)
    }

    /// A lane's: as [`Sender::send`], without waiting. False: the rest is for the writer ([`Sender::finish`]).
    pub fn offer(&mut self, packet: &mut Packet, round_trip: Duration) -> bool {
        let signs = signs(packet).unwrap_or_default();
        if packet.has_frames() {
            self.encode(packet, round_trip);
        }
        self.writer.offer(&[&signs, &packet.encoded]).unwrap_or_else(|error| {
            self.failed = Some(error);
            false
        })
    }

    /// The writer's: sends the rest of what was offered.
    pub fn finish(&mut self) -> io::Result<()> {
        self.failed.take().map_or(Ok(()), Err)?;
        self.writer.finish()
    }

    /// Closes this direction.
    pub fn end(&mut self) {
        self.writer.end();
    }

    /// Makes the numbered packet; returns how many bytes its frames have.
    fn encode(&mut self, packet: &mut Packet, round_trip: Duration) -> usize {
        let bytes = packet.frames.len() - PACKET_HEADER;
        let compress = self.compressing.pays(&packet.frames[PACKET_HEADER..], round_trip);
        packet.encode(compress);
        bytes
    }
}

/// The packet of the waiting signs, which are taken. `None`: no sign waits.
fn signs(packet: &mut Packet) -> Option<Vec<u8>> {
    if packet.signs.is_empty() {
        return None;
    }
    let mut signs = Vec::new();
    put_signs(&mut signs, &packet.signs);
    packet.signs.clear();
    Some(signs)
}
