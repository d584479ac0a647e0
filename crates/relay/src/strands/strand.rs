//! One strand: a connection of a session that carries pieces of bulk data, and nothing else, in both directions. Started by
//! [`crate::strands::together`].
//!
//! Its stream consists of packets as the first connection's: numbered ones with a piece each, and signs that acknowledge how
//! many have arrived over this strand. A piece is written to the arena when all of it is there and was verified. Anything else
//! that a peer sends ends the session; a peer that sends little or nothing holds up nothing but its own pieces.
//!
//! A strand can take the place of a first connection that has broken: the relay sends `RESUME` as the last packet of it as a
//! strand, the gateway `RESUMED`. What either has sent over it before is there by then, as a stream keeps its order.

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

/// What has come of a strand that ended by itself.
pub(crate) enum StrandEnd {
    /// Its connection has broken.
    Broken,
    /// The peer has violated the protocol.
    Wrong(String),
    /// It is to be the first connection; what the peer has sent for that (`RESUME` or `RESUMED`).
    Leads(Box<Link>, Vec<u8>),
}

pub(crate) struct Strand {
    socket: TcpStream,
    /// Its reader, which ends after its writer.
    threads: JoinHandle<()>,
}

impl Strand {
    /// Starts its threads. `ended` is called when it has ended, by itself or by [`Strand::end`].
    pub fn start(
        carrier: &Arc<Carrier>,
        link: Link,
        number: u64,
        ended: impl FnOnce(StrandEnd) + Send + 'static,
    ) -> io::Result<Strand> {
        let (socket, patience) = (link.socket()?, link.patience());
        notice_death(&socket, patience);
        let (mut reader, mut packets, writer) = link.into_stream();
        carrier.outbox.pieces.begin(number);
        let writer = thread("strand-out", {
            let (carrier, socket) = (carrier.clone(), socket.try_clone()?);
            move || {
                write(&carrier, writer, &socket, number).unwrap_or_else(|_| {
                    carrier.outbox.strand_broke(number);
                    // Wakes the reader, which then ends.
                    let _ = socket.shutdown(Shutdown::Both);
                    None
                })
            }
        });
        let threads = writer.and_then(|writer| {
            let (carrier, socket) = (carrier.clone(), socket.try_clone()?);
            thread("strand-in", move || {
                let read = read(&carrier, &mut reader, &mut packets, number);
                match &read {
                    Ok(Some(_)) => carrier.outbox.pieces.leave(number, Vec::new()),
                    Ok(None) | Err(_) => drop(socket.shutdown(Shutdown::Both)),
                }
                if let Err(why) = &read {
                    carrier.outbox.farewell(why);
                }
                if !matches!(read, Ok(Some(_))) {
                    carrier.outbox.strand_broke(number);
                }
                let writer = writer.join().ok().flatten();
                carrier.outbox.strand_broke(number);
                ended(match (read, writer) {
                    (Err(why), _) => StrandEnd::Wrong(why),
                    (Ok(Some(said)), Some(writer)) => {
                        StrandEnd::Leads(Link::again(socket, (reader, packets, writer), patience).into(), said)
                    }
                    (Ok(_), _) => StrandEnd::Broken,
                });
            })
        });
        // Without a reader its writer ends, too.
        let threads = threads.inspect_err(|_| carrier.outbox.strand_broke(number))?;
        Ok(Strand { socket, threads })
    }

    /// Ends it at once.
    pub fn end(self, carrier: &Carrier, number: u64) {
        carrier.outbox.pieces.stop(number);
        let _ = self.socket.shutdown(Shutdown::Both);
        self.ended();
    }

    /// It has ended by itself.
    pub fn ended(self) {
        let _ = self.threads.join();
    }
}

/// The kernel says when a peer is gone from which something is due, and asks one from which nothing is: either way after this
/// time.
fn notice_death(socket: &TcpStream, patience: Duration) {
    let milliseconds = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
    let second = Duration::from_secs(1);
    // A vsock has none of these.
    let _ = rustix::net::sockopt::set_tcp_user_timeout(socket, milliseconds);
    let _ = rustix::net::sockopt::set_tcp_keepidle(socket, (patience / 2).max(second));
    let _ = rustix::net::sockopt::set_tcp_keepintvl(socket, (patience / 4).max(second));
    let _ = rustix::net::sockopt::set_socket_keepalive(socket, true);
}

/// Until the strand ends as one. `Some`: what the peer said to make it the first connection. An error: the peer has violated
/// the protocol.
fn read(
    carrier: &Arc<Carrier>,
    reader: &mut Reader,
    packets: &mut Packets,
    strand: u64,
) -> Result<Option<Vec<u8>>, String> {
    let (mut count, pieces) = (0, &carrier.outbox.pieces);
    loop {
        let before = count;
        while let Some(mut frames) = packets.next_packet().map_err(|e| e.to_string())? {
            while let Some(frame) = frames.next() {
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
                    kind if hands_on(kind, carrier.side, pieces.has_left(strand)) && frames.bytes_left() == 0 => {
                        return Ok(Some(frame.payload.to_vec()));
                    }
                    _ => return Err("the peer sent a frame over a strand that is none of a strand".to_owned()),
                }
            }
        }
        if count > before {
            pieces.owe(strand, count);
        }
        match reader.read(packets.buffer()) {
            Ok(0) => return Ok(None),
            Err(error) if !waited(&error) => return Ok(None),
            Ok(_) | Err(_) => {}
        }
    }
}

/// Whether a frame of this kind makes the strand the first connection. `left`: this end has sent its last as a strand.
fn hands_on(kind: Kind, side: Side, left: bool) -> bool {
    match side {
        Side::Guest => kind == Kind::Resume && !left,
        Side::Server => kind == Kind::Resumed && left,
    }
}

fn waited(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

/// Until the strand ends as one. `Some`: its connection is to be used further.
fn write(carrier: &Carrier, mut writer: Writer, socket: &TcpStream, strand: u64) -> io::Result<Option<Writer>> {
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
            Work::Leave(last) => {
                if !last.is_empty() {
                    writer.write(&last)?;
                }
                return Ok(Some(writer));
            }
            // Only a relay can make another one.
            Work::Idle if carrier.side == Side::Guest || !carrier.outbox.pieces.is_quiet(strand) => {}
            Work::Idle | Work::Stop => {
                writer.end();
                return Ok(None);
            }
        }
    }
}
