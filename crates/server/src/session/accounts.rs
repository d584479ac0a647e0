//! What a session may use and has used: the limits of its tenant, the charges that no object holds, its statistics.
//!
//! Every refusal is counted and written to the node's log with its figures. A hostile guest can cause refusals as fast as it
//! makes calls: the tenant's budget of lines (`Gate::admit_line`) bounds what that writes.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt::Arguments;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aviary_control::Assignment;
use aviary_control::stats::StatsPage;
use aviary_gate::{Charges, Gate, HANDLES, HOST_LOG, Kind, Refusal, Refused, Resource, TenantPage, TenantSlot};

use super::peer::Journal;
use crate::api::{ApiDescriptor, Reject};
use crate::session::policy::Policy;
use crate::session::residency::MAX_RESIDENCY_DEVICES;
use crate::tables::rooms::{DEVICE_MEMORY, Rooms, SharedMemory};

/// Resources by number, and the amount of each.
pub(crate) type AmountList = Vec<(usize, u64)>;

pub struct Accounts {
    pub gate: Gate,
    pub policy: Policy,
    pub stats: StatsPage,
    /// `None`: the session shares no device's memory by the node's leave.
    pub rooms: Option<Rooms>,
    api: &'static ApiDescriptor,
    journal: Journal,
    /// Functions that the guest called and the vendor's library lacks.
    absent: Mutex<HashSet<u32>>,
    /// Charges that no object holds; the session does.
    unbound: Mutex<Charges>,
    /// Charges that last until the specification's server code says so, by its number.
    kept: Mutex<HashMap<u64, Charges>>,
}

/// The accounts of a session as its API says, and behind them those of its `handles` and of its `host_log`: parts of its
/// tenant's, or without a tenant's page its own, with the limits of its configuration.
/// `stats`: where the node has written the session's limits.
pub fn gate(
    api: &ApiDescriptor,
    config: &Assignment,
    page: Option<BorrowedFd<'_>>,
    stats: Option<BorrowedFd<'_>>,
) -> Result<Gate, String> {
    let handles = Resource { name: HANDLES, kind: Kind::Continuous };
    let log = Resource { name: HOST_LOG, kind: Kind::Continuous };
    let resources = api.resources.iter().map(|(name, kind)| Resource { name, kind: *kind }).chain([handles, log]);
    let Some(page) = page else { return Ok(Gate::new(resources, |name| config.limits.get(name).copied())) };
    let page = TenantPage::open(page).map_err(|error| error.to_string())?;
    let seat = TenantSlot::new(page, config.slot).ok_or_else(|| format!("there is no slot {}", config.slot))?;
    seat.show_guest(config.guest);
    let seat = match stats {
        Some(stats) => seat.limited(Arc::new(StatsPage::open(stats).map_err(|error| error.to_string())?)),
        None => seat,
    };
    Gate::of_tenant(resources, &seat).map_err(|error| error.to_string())
}

impl Accounts {
    /// `gate`: as [`gate`] makes it for this API.
    pub fn new(
        api: &'static ApiDescriptor,
        gate: Gate,
        policy: Policy,
        stats: StatsPage,
        rooms: Option<Rooms>,
        journal: Journal,
    ) -> Accounts {
        let (unbound, kept) = (Mutex::default(), Mutex::default());
        Accounts { gate, policy, stats, rooms, api, journal, absent: Mutex::default(), unbound, kept }
    }

    /// The item of the session's `handles`; see [`gate`].
    pub fn handles_item(&self) -> usize {
        self.api.resources.len()
    }

    /// The item of its `host_log`.
    pub fn log_item(&self) -> usize {
        self.handles_item() + 1
    }

    /// The item of a resource on these devices (see [`Gate`]). `function`: the number of the function that asks.
    pub fn place(&self, function: u32, resource: usize, devices: &[String]) -> Result<usize, Reject> {
        self.gate.residency(resource, devices).map_err(|error| {
            self.audit(self.function_name(function), format_args!("{error}"));
            Reject::Refused
        })
    }

    pub fn charge(&self, function: u32, item: usize, amount: u64) -> Result<(), Reject> {
        let result = self.gate.charge(item, amount);
        self.show(item);
        result.map_err(|refusal| self.refuse(function, item, amount, &refusal))
    }

    pub fn consume(&self, function: u32, resource: usize, amount: u64) -> Result<(), Reject> {
        let result = self.gate.consume(resource, amount);
        self.show(resource);
        result.map_err(|refusal| self.refuse(function, resource, amount, &refusal))
    }

    /// Writes down why the gate has refused an amount.
    #[cold]
    pub fn refuse(&self, function: u32, item: usize, amount: u64, refusal: &Refusal) -> Reject {
        let resource = self.gate.resource(item).and_then(|resource| self.gate.accounts().get(resource));
        let resource = resource.map_or("?", |account| account.name());
        let Refused { used, limit } = refusal.figures;
        let device = refusal.device.as_ref().map_or_else(String::new, |device| format!(" device={device:?}"));
        let figures = format_args!("resource={resource}{device} asked={amount} used={used} limit={limit}");
        self.audit(self.function_name(function), figures);
        Reject::Refused
    }

