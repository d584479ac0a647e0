//! The tenant of a user on this node, and the limits of that tenant's sessions.

use crate::tenants::vendor_set::VendorSet;
use aviary_control::FunctionRule;
use aviary_gate::{DeviceLimit, HANDLES, HOST_LOG, HOST_MEMORY, precedence};
use aviary_schedule::Share;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Bytes that a connection from another machine may fill, whatever its tenant's limits are.
const LEAST_REMOTE_MEMORY: u64 = 1 << 30;

/// The default limit of `host_memory`, for each byte that `device_memory` allows.
const HOST_MEMORY_RATIO: u64 = 4;
/// The least default limit of `host_memory`: a compiler in an API server takes that much for small programs.
const LEAST_HOST_MEMORY: u64 = 256 << 20;
/// Objects of runtimes take half a KiB to some KiB, whatever their use.
const HOST_BYTES_PER_HANDLE: u64 = 4096;

/// Bytes that a tenant's home may hold if nobody says otherwise.
const USUAL_HOME: u64 = 1 << 30;

/// Limits by resource name.
pub type Limits = BTreeMap<String, u64>;

/// Users and remote identities that are treated as one. The kernel says which user a guest is, the certificate or
/// token which tenant a remote one is: nobody can claim to be another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    pub name: String,
    pub users: Vec<u32>,
    /// Names that its certificates and tokens show, beside its own.
    pub identities: Vec<String>,
    /// Of all its sessions together; they take the place of the node's own.
    pub limits: Limits,
    /// On each device of a name, beside `limits`: those that go before others first.
    pub device_limits: Vec<DeviceLimit>,
    /// Sessions at a time.
    pub sessions: Option<usize>,
    /// Threads of one session that call.
    pub threads: Option<usize>,
    /// APIs it may use; `None`: all.
    pub apis: Option<Vec<String>>,
    pub functions: FunctionRule,
    /// Devices it may use, by their names, which may end with `*`; `None`: as the node says, otherwise all.
    pub only_devices: Option<Vec<String>>,
    /// Its share of a device against the others'.
    pub weight: u32,
    pub priority: i32,
    /// The most that it may have of a scheduled device, in thousandths of the device's time; `None`: no limit.
    pub cap: Option<u32>,
    /// After how long without a call its sessions are parked; zero: never; `None`: as the node says.
    pub idle_park: Option<Duration>,
    /// Bytes of each shared device that its sessions keep there while others have more than theirs.
    pub resident_guarantee: Option<u64>,
    /// Bytes that its home and its shared memory may hold together, where they can be limited; `None`: as the node says.
    pub home: Option<u64>,
    /// The vendor set that its API servers load; `None`: the node's own libraries.
    pub vendor: Option<String>,
}

