//! The byte stream between two carriers: TLS, or plain on loopback and vsock. Used by `link`. Its two directions share
//! nothing that one would wait for.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::tls::handshake::{Secured, broken};
use crate::tls::records::{Opened, Opener, Sealer};

/// The most bytes of one read of the socket.
const CHUNK: usize = 1 << 20;

/// Splits a connection into its two directions, each for one thread. No lock is held during calls of the socket, so that a
/// slow peer does not block the other direction.
pub fn split(socket: TcpStream, tls: Option<Secured>) -> io::Result<(Reader, Writer)> {
    let (sealer, opener) = tls.map(|tls| (tls.sealer, tls.opener)).unzip();
    let writer = Writer { socket: socket.try_clone()?, sealer, records: Vec::new(), offered: 0 };
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
    /// How many bytes of them the socket has taken.
    offered: usize,
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
        self.offered = 0;
        sealer.seal(bytes, &mut self.records).map_err(broken)?;
        self.finish()
    }

    /// Sends these bytes without waiting. False: the socket takes no more, and [`Writer::finish`] comes before anything else.
    pub fn offer(&mut self, parts: &[&[u8]]) -> io::Result<bool> {
        self.records.clear();
        self.offered = 0;
        for part in parts {
            match &mut self.sealer {
                Some(sealer) => sealer.seal(part, &mut self.records).map_err(broken)?,
                None => self.records.extend_from_slice(part),
            }
        }
        while self.offered < self.records.len() {
            match send(&self.socket, &self.records[self.offered..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(taken) => self.offered += taken,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Waits until the socket has taken all that was offered.
    pub fn finish(&mut self) -> io::Result<()> {
        let rest = std::mem::replace(&mut self.offered, self.records.len());
        self.socket.write_all(&self.records[rest..])
    }

    /// Closes this direction.
    pub fn end(&mut self) {
        let _ = self.finish();
        if let Some(sealer) = &mut self.sealer {
            self.records.clear();
            if sealer.close(&mut self.records).is_ok() {
                let _ = self.socket.write_all(&self.records);
            }
        }
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn an_offer_never_waits_and_its_rest_follows() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut peer = listener.accept().unwrap().0;
        let (_, mut writer) = split(socket, None).unwrap();
        let (mut piece, mut sent) = (vec![0u8; 1 << 20], Vec::new());
        loop {
            piece.iter_mut().enumerate().for_each(|(at, byte)| *byte = (sent.len() / 7 + at) as u8);
            sent.extend_from_slice(b"signs");
            sent.extend_from_slice(&piece);
            // The peer does not read: at some time the socket is full.
            if !writer.offer(&[b"signs", &piece]).unwrap() {
                break;
            }
        }
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).map(|_| all)
        });
        writer.finish().unwrap();
        assert!(writer.offer(&[b"", b"the last"]).unwrap() || writer.finish().is_ok());
        sent.extend_from_slice(b"the last");
        writer.end();
        assert!(reader.join().unwrap().unwrap() == sent);
    }
}
