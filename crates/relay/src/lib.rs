//! Carries connections between a guest's machine and a node on another machine.
//!
//! Guests and API servers only use shared memory. On the guest's machine a *relay* (a thread of `aviary run`) replaces the
//! API server; on the node a *gateway* (one process per connection) replaces the guest. Between them, everything is sent
//! over one byte stream per connection, with TLS 1.3 wherever that stream leaves the machine. `docs/network.md` describes
//! the protocol.
//!
//! A hostile relay can end its own session and use its own tenant's resources; memory that it makes the gateway hold is
//! bounded. A node is trusted by its relays.
#![forbid(unsafe_code)]

mod carry;
mod dial;
mod dialer;
mod frames;
#[cfg(test)]
mod fuzz_tests;
mod gateway;
mod keeping;
mod keys;
mod output;
mod processes;
mod relay;
#[cfg(test)]
mod relink_tests;
mod resuming;
mod strands;
mod tls;

pub use carry::link::Compression;
pub use dial::RelayOptions;
pub use dialer::{Dialer, dial};
pub use gateway::{GatewayOptions, gateway};
pub use keeping::back::gateway_again;
pub use keys::folder::{IdentityError, IndexError};
pub use keys::identity::{Days, Revoked, Written, revoke, write_identities, write_key};
pub use keys::issued::{Certificate, Listing, Standing, list};
pub use keys::security::{ClientSecurity, NodeSecurity, SecurityError};
pub use relay::{Carrying, Relay};
