//! The key of one direction of a connection, and where the next ones come from. Used by `records`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use rustls::kernel::KernelConnection;
use rustls::{ConnectionTrafficSecrets, Error};

type Secrets = (u64, ConnectionTrafficSecrets);

/// What is left of a handshake: it derives the keys that follow.
pub(crate) trait Renewing: Send {
    fn next_to_send(&mut self) -> Result<Secrets, Error>;
    fn next_to_receive(&mut self) -> Result<Secrets, Error>;
}

impl<End> Renewing for KernelConnection<End>
where
    KernelConnection<End>: Send,
{
    fn next_to_send(&mut self) -> Result<Secrets, Error> {
        self.update_tx_secret()
    }

    fn next_to_receive(&mut self) -> Result<Secrets, Error> {
        self.update_rx_secret()
    }
}

/// Shared by both directions of a connection.
#[derive(Clone)]
pub(crate) struct Renewal {
    rest: Arc<Mutex<Box<dyn Renewing>>>,
    /// The peer wants this end to send with another key, too: before its next data.
    owed: Arc<AtomicBool>,
}

impl Renewal {
    pub fn new(rest: Box<dyn Renewing>) -> Self {
        Renewal { rest: Arc::new(Mutex::new(rest)), owed: Arc::default() }
    }

    pub fn to_send(&self) -> Result<Key, Error> {
        Key::new(self.rest.lock().unwrap_or_else(PoisonError::into_inner).next_to_send()?)
    }

    pub fn to_receive(&self) -> Result<Key, Error> {
        Key::new(self.rest.lock().unwrap_or_else(PoisonError::into_inner).next_to_receive()?)
    }

    pub fn owe(&self) {
        self.owed.store(true, Ordering::Release);
    }

    /// True once after each [`Renewal::owe`].
    pub fn take_owed(&self) -> bool {
        self.owed.load(Ordering::Acquire) && self.owed.swap(false, Ordering::AcqRel)
    }
}

/// The key of one direction, and the number of the next record.
pub(crate) struct Key {
    key: Box<LessSafeKey>,
    iv: [u8; NONCE_LEN],
    sequence: u64,
}

impl Key {
    pub fn new((sequence, secrets): Secrets) -> Result<Self, Error> {
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(Error::General("a cipher that this end does not offer".into())),
        };
        let unusable = || Error::General("a key of the wrong length".into());
        let key = UnboundKey::new(algorithm, key.as_ref()).map_err(|_| unusable())?;
        let iv = iv.as_ref().try_into().map_err(|_| unusable())?;
        Ok(Key { key: LessSafeKey::new(key).into(), iv, sequence })
    }

    /// Records that were sealed or opened with this key.
    pub fn records(&self) -> u64 {
        self.sequence
    }

    /// Of the next record: each number is used once.
    fn nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, of_number) in nonce[NONCE_LEN - 8..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= of_number;
        }
        self.sequence += 1;
        Nonce::assume_unique_for_key(nonce)
    }

    pub fn seal(&mut self, header: &[u8], content: &mut [u8]) -> Result<Tag, Error> {
        let nonce = self.nonce();
        self.key.seal_in_place_separate_tag(nonce, Aad::from(header), content).map_err(|_| Error::EncryptError)
    }

    /// `content`: with its tag. Returns what was sealed.
    pub fn open<'a>(&mut self, header: &[u8], content: &'a mut [u8]) -> Result<&'a mut [u8], Error> {
        let nonce = self.nonce();
        self.key.open_in_place(nonce, Aad::from(header), content).map_err(|_| Error::DecryptError)
    }
}
