//! Names of what API servers offer each other.

use serde::{Deserialize, Serialize};

/// Which offer: whose it is, and what nobody can guess.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OfferName {
    /// Of the connection that offers.
    pub session: u64,
    pub secret: [u64; 2],
}
