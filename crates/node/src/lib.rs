//! The node: accepts guests, gives each guest process an API server process
//! of its own, watches both, and tells `aviary ps` about them.
//!
//! The node never reads what a guest sends: it looks at the kernel's
//! credentials of the connection and hands the socket on. A hostile guest
//! meets its decoder only inside its own API server.

#![forbid(unsafe_code)]

mod accept;
mod accounts;
mod admin;
mod api_server;
mod cards;
mod cgroups;
mod claims;
mod end;
mod environment;
mod epoll;
mod error;
mod events;
mod exchange;
mod gateways;
mod guest;
mod handle;
mod helpers;
mod life;
mod line_limit;
mod listener;
mod log;
mod moving;
mod node;
mod parking;
mod permissions;
mod pool;
mod private;
mod report;
mod revoked;
mod scheduling;
mod server_log;
mod server_users;
mod sessions;
mod stats;
mod strangers;
mod tenant;
mod tenants;
mod throttle;
mod upgrade;
mod vms;
mod zygote;

pub use admin::{Request, admin_path, ask, ask_within, query};
pub use api_server::ApiServerCommand;
pub use cards::{CardCommand, CardMoveReport, CardMoveRequest, CardReport, CardSettings};
pub use cgroups::{GroupLimits, GroupSettings, delegated as delegated_groups};
pub use end::{EndReport, EndRequest};
pub use error::NodeError;
pub use gateways::GatewayCommand;
pub use handle::{Node, NodeConfig, Reload, SandboxSettings, Settings};
pub use listener::{Address, default_socket};
pub use log::{Level, Log};
pub use moving::{Halt, MoveBegun, MoveFigures, MoveRequest, MoveStatus, SessionMoves};
pub use parking::{ParkedMemory, ParkedReport, UnparkStatus};
pub use private::{PrivateDir, private_nodes, runtime_directory};
pub use report::{AccountReport, DeviceLimitReport, NodeReport, ServerReport, SessionReport, TenantReport};
pub use scheduling::{
    DeviceKind, DeviceReport, DeviceSettings, LoadedPolicy, Rules, Scheduler, Share, Usage, WAIT_BOUNDS_NS, Waits,
};
pub use server_users::UserRange;
pub use tenant::{DeviceLimitChange, Limits, Tenant, TenantChange, Tenants};
pub use upgrade::{Handover, UpgradeCommand, UpgradeRequest, versions as upgrade_versions};
pub use vms::{VmDeviceCommand, VmSettings};

pub use aviary_control::FunctionRule;
pub use aviary_gate::{DEVICE_LIMITS, DEVICE_NAME_BYTES, DeviceLimit, precedence};
