//! The runtime of API servers.
//!
//! A server module, generated per API, links its own copy of this crate and
//! exports one C function ([`export_module`]); the generic API server process
//! ([`process`]) loads modules and hands them connections. Inside a module a
//! connection is a [`session::Session`]; each guest thread has a lane and each
//! lane a shadow thread that decodes, admits, executes and answers its calls.

mod alignment;
#[cfg(test)]
mod allocations;
mod api;
mod call;
mod callback_lane;
mod chains;
mod clock;
mod closures;
mod config;
mod confine;
mod connection;
mod control_loop;
mod counters;
mod cpu_demand;
mod deferred_ends;
mod deferred_outputs;
mod devices;
mod environment;
mod exchange;
pub mod exports;
pub mod ffi;
mod freed;
mod guest_ids;
mod handle_quota;
mod handles;
mod in_use;
#[cfg(test)]
mod interleave;
mod lane;
mod library_memory;
mod mapped_fragments;
mod mappings;
mod memory;
pub mod module;
mod moving;
mod object_log;
mod outgoing;
mod pause;
mod policy;
mod posted;
mod printed;
pub mod process;
mod recording;
mod referrers;
mod refusal;
mod reply;
mod residency;
mod residents;
mod scratch;
mod session;
pub mod state;
mod states;
mod tables;
mod tickets;
mod vendor;

pub use api::{
    ApiDescriptor, CurrentObject, ExplicitState, FunctionInfo, HandleTypeInfo, Handler, Metadata, ObjectName, Reject,
    RemadeType, ResourceKind, Role, SessionState,
};
pub use aviary_control::OfferName;
pub use aviary_gate::ProcessUse;
pub use aviary_transport::bounds;
pub use call::{Buffer, Call};
pub use closures::ClosureLifetime;
pub use confine::filter_system_calls;
pub use deferred_outputs::Poll;
pub use devices::{Drain, DrainRequest};
pub use ffi::guarded;
pub use outgoing::{Answer, Outgoing};
pub use residency::ResidencyDevices;
pub use tables::VendorTable;
pub use vendor::{place as vendor_place, try_loading, variable as vendor_variable};
