//! Sessions that outlive their gateway: the node ends, and another one goes on with them (`aviary serve --keep`).
//!
//! The gateway gives its connection up and writes all that it has of the session to a file ([`leave`]); the next node starts
//! another gateway with that file ([`back`]), to which the relay connects as after any broken connection. The form of the file
//! is [`image`].

pub(crate) mod back;
pub(crate) mod image;
pub(crate) mod leave;