impl Tenant {
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            users: Vec::new(),
            identities: Vec::new(),
            limits: Limits::new(),
            device_limits: Vec::new(),
            sessions: None,
            threads: None,
            apis: None,
            functions: FunctionRule::default(),
            only_devices: None,
            weight: 1,
            priority: 0,
            cap: None,
            idle_park: None,
            resident_guarantee: None,
            home: None,
            vendor: None,
        }
    }

    /// After how long without a call its sessions are parked; `None`: never.
    pub fn idle_limit(&self) -> Option<Duration> {
        self.idle_park.filter(|limit| !limit.is_zero())
    }

    /// Bytes that its home may hold.
    pub fn home_bytes(&self) -> u64 {
        self.home.unwrap_or(USUAL_HOME)
    }

    /// Its share of scheduled devices.
    pub fn share(&self) -> Share {
        Share { weight: self.weight, priority: self.priority, cap: self.cap }
    }

    /// In the place of what there was for the same name and resource.
    pub fn limit_on(&mut self, limit: DeviceLimit) {
        self.device_limits.retain(|other| (&other.device, &other.resource) != (&limit.device, &limit.resource));
        self.device_limits.push(limit);
        self.device_limits.sort_by_key(|limit| precedence(&limit.device));
    }

    /// Bytes of this machine's memory that one of its connections from another machine may fill with data: a few times what
    /// it may have on devices, because what crosses goes there and comes from there.
    pub fn remote_memory(&self) -> u64 {
        let of_device = |memory: &u64| memory.saturating_mul(4).max(LEAST_REMOTE_MEMORY);
        self.limits.get("device_memory").map_or(u64::MAX, of_device)
    }

    /// A tenant whose memory on devices is limited has limits of what it takes of this machine, too: several times that.
    fn limit_host(&mut self) {
        let Some(device) = self.limits.get("device_memory").filter(|limit| **limit != u64::MAX) else { return };
        let default = device.saturating_mul(HOST_MEMORY_RATIO).max(LEAST_HOST_MEMORY);
        let host = *self.limits.entry(HOST_MEMORY.to_owned()).or_insert(default);
        self.limits.entry(HOST_LOG.to_owned()).or_insert(host);
        self.limits.entry(HANDLES.to_owned()).or_insert(host / HOST_BYTES_PER_HANDLE);
    }

    fn shows(&self, name: &str) -> bool {
        self.name == name || self.identities.iter().any(|certificate| certificate == name)
    }
}

/// The settings that `aviary tenant set` changes until the configuration is read again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TenantChange {
    pub name: String,
    /// `None`: no limit.
    pub limits: BTreeMap<String, Option<u64>>,
    pub device_limits: Vec<DeviceLimitChange>,
    pub sessions: Option<usize>,
    pub threads: Option<usize>,
    pub weight: Option<u32>,
    pub priority: Option<i32>,
    /// Thousandths; 1000 takes it away.
    pub cap: Option<u32>,
}

/// The limit on each device of a name from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceLimitChange {
    /// May end with `*`.
    pub device: String,
    pub resource: String,
    /// `None`: no limit, also where a wider name has one.
    pub limit: Option<u64>,
}

/// The tenant of a user who is in no tenant's list and has no entry in the machine's user database, such as a subordinate id
/// or one of a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownUsers {
    /// None: it cannot attach.
    Refuse,
    /// All of them are one, `others`.
    Share,
    /// Each is one of its own.
    #[default]
    Separate,
}

/// The tenant of unknown users who share one.
pub const OTHERS: &str = "others";

/// Tenants of a node. A user of none is a tenant of its own, with the node's limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tenants {
    pub list: Vec<Tenant>,
    pub unknown_users: UnknownUsers,
    pub limits: Limits,
    /// Of each tenant on each device of a name, where nothing of its own fits the device: those that go before others first.
    pub device_limits: Vec<DeviceLimit>,
    /// Of each tenant that says nothing of its own.
    pub only_devices: Option<Vec<String>>,
    /// Of each tenant that says nothing of its own; `None` or zero: never.
    pub idle_park: Option<Duration>,
    /// Of each tenant that says nothing of its own; `None`: a gigabyte.
    pub home: Option<u64>,
    /// All vendor sets, by their names; those that tenants name are there.
    pub vendors: BTreeMap<String, Arc<VendorSet>>,
}

impl Tenants {
    /// The shortest time after which any session is parked because it is idle; `None`: none is.
    pub fn least_idle_limit(&self) -> Option<Duration> {
        let all = self.list.iter().map(|tenant| tenant.idle_park).chain([self.idle_park]);
        all.flatten().filter(|limit| !limit.is_zero()).min()
    }

    /// True if somebody has said what homes may hold.
    pub fn says_home(&self) -> bool {
        self.home.is_some() || self.list.iter().any(|tenant| tenant.home.is_some())
    }

    /// True if the tenant of this user depends on the user database.
    pub fn ask_for(&self, uid: u32) -> bool {
        // The node's own user has started it.
        let is_own = uid == rustix::process::geteuid().as_raw();
        self.unknown_users != UnknownUsers::Separate && !is_own && !self.list.iter().any(|one| one.users.contains(&uid))
    }

