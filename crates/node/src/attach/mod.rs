//! Connections: who is at their other end, and if and when it gets an API server.

pub(crate) mod accept;
pub(crate) mod attaching;
pub(crate) mod foreign;
pub(crate) mod guest;
pub(crate) mod identity;
pub(crate) mod listener;
pub(crate) mod private;
pub(crate) mod secret;
pub(crate) mod strangers;
pub(crate) mod throttle;
