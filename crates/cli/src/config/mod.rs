//! The node's configuration file.

pub(crate) mod amount;
pub(crate) mod card;
pub(crate) mod cgroup;
pub mod error;
mod help;
mod memory;
pub(crate) mod sandbox;
pub mod values;
pub(crate) mod vendor;
pub(crate) mod vm;

pub use error::ConfigError;
pub use help::CONFIG_HELP;
pub use vm::parse_vm;

use crate::apis::{self, Api};
use crate::config::amount::{Amount, limits};
use crate::config::card::{CardConfig, check_cards};
use crate::config::cgroup::CgroupConfig;
use crate::config::vendor::VendorConfigs;
use crate::config::vm::{VmConfig, check_vms};
use aviary_control::{FPGA_API, FPGA_MEMORY};
use aviary_node::{
    CardSettings, DEVICE_LIMITS, DEVICE_NAME_BYTES, DeviceKind, DeviceLimit, DeviceSettings, FpgaDeviceSettings,
    FunctionRule, HOST_SWAP, Limits, LoadedPolicy, Rules, Scheduler, Tenant, Tenants, UnknownUsers, VmSettings,
    precedence,
};
use aviary_wire::tenant::is_reserved;
use memory::{check_memory, thousandths};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use values::is_plain;
pub use values::{parse_cap, parse_span};

/// Settings that a running node does not change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fixed {
    listen: Option<String>,
    mode: Option<String>,
    spares: Option<usize>,
    log_level: Option<String>,
    api_server_users: Option<String>,
    api_dirs: Vec<PathBuf>,
    sandbox: SandboxConfig,
    cgroup: CgroupConfig,
    pass_environment: Vec<String>,
    movable: Option<bool>,
    parked_memory: Option<Amount>,
    network_grace: Option<Span>,
    grants: Option<PathBuf>,
}

/// `aviary serve --config FILE`. Everything is optional; options of the command line come first.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileConfig {
    pub listen: Option<String>,
    /// Octal, as a string.
    pub mode: Option<String>,
    pub spares: Option<usize>,
    pub sessions_per_user: Option<usize>,
    /// Processes of one user, VM or remote tenant that may attach in a second; 0: as many as it likes.
    pub attach_rate: Option<u32>,
    pub log_level: Option<String>,
    /// `FIRST-LAST` or `none`.
    pub api_server_users: Option<String>,
    #[serde(default)]
    pub api_dirs: Vec<PathBuf>,
    /// Variables that API servers get beside the usual ones; a name may end with `*`.
    #[serde(default)]
    pub pass_environment: Vec<String>,
    /// Sessions can be moved to other API servers; off, what that needs is not recorded.
    pub movable: Option<bool>,
    /// Bytes of host memory that the states of parked sessions may take.
    pub parked_memory: Option<Amount>,
    /// How long sessions of other machines survive a broken connection; zero: not at all.
    network_grace: Option<Span>,
    /// After how long without a call sessions are parked, of every tenant that says nothing else; zero: never.
    idle_park: Option<Span>,
    /// Bytes that a tenant's home may hold, of every tenant that says nothing else.
    home: Option<Amount>,
    /// Devices that a tenant may use, of every tenant that says nothing else.
    only_devices: Option<Vec<String>>,
    /// Of every tenant that says nothing else.
    #[serde(default)]
    limits: BTreeMap<String, Amount>,
    #[serde(default)]
    tenants: BTreeMap<String, TenantConfig>,
    /// How devices are scheduled, by their names; a name may end with `*`.
    #[serde(default)]
    devices: BTreeMap<String, DeviceConfig>,
    /// Virtual machines that may attach.
    #[serde(default)]
    vms: BTreeMap<String, VmConfig>,
    /// Versions of vendors' software that tenants may have.
    #[serde(default)]
    pub(crate) vendors: VendorConfigs,
    /// FPGA cards that programs may use.
    #[serde(default)]
    fpga: BTreeMap<String, CardConfig>,
    #[serde(default)]
    pub sandbox: SandboxConfig,
    /// The tenant of users who have neither an entry in `tenants` nor one in the machine's user database.
    pub unknown_users: Option<UnknownUsers>,
    /// Tenants without an entry in `tenants` that the node knows at a time.
    pub most_tenants: Option<usize>,
    /// Control groups of API servers.
    #[serde(default)]
    pub cgroup: CgroupConfig,
    /// The folder of grants.
    pub grants: Option<PathBuf>,
}

