//! The messages between the node and its API servers, typed once for both sides (docs/runtime.md, "The control
//! socket").
//!
//! The messages ([`ToServer`], [`ToZygote`], [`FromServer`]) and the descriptors that come with them travel over one
//! SOCK_SEQPACKET pair per API server ([`send`], [`receive`], [`hear`]). Beside them both sides share pages of counters
//! ([`stats`]) and an understanding of how threads get a CPU ([`cpu`]).
//!
//! An API server may be taken over by its guest: what the node receives is bounded here in length and depth, comes without
//! descriptors, and is a value of a known type or [`Garbage`]. What the values mean is checked by the node. Sockets of peers are
//! closed aside ([`Foreign`]).

// The fuzz targets use the crate from outside.
#[cfg(test)]
extern crate self as aviary_control;
mod aside;
mod channel;
pub mod cpu;
#[cfg(test)]
mod fuzz_tests;
pub mod inherited;
mod messages;
mod pid_namespace;
mod spawn;
pub mod stats;

pub use aside::{Aside, Foreign, LATE, LateJob, MOST_OF_ONE, PartyName};
pub use channel::{
    Garbage, Heard, MAX_DESCRIPTORS, MAX_MESSAGE_BYTES, Patience, Received, VERSION, decode, encode, hear, receive,
    receive_plain, send,
};
pub use messages::assignment::{
    Assignment, DeviceContext, DeviceDescriptors, FunctionRule, ServerUser, SessionDescriptors, SharedDevice,
    order_sockets,
};
pub use messages::card::{
    CardClient, ClientFigures, FPGA_API, FPGA_MEMORY, FromCard, PortFigures, PortRule, PortScheduler, PortTenant,
    ToCard, refuse_card_client,
};
pub use messages::form::Message;
pub use messages::message::{FromServer, ToServer, ToZygote, Wanted, is_api_name};
pub use messages::moving::{
    CaptureDescriptors, CaptureFigures, MoveOrder, MoveReport, Preparation, StateDescriptors, state_file, state_sockets,
};
pub use messages::offer::{OfferName, give, taken};
pub use messages::swapping::{SwapFigures, SwapOrder, SwapReport};
pub use pid_namespace::PidNamespace;
pub use spawn::{fix_addresses, prepare_to_spawn};
