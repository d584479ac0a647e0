//! Daemons: `aviary serve`, and the processes that a node starts.

pub(crate) mod api_server;
pub(crate) mod descriptors;
pub(crate) mod fpga_card;
pub(crate) mod fpga_device;
pub(crate) mod grant_relay;
pub(crate) mod notify;
pub(crate) mod remote;
pub(crate) mod serve;
pub(crate) mod signals;
pub(crate) mod vm_device;
