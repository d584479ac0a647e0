//! Commands of an operator about a running node.

pub(crate) mod end;
pub(crate) mod metrics;
pub(crate) mod metrics_http;
pub(crate) mod migrate;
pub(crate) mod park;
pub(crate) mod ps;
pub(crate) mod tenant;
pub(crate) mod terminal;
pub(crate) mod top;
pub(crate) mod upgrade;
pub(crate) mod which_node;
