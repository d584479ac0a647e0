//! The network side of a carrier: reads and writes packets, detects a broken connection. [`crate::carry::life`] runs one reader and
//! one writer thread per connection. A hostile peer can make the reader hold [`MAX_PARTIAL`] messages in part, of eight
//! times [`MAX_MESSAGE`] bytes together; frames that are malformed or out of place end the session.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aviary_transport::limit_unsent;
use aviary_wire::{DecodeError, Decoder, Encoder, MAX_MESSAGE};

use crate::carry::carrier::Carrier;
use crate::carry::compressing::Compressing;
pub use crate::carry::compressing::Compression;
use crate::carry::handing::packet::Packet;
use crate::carry::handing::sender::Sender;
use crate::carry::inbox::{Batch, Parcel};
use crate::carry::outbox::Next;
use crate::carry::pace::{LEAST_PIECE, Pace};
use crate::frames::frame::{Frame, Kind, Packets, put_frame, put_packet};
use crate::tls::handshake::Secured;
use crate::tls::stream::{Reader, Writer, split};

/// The most messages of all lanes that have arrived in part.
const MAX_PARTIAL: usize = 1024;
/// Bytes of numbered packets after which an acknowledgement is sent: a sixteenth of what the peer may keep.
const ACK_BYTES: usize = 1 << 20;
/// Bytes that each packet counts in addition to its length.
const ACK_PACKET_COST: usize = 64;
const LAST_PACKETS_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection before a session uses it: for the handshake.
pub struct Link {
    socket: TcpStream,
    reader: Reader,
    writer: Writer,
    packets: Packets,
    patience: Duration,
}

impl Link {
    /// `patience`: after this time without data from the peer the connection counts as broken.
    pub fn new(socket: TcpStream, tls: Option<Secured>, patience: Duration) -> io::Result<Self> {
        let _ = socket.set_nodelay(true);
        limit_unsent(&socket, Pace::new().unsent);
        let (reader, writer) = split(socket.try_clone()?, tls)?;
        let link = Link { socket, reader, writer, packets: Packets::default(), patience };
        link.set_timeouts()?;
        Ok(link)
    }

    fn set_timeouts(&self) -> io::Result<()> {
        self.socket.set_read_timeout(Some(self.patience / 8))?;
        self.socket.set_write_timeout(Some(self.patience))
    }

    pub fn set_patience(&mut self, patience: Duration) -> io::Result<()> {
        self.patience = patience;
        self.set_timeouts()
    }

    pub fn socket(&self) -> io::Result<TcpStream> {
        self.socket.try_clone()
    }

    pub fn send(&mut self, kind: Kind, payload: &[u8]) -> io::Result<()> {
        let (mut frames, mut packet) = (Vec::new(), Vec::new());
        put_frame(&mut frames, kind, 0, payload);
        put_packet(&mut packet, &frames, false);
        self.writer.write(&packet)
    }

    /// Waits for the next frame, which must be of this kind; returns its payload.
    pub fn receive(&mut self, kind: Kind, deadline: Instant) -> io::Result<Vec<u8>> {
        self.receive_one_of(&[kind], deadline).map(|(_, payload)| payload)
    }

