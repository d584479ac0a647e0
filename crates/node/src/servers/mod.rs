//! API server processes: how they are started, what they may use, and what they print.

pub(crate) mod api_server;
pub(crate) mod cgroups;
pub(crate) mod environment;
pub(crate) mod exchange;
pub(crate) mod late;
pub(crate) mod line_limit;
pub(crate) mod pool;
pub(crate) mod sandbox_settings;
pub(crate) mod server_log;
pub(crate) mod spares;
pub(crate) mod zygote;
