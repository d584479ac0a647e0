//! Reports for `aviary ps` and `aviary tenant`.

use crate::cards::CardReport;
use crate::node::CoreState;
use crate::relocation::request::{ParkedMemory, ParkedReport, SessionMoves};
use crate::scheduling::DeviceReport;
use crate::sessions::registry::{ServerRecord, Session};
use crate::sessions::stats;
use crate::swapping::request::SwapStatus;
use crate::tenants::tenant::Tenant;
use crate::vms::FpgaDeviceReport;
use aviary_control::{FPGA_MEMORY, FunctionRule};
use aviary_gate::{Balance, DeviceLimit, Kind};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    time::{Instant, SystemTime},
};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeReport {
    pub address: String,
    pub pid: u32,
    /// How often its program was replaced while it ran.
    #[serde(default)]
    pub upgrades: u64,
    /// API servers that wait for a guest.
    pub spares: usize,
    /// Process that is copied for new guests; 0: there is none, or it is not ready.
    #[serde(default)]
    pub zygote: u32,
    /// Vendor sets of the configuration, and earlier ones that API servers still have.
    #[serde(default)]
    pub vendors: Vec<VendorReport>,
    /// Host memory of parked sessions.
    #[serde(default)]
    pub parked: ParkedMemory,
    pub sessions: Vec<SessionReport>,
    /// API servers that had sessions and have none.
    #[serde(default)]
    pub servers: Vec<ServerReport>,
    /// Devices that are scheduled.
    #[serde(default)]
    pub devices: Vec<DeviceReport>,
    /// FPGA cards.
    #[serde(default)]
    pub cards: Vec<CardReport>,
    /// Accelerators of VMs.
    #[serde(default)]
    pub fpga_devices: Vec<FpgaDeviceReport>,
}

/// A vendor set.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VendorReport {
    pub name: String,
    /// Process that is copied for new guests; 0: there is none, because the set was not used yet, or it is not ready.
    pub zygote: u32,
    /// API servers that have it and a guest.
    pub servers: usize,
    /// API servers with it that wait for a guest.
    #[serde(default)]
    pub spares: usize,
    /// The configuration has it no longer, or with other files.
    pub replaced: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SessionReport {
    pub session: u64,
    pub api: String,
    pub program: String,
    pub guest: u32,
    pub uid: u32,
    #[serde(default)]
    pub tenant: String,
    /// The virtual machine that `guest` and `program` are in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// The vendor set of its API server; `None`: the node's own libraries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// Why it would get something else if it attached now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outdated: Option<String>,
    /// Process id of the API server.
    pub server: u32,
    pub seconds: u64,
    /// It is on its way to another API server: the stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<String>,
    #[serde(default)]
    pub moves: SessionMoves,
    /// Its state lies in the node, and nothing of it is on a device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked: Option<ParkedReport>,
    /// Its device memory is in the host's, or on the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swapped: Option<SwapStatus>,
    /// Milliseconds since which the connection to the other machine that it is on is broken. `None`: it is not, as far as its
    /// gateway knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub away_ms: Option<u64>,
    /// Calls, bytes and resources by name; empty until the session has started.
    pub counters: BTreeMap<String, u64>,
}

/// An API server without a session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServerReport {
    /// Process id.
    pub server: u32,
    /// Of the process that it served; one on another machine is its gateway's.
    pub guest: u32,
    pub uid: u32,
    pub tenant: String,
    /// For people: why it is still there.
    pub state: String,
}

pub(crate) fn server(server: &ServerRecord) -> ServerReport {
    let guest = server.guest.as_ref();
    ServerReport {
        server: server.process.pid(),
        guest: guest.map_or(0, |guest| guest.pid),
        uid: guest.map_or(0, |guest| guest.uid),
        tenant: server.seat.as_ref().map_or_else(String::new, |seat| seat.tenant.clone()),
        state: server.state.told().to_owned(),
    }
}

/// On the clock of the whole machine.
fn monotonic_ms() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000)
}

pub(crate) fn session(state: &CoreState, id: u64, session: &Session) -> SessionReport {
    let now = SystemTime::now();
    let parked = state.relocations.report_parked(session.server, id, Instant::now());
    let (swapped, resident) = state.swapping.report(id);
    let read = if parked.is_some() { stats::read_parked } else { stats::read };
    SessionReport {
        session: id,
        api: session.api.clone(),
        program: session.program(),
        guest: session.guest_pid(),
        uid: session.guest.uid,
        tenant: session.tenant.clone(),
        vm: session.in_vm().map(|guest| guest.vm.clone()),
        vendor: state.registry.vendor_of(session).map(|set| set.name.clone()),
        outdated: state.revoked(session),
        server: state.registry.process_of(session.server),
        seconds: now.duration_since(session.since).map_or(0, |time| time.as_secs()),
        moving: state.relocations.stage_of(session.server).map(str::to_owned),
        moves: session.moves.clone(),
        parked,
        swapped,
        away_ms: state.gateways.away(session.peer, monotonic_ms()).map(|time| time.as_millis() as u64),
        counters: counters(session.pages.as_ref().map(|pages| read(&pages.stats)), resident),
    }
}

