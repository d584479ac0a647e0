//! Carries connections between a guest's machine and a node.
//!
//! Guests and API servers know only shared memory. On the guest's machine a *relay* stands in for the API
//! server, on the node a *gateway* for the guest; between them everything travels over one byte stream per
//! connection, TLS 1.3 wherever that leaves the machine. `docs/network.md` describes what crosses.
#![forbid(unsafe_code)]

mod carrier;
mod first;
mod frame;
mod gateway;
mod handover;
mod identity;
mod inbox;
mod issued;
mod items;
mod life;
mod link;
mod open;
mod outbox;
mod output;
mod processes;
mod reach;
mod redial;
mod relay;
#[cfg(test)]
mod relink_tests;
mod resume;
mod retained;
mod security;
mod stream;
mod touched;

pub use gateway::{GatewayOptions, gateway};
pub use identity::{Days, IdentityError, Revoked, Written, revoke, write_identities};
pub use issued::{Certificate, IndexError, Listing, Standing, list};
pub use link::Compression;
pub use relay::{Relay, RelayOptions};
pub use security::{ClientSecurity, NodeSecurity, SecurityError};
