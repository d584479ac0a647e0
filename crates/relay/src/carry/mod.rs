//! One session between two carriers: queues, the threads that read and write, and the connection's state.

pub(crate) mod carrier;
pub(crate) mod compressing;
pub(crate) mod handing;
pub(crate) mod inbox;
pub(crate) mod life;
pub(crate) mod link;
pub(crate) mod outbox;
pub(crate) mod pace;
pub(crate) mod reach;
pub(crate) mod retained;
pub(crate) mod threads;
pub(crate) mod touched;