    /// The tenant that a user of this machine belongs to; `None`: it is refused. `is_known`: it has an entry in the user
    /// database, which matters only if [`Self::ask_for`] says so.
    pub fn of(&self, uid: u32, is_known: bool) -> Option<Tenant> {
        if let Some(tenant) = self.list.iter().find(|tenant| tenant.users.contains(&uid)) {
            return Some(self.whole(tenant));
        }
        match self.unknown_users {
            _ if is_known || !self.ask_for(uid) => Some(self.called(&name_of_user(uid))),
            UnknownUsers::Share => Some(self.called(OTHERS)),
            UnknownUsers::Refuse | UnknownUsers::Separate => None,
        }
    }

    /// True for a tenant with an entry in the configuration.
    pub fn lists(&self, name: &str) -> bool {
        self.list.iter().any(|tenant| tenant.name == name)
    }

    /// The set that new API servers of this tenant load; `None`: the node's own libraries.
    pub fn vendor_of(&self, tenant: &Tenant) -> Option<&Arc<VendorSet>> {
        self.vendors.get(tenant.vendor.as_ref()?)
    }

    /// True if a set is still one of these, with the same files.
    pub fn has_vendor(&self, set: &VendorSet) -> bool {
        self.vendors.get(&set.name).is_some_and(|present| **present == *set)
    }

    /// The tenant that showed this name from another machine.
    pub fn named(&self, name: &str) -> Tenant {
        let found = self.list.iter().find(|tenant| tenant.shows(name));
        found.map_or_else(|| self.called(name), |tenant| self.whole(tenant))
    }

    /// The tenant of this name, configured or not.
    pub fn called(&self, name: &str) -> Tenant {
        let found = self.list.iter().find(|tenant| tenant.name == name);
        self.whole(found.unwrap_or(&Tenant::new(name)))
    }

    /// A tenant that has no entry, with what it would have from the node.
    pub(crate) fn with_own(&self, tenant: Tenant) -> Tenant {
        self.whole(&tenant)
    }

    /// With what it has from the node.
    fn whole(&self, tenant: &Tenant) -> Tenant {
        let mut whole = tenant.clone();
        for (resource, amount) in &self.limits {
            whole.limits.entry(resource.clone()).or_insert(*amount);
        }
        // The first that fits counts.
        whole.device_limits.extend(self.device_limits.iter().cloned());
        whole.limit_host();
        whole.only_devices = whole.only_devices.or_else(|| self.only_devices.clone());
        whole.idle_park = whole.idle_park.or(self.idle_park);
        whole.home = whole.home.or(self.home);
        whole
    }

    /// A tenant without an entry gets one: of the user whose number its name says, or of nobody but the name.
    pub fn change(&mut self, change: &TenantChange) {
        if !self.list.iter().any(|tenant| tenant.name == change.name) {
            let users = user_of_name(&change.name).into_iter().collect();
            self.list.push(Tenant { users, ..Tenant::new(&change.name) });
        }
        let Some(tenant) = self.list.iter_mut().find(|tenant| tenant.name == change.name) else { return };
        for (resource, limit) in &change.limits {
            // No limit of its own would mean the node's.
            tenant.limits.insert(resource.clone(), limit.unwrap_or(u64::MAX));
        }
        for DeviceLimitChange { device, resource, limit } in change.device_limits.iter().cloned() {
            tenant.limit_on(DeviceLimit { device, resource, limit: limit.unwrap_or(u64::MAX) });
        }
        tenant.sessions = change.sessions.or(tenant.sessions);
        tenant.threads = change.threads.or(tenant.threads);
        tenant.weight = change.weight.unwrap_or(tenant.weight);
        tenant.priority = change.priority.unwrap_or(tenant.priority);
        tenant.cap = change.cap.or(tenant.cap).filter(|cap| *cap < 1000);
    }
}

