//! Kinds of resources, and what limits leave of them.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Held for a time: memory.
    Continuous,
    /// Used once: calls, time.
    Instantaneous,
}

/// the limit of {limit} is reached: {used} are in use
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub struct Refused {
    pub used: u64,
    pub limit: u64,
}

/// How much of a continuous resource there is for a tenant, or for a session where there is no tenant's page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    pub limit: u64,
    /// The unused part of the limit.
    pub left: u64,
}

impl Allowance {
    pub(crate) fn new(limit: u64, used: u64) -> Allowance {
        Allowance { limit, left: limit.saturating_sub(used) }
    }

    /// Where both hold.
    pub(crate) fn and(self, other: Allowance) -> Allowance {
        Allowance { limit: self.limit.min(other.limit), left: self.left.min(other.left) }
    }
}