    /// Waits for the next frame, the first of its packet, which must be of one of these kinds. A peer that sends a byte now and then
    /// has no more time than one that sends nothing.
    pub fn receive_one_of(&mut self, kinds: &[Kind], deadline: Instant) -> io::Result<(Kind, Vec<u8>)> {
        let invalid = |error: &dyn std::fmt::Display| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
        loop {
            if let Some(mut frames) = self.packets.next_packet().map_err(|e| invalid(&e))? {
                return match frames.next() {
                    Some(Ok(frame)) if kinds.contains(&frame.kind) => Ok((frame.kind, frame.payload.to_vec())),
                    _ => Err(invalid(&"the peer sent another frame than the handshake expects")),
                };
            }
            match self.reader.read(self.packets.buffer()) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) if Instant::now() < deadline => {}
                Ok(_) => return Err(io::ErrorKind::TimedOut.into()),
                Err(e) if waited(&e) && Instant::now() < deadline => {}
                Err(e) if waited(&e) => return Err(io::ErrorKind::TimedOut.into()),
                Err(e) => return Err(e),
            }
        }
    }

    /// Closes the connection so that the data sent last still arrives: closing a socket with unread data would discard it.
    pub fn end(&mut self) {
        self.writer.end();
        drain(&mut self.socket);
    }

    /// The socket, without its TLS session. Correct only if everything that the peer has sent was read.
    pub fn into_socket(self) -> TcpStream {
        self.socket
    }

    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// The stream's two directions, and what has arrived of it.
    pub(crate) fn into_stream(self) -> (Reader, Packets, Writer) {
        (self.reader, self.packets, self.writer)
    }

    /// As it was before [`Link::into_stream`].
    pub(crate) fn again(socket: TcpStream, stream: (Reader, Packets, Writer), patience: Duration) -> Link {
        let (reader, packets, writer) = stream;
        Link { socket, reader, writer, packets, patience }
    }

    /// The two directions of the connection, and what the second one shares with the lanes. `intake`: the state of arrival over earlier connections.
    pub(crate) fn split(self, compression: Compression, intake: Intake) -> (NetReader, NetWriter, Sender) {
        let reader = NetReader { reader: self.reader, packets: self.packets, intake, patience: self.patience };
        let compressing = Compressing::new(compression, is_local(&self.socket));
        let sender = Sender::new(self.writer, self.socket, compressing);
        (reader, NetWriter { idle: self.patience / 4 }, sender)
    }
}

/// Ends sending, then reads until the peer closes the connection.
pub fn drain(socket: &mut TcpStream) {
    let _ = socket.shutdown(std::net::Shutdown::Write);
    let _ = socket.set_read_timeout(Some(LAST_PACKETS_TIMEOUT));
    let deadline = Instant::now() + LAST_PACKETS_TIMEOUT;
    while socket.read(&mut [0; 4096]).is_ok_and(|n| n > 0) && Instant::now() < deadline {}
}

/// The peer is on this machine: on loopback, or in a VM by vsock, which has no address.
fn is_local(socket: &TcpStream) -> bool {
    socket.peer_addr().map_or(true, |peer| peer.ip().to_canonical().is_loopback())
}

fn waited(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

/// The state of arrival of a session, over all its connections.
#[derive(Default)]
pub(crate) struct Intake {
    /// By lane: the message that has arrived in part.
    partial: HashMap<u32, Vec<u8>>,
    /// The number of numbered packets that were handled.
    received: u64,
    /// Bytes that have arrived since the last acknowledgement.
    unacknowledged: usize,
}

impl Intake {
    pub fn received(&self) -> u64 {
        self.received
    }

    /// For the process that goes on with the session.
    pub fn save(&self, to: &mut Encoder) {
        [self.received, self.unacknowledged as u64, self.partial.len() as u64].into_iter().for_each(|it| to.word(it));
        for (lane, message) in &self.partial {
            to.word(u64::from(*lane));
            to.bytes(message);
        }
    }

    /// As another process has left it.
    pub fn restored(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let [received, unacknowledged, count] = [from.word()?, from.word()?, from.word()?];
        let mut partial = HashMap::new();
        for _ in 0..count {
            partial.insert(from.word()? as u32, from.bytes()?.to_vec());
        }
        Ok(Intake { partial, received, unacknowledged: unacknowledged as usize })
    }
}

pub(crate) struct NetReader {
    reader: Reader,
    packets: Packets,
    intake: Intake,
    patience: Duration,
}

/// The reason why a connection has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LinkEnd {
    /// The peer has ended the session, or has violated the protocol.
    Over(String),
    /// The session may continue over another connection. `closed`: the peer's machine has closed this one in order.
    Broken { why: String, closed: bool },
}