pub(crate) fn name_of_user(uid: u32) -> String {
    format!("uid-{uid}")
}

fn user_of_name(name: &str) -> Option<u32> {
    let uid = name.strip_prefix("uid-")?.parse().ok()?;
    (name_of_user(uid) == name).then_some(uid)
}

#[cfg(test)]
mod tests {
    use crate::tenants::tenant::*;

    #[test]
    fn a_remote_connection_may_fill_a_few_times_the_memory_of_the_device() {
        let mut tenant = Tenant::new("a");
        assert_eq!(tenant.remote_memory(), u64::MAX, "the node's own limit holds");
        for (device, remote) in [(0, 1 << 30), (8 << 30, 32 << 30), (u64::MAX, u64::MAX)] {
            tenant.limits.insert("device_memory".into(), device);
            assert_eq!(tenant.remote_memory(), remote);
        }
    }

    fn limits(pairs: &[(&str, u64)]) -> Limits {
        pairs.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect()
    }

    fn tenants() -> Tenants {
        let (users, limits_of_alice) = (vec![7], limits(&[("memory", 1)]));
        let identities = vec!["laptop".into()];
        let alice = Tenant { users, identities, limits: limits_of_alice, ..Tenant::new("alice") };
        Tenants { list: vec![alice], limits: limits(&[("memory", 9), ("calls", 3)]), ..Tenants::default() }
    }

    #[test]
    fn a_tenants_limits_come_before_the_nodes() {
        let tenants = tenants();
        let all = |tenant: Tenant| (tenant.name, tenant.limits);
        assert_eq!(all(tenants.of(7, true).unwrap()), ("alice".into(), limits(&[("memory", 1), ("calls", 3)])));
        assert_eq!(all(tenants.of(8, true).unwrap()), ("uid-8".into(), limits(&[("memory", 9), ("calls", 3)])));
    }

    #[test]
    fn users_without_an_entry_are_refused_or_one_tenant_or_each_one() {
        let mut tenants = tenants();
        let name = |tenants: &Tenants, uid, is_known| tenants.of(uid, is_known).map(|tenant| tenant.name);
        for (unknown_users, expected) in [
            (UnknownUsers::Separate, Some("uid-100001".to_owned())),
            (UnknownUsers::Share, Some(OTHERS.to_owned())),
            (UnknownUsers::Refuse, None),
        ] {
            tenants.unknown_users = unknown_users;
            assert_eq!(name(&tenants, 100_001, false), expected);
            assert_eq!(tenants.ask_for(100_001), unknown_users != UnknownUsers::Separate);
            assert_eq!(name(&tenants, 100_001, true), Some("uid-100001".into()), "one with an entry");
            assert_eq!(name(&tenants, 7, false), Some("alice".into()), "one of a tenant");
            let own = rustix::process::geteuid().as_raw();
            assert_eq!(name(&tenants, own, false), Some(name_of_user(own)), "the node's own");
            assert!(!tenants.ask_for(7) && !tenants.ask_for(own));
        }
        tenants.unknown_users = UnknownUsers::Share;
        let change = TenantChange { name: OTHERS.into(), weight: Some(3), ..TenantChange::default() };
        tenants.change(&change);
        assert_eq!(tenants.of(100_001, false).unwrap().weight, 3, "its entry counts");
    }

