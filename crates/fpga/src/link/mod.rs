//! The link between a client's process and the card's: a Unix socket of sequenced packets. A client sends one request and gets
//! one reply; it sees its virtual accelerator only.

mod account;
mod client;
mod events;
mod incoming;
mod limits;
mod memories;
mod message;
mod node_link;
mod service;

pub use limits::Limits;
pub use message::{LINK_VERSION, MESSAGE_BYTES, RESUMED, Reply, Request};
pub use service::{Service, ServiceError};
