//! The assignment of a session to an API server, and the descriptors that it gets for it.

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
};

/// A device whose memory the node shares out among sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedDevice {
    /// Its name, which may end with `*`.
    pub name: String,
    /// Bytes that sessions share.
    pub memory: u64,
}

/// What a context takes for itself of a device's memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceContext {
    /// The device's name, which may end with `*`.
    pub name: String,
    /// Bytes that are charged for each context.
    pub bytes: u64,
}

/// A session, for the API server that serves it. A module gets it as JSON, too ([`Assignment::to_json`]): it may have been
/// built from another version, so what it does not know is ignored and what is missing has defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Assignment {
    pub session: u64,
    pub tenant: String,
    /// Process id of the guest.
    pub guest: u32,
    /// Searched in order for `<api>/server.so`.
    pub modules: Vec<PathBuf>,
    /// Its API server's place in the tenant's page.
    pub slot: u32,
    /// Without a tenant's page (tests): per resource, what the session may hold or consume.
    pub limits: BTreeMap<String, u64>,
    /// Lanes, that is threads, of the session.
    pub threads: Option<usize>,
    /// The APIs that the tenant may use; `None`: every API.
    pub apis: Option<Vec<String>>,
    pub functions: FunctionRule,
    /// Devices that the tenant may use, by their names, which may end with `*`; `None`: all.
    pub only_devices: Option<Vec<String>>,
    /// Per API, the vendor library to load instead of the specification's; `AVIARY_VENDOR_<API>` goes before.
    pub vendors: BTreeMap<String, String>,
    /// The node schedules devices, or may do so later: page and bell come with this.
    pub schedulable: bool,
    /// The node hears reports about device memory ([`crate::SwapReport`]).
    pub swappable: bool,
    /// Devices whose memory sessions get from the node.
    pub shared_memory: Vec<SharedDevice>,
    /// What contexts are charged with, by the first name that fits; nothing on other devices.
    pub contexts: Vec<DeviceContext>,
    /// Nanoseconds that a part of long work shall take, so that other sessions have their turn in time; 0: work goes whole.
    pub slice_ns: u64,
    /// The node serves one program. Its log is where the guest's own messages go: what the guest is told needs no line there.
    pub private: bool,
    /// The guest is the node's own user, which may be told where the server's files are.
    pub own: bool,
    /// The guest is the device of a virtual machine: only then may its arena be a window on a VM's memory.
    pub in_vm: bool,
    /// The user of the API server from its first session on; `None`: the node's own user.
    pub user: Option<ServerUser>,
    /// The session can be moved to another process: what its objects need for that is recorded.
    pub movable: bool,
    /// For tests: the session asks to be moved after every so many calls; 0 or `None`: never.
    pub move_every: Option<u64>,
    /// The session is parked here: it is made anew at the order to do so, and its calls are watched for until then.
    pub parked: bool,
    /// The session is made anew only to see if that works, and does not go on here: memory of devices comes as descriptors,
    /// beside its content in the state.
    pub rehearsal: bool,
    /// Largest arena a guest may bring, in bytes.
    pub arena: Option<u64>,
}

impl Assignment {
    pub fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(self)
    }

    pub fn from_json(json: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(json)
    }
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
    /// The folder that API servers of this user have as `/dev/shm` in a sandbox.
    pub shared_memory: PathBuf,
    /// Both are in a mount that the node made for the tenant, later than the sandboxes that are ready: they are fetched from the
    /// node's mount namespace.
    #[serde(default)]
    pub mounted: bool,
}

/// Names of functions, of whatever API: those of other APIs are ignored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FunctionRule {
    /// `None`: all.
    pub allow: Option<Vec<String>>,
    pub deny: Vec<String>,
    /// Functions that change a device for all its users, which are refused unless they are here; a name may end with `*`.
    pub privileged: Vec<String>,
}

/// The descriptors that come with an [`Assignment`]. All but the guest's socket the node has made.
#[derive(Debug)]
pub struct SessionDescriptors<F> {
    /// The accepted socket.
    pub guest: F,
    /// The accounts of the guest's tenant ([`aviary_gate::TenantPage`]).
    pub tenant_page: F,
    /// The session's counters ([`crate::stats::StatsPage`]).
    pub stats: F,
    /// Two connected sockets, for the API server itself: orders to move go from its end, the first, to the module's, and
    /// reports come back. It can make none in its sandbox.
    pub orders: [F; 2],
    /// Where devices may be scheduled.
    pub devices: Option<DeviceDescriptors<F>>,
}

#[derive(Debug)]
pub struct DeviceDescriptors<F> {
    /// The session's grants ([`aviary_gate::GrantPage`]).
    pub page: F,
    /// An eventfd that the node hears.
    pub bell: F,
}

/// The two sockets of [`SessionDescriptors::orders`].
///
/// # Errors
/// As socketpair(2).
pub fn order_sockets() -> rustix::io::Result<[OwnedFd; 2]> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok([ours, theirs])
}

impl<F: AsFd> SessionDescriptors<F> {
    /// In the order in which they travel.
    pub fn list(&self) -> Vec<BorrowedFd<'_>> {
        let devices = self.devices.iter().flat_map(|devices| [devices.page.as_fd(), devices.bell.as_fd()]);
        let [ours, theirs] = &self.orders;
        let always = [&self.guest, &self.tenant_page, &self.stats, ours, theirs];
        always.into_iter().map(AsFd::as_fd).chain(devices).collect()
    }
}

impl SessionDescriptors<OwnedFd> {
    /// How many come with each session.
    pub(crate) const ALWAYS: usize = 5;

    /// Out of what came with an assignment; `None`: there are not as many as it needs.
    pub fn of(descriptors: Vec<OwnedFd>) -> Option<Self> {
        let schedulable = descriptors.len() > Self::ALWAYS;
        Self::next(&mut descriptors.into_iter(), schedulable)
    }

    /// The first ones of `all`; `schedulable`: with page and bell.
    pub fn next(all: &mut impl Iterator<Item = OwnedFd>, schedulable: bool) -> Option<Self> {
        let (guest, tenant_page, stats) = (all.next()?, all.next()?, all.next()?);
        let orders = [all.next()?, all.next()?];
        let devices = match schedulable {
            true => Some(DeviceDescriptors { page: all.next()?, bell: all.next()? }),
            false => None,
        };
        Some(Self { guest, tenant_page, stats, orders, devices })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_members_are_ignored_and_missing_ones_have_defaults() {
        let assignment = Assignment::from_json(br#"{"session": 7, "limits": {"memory": 5}, "colour": 1}"#).unwrap();
        assert_eq!(assignment.session, 7);
        assert_eq!(assignment.limits.get("memory"), Some(&5));
        assert!(assignment.modules.is_empty());
    }
}
