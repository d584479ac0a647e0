//! The byte stream between two carriers: TLS, or plain on loopback and vsock. Used by `link`. Its two directions share
//! nothing that one would wait for.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use crate::tls::handshake::{Secured, broken};
use crate::tls::records::{Opened, Opener, Sealer};

/// The most bytes of one read of the socket.
const CHUNK: usize = 1 << 20;

/// Splits a connection into its two directions, each for one thread. No lock is held during calls of the socket, so that a
/// slow peer does not block the other direction.
pub fn split(socket: TcpStream, tls: Option<Secured>) -> io::Result<(Reader, Writer)> {
    let (sealer, opener) = tls.map(|tls| (tls.sealer, tls.opener)).unzip();
    let writer = Writer { socket: socket.try_clone()?, sealer, records: Vec::new() };
    Ok((Reader { socket, opener, chunk: vec![0; CHUNK], start: 0, end: 0, closed: false }, writer))
}

pub struct Reader {
    socket: TcpStream,
    opener: Option<Opener>,
    /// `start..end`: records that have arrived and are not opened.
    chunk: Vec<u8>,
    start: usize,
    end: usize,
    /// The peer has said that nothing follows.
    closed: bool,
}

pub struct Writer {
    socket: TcpStream,
    sealer: Option<Sealer>,
    records: Vec<u8>,
}

impl Reader {
    /// Waits for bytes and appends them; returns how many. 0: the peer closed the stream. `WouldBlock`: the socket's timeout.
    pub fn read(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        if self.opener.is_none() {
            let n = self.socket.read(&mut self.chunk)?;
            into.extend_from_slice(&self.chunk[..n]);
            return Ok(n);
        }
        let before = into.len();
        loop {
            self.open_all(into)?;
            if into.len() > before || self.closed {
                return Ok(into.len() - before);
            }
            self.chunk.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            let n = self.socket.read(&mut self.chunk[self.end..])?;
            if n == 0 {
                return Ok(0);
            }
            self.end += n;
        }
    }

    /// Appends the content of the whole records that have arrived.
    fn open_all(&mut self, into: &mut Vec<u8>) -> io::Result<()> {
        let Some(opener) = &mut self.opener else { return Ok(()) };
        while !self.closed {
            let arrived = &mut self.chunk[self.start..self.end];
            let Some(length) = Opener::first(arrived).map_err(broken)? else { return Ok(()) };
            match opener.open(&mut arrived[..length]).map_err(broken)? {
                Opened::Data(data) => into.extend_from_slice(data),
                Opened::Nothing => {}
                Opened::Closed => self.closed = true,
            }
            self.start += length;
        }
        Ok(())
    }
}

impl Writer {
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(sealer) = &mut self.sealer else { return self.socket.write_all(bytes) };
        self.records.clear();
        sealer.seal(bytes, &mut self.records).map_err(broken)?;
        self.socket.write_all(&self.records)
    }

    /// Closes this direction.
    pub fn end(&mut self) {
        if let Some(sealer) = &mut self.sealer {
            self.records.clear();
            if sealer.close(&mut self.records).is_ok() {
                let _ = self.socket.write_all(&self.records);
            }
        }
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }
}
