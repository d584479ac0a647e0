//! Memory that both ends of a connection see, and what of it has changed.

pub(crate) mod arena;
pub(crate) mod changes;
pub(crate) mod doorbell;
pub(crate) mod rows;
pub(crate) mod window;