    #[test]
    fn a_tenants_list_of_devices_takes_the_place_of_the_nodes() {
        let mut tenants = tenants();
        let named = |tenant: Tenant| tenant.only_devices.map(|names| names.join(" "));
        assert_eq!((named(tenants.of(7, true).unwrap()), named(tenants.of(8, true).unwrap())), (None, None));
        tenants.only_devices = Some(vec!["card".into()]);
        assert_eq!(
            (named(tenants.of(7, true).unwrap()), named(tenants.of(8, true).unwrap())),
            (Some("card".into()), Some("card".into()))
        );
        tenants.list[0].only_devices = Some(vec!["chip*".into()]);
        assert_eq!(
            (named(tenants.named("laptop")), named(tenants.of(8, true).unwrap())),
            (Some("chip*".into()), Some("card".into()))
        );
        tenants.change(&TenantChange { name: "alice".into(), weight: Some(2), ..TenantChange::default() });
        tenants.change(&TenantChange { name: "uid-8".into(), weight: Some(2), ..TenantChange::default() });
        assert_eq!(
            (named(tenants.of(7, true).unwrap()), named(tenants.of(8, true).unwrap())),
            (Some("chip*".into()), Some("card".into()))
        );
    }

    #[test]
    fn idle_sessions_are_parked_as_their_tenant_says_and_otherwise_as_the_node_does() {
        let mut tenants = tenants();
        let minute = Duration::from_secs(60);
        let both =
            |tenants: &Tenants| (tenants.of(7, true).unwrap().idle_limit(), tenants.of(8, true).unwrap().idle_limit());
        assert_eq!((both(&tenants), tenants.least_idle_limit()), ((None, None), None));
        tenants.idle_park = Some(minute);
        assert_eq!(both(&tenants), (Some(minute), Some(minute)));
        tenants.list[0].idle_park = Some(Duration::ZERO);
        assert_eq!((both(&tenants), tenants.least_idle_limit()), ((None, Some(minute)), Some(minute)));
        (tenants.list[0].idle_park, tenants.idle_park) = (Some(minute * 2), Some(Duration::ZERO));
        assert_eq!((both(&tenants), tenants.least_idle_limit()), ((Some(minute * 2), None), Some(minute * 2)));
    }

    #[test]
    fn a_remote_tenant_is_who_its_certificate_names() {
        let tenants = tenants();
        assert_eq!(tenants.named("alice"), tenants.of(7, true).unwrap());
        assert_eq!(tenants.named("laptop"), tenants.of(7, true).unwrap());
        assert_eq!(tenants.named("bob").name, "bob");
        assert_eq!(tenants.called("laptop").users, [0; 0], "a name of a certificate is no tenant's");
    }

    #[test]
    fn changes_apply_to_tenants_with_and_without_an_entry() {
        let mut tenants = tenants();
        let change = |name: &str| TenantChange { name: name.into(), weight: Some(3), ..TenantChange::default() };
        tenants.change(&TenantChange { limits: [("memory".into(), None)].into(), ..change("alice") });
        assert_eq!((tenants.of(7, true).unwrap().weight, tenants.of(7, true).unwrap().limits["memory"]), (3, u64::MAX));
        tenants.change(&TenantChange { sessions: Some(2), ..change("uid-8") });
        assert_eq!(
            (
                tenants.of(8, true).unwrap().weight,
                tenants.of(8, true).unwrap().sessions,
                tenants.of(8, true).unwrap().limits["memory"]
            ),
            (3, Some(2), 9)
        );
        assert_eq!(user_of_name("uid-08"), None);
        let on = |device: &str, limit| DeviceLimitChange { device: device.into(), resource: "memory".into(), limit };
        for (device, limit) in [("*", Some(5)), ("card", None), ("card", Some(7)), ("c*", Some(6))] {
            tenants.change(&TenantChange { device_limits: vec![on(device, limit)], ..change("alice") });
        }
        let all: Vec<u64> = tenants.of(7, true).unwrap().device_limits.iter().map(|limit| limit.limit).collect();
        assert_eq!(all, [7, 6, 5]);
        tenants.device_limits = vec![DeviceLimit { device: "card".into(), resource: "memory".into(), limit: 1 }];
        let on_card = |tenant: Tenant| aviary_gate::limit_on(&tenant.device_limits, "memory", "card");
        assert_eq!(
            (on_card(tenants.of(7, true).unwrap()), on_card(tenants.of(9, true).unwrap())),
            (Some(7), Some(1)),
            "a tenant's own go first"
        );
    }
}