impl NetReader {
    /// Handles arriving packets until the connection ends; returns the reason. Calls `alive` whenever bytes have arrived.
    pub fn run(&mut self, carrier: &Arc<Carrier>, mut alive: impl FnMut()) -> LinkEnd {
        let broken = |why: String| LinkEnd::Broken { why, closed: false };
        let mut heard = Instant::now();
        loop {
            match self.handle_all(carrier) {
                Ok(None) => {}
                Ok(Some(farewell)) => return LinkEnd::Over(farewell),
                Err(broken) => {
                    carrier.outbox.farewell(&broken);
                    return LinkEnd::Over(broken);
                }
            }
            match self.reader.read(self.packets.buffer()) {
                Ok(0) => {
                    return LinkEnd::Broken { why: "the peer closed the connection".into(), closed: true };
                }
                Ok(_) => {
                    heard = Instant::now();
                    alive();
                }
                Err(e) if waited(&e) && heard.elapsed() < self.patience => {}
                Err(e) if waited(&e) => return broken(format!("no data from the peer for {:?}", self.patience)),
                Err(e) => return broken(e.to_string()),
            }
        }
    }

    /// The state for the next connection. A packet that has arrived in part is dropped; the peer sends it again as a whole.
    pub fn into_intake(self) -> Intake {
        self.intake
    }

    /// Handles these bytes as if they had arrived.
    #[cfg(test)]
    pub fn feed(&mut self, bytes: &[u8], carrier: &Arc<Carrier>) -> Result<Option<String>, String> {
        self.packets.buffer().extend_from_slice(bytes);
        self.handle_all(carrier)
    }

    /// Acts as if the connection had broken and another one had come.
    #[cfg(test)]
    pub fn relink(&mut self) -> u64 {
        self.packets = Packets::default();
        self.intake.received
    }

    fn handle_all(&mut self, carrier: &Arc<Carrier>) -> Result<Option<String>, String> {
        let NetReader { packets, intake, .. } = self;
        while let Some(frames) = packets.next_packet().map_err(|e| e.to_string())? {
            let (numbered, bytes) = (frames.is_numbered(), frames.bytes_left());
            let mut gathering = Gathering::default();
            for frame in frames {
                let frame = frame.map_err(|e| e.to_string())?;
                if frame.kind == Kind::Message && !frame.more && !intake.partial.contains_key(&frame.lane) {
                    gathering.take(carrier, frame)?;
                    continue;
                }
                gathering.pass_on(carrier)?;
                if frame.kind == Kind::Bye {
                    let text = String::from_utf8_lossy(&frame.payload[..frame.payload.len().min(200)]).into_owned();
                    return Ok(Some(if text.is_empty() { "the peer ended the session".into() } else { text }));
                }
                handle(intake, carrier, frame)?;
            }
            gathering.pass_on(carrier)?;
            if numbered {
                intake.count(carrier, bytes);
            }
        }
        Ok(None)
    }
}

impl Intake {
    /// Counts a numbered packet that was handled completely.
    fn count(&mut self, carrier: &Carrier, bytes: usize) {
        self.received += 1;
        self.unacknowledged += bytes + ACK_PACKET_COST;
        if self.unacknowledged >= ACK_BYTES {
            self.unacknowledged = 0;
            carrier.acknowledge(self.received);
        }
    }
}

/// Consecutive messages of one lane in a packet.
#[derive(Default)]
struct Gathering {
    lane: u32,
    batch: Batch,
}

impl Gathering {
    fn take(&mut self, carrier: &Arc<Carrier>, frame: Frame) -> Result<(), String> {
        if frame.lane != self.lane {
            self.pass_on(carrier)?;
            self.lane = frame.lane;
        }
        self.batch.push(frame.payload);
        Ok(())
    }

    fn pass_on(&mut self, carrier: &Arc<Carrier>) -> Result<(), String> {
        let batch = std::mem::take(&mut self.batch);
        if batch.is_empty() { Ok(()) } else { carrier.arrived(self.lane, Parcel::Batch(batch)) }
    }
}

fn word(payload: &[u8]) -> Result<u64, String> {
    payload.try_into().map(u64::from_le_bytes).map_err(|_| "the peer sent a frame of the wrong size".to_owned())
}