/// With what is on shared devices, as the node has granted it.
fn counters(read: Option<BTreeMap<String, u64>>, resident: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let mut all = read.unwrap_or_default();
    all.extend(resident.into_iter().map(|(device, bytes)| (format!("resident_memory@{device}.used"), bytes)));
    all
}

/// The report of one tenant that `aviary tenant` shows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TenantReport {
    pub name: String,
    pub users: Vec<u32>,
    pub certificates: Vec<String>,
    pub weight: u32,
    pub priority: i32,
    /// Thousandths of a scheduled device's time; `None`: no limit.
    #[serde(default)]
    pub cap: Option<u32>,
    /// Sessions now, and the most of them.
    pub sessions: usize,
    pub most_sessions: Option<usize>,
    /// The most threads of a session.
    pub threads: Option<usize>,
    pub apis: Option<Vec<String>>,
    pub functions: FunctionRule,
    /// Devices it may use, by their names, which may end with `*`; `None`: all.
    #[serde(default)]
    pub only_devices: Option<Vec<String>>,
    /// The vendor set of its new API servers; `None`: the node's own libraries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    pub accounts: Vec<AccountReport>,
    /// Limits on each device of a name, those that go before others first.
    #[serde(default)]
    pub device_limits: Vec<DeviceLimitReport>,
    /// Of a grant, for metrics.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeviceLimitReport {
    /// May end with `*`.
    pub device: String,
    pub resource: String,
    /// `None`: no limit.
    pub limit: Option<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AccountReport {
    pub resource: String,
    /// On which device; `None`: wherever, all together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// `None`: no API server has said yet.
    pub instantaneous: Option<bool>,
    pub limit: Option<u64>,
    /// An instantaneous resource without a limit is counted by its sessions only.
    pub used: u64,
    pub peak: u64,
    pub refused: u64,
    /// The sum of the amounts that the API servers hold: differs from `used` only while one of them changes both.
    pub held: u64,
}

pub(crate) fn tenant(state: &CoreState, tenant: Tenant) -> TenantReport {
    let of_cards = |balance: &Balance| balance.name == FPGA_MEMORY;
    let of_servers = state.tenancy.accounts.balances(&tenant.name).into_iter().filter(|balance| !of_cards(balance));
    let of_cards = state.tenancy.card_accounts.balances(&tenant.name).into_iter().filter(of_cards);
    let mut accounts: Vec<AccountReport> = of_servers.chain(of_cards).map(account).collect();
    // Before its first session a tenant has limits only.
    for (resource, limit) in &tenant.limits {
        if !accounts.iter().any(|account| account.device.is_none() && account.resource == *resource) {
            let (resource, limit) = (resource.clone(), Some(*limit));
            accounts.push(AccountReport {
                resource,
                device: None,
                instantaneous: None,
                limit,
                used: 0,
                peak: 0,
                refused: 0,
                held: 0,
            });
        }
    }
    accounts.sort_by_key(|account| account.device.is_some());
    let device_limits = tenant.device_limits.into_iter().map(|DeviceLimit { device, resource, limit }| {
        DeviceLimitReport { device, resource, limit: Some(limit).filter(|limit| *limit != u64::MAX) }
    });
    TenantReport {
        device_limits: device_limits.collect(),
        sessions: state.sessions_of_tenant(&tenant.name),
        labels: state.grants.labels(&tenant.name),
        name: tenant.name,
        users: tenant.users,
        certificates: tenant.identities,
        weight: tenant.weight,
        priority: tenant.priority,
        cap: tenant.cap,
        most_sessions: tenant.sessions,
        threads: tenant.threads,
        apis: tenant.apis,
        functions: tenant.functions,
        only_devices: tenant.only_devices,
        vendor: tenant.vendor,
        accounts,
    }
}

fn account(balance: Balance) -> AccountReport {
    let Balance { name: resource, device, kind, limit, used, peak, refused, held } = balance;
    let instantaneous = kind.map(|kind| kind == Kind::Instantaneous);
    AccountReport { resource, device, instantaneous, limit, used, peak, refused, held }
}
