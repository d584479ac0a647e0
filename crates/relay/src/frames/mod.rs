//! What is written into a connection: packets, the frames in them, and the first frames of both sides.

pub(crate) mod first;
pub(crate) mod frame;
pub(crate) mod items;
pub(crate) mod open;
pub(crate) mod welcome;
