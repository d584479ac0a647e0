//! One strand: a connection of a session that carries pieces of bulk data, and nothing else, in both directions. Started by
//! [`crate::strands::together`].
//!
//! Its stream consists of packets as the first connection's: numbered ones with a piece each, and signs that acknowledge how
//! many have arrived over this strand. A piece is written to the arena when all of it is there and was verified. Anything else
//! that a peer sends ends the session; a peer that sends little or nothing holds up nothing but its own pieces.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aviary_transport::{Side, limit_unsent};

use crate::carry::carrier::Carrier;
use crate::carry::link::Link;
use crate::carry::pace::Pace;
use crate::carry::threads::thread;
use crate::frames::frame::{Kind, PACKET_HEADER, Packets, make_packet, put_frame, put_signs};
use crate::strands::pieces::Work;
use crate::tls::stream::{Reader, Writer};

/// A relay closes a strand that has carried nothing for so long.
const IDLE: Duration = Duration::from_secs(30);

pub(crate) struct Strand {
    socket: TcpStream,
    reader: JoinHandle<()>,
    writer: JoinHandle<()>,
}

impl Strand {
    /// Starts its threads. `ended` is called when it has ended by itself; with an error if the peer has violated the protocol.
    pub fn start(
        carrier: &Arc<Carrier>,
        link: Link,
        number: u64,
        ended: impl FnOnce(Result<(), String>) + Send + 'static,
    ) -> io::Result<Strand> {
        let (socket, patience) = (link.socket()?, link.patience());
        notice_death(&socket, patience);
        let (reader, packets, writer) = link.into_stream();
        carrier.outbox.pieces.begin(number);
        let reader = thread("strand-in", {
            let (carrier, socket) = (carrier.clone(), socket.try_clone()?);
            move || {
                let end = read(&carrier, reader, packets, number);
                carrier.outbox.strand_broke(number);
                let _ = socket.shutdown(Shutdown::Both);
                if let Err(why) = &end {
                    carrier.outbox.farewell(why);
                }
                ended(end);
            }
        })?;
        let writer = thread("strand-out", {
            let (carrier, socket) = (carrier.clone(), socket.try_clone()?);
            move || {
                if write(&carrier, writer, &socket, number).is_err() {
                    carrier.outbox.strand_broke(number);
                    // Wakes the reader, which then ends.
                    let _ = socket.shutdown(Shutdown::Both);
                }
            }
        })?;
        Ok(Strand { socket, reader, writer })
    }

    /// Ends it, at once or with what it is sending.
    pub fn end(self, carrier: &Carrier, number: u64) {
        carrier.outbox.pieces.stop(number);
        let _ = self.socket.shutdown(Shutdown::Both);
        let _ = (self.reader.join(), self.writer.join());
        carrier.outbox.strand_broke(number);
    }
}

/// The kernel says when a peer is gone from which something is due, and asks one from which nothing is.
fn notice_death(socket: &TcpStream, patience: Duration) {
    let milliseconds = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
    // A vsock has none of these.
    let _ = rustix::net::sockopt::set_tcp_user_timeout(socket, milliseconds);
    let _ = rustix::net::sockopt::set_tcp_keepidle(socket, patience.max(Duration::from_secs(1)));
    let _ = rustix::net::sockopt::set_socket_keepalive(socket, true);
}

/// Until the strand ends. An error: the peer has violated the protocol.
fn read(carrier: &Arc<Carrier>, mut reader: Reader, mut packets: Packets, strand: u64) -> Result<(), String> {
    let (mut count, pieces) = (0, &carrier.outbox.pieces);
    loop {
        let before = count;
        while let Some(frames) = packets.next_packet().map_err(|e| e.to_string())? {
            for frame in frames {
                let frame = frame.map_err(|e| e.to_string())?;
                match frame.kind {
                    Kind::Piece => {
                        carrier.arrived_piece(frame.payload)?;
                        count += 1;
                    }
                    Kind::Ack => {
                        let word = frame.payload.try_into().map(u64::from_le_bytes);
                        let word = word.map_err(|_| "the peer sent a frame of the wrong size".to_owned())?;
                        pieces.acknowledge(strand, word).map_err(|e| e.to_string())?;
                    }
                    _ => return Err("the peer sent a frame over a strand that is none of a strand".to_owned()),
                }
            }
        }
        if count > before {
            pieces.owe(strand, count);
        }
        match reader.read(packets.buffer()) {
            Ok(0) => return Ok(()),
            Err(error) if !waited(&error) => return Ok(()),
            Ok(_) | Err(_) => {}
        }
    }
}

fn waited(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

fn write(carrier: &Carrier, mut writer: Writer, socket: &TcpStream, strand: u64) -> io::Result<()> {
    let (mut frames, mut packet, mut pace) = (Vec::new(), Vec::new(), Pace::new());
    loop {
        match carrier.outbox.pieces.next(strand, IDLE) {
            Work::Piece(piece) => {
                carrier.outbox.piece_taken();
                frames.clear();
                frames.resize(PACKET_HEADER, 0);
                piece.put(&carrier.arena, &mut frames);
                make_packet(&mut frames, &mut packet, false);
                let start = Instant::now();
                writer.write(&packet)?;
                if pace.sent(packet.len(), start.elapsed()) {
                    limit_unsent(socket, pace.unsent);
                }
            }
            Work::Acknowledge(count) => {
                frames.clear();
                packet.clear();
                put_frame(&mut frames, Kind::Ack, 0, &count.to_le_bytes());
                put_signs(&mut packet, &frames);
                writer.write(&packet)?;
            }
            // Only a relay can make another one.
            Work::Idle if carrier.side == Side::Guest || !carrier.outbox.pieces.is_quiet(strand) => {}
            Work::Idle | Work::Stop => {
                writer.end();
                return Ok(());
            }
        }
    }
}
