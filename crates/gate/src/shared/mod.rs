//! Memory that the node shares with API servers: a tenant's page, the page of a session's devices, a session's limits.

pub(crate) mod grant_page;
pub(crate) mod lock;
pub(crate) mod page;
pub(crate) mod sealed;
pub(crate) mod session_limits;
pub(crate) mod text;
pub(crate) mod watch;
