//! What the node says about a session, and the limits that keep one guest from exhausting its API server.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The JSON object that comes with every accepted socket.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionConfig {
    pub session: u64,
    pub tenant: String,
    /// Process id of the guest.
    pub guest: u32,
    /// Searched in order for `<api>/server.so`.
    pub modules: Vec<PathBuf>,
    /// Its API server's place in the tenant's page, whose descriptor comes with the socket.
    pub slot: u32,
    /// Without a tenant's page: per resource, what the session may hold or consume.
    pub limits: BTreeMap<String, u64>,
    /// Lanes, that is threads, of the session.
    pub threads: Option<usize>,
    /// What the tenant may use; `None`: every API.
    pub apis: Option<Vec<String>>,
    pub functions: FunctionRule,
    /// Devices that the tenant may use, by their names, which may end with `*`; `None`: all.
    pub only_devices: Option<Vec<String>>,
    /// Per API, the vendor library to load instead of the specification's; `AVIARY_VENDOR_<API>` goes before.
    pub vendors: BTreeMap<String, String>,
    /// The node schedules devices, or may do so later.
    pub schedulable: bool,
    /// It does so now. The session's first call must wait already.
    pub scheduled: bool,
    /// The node's log is where the guest's own messages go: what the guest is told needs no line there.
    pub private: bool,
    /// The guest is the node's own user, who may be told where the server's files are.
    pub own: bool,
    /// The guest is the device of a virtual machine: only then may its arena be a window on a VM's memory.
    pub in_vm: bool,
    /// Who the API server is from its first session on; `None`: who the node is.
    pub user: Option<ServerUser>,
    /// Largest arena a guest may bring, in bytes.
    pub arena: Option<u64>,
}

/// A user that one tenant's API servers are, and nobody else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerUser {
    /// Also the group's.
    pub id: u32,
    /// Further groups.
    pub groups: Vec<u32>,
    /// Where the vendors' libraries keep what they compile.
    pub home: PathBuf,
}

/// Names of functions, of whatever API: those of other APIs are ignored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FunctionRule {
    /// `None`: all.
    pub allow: Option<Vec<String>>,
    pub deny: Vec<String>,
}

/// Lanes, that is threads, of one connection.
pub const MAX_LANES: usize = 1024;
/// Scratch memory of one call.
pub const MAX_SCRATCH: usize = 1 << 30;
/// Callbacks that a connection may have registered at a time.
pub const MAX_CALLBACKS: usize = 1 << 16;
/// Deliveries that may be under way at a time.
pub const MAX_LATE: usize = 1 << 16;
/// Vendor memory mapped by the guest at a time, where it cannot be shared.
pub const MAX_MAPPINGS: usize = 1 << 16;
/// Callbacks inside calls inside callbacks, on one lane.
pub const MAX_NESTING: usize = 64;
/// Addresses an arena may span: 64 GiB are usual.
pub const MAX_ARENA: u64 = 1 << 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_members_are_ignored_and_missing_ones_have_defaults() {
        let config: SessionConfig =
            serde_json::from_str(r#"{"session": 7, "limits": {"memory": 5}, "colour": 1}"#).unwrap();
        assert_eq!(config.session, 7);
        assert_eq!(config.limits.get("memory"), Some(&5));
        assert!(config.modules.is_empty());
    }
}