    /// The call is to be refused because the tenant may not call this function.
    #[cold]
    pub fn deny(&self, function: u32) -> Reject {
        self.audit(self.function_name(function), format_args!("denied"));
        Reject::Refused
    }

    /// Refuses the call if one of the devices is not the tenant's. `function`: the number of the function that asks.
    pub fn check_devices(&self, function: u32, devices: &[String]) -> Result<(), Reject> {
        let foreign = devices.iter().find(|device| !self.policy.may_use(device));
        // Of so many there may be more that nobody looked at.
        let Some(device) = foreign.or(devices.get(MAX_RESIDENCY_DEVICES - 1)) else { return Ok(()) };
        self.audit(
            self.function_name(function),
            format_args!("device={device:?} is not allowed for the tenant (only_devices)"),
        );
        Err(Reject::Refused)
    }

    /// The vendor's library lacks this function. Noted once, as programs ask again and again; and not by a private node, whose log is
    /// the program's terminal: there the program does what it does without the function.
    pub fn note_absent(&self, function: u32) {
        let is_first = self.absent.lock().unwrap_or_else(PoisonError::into_inner).insert(function);
        if is_first && !self.policy.private_node {
            let (api, name) = (self.api.name, self.function_name(function));
            self.journal.note(&format!("{name} is not in the vendor's library of {api}: programs are told so"));
        }
    }

    fn function_name(&self, number: u32) -> &'static str {
        self.api.functions.get(number as usize).map_or("?", |function| function.name)
    }

    /// Counts a refusal and writes a line about it, unless the tenant has too many of them now.
    pub fn audit(&self, what: &str, figures: Arguments<'_>) {
        self.stats.refused.fetch_add(1, Ordering::Relaxed);
        let Some(suppressed) = self.gate.admit_line() else { return };
        let Policy { tenant, guest, .. } = &self.policy;
        let suppressed =
            if suppressed > 0 { format!(" ({suppressed} more of this tenant were not logged)") } else { String::new() };
        self.journal.note(&format!(
            "refused: tenant={tenant} session={} pid={guest} function={what} {figures}{suppressed}",
            self.journal.session
        ));
    }

    /// What the node shares out of the device's memory, if it does.
    pub fn shared_memory(&self, device: &str) -> Option<SharedMemory> {
        let memory = self.rooms.as_ref()?.memory(device)?;
        Some(SharedMemory::new(memory, &self.gate.process_uses(DEVICE_MEMORY, device), self.policy.guest))
    }

    /// Brings the statistics of an item up to date.
    pub fn show(&self, item: usize) {
        let Some(resource) = self.gate.resource(item) else { return };
        let Some(account) = self.gate.accounts().get(resource) else { return };
        self.stats.show_account(resource, account);
        if item != resource {
            self.stats.show_device_accounts(&self.gate);
            self.rooms.iter().for_each(|rooms| rooms.give_back(&self.gate));
        }
    }

    /// Returns everything in `holding`.
    pub fn settle(&self, holding: &mut Charges) {
        if holding.is_empty() {
            return;
        }
        for (item, amount) in holding.drain() {
            self.gate.uncharge(item, amount);
            self.show(item);
        }
    }

    /// The session holds these charges from now on.
    pub fn hold(&self, holding: &mut Charges) {
        self.unbound().merge(holding);
    }

    /// Takes up to `amount` out of what the session holds, and says how much that was. It stays charged.
    pub fn take(&self, item: usize, amount: u64) -> u64 {
        self.unbound().take(item, amount)
    }

    /// Keeps the charges of a successful call until [`Accounts::return_kept`]. Where another call's are kept under this number, what
    /// they stand for is charged already: these end.
    pub fn keep(&self, number: u64, holding: &mut Charges) {
        match self.kept().entry(number) {
            Entry::Vacant(entry) => return entry.insert(Charges::default()).merge(holding),
            Entry::Occupied(_) => {}
        }
        self.settle(holding);
    }

    /// False: nothing is kept under this number here.
    pub fn return_kept(&self, number: u64) -> bool {
        let kept = self.kept().remove(&number);
        kept.map(|mut holding| self.settle(&mut holding)).is_some()
    }

    /// Charges that no object holds, and those that the specification's server code returns.
    pub(crate) fn other_charges(&self) -> (AmountList, Vec<(u64, AmountList)>) {
        let kept = self.kept().iter().map(|(number, charges)| (*number, charges.iter().collect())).collect();
        (self.unbound().iter().collect(), kept)
    }

    /// The same, in a session that has been made again.
    pub(crate) fn set_other_charges(&self, unbound: Charges, kept: HashMap<u64, Charges>) {
        *self.unbound() = unbound;
        *self.kept() = kept;
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<u64, Charges>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unbound(&self) -> MutexGuard<'_, Charges> {
        self.unbound.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
