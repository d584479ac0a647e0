//! The byte stream between two carriers: TLS, or plain on loopback and vsock. Used by `link`.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::Connection;

/// The most bytes of one read of the socket.
const CHUNK: usize = 256 << 10;

type SharedTls = Arc<Mutex<Connection>>;

fn lock(tls: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    tls.lock().unwrap_or_else(PoisonError::into_inner)
}

fn broken(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Splits a connection into its two directions, each for one thread. No lock is held during calls of the socket, so that a
/// slow peer does not block the other direction.
pub fn split(socket: TcpStream, tls: Option<Connection>) -> io::Result<(Reader, Writer)> {
    let shared = tls.map(|mut connection| {
        connection.set_buffer_limit(None);
        Arc::new(Mutex::new(connection))
    });
    let writer = Writer { socket: socket.try_clone()?, tls: shared.clone(), encrypted: Vec::new() };
    Ok((Reader { socket, tls: shared, chunk: vec![0; CHUNK] }, writer))
}

pub struct Reader {
    socket: TcpStream,
    tls: Option<SharedTls>,
    chunk: Vec<u8>,
}

pub struct Writer {
    socket: TcpStream,
    tls: Option<SharedTls>,
    encrypted: Vec<u8>,
}

impl Reader {
    /// Waits for bytes and appends them; returns how many. 0: the peer closed the stream. `WouldBlock`: the socket's timeout.
    pub fn read(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        let Some(tls) = &self.tls else {
            let n = self.socket.read(&mut self.chunk)?;
            into.extend_from_slice(&self.chunk[..n]);
            return Ok(n);
        };
        let before = into.len();
        // Data that arrived together with the end of the handshake.
        drain(&mut lock(tls), into)?;
        while into.len() == before {
            let n = self.socket.read(&mut self.chunk)?;
            if n == 0 {
                return Ok(0);
            }
            let mut connection = lock(tls);
            let mut rest = &self.chunk[..n];
            while !rest.is_empty() {
                connection.read_tls(&mut rest)?;
                if let Err(error) = connection.process_new_packets() {
                    // The alert contains the reason for the peer.
                    let mut alert = Vec::new();
                    let _ = connection.write_tls(&mut alert);
                    let _ = self.socket.write_all(&alert);
                    return Err(broken(error));
                }
                if drain(&mut connection, into)? {
                    return Ok(into.len() - before);
                }
            }
        }
        Ok(into.len() - before)
    }
}

/// Moves decrypted bytes to `into`. True: the peer closed the stream.
fn drain(connection: &mut Connection, into: &mut Vec<u8>) -> io::Result<bool> {
    loop {
        let at = into.len();
        into.resize(at + (16 << 10), 0);
        let read = connection.reader().read(&mut into[at..]);
        into.truncate(at + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => return Ok(true),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(e) => return Err(e),
        }
    }
}

impl Writer {
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(tls) = &self.tls else { return self.socket.write_all(bytes) };
        self.encrypted.clear();
        {
            let mut connection = lock(tls);
            connection.writer().write_all(bytes)?;
            while connection.wants_write() {
                connection.write_tls(&mut self.encrypted)?;
            }
        }
        self.socket.write_all(&self.encrypted)
    }

    /// Closes this direction.
    pub fn end(&mut self) {
        if let Some(tls) = &self.tls {
            lock(tls).send_close_notify();
        }
        let _ = self.write(&[]);
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }
}
