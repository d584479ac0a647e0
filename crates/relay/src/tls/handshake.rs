//! The handshake of a connection, by rustls. Used by `security`, for either end.
//!
//! Records are read from the socket one by one, so that nothing beyond the handshake is taken from it: what a peer sends
//! right behind belongs to [`crate::tls::stream`], which goes on with the keys. A hostile peer makes this process hold one
//! record, until the deadline whatever it sends.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::CertificateDer;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{CommonState, Error, ExtractedSecrets};

use crate::tls::keys::{Renewal, Renewing};
use crate::tls::records::{HEADER, Opener, Sealer, is_record, length_of};

/// A connection after its handshake.
pub(crate) struct Secured {
    pub sealer: Sealer,
    pub opener: Opener,
    /// The peer's, if it showed one.
    pub certificate: Option<CertificateDer<'static>>,
}

/// Either end of a handshake.
trait Handshake {
    type Data;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn common(&self) -> &CommonState;
    fn finish(self) -> Result<(ExtractedSecrets, Box<dyn Renewing>), Error>;
}

/// rustls has the same functions for both ends, and no trait of them.
macro_rules! handshake {
    ($connection:ty, $data:ty) => {
        impl Handshake for $connection {
            type Data = $data;

            fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
                self.process_tls_records(incoming)
            }

            fn common(&self) -> &CommonState {
                self
            }

            fn finish(self) -> Result<(ExtractedSecrets, Box<dyn Renewing>), Error> {
                self.dangerous_into_kernel_connection().map(|(secrets, rest)| (secrets, Box::new(rest) as _))
            }
        }
    };
}

handshake!(UnbufferedClientConnection, ClientConnectionData);
handshake!(UnbufferedServerConnection, ServerConnectionData);

/// The relay's side. Its configuration must allow keys to be taken out.
pub(crate) fn as_client(
    connection: UnbufferedClientConnection,
    socket: &mut TcpStream,
    deadline: Instant,
) -> io::Result<Secured> {
    complete(connection, socket, deadline, false)
}

/// The node's side.
pub(crate) fn as_server(
    connection: UnbufferedServerConnection,
    socket: &mut TcpStream,
    deadline: Instant,
) -> io::Result<Secured> {
    complete(connection, socket, deadline, true)
}

/// What [`complete`] does next.
enum Turn {
    Again,
    Read,
    Done,
}

fn complete<H: Handshake>(
    mut connection: H,
    socket: &mut TcpStream,
    deadline: Instant,
    is_server: bool,
) -> io::Result<Secured> {
    let (mut incoming, mut outgoing) = (Vec::new(), Vec::new());
    loop {
        let UnbufferedStatus { discard, state, .. } = connection.process(&mut incoming);
        let step = match state {
            Ok(state) => take(state, socket, &mut outgoing)?,
            Err(error) => {
                incoming.drain(..discard);
                tell(&mut connection, &mut incoming, socket);
                return Err(broken(error));
            }
        };
        incoming.drain(..discard);
        match step {
            Turn::Again => {}
            Turn::Done if !connection.common().is_handshaking() => break,
            Turn::Read | Turn::Done => read_record(socket, &mut incoming, deadline)?,
        }
    }
    let certificate = connection.common().peer_certificates().and_then(|chain| chain.first()).cloned();
    let (secrets, rest) = connection.finish().map_err(broken)?;
    let renewal = Renewal::new(rest);
    Ok(Secured {
        sealer: Sealer::new(secrets.tx, renewal.clone()).map_err(broken)?,
        opener: Opener::new(secrets.rx, renewal, is_server).map_err(broken)?,
        certificate,
    })
}

fn take<Data>(
    state: ConnectionState<'_, '_, Data>,
    socket: &mut TcpStream,
    outgoing: &mut Vec<u8>,
) -> io::Result<Turn> {
    match state {
        ConnectionState::EncodeTlsData(mut data) => encode(&mut data, outgoing).map(|()| Turn::Again),
        ConnectionState::TransmitTlsData(data) => {
            socket.write_all(outgoing)?;
            outgoing.clear();
            data.done();
            Ok(Turn::Again)
        }
        ConnectionState::BlockedHandshake => Ok(Turn::Read),
        ConnectionState::WriteTraffic(_) => Ok(Turn::Done),
        ConnectionState::PeerClosed | ConnectionState::Closed => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the peer sent data within the handshake")),
    }
}

fn encode<Data>(data: &mut EncodeTlsData<'_, Data>, outgoing: &mut Vec<u8>) -> io::Result<()> {
    let at = outgoing.len();
    let wanted = match data.encode(&mut []) {
        Ok(_) => return Ok(()),
        Err(EncodeError::InsufficientSize(size)) => size.required_size,
        Err(error) => return Err(io::Error::other(error)),
    };
    outgoing.resize(at + wanted, 0);
    data.encode(&mut outgoing[at..]).map(drop).map_err(io::Error::other)
}

/// Sends the alert that says to the peer why the handshake failed: all that rustls still has to say, in one record. It must
/// not be asked again, as it would look at what is wrong once more.
fn tell<H: Handshake>(connection: &mut H, incoming: &mut [u8], socket: &mut TcpStream) {
    let mut outgoing = Vec::new();
    if let Ok(ConnectionState::EncodeTlsData(mut data)) = connection.process(incoming).state
        && encode(&mut data, &mut outgoing).is_ok()
    {
        let _ = socket.write_all(&outgoing);
    }
}

/// Appends the next record. Bytes that are no record are appended as far as they show it; rustls says what they are.
fn read_record(socket: &mut TcpStream, incoming: &mut Vec<u8>, deadline: Instant) -> io::Result<()> {
    let mut header = [0; HEADER];
    fill(socket, &mut header, deadline)?;
    incoming.extend_from_slice(&header);
    if is_record(&header) {
        let at = incoming.len();
        incoming.resize(at + length_of(&header), 0);
        fill(socket, &mut incoming[at..], deadline)?;
    }
    Ok(())
}

/// Reads until the buffer is full. A peer that sends a byte now and then has no more time than one that sends nothing.
fn fill(socket: &mut TcpStream, mut buffer: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !buffer.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left))?;
        match socket.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => buffer = &mut buffer[read..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

pub(crate) fn broken(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::time::Duration;

    #[test]
    fn a_peer_that_sends_byte_by_byte_has_no_more_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut socket, _) = listener.accept().unwrap();
        let trickle = std::thread::spawn(move || {
            while peer.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let mut much = vec![0; 1 << 20];
        let end = fill(&mut socket, &mut much, Instant::now() + Duration::from_millis(100));
        // Which of the two it is depends on the last byte.
        let over = |error: &io::Error| matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock);
        assert!(end.as_ref().is_err_and(over), "{end:?}");
        drop(socket);
        trickle.join().unwrap();
    }
}