/// How API servers with users of their own are confined.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxConfig {
    /// `on`, `log` or `off`.
    pub mode: Option<String>,
    /// Files and directories that API servers can read beside the usual ones; absolute paths.
    #[serde(default)]
    pub read: Vec<PathBuf>,
    /// Device nodes beside those of known accelerators, and files that stand for devices; absolute paths.
    #[serde(default)]
    pub devices: Vec<PathBuf>,
    /// Names of system calls that API servers can make beside the usual ones.
    #[serde(default)]
    pub system_calls: Vec<String>,
    /// Requests of ioctl that API servers can make beside the usual ones: the letter of a type, a number or two.
    #[serde(default)]
    pub ioctls: Vec<String>,
    /// Namespaces that API servers share with the node.
    #[serde(default)]
    pub share: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantConfig {
    #[serde(default)]
    users: Vec<u32>,
    #[serde(default)]
    certificates: Vec<String>,
    #[serde(default)]
    limits: BTreeMap<String, Amount>,
    sessions: Option<usize>,
    threads: Option<usize>,
    apis: Option<Vec<String>>,
    functions: Option<FunctionsConfig>,
    /// Functions that change a device for all its users; a name may end with `*`.
    #[serde(default)]
    privileged: Vec<String>,
    only_devices: Option<Vec<String>>,
    weight: Option<u32>,
    priority: Option<i32>,
    cap: Option<Cap>,
    idle_park: Option<Span>,
    home: Option<Amount>,
    vendor: Option<String>,
    resident_guarantee: Option<Amount>,
    /// By the names of devices; a name may end with `*`.
    #[serde(default)]
    devices: BTreeMap<String, TenantsDevice>,
}

/// The amounts that a tenant may have of each device of a name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantsDevice {
    limits: BTreeMap<String, Amount>,
}

impl DeviceConfig {
    /// True if it says more than limits, and how much memory there is.
    fn schedules(&self) -> bool {
        let spans = [self.slice, self.linger, self.awake, self.hold_limit, self.latency];
        let others = self.scheduler.is_some() || self.policy.is_some() || self.kind.is_some();
        self.limits.is_empty() && self.memory.is_none() || others || spans.iter().any(Option::is_some)
    }
}

/// By the names of devices; those that go before others first.
fn device_limits<'a>(all: impl Iterator<Item = (&'a String, &'a BTreeMap<String, Amount>)>) -> Vec<DeviceLimit> {
    let of = |(device, amounts): (&String, &BTreeMap<String, Amount>)| {
        let limit = |(resource, amount): (&String, &Amount)| DeviceLimit {
            device: device.clone(),
            resource: resource.clone(),
            limit: amount.0,
        };
        amounts.iter().map(limit).collect::<Vec<_>>()
    };
    let mut limits: Vec<DeviceLimit> = all.flat_map(of).collect();
    limits.sort_by_key(|limit| precedence(&limit.device));
    limits
}

impl TenantConfig {
    fn device_limits(&self) -> Vec<DeviceLimit> {
        device_limits(self.devices.iter().map(|(name, device)| (name, &device.limits)))
    }
}

/// `{ deny = [...] }` or `{ allow = [...] }`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FunctionsConfig {
    Allow(Vec<String>),
    Deny(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceConfig {
    /// Of every tenant that says nothing else.
    #[serde(default)]
    limits: BTreeMap<String, Amount>,
    scheduler: Option<Scheduler>,
    slice: Option<Span>,
    linger: Option<Span>,
    awake: Option<Span>,
    hold_limit: Option<Span>,
    latency: Option<Span>,
    kind: Option<DeviceKind>,
    /// For the scheduler `ebpf`; relative to the configuration file.
    policy: Option<PathBuf>,
    /// Bytes of its memory that sessions may have on it at a time.
    memory: Option<Amount>,
    /// How many times as much they may have in all.
    oversubscribe: Option<f64>,
    /// Bytes that an API server may have there besides what its sessions allocate.
    beside: Option<Amount>,
    /// Bytes that are charged for each context.
    context: Option<Amount>,
}

/// `"6ms"`, `"200us"`, `"1.5s"`, `"10m"` or `"2h"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct Span(Duration);

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        parse_span(&text).map(Self)
    }
}

/// A part of a device's time, in thousandths.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Cap(u32);

impl TryFrom<String> for Cap {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        parse_cap(&text).map(Self)
    }
}

