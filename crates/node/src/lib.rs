//! The node: accepts guests, gives each guest process an API server process
//! of its own, watches both, and tells `aviary ps` about them.
//!
//! The node never reads what a guest sends: it looks at the kernel's
//! credentials of the connection and hands the socket on. A hostile guest
//! meets its decoder only inside its own API server.

#![forbid(unsafe_code)]

mod admin;
mod attach;
mod cards;
mod config;
mod devices;
mod epoll;
mod error;
mod gateways;
mod grants;
mod handle;
mod helpers;
mod keeping;
mod log;
mod node;
mod relays;
mod relocation;
mod report;
mod scheduling;
mod servers;
mod sessions;
mod swapping;
mod tenants;
mod upgrade;
mod users;
mod vms;

pub use admin::{Request, admin_path, ask, ask_within, query};
pub use attach::listener::{Address, default_socket};
pub use attach::private::{PrivateDir, private_nodes, runtime_directory};
pub use attach::secret::secret_path;
pub use cards::{CardCommand, CardMoveReport, CardMoveRequest, CardReport, CardSettings};
pub use config::{KeyMaker, NodeConfig, Reload, Settings, TestKind, USUAL_MOST_TENANTS};
pub use devices::{DeviceLister, Holder, HolderLister, ListedDevices};
pub use error::NodeError;
pub use gateways::GatewayCommand;
pub use grants::error::GrantError;
pub use grants::report::GrantReport;
pub use grants::request::{
    FreedAmount, Grant, GrantEntrance, GrantRequest, GrantStep, RevokeReport, SOCKET_NAME, Via, check_key,
};
pub use grants::store::{KEYS, USUAL_GRANTS};
pub use handle::{Doorway, Node};
pub use log::{Level, Log};
pub use relays::RelayCommand;
pub use relocation::request::{
    MoveBegun, MoveFigures, MoveRequest, MoveStatus, ParkedMemory, ParkedReport, SessionMoves, UnparkStatus,
};
pub use relocation::table::Halt;
pub use report::{
    AccountReport, DeviceLimitReport, NodeReport, ServerReport, SessionReport, TenantReport, VendorReport,
};
pub use scheduling::{
    DeviceKind, DeviceReport, DeviceSettings, LoadedPolicy, Rules, Scheduler, Share, Usage, WAIT_BOUNDS_NS, Waits,
};
pub use servers::api_server::ApiServerCommand;
pub use servers::cgroups::{GroupLimits, GroupSettings, delegated as delegated_groups};
pub use servers::sandbox_settings::SandboxSettings;
pub use sessions::end::{EndReport, EndRequest};
pub use swapping::request::{SwapRequest, SwapStatus};
pub use tenants::tenant::{DeviceLimitChange, Limits, Tenant, TenantChange, Tenants, UnknownUsers};
pub use tenants::vendor_set::VendorSet;
pub use upgrade::{Handover, UpgradeCommand, UpgradeRequest, versions as upgrade_versions};
pub use users::server_users::UserRange;
pub use vms::{FpgaDeviceCommand, FpgaDeviceReport, FpgaDeviceSettings, VmDeviceCommand, VmSettings};

pub use aviary_control::{DeviceContext, FunctionRule};
pub use aviary_gate::{
    DEVICE_LIMITS, DEVICE_NAME_BYTES, DeviceLimit, HANDLES, HOST_LOG, HOST_MEMORY, HOST_SWAP, fits, precedence,
};
