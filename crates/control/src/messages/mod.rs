//! The messages themselves; `channel` has their form on the socket.

pub(crate) mod assignment;
pub(crate) mod card;
pub(crate) mod form;
pub(crate) mod message;
pub(crate) mod moving;
pub(crate) mod offer;
pub(crate) mod swapping;