impl FileConfig {
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(path).map_err(|error| ConfigError::Unreadable { path: path.into(), error })?;
        let config: Self = toml::from_str(&text)
            .map_err(|error| ConfigError::Malformed { path: path.into(), error: Box::new(error) })?;
        check_only_devices(path, "the node", config.only_devices.as_deref())?;
        check_memory(path, config.devices.iter().map(|(name, it)| (name, it.memory, it.oversubscribe)))?;
        config.check_tenants(path)?;
        config.check_vms(path)?;
        config.vendors.keys().try_for_each(|name| check_name(path, name))?;
        let named = config.tenants.iter().map(|(name, tenant)| (name, tenant.vendor.as_ref()));
        vendor::check_known(&config.vendors, path, named)?;
        Ok(config)
    }

    fn check_tenants(&self, path: &Path) -> Result<(), ConfigError> {
        let mut owners: BTreeMap<String, &String> = BTreeMap::new();
        for (name, tenant) in &self.tenants {
            check_name(path, name)?;
            tenant.certificates.iter().try_for_each(|shown| check_reserved(path, shown))?;
            if tenant.weight == Some(0) {
                return Err(ConfigError::NoWeight { path: path.into(), tenant: name.clone() });
            }
            if tenant.device_limits().len() + self.device_limits().len() > DEVICE_LIMITS {
                return Err(ConfigError::ManyDeviceLimits { path: path.into(), tenant: name.clone() });
            }
            if let Some(device) = tenant.devices.keys().find(|name| is_long(name)) {
                let (tenant, device) = (name.clone(), device.clone());
                return Err(ConfigError::LongDeviceName { path: path.into(), tenant, device });
            }
            check_only_devices(path, &format!("tenant `{name}`"), tenant.only_devices.as_deref())?;
            let users = tenant.users.iter().map(|user| format!("user {user}"));
            // A tenant's own name is one that its certificates can show.
            let shown = tenant.certificates.iter().filter(|shown| *shown != name).chain([name]);
            for identity in users.chain(shown.map(|shown| format!("certificate `{shown}`"))) {
                if let Some(other) = owners.insert(identity.clone(), name) {
                    let (one, other) = (other.clone(), name.clone());
                    return Err(ConfigError::TwoTenants { path: path.into(), identity, one, other });
                }
            }
        }
        Ok(())
    }

    fn check_vms(&self, path: &Path) -> Result<(), ConfigError> {
        self.fpga.keys().try_for_each(|name| check_name(path, name))?;
        for (name, vm) in &self.vms {
            [Some(name), vm.tenant()].into_iter().flatten().try_for_each(|name| check_name(path, name))?;
        }
        let taken = check_vms(&self.vms).map_err(|error| ConfigError::Vm { path: path.into(), error })?;
        let taken = taken.iter().map(|(socket, whose)| (*socket, whose.as_str()));
        check_cards(&self.fpga, taken).map_err(|error| ConfigError::Card { path: path.into(), error })
    }

    /// `node`: the node's socket, beside which a card's is by default, and `mode` its permissions.
    pub fn cards(&self, node: &Path, mode: u32) -> Vec<CardSettings> {
        self.fpga.iter().map(|(name, card)| card.settings(name, node, mode)).collect()
    }

    pub fn vms(&self) -> Vec<VmSettings> {
        self.vms.iter().filter_map(|(name, vm)| vm.settings(name)).collect()
    }

    pub fn fpga_devices(&self) -> Vec<FpgaDeviceSettings> {
        self.vms.iter().flat_map(|(name, vm)| vm.fpga_devices(name)).collect()
    }

    /// Longer names first, so that a name goes before a pattern that it fits. `path` is this file's. A program that
    /// `running` has for the same name from the same file is not loaded again. Where the file names no program, that of
    /// the APIs' specifications runs.
    pub fn devices(&self, path: Option<&Path>, running: &Rules, apis: &[Api]) -> Result<Rules, ConfigError> {
        let folder = path.and_then(Path::parent).unwrap_or(Path::new(""));
        let mut rules = Vec::new();
        for (name, device) in self.devices.iter().filter(|(_, device)| device.schedules() || device.memory.is_some()) {
            let usual = DeviceSettings::default();
            let unsaid = if device.schedules() { usual.scheduler } else { Scheduler::None };
            let scheduler = device.scheduler.unwrap_or(unsaid);
            let policy = match (&device.policy, scheduler == Scheduler::Ebpf) {
                (file, true) => {
                    let usual = || apis::policy(apis).map(Path::to_path_buf);
                    let file = file.as_ref().map_or_else(usual, |file| Ok(folder.join(file)));
                    let file = file.map_err(|choice| ConfigError::NoPolicy { device: name.clone(), choice })?;
                    let refused = |error| {
                        let (device, file, error) = (name.clone(), file.clone(), Box::new(error));
                        ConfigError::Policy { device, file, error }
                    };
                    match running.policy(name).filter(|policy| policy.file() == file) {
                        Some(policy) => Some(policy.clone()),
                        None => Some(LoadedPolicy::load(&file).map_err(refused)?),
                    }
                }
                (Some(_), false) => return Err(ConfigError::NeedlessPolicy { device: name.clone() }),
                (None, false) => None,
            };
            let slice = device.slice.map(|span| span.0).or(usual.slice);
            let linger = device.linger.map_or(usual.linger, |span| span.0);
            let awake = device.awake.map_or(usual.awake, |span| span.0);
            let hold_limit = device.hold_limit.map_or(usual.hold_limit, |span| span.0);
            let latency = device.latency.map_or(usual.latency, |span| span.0);
            let kind = device.kind;
            let (memory, oversubscribe) = (device.memory.map(|bytes| bytes.0), thousandths(device.oversubscribe));
            let beside = device.beside.map_or(usual.beside, |bytes| bytes.0);
            rules.push((
                name.clone(),
                DeviceSettings {
                    scheduler,
                    slice,
                    linger,
                    awake,
                    hold_limit,
                    latency,
                    kind,
                    policy,
                    memory,
                    oversubscribe,
                    beside,
                    context: device.context.map(|bytes| bytes.0),
                },
            ));
        }
        rules.sort_by_key(|(name, _)| precedence(name));
        Ok(Rules(rules))
    }

    pub fn fixed(&self) -> Fixed {
        Fixed {
            listen: self.listen.clone(),
            mode: self.mode.clone(),
            spares: self.spares,
            log_level: self.log_level.clone(),
            api_server_users: self.api_server_users.clone(),
            api_dirs: self.api_dirs.clone(),
            sandbox: self.sandbox.clone(),
            cgroup: self.cgroup.clone(),
            pass_environment: self.pass_environment.clone(),
            movable: self.movable,
            parked_memory: self.parked_memory,
            network_grace: self.network_grace,
            grants: self.grants.clone(),
        }
    }

    pub fn limits(&self) -> Limits {
        limits(&self.limits)
    }

    pub fn device_limits(&self) -> Vec<DeviceLimit> {
        device_limits(self.devices.iter().map(|(name, device)| (name, &device.limits)))
    }

    pub fn network_grace(&self) -> Option<Duration> {
        self.network_grace.map(|span| span.0)
    }

    pub fn idle_park(&self) -> Option<Duration> {
        self.idle_park.map(|span| span.0)
    }

    pub fn home(&self) -> Option<u64> {
        self.home.map(|bytes| bytes.0)
    }

    pub fn only_devices(&self) -> Option<Vec<String>> {
        self.only_devices.clone()
    }

    pub fn tenants(&self) -> Vec<Tenant> {
        let tenant = |(name, tenant): (&String, &TenantConfig)| Tenant {
            name: name.clone(),
            users: tenant.users.clone(),
            identities: tenant.certificates.clone(),
            limits: limits(&tenant.limits),
            device_limits: tenant.device_limits(),
            sessions: tenant.sessions,
            threads: tenant.threads,
            apis: tenant.apis.clone(),
            functions: tenant.function_rule(),
            only_devices: tenant.only_devices.clone(),
            weight: tenant.weight.unwrap_or(1),
            priority: tenant.priority.unwrap_or(0),
            cap: tenant.cap.as_ref().map(|cap| cap.0).filter(|cap| *cap < 1000),
            idle_park: tenant.idle_park.map(|span| span.0),
            home: tenant.home.map(|bytes| bytes.0),
            vendor: tenant.vendor.clone(),
            resident_guarantee: tenant.resident_guarantee.map(|bytes| bytes.0),
        };
        self.tenants.iter().map(tenant).collect()
    }
}

