//! The messages between the node and its API servers, typed once for both sides (docs/runtime.md, "The control
//! socket").
//!
//! The messages ([`ToServer`], [`ToZygote`], [`FromServer`]) and the descriptors that come with them travel over one
//! SOCK_SEQPACKET pair per API server ([`send`], [`receive`]). Beside them both sides share pages of counters
//! ([`stats`]) and an understanding of how threads get a CPU ([`cpu`]).
//!
//! An API server may be taken over by its guest: what the node receives is bounded here in length, depth and number of
//! descriptors, and is a value of a known type or [`Garbage`]. What the values mean is checked by the node.

mod assignment;
mod card;
mod channel;
pub mod cpu;
pub mod inherited;
mod message;
mod moving;
mod offer;
mod pid_namespace;
mod spawn;
pub mod stats;

pub use assignment::{Assignment, DeviceDescriptors, FunctionRule, ServerUser, SessionDescriptors, order_sockets};
pub use card::{
    CardClient, ClientFigures, FPGA_API, FPGA_MEMORY, FromCard, PortFigures, PortRule, PortScheduler, PortTenant,
    ToCard, refuse_card_client,
};
pub use channel::{
    Garbage, MAX_DESCRIPTORS, MAX_MESSAGE_BYTES, Patience, Received, VERSION, decode, encode, receive, send,
};
pub use message::{FromServer, Message, ToServer, ToZygote, Wanted, is_api_name};
pub use moving::{CaptureFigures, MoveOrder, MoveReport, Preparation, StateDescriptors};
pub use offer::OfferName;
pub use pid_namespace::PidNamespace;
pub use spawn::{fix_addresses, prepare_to_spawn};
