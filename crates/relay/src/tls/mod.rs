//! TLS 1.3 between two carriers: rustls makes the handshake, the records after it are sealed and opened here.

pub(crate) mod handshake;
pub(crate) mod keys;
pub(crate) mod records;
pub(crate) mod stream;