impl TenantConfig {
    fn function_rule(&self) -> FunctionRule {
        let privileged = self.privileged.clone();
        match &self.functions {
            Some(FunctionsConfig::Allow(names)) => {
                FunctionRule { allow: Some(names.clone()), deny: Vec::new(), privileged }
            }
            Some(FunctionsConfig::Deny(names)) => FunctionRule { allow: None, deny: names.clone(), privileged },
            None => FunctionRule { privileged, ..FunctionRule::default() },
        }
    }
}

/// A list that allows nothing by accident would be found out late.
fn check_only_devices(path: &Path, whose: &str, names: Option<&[String]>) -> Result<(), ConfigError> {
    let wrong = |reason: String| ConfigError::OnlyDevices { path: path.into(), owner: whose.to_owned(), reason };
    match names {
        Some([]) => Err(wrong("the list is empty, which would allow no device; leave it out to allow all".into())),
        names => names.into_iter().flatten().try_for_each(|name| parse_device(name).map(drop)).map_err(wrong),
    }
}

/// A device's name, which may end with `*`.
pub fn parse_device(text: &str) -> Result<String, String> {
    match text {
        "" => Err("expected a device's name; `*` means all devices".into()),
        long if is_long(long) => Err(format!("`{long}` is longer than a device's name, which has at most 64 bytes")),
        name => Ok(name.to_owned()),
    }
}