fn handle(intake: &mut Intake, carrier: &Arc<Carrier>, frame: Frame) -> Result<(), String> {
    let Intake { partial, received, .. } = intake;
    match frame.kind {
        Kind::Message => {
            let message = match partial.remove(&frame.lane) {
                Some(mut begun) => {
                    begun.extend_from_slice(frame.payload);
                    begun
                }
                None => frame.payload.to_vec(),
            };
            if message.len() > MAX_MESSAGE {
                return Err(format!(
                    "the other machine's relay or gateway sent a message of more than {MAX_MESSAGE} bytes (it is faulty or hostile): the session cannot continue"
                ));
            }
            if frame.more {
                if message.is_empty() {
                    return Err("the peer sent an empty part of a message".into());
                }
                partial.insert(frame.lane, message);
                if partial.values().map(Vec::len).sum::<usize>() > 8 * MAX_MESSAGE || partial.len() > MAX_PARTIAL {
                    return Err("the peer sent parts of too many messages at a time".into());
                }
                return Ok(());
            }
            carrier.arrived(frame.lane, Parcel::Message(message))
        }
        Kind::Region => carrier.arrived_region(Some(frame.lane), frame.payload),
        Kind::Control => carrier.arrived_control(frame.payload),
        Kind::Credit => {
            carrier.outbox.credit(frame.lane, word(frame.payload)?);
            Ok(())
        }
        Kind::Ping => {
            carrier.outbox.pong(word(frame.payload)?, *received);
            Ok(())
        }
        Kind::Pong => {
            carrier.saw_round_trip(word(frame.payload)?);
            Ok(())
        }
        Kind::Pieces => carrier.announced(frame.lane, frame.payload),
        Kind::Piece => carrier.arrived_piece(frame.payload),
        Kind::Ack => carrier.outbox.acknowledged(word(frame.payload)?).map_err(|e| e.to_string()),
        Kind::Open | Kind::Welcome | Kind::Bye | Kind::Ticket | Kind::Resume | Kind::Resumed => {
            Err("the peer sent a frame of the handshake in the middle of a session".into())
        }
    }
}

/// The writing thread of a connection. It shares the connection's [`Sender`] with the threads of the lanes.
pub(crate) struct NetWriter {
    idle: Duration,
}

impl NetWriter {
    /// Sends what is queued until that ends; first again what was sent over other connections, from number `at` on.
    pub fn run(&self, carrier: &Carrier, at: u64) -> io::Result<()> {
        let ended = self.send_all(carrier, at);
        carrier.take_sender();
        ended
    }

    fn send_all(&self, carrier: &Carrier, at: u64) -> io::Result<()> {
        let (mut packet, mut next, mut piece) = (Packet::default(), at, LEAST_PIECE);
        while let Some(following) = carrier.outbox.again(next, &mut packet.encoded, &mut packet.signs) {
            carrier.with_sender(|sender| sender.send_again(&mut packet))?;
            next = following;
        }
        loop {
            packet.clear();
            let round_trip = carrier.round_trip();
            let linger = (round_trip / 8).min(Duration::from_micros(200));
            match carrier.outbox.next(&carrier.arena, &mut packet.signs, &mut packet.frames, piece, linger, self.idle) {
                Next::Packet => {}
                Next::Rest => {
                    carrier.with_sender(Sender::finish)?;
                    continue;
                }
                Next::Idle => put_frame(&mut packet.signs, Kind::Ping, 0, &carrier.clock().to_le_bytes()),
                Next::Finished => {
                    return carrier.with_sender(|sender| {
                        sender.end();
                        Ok(())
                    });
                }
                Next::Severed => return Ok(()),
            }
            let sent = carrier.with_sender(|sender| {
                let looked = sender.look_at_round_trip(Instant::now());
                looked.into_iter().for_each(|shortest| carrier.note_round_trip(shortest));
                let sent = sender.send(&mut packet, round_trip);
                piece = sender.piece();
                sent
            });
            // It has its number, whether or not the connection took it.
            if packet.is_numbered() {
                carrier.outbox.keep(&mut packet.encoded);
            }
            sent?;
        }
    }
}
