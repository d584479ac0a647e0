//! Tenants: their settings, their accounts, and changes of them while the node runs.

pub(crate) mod account_watch;
pub(crate) mod accounts;
pub(crate) mod assigned;
pub(crate) mod known_tenants;
pub(crate) mod last_uses;
pub(crate) mod rewrites;
pub(crate) mod shares;
pub(crate) mod tenancy;
pub(crate) mod tenant;
pub(crate) mod vendor_set;
