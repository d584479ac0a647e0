//! The runtime of API servers.
//!
//! A server module, generated per API, links its own copy of this crate and
//! exports one C function ([`export_module`]); the generic API server process
//! ([`process`]) loads modules and hands them connections. Inside a module a
//! connection is a [`session::Session`]; each guest thread has a lane and each
//! lane a shadow thread that decodes, admits, executes and answers its calls.
//!
//! `handles`, `tables` and `callbacks` are what a `session` is made of; `call`
//! is the vocabulary of generated handlers; `lane` executes calls; `state` and
//! `moving` write sessions down and rebuild them; `connection` serves a guest;
//! `process` is the API server around modules.
//! No two files use each other, directly or by others (`./x house`).

mod api;
mod call;
mod callbacks;
pub mod connection;
mod handles;
mod lane;
mod moving;
pub mod process;
mod session;
pub mod state;
mod tables;

pub use api::{
    ApiDescriptor, CurrentObject, EvictableType, ExplicitState, FunctionInfo, HandleTypeInfo, Handler, Metadata,
    ObjectName, Poll, Reject, RemadeType, ResourceKind, Role, SessionState,
};
pub use aviary_control::OfferName;
pub use aviary_gate::ProcessUse;
pub use aviary_transport::bounds;
pub use call::{Buffer, Call};
pub use callbacks::closures::ClosureLifetime;
pub use callbacks::outgoing::{Answer, Outgoing};
pub use connection::ffi::guarded;
pub use connection::{exports, ffi, module};
pub use lane::devices::{Drain, DrainRequest};
pub use lane::dispatch::{HandlerFunction, caught, handler};
pub use process::confine::filter_system_calls;
pub use session::residency::ResidencyDevices;
pub use session::vendor::{place as vendor_place, try_loading, variable as vendor_variable};
pub use tables::rooms::SharedMemory;
pub use tables::vendor_table::VendorTable;
