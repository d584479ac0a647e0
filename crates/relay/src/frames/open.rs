//! The first frame of a new session: the relay's version, credentials and the guest's greeting. Sent by `relay`, read by
//! `gateway`, where it may come from an attacker: its parts are bounded.

use aviary_wire::attach::PREFIX;
use aviary_wire::{DecodeError, Decoder, Encoder, Hello};
use thiserror::Error;

use crate::processes::ProcessKey;

const MAGIC: u64 = u64::from_le_bytes(*b"AVrelay1");
/// Changes whenever carriers of different versions would misunderstand each other.
pub const VERSION: u64 = 3;
pub const MAX_TOKEN: usize = 1024;

/// The first message of the guest's side.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Open {
    pub version: u64,
    /// The node may compress its data.
    pub compress: bool,
    /// Seconds without data after which the connection counts as broken.
    pub patience: u64,
    /// Empty: the TLS certificate is the identity.
    pub token: Vec<u8>,
    pub hello: Hello,
    /// The same for all connections of one guest process, which share an API server. `None`: this one shares with none.
    pub process: Option<ProcessKey>,
}

/// Bytes that are not the first frame of a session.
#[derive(Debug, Error, displaydoc::Display, PartialEq, Eq)]
pub enum OpenError {
    /// the peer is not an Aviary relay
    Magic,
    /// the first frame is malformed: {0}
    Malformed(#[from] DecodeError),
    /// the guest's greeting is malformed: {0}
    Greeting(#[from] aviary_wire::attach::GreetingError),
    /// the relay has protocol version {0}, this node {VERSION:}: update the older one
    Version(u64),
}

impl Open {
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        e.start();
        e.word(MAGIC);
        e.word(self.version);
        e.word(u64::from(self.compress));
        e.word(self.patience);
        e.bytes(&self.token);
        e.bytes(&self.hello.to_bytes());
        e.bytes(self.process.as_ref().map_or(&[], |key| key));
        e.body().to_vec()
    }

    /// A longer body than this version knows is accepted.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, OpenError> {
        let mut d = Decoder::new(bytes);
        if d.word()? != MAGIC {
            return Err(OpenError::Magic);
        }
        let version = d.word()?;
        if version != VERSION {
            return Err(OpenError::Version(version));
        }
        let (compress, patience) = (d.word()? != 0, d.word()?);
        let token = d.bytes()?;
        let token = token[..token.len().min(MAX_TOKEN)].to_vec();
        let hello = d.bytes()?;
        let hello = Hello::from_body(hello.get(PREFIX..).unwrap_or_default())?;
        // Relays that know of no keys send none.
        let process = d.bytes().ok().and_then(|key| key.try_into().ok());
        Ok(Open { version, compress, patience, token, hello, process })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives() {
        let hello = Hello { api: "x".into(), arena_size: 7, ..Hello::default() };
        let (token, process) = (b"secret".to_vec(), Some([7; 16]));
        let open = Open { version: VERSION, compress: true, patience: 5, token, hello, process };
        let bytes = open.to_bytes();
        let of_old = Open::from_bytes(&bytes[..bytes.len() - 24]).unwrap();
        assert_eq!((of_old.process, &of_old.hello), (None, &open.hello), "the key is the last of it");
        assert_eq!(Open::from_bytes(&bytes), Ok(open));
        assert_eq!(Open::from_bytes(&[0; 64]), Err(OpenError::Magic));
        assert!(Open::from_bytes(b"short").is_err());
        let old = Open { version: 9, ..Open::default() };
        assert_eq!(Open::from_bytes(&old.to_bytes()), Err(OpenError::Version(9)));
    }
}
