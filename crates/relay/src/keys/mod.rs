//! Keys and certificates: made, revoked, and checked by both ends of a connection.

pub(crate) mod fingerprint;
pub(crate) mod folder;
pub(crate) mod granted;
pub(crate) mod identity;
pub(crate) mod issued;
pub(crate) mod security;