/// No device has such a name.
fn is_long(name: &str) -> bool {
    name.strip_suffix('*').unwrap_or(name).len() > DEVICE_NAME_BYTES
}

/// Of a tenant or VM.
fn check_name(path: &Path, name: &str) -> Result<(), ConfigError> {
    if !is_plain(name) {
        return Err(ConfigError::BadName { path: path.into(), name: name.to_owned() });
    }
    check_reserved(path, name)
}

fn check_reserved(path: &Path, name: &str) -> Result<(), ConfigError> {
    match is_reserved(name) {
        true => Err(ConfigError::ReservedName { path: path.into(), name: name.to_owned() }),
        false => Ok(()),
    }
}

/// Permissions of a VM's socket.
/// A function that does not exist would stay allowed where the operator means to deny it, so that is a mistake. Limits
/// and APIs may be meant for what is built later: those are worth a note.
pub fn check_names(all: &Tenants, apis: &[Api]) -> Result<Vec<String>, ConfigError> {
    let Tenants { list: tenants, limits, device_limits, .. } = all;
    let known = |names: fn(&Api) -> &Vec<String>, name: &String| apis.iter().any(|api| names(api).contains(name));
    // Builds that say nothing may have anything.
    let complete = apis.iter().all(|api| !api.functions.is_empty());
    let mut notes = Vec::new();
    let mut note = |text: String| notes.push(text);
    for tenant in tenants {
        let privileged = tenant.functions.privileged.iter().filter(|name| !name.ends_with('*'));
        let mut named = tenant.functions.allow.iter().flatten().chain(&tenant.functions.deny).chain(privileged);
        if let Some(function) = named.find(|function| complete && !known(|api| &api.functions, function)) {
            let (tenant, function) = (tenant.name.clone(), function.clone());
            return Err(ConfigError::NoFunction { tenant, function });
        }
        let missing = |name: &&String| *name != FPGA_API && apis.iter().all(|api| api.name != **name);
        for api in tenant.apis.iter().flatten().filter(missing) {
            note(format!(
                "tenant {}: API `{api}` is not built on this machine: sessions that ask for it are refused",
                tenant.name
            ));
        }
    }
    let of_tenants = tenants.iter().flat_map(|tenant| tenant.limits.keys().map(|key| (tenant.name.as_str(), key)));
    for (whose, resource) in limits.keys().map(|key| ("all tenants", key)).chain(of_tenants) {
        let is_nodes_own = resource == FPGA_MEMORY || resource == HOST_SWAP;
        if complete && !is_nodes_own && !known(|api| &api.resources, resource) {
            let mut there: Vec<&str> = apis.iter().flat_map(|api| api.resources.iter().map(String::as_str)).collect();
            there.sort_unstable();
            there.dedup();
            let there = there.join(", ");
            note(format!(
                "limits of {whose}: no API that is built here has a resource `{resource}`, so this limit has no effect; there are {there}"
            ));
        }
    }
    let of_devices = tenants.iter().flat_map(|tenant| &tenant.device_limits).chain(device_limits);
    for DeviceLimit { device, resource, .. } in of_devices {
        if complete && resource != FPGA_MEMORY && !known(|api| &api.device_resources, resource) {
            note(format!(
                "device `{device}`: no API that is built here counts `{resource}` per device, so this limit has no effect"
            ));
        }
    }
    Ok(notes)
}

#[cfg(test)]
mod tests;
