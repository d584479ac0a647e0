//! Sessions: their lives, their permissions, and their end.

pub(crate) mod end;
pub(crate) mod events;
pub(crate) mod idle;
pub(crate) mod life;
pub(crate) mod permissions;
pub(crate) mod registry;
pub(crate) mod revoked;
pub(crate) mod stats;
pub(crate) mod vendors;
