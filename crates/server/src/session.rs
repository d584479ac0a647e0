//! State that all lanes of one connection share.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use aviary_control::stats::StatsPage;
use aviary_control::{Assignment, MoveReport};
use aviary_gate::{
    Allowance, Charges, Gate, HANDLES, HOST_LOG, Kind, ProcessUse, Refusal, Refused, Resource, TenantPage, TenantSlot,
};
use aviary_transport::ControlSocket;
use aviary_wire::{Control, Shown, control::control_kind};

use crate::api::{ApiDescriptor, Reject};
use crate::callback_lane::CallbackLane;
use crate::closures::{self, Closure, ClosureKey, ClosureLifetime, NamedObject, ObjectFn};
use crate::config::MAX_CALLBACKS;
use crate::confine::adopt_output;
use crate::cpu_demand::CpuDemand;
use crate::deferred_ends::DeferredEnds;
use crate::deferred_outputs::{DeferredOutput, DeferredOutputs, Delivery};
use crate::devices::Devices;
use crate::freed::FreedMemory;
use crate::handles::{Ended, HandleTable};
use crate::in_use::LaneUses;
use crate::mappings::Mappings;
use crate::memory::SessionMemory;
use crate::moving::{self, contents::Contents, handed::Handed};
use crate::object_log::ObjectLog;
use crate::pause::Pause;
use crate::policy::Policy;
use crate::posted::PostedCallbacks;
use crate::printed::{self, Look, Printed};
use crate::residency::MAX_RESIDENCY_DEVICES;
use crate::residents::Residents;
use crate::states::States;
use crate::tickets::Tickets;
use crate::vendor::Vendor;

/// Of the log, in bytes without the end: with it a pipe's PIPE_BUF.
const LONGEST_LINE: usize = 4095;

/// Where a session reports, and under what name.
#[derive(Debug, Clone, Copy)]
pub struct Journal {
    /// Stays open as long as the process.
    pub fd: RawFd,
    pub session: u64,
}

impl Journal {
    /// One line, in one write, so that lines of several threads do not mix: a pipe takes that much in one piece. What it
    /// has no room for is lost, as nobody here waits for the log.
    pub fn note(&self, text: &str) {
        let line = format!("aviary[{}]: {}", self.session, Shown(text));
        let line = format!("{}\n", &line[..line.floor_char_boundary(LONGEST_LINE)]);
        // SAFETY: the process keeps this descriptor open until it ends; ManuallyDrop leaves it open here.
        let mut out = ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(self.fd) });
        // No reader can be told that the log is gone.
        let _ = out.write_all(line.as_bytes());
    }
}

/// Resources by number, and the amount of each.
pub(crate) type AmountList = Vec<(usize, u64)>;

pub struct Session {
    pub api: &'static ApiDescriptor,
    pub vendor: &'static Vendor,
    pub handles: HandleTable,
    pub gate: Gate,
    pub policy: Policy,
    pub tickets: Tickets,
    pub late: DeferredOutputs,
    pub handed: Handed,
    pub contents: Contents,
    pub memory: SessionMemory,
    pub mappings: Mappings,
    pub states: States,
    pub freed: FreedMemory,
    pub residents: Residents,
    pub deferred_ends: DeferredEnds,
    pub log: ObjectLog,
    pub stats: StatsPage,
    pub callback_lane: CallbackLane,
    pub posted: PostedCallbacks,
    pub devices: Devices,
    pub demand: CpuDemand,
    /// Printed text that goes to the guest with replies, if its own descriptors cannot be here or are not its own any more.
    pub printed: OnceLock<Printed>,
    journal: Journal,
    /// `None` in replay.
    socket: Option<ControlSocket>,
    sending: Mutex<()>,
    /// False while the session stands and may be another process's: the guest then hears nothing from this one.
    heard: AtomicBool,
    pub pause: Pause,
    /// Where orders to move come from, and reports go. `None`: there is no process around the module.
    pub orders: Option<OwnedFd>,
    /// Its objects are being made again from a snapshot: the application is not called back.
    rebuilding: AtomicBool,
    /// Asynchronous calls that wait for the application.
    yielded: AtomicUsize,
    /// Charges that no object holds; the session does.
    unbound: Mutex<Charges>,
    /// Charges that last until the specification's server code says so, by its number.
    kept: Mutex<HashMap<u64, Charges>>,
    closures: Mutex<Closures>,
    /// References of callbacks that have run, of objects that a call still used then.
    still_held: Mutex<Vec<HeldObject>>,
    me: Weak<Session>,
}

#[derive(Default)]
struct Closures {
    all: HashSet<ClosureKey>,
    /// By the guest's id.
    lasting: HashMap<u64, ClosureKey>,
}

/// Parts of a session.
pub struct Parts {
    pub api: &'static ApiDescriptor,
    pub vendor: &'static Vendor,
    pub memory: SessionMemory,
    pub stats: StatsPage,
    pub gate: Gate,
    pub devices: Devices,
    pub policy: Policy,
    pub printed: Option<Printed>,
    pub log: ObjectLog,
    pub journal: Journal,
    pub socket: Option<ControlSocket>,
    /// For tests: the session asks to be moved after so many calls, again and again.
    pub move_every: Option<u64>,
    pub orders: Option<OwnedFd>,
}

/// The accounts of a session as its API says, and behind them those of its `handles` and of its `host_log`: parts of its tenant's, or without a
/// tenant's page its own, with the limits of its configuration.
pub fn gate(api: &ApiDescriptor, config: &Assignment, page: Option<BorrowedFd<'_>>) -> Result<Gate, String> {
    let handles = Resource { name: HANDLES, kind: Kind::Continuous };
    let log = Resource { name: HOST_LOG, kind: Kind::Continuous };
    let resources = api.resources.iter().map(|(name, kind)| Resource { name, kind: *kind }).chain([handles, log]);
    let Some(page) = page else { return Ok(Gate::new(resources, |name| config.limits.get(name).copied())) };
    let page = TenantPage::open(page).map_err(|error| error.to_string())?;
    let seat = TenantSlot::new(page, config.slot).ok_or_else(|| format!("there is no slot {}", config.slot))?;
    seat.show_guest(config.guest);
    Gate::of_tenant(resources, &seat).map_err(|error| error.to_string())
}

impl Session {
    pub fn new(parts: Parts) -> Arc<Session> {
        Arc::new_cyclic(|me| Session {
            api: parts.api,
            vendor: parts.vendor,
            handles: HandleTable::new(parts.api.handle_types),
            gate: parts.gate,
            policy: parts.policy,
            tickets: Tickets::default(),
            late: DeferredOutputs::default(),
            handed: Handed::default(),
            contents: Contents::default(),
            memory: parts.memory,
            mappings: Mappings::default(),
            states: States::default(),
            freed: FreedMemory::default(),
            residents: Residents::default(),
            deferred_ends: DeferredEnds::default(),
            log: parts.log,
            stats: parts.stats,
            callback_lane: CallbackLane::default(),
            posted: PostedCallbacks::default(),
            devices: parts.devices,
            demand: CpuDemand::default(),
            printed: parts.printed.map_or_else(OnceLock::new, OnceLock::from),
            journal: parts.journal,
            socket: parts.socket,
            sending: Mutex::default(),
            heard: AtomicBool::new(true),
            pause: Pause::new(parts.move_every),
            orders: parts.orders,
            rebuilding: AtomicBool::new(false),
            yielded: AtomicUsize::new(0),
            unbound: Mutex::default(),
            kept: Mutex::default(),
            closures: Mutex::default(),
            still_held: Mutex::default(),
            me: me.clone(),
        })
    }

    pub fn note(&self, text: &str) {
        self.journal.note(text);
    }

    /// Has output of the vendor's library go to the guest with replies from now on. Once per session; the output of all
    /// sessions of this process is one.
    pub fn print_with_replies(&self) -> io::Result<()> {
        if self.printed.get().is_some() {
            return Ok(());
        }
        let (out, errors) = (printed::pipe()?, printed::pipe()?);
        if self.printed.set(Printed::new([out.0, errors.0], Look::AtEachReply)?).is_ok() {
            adopt_output(Some(out.1.as_raw_fd()), Some(errors.1.as_raw_fd()));
        }
        Ok(())
    }

    /// The node's name for it.
    pub fn number(&self) -> u64 {
        self.journal.session
    }

    /// The vendor library is done with memory that the guest lent it: told with the next answer.
    pub fn return_memory(&self, pointer: *const u8) {
        // While a session is made again: it had been returned where that was before.
        let offset = self.memory.shared_offset(pointer, 0).filter(|_| !self.is_rebuilding());
        let Some(offset) = offset else { return };
        let delivery = Some(Delivery { offset, bytes: 0 });
        self.finish_later(DeferredOutput { until: None, delivery, copy: None, keep: None });
    }

    /// The guest is told when the vendor library is done with it.
    pub fn finish_later(&self, pending: DeferredOutput) {
        if !self.late.add(pending) {
            self.fail("the guest has too many unfinished transfers");
        }
    }

    pub fn is_dead(&self) -> bool {
        self.pause.is_dead()
    }

    pub fn is_rebuilding(&self) -> bool {
        self.rebuilding.load(Ordering::SeqCst)
    }

    pub(crate) fn set_rebuilding(&self, rebuilding: bool) {
        self.rebuilding.store(rebuilding, Ordering::SeqCst);
    }

    /// Ends the session: the guest broke the protocol, or something failed beyond repair.
    pub fn fail(&self, reason: &str) {
        if self.pause.kill() {
            self.note(&format!("session ended: {reason}"));
        }
        self.farewell();
    }

    /// All waits of the session end.
    pub fn kill(&self) {
        self.pause.kill();
        self.tickets.interrupt();
        self.callback_lane.kill();
        self.posted.end();
    }

    /// Tells the guest, and wakes the control thread by the hang-up.
    pub fn farewell(&self) {
        self.tell(Control { kind: control_kind::FAREWELL, ..Control::default() });
        if let Some(socket) = self.socket.as_ref().filter(|_| self.heard.load(Ordering::SeqCst)) {
            let _ = rustix::net::shutdown(socket.as_fd(), rustix::net::Shutdown::Both);
        }
    }

    /// A control message. A guest that does not read its socket loses them: nobody here may block on it.
    pub fn tell(&self, message: Control) {
        let Some(socket) = self.socket.as_ref().filter(|_| self.heard.load(Ordering::SeqCst)) else { return };
        let _guard = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let flags = rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT;
        let _ = rustix::net::send(socket.as_fd(), &message.to_bytes(), flags);
    }

    /// `heard`: the guest is this process's; otherwise it hears nothing from here, and its socket stays open whatever happens.
    pub fn set_heard(&self, heard: bool) {
        self.heard.store(heard, Ordering::SeqCst);
    }

    pub fn socket(&self) -> Option<&ControlSocket> {
        self.socket.as_ref()
    }

    /// The vendor library, inside an asynchronous call, waits for the application. Calls that follow this
    /// one may run now, as the application's answer may depend on them; the vendor has seen this one.
    pub fn yield_ticket(&self, ticket: u64) {
        // Before its successors can finish: they must not declare this call's blocks free.
        self.yielded.fetch_add(1, Ordering::SeqCst);
        self.tickets.finish(ticket);
    }

    /// An asynchronous call has run: its successor may, and the guest may reuse the blocks it named.
    pub fn finish_ticket(&self, ticket: u64, yielded: bool) {
        self.tickets.finish(ticket);
        let others = self.yielded.fetch_sub(usize::from(yielded), Ordering::SeqCst) - usize::from(yielded);
        if others == 0 {
            self.memory.show_finished(self.tickets.done());
        }
    }

    /// The item of a resource on these devices (see [`Gate`]). `function`: the number of the function that asks.
    pub fn place(&self, function: u32, resource: usize, devices: &[String]) -> Result<usize, Reject> {
        self.gate.residency(resource, devices).map_err(|error| {
            self.audit(self.function_name(function), format_args!("{error}"));
            Reject::Refused
        })
    }

    /// The part that the tenant's limits leave of a continuous resource; `None`: there are none.
    pub fn allowance(&self, resource: &str, device: Option<&str>) -> Option<Allowance> {
        self.gate.allowance(resource, device)
    }

    /// Which of the tenant's programs hold how much of a continuous resource on a device.
    pub fn process_uses(&self, resource: &str, device: &str) -> Vec<ProcessUse> {
        self.gate.process_uses(resource, device)
    }

    pub fn charge(&self, function: u32, item: usize, amount: u64) -> Result<(), Reject> {
        let result = self.gate.charge(item, amount);
        self.show(item);
        result.map_err(|refusal| self.refuse(function, item, amount, &refusal))
    }

    /// A call is about to create so many objects, until [`Session::return_handles`].
    pub fn reserve_handles(&self, function: u32, count: u64) -> Result<(), Reject> {
        let item = self.handles_item();
        let charge = |amount| self.gate.charge(item, amount).map_err(|refusal| (amount, refusal));
        self.handles.quota.reserve(count, charge).map_err(|(amount, refusal)| {
            self.show(item);
            self.refuse(function, item, amount, &refusal)
        })
    }

    pub fn return_handles(&self, count: u64) {
        if count > 0 {
            self.handles.quota.release(count, |amount| self.gate.uncharge(self.handles_item(), amount));
            self.show(self.handles_item());
        }
    }

    /// See [`gate`].
    fn handles_item(&self) -> usize {
        self.api.resources.len()
    }

    /// Charges the tenant for the object log as it is now. While the session is made again the charge is the old process's.
    pub fn settle_log(&self) {
        if self.log.is_unsettled() && !self.is_rebuilding() {
            self.settle_log_now();
        }
    }

    #[cold]
    fn settle_log_now(&self) {
        // See `gate`.
        let item = self.handles_item() + 1;
        let fits = self.log.settle(|amount| self.gate.charge(item, amount), |amount| self.gate.uncharge(item, amount));
        self.show(item);
        if !fits {
            self.note("its tenant has no room for the object log (host_log): the session cannot be moved");
        }
    }

    pub fn consume(&self, function: u32, resource: usize, amount: u64) -> Result<(), Reject> {
        let result = self.gate.consume(resource, amount);
        self.show(resource);
        result.map_err(|refusal| self.refuse(function, resource, amount, &refusal))
    }

    #[cold]
    fn refuse(&self, function: u32, item: usize, amount: u64, refusal: &Refusal) -> Reject {
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
        self.audit(self.function_name(function), format_args!("device={device:?} is not the tenant's"));
        Err(Reject::Refused)
    }

    fn function_name(&self, number: u32) -> &'static str {
        self.api.functions.get(number as usize).map_or("?", |function| function.name)
    }

    /// Counts a refusal and writes a line about it, unless the tenant has too many of them now.
    pub fn audit(&self, what: &str, figures: std::fmt::Arguments<'_>) {
        self.stats.refused.fetch_add(1, Ordering::Relaxed);
        let Some(suppressed) = self.gate.admit_line() else { return };
        let Policy { tenant, guest, .. } = &self.policy;
        let suppressed =
            if suppressed > 0 { format!(" ({suppressed} more of this tenant were not logged)") } else { String::new() };
        self.note(&format!(
            "refused: tenant={tenant} session={} pid={guest} function={what} {figures}{suppressed}",
            self.journal.session
        ));
    }

    fn show(&self, item: usize) {
        let Some(resource) = self.gate.resource(item) else { return };
        let Some(account) = self.gate.accounts().get(resource) else { return };
        self.stats.show_account(resource, account);
        if item != resource {
            self.stats.show_device_accounts(&self.gate);
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

    /// Ties the charges of a successful call to the object that it created, or to the session.
    #[inline]
    pub fn hold(&self, created: Option<u64>, holding: &mut Charges) {
        if !holding.is_empty() {
            self.hold_charges(created, holding);
        }
    }

    fn hold_charges(&self, created: Option<u64>, holding: &mut Charges) {
        if created.is_some_and(|id| self.handles.hold(id, holding)) {
            return;
        }
        self.unbound().merge(holding);
    }

    /// Keeps the charges of a successful call until [`Session::return_kept`].
    pub fn keep(&self, number: u64, holding: &mut Charges) {
        self.kept().entry(number).or_default().merge(holding);
    }

    /// False: nothing is kept under this number here.
    pub fn return_kept(&self, number: u64) -> bool {
        let kept = self.kept().remove(&number);
        kept.map(|mut holding| self.settle(&mut holding)).is_some()
    }

    /// `deallocates_rc`: returns at most what was charged and is still held, so accounts cannot drift:
    /// first what no object holds, then what the objects hold that the call names.
    pub fn uncharge(&self, item: usize, amount: u64, named: impl Iterator<Item = u64>) {
        let mut returned = self.unbound().take(item, amount);
        for id in named {
            returned += self.handles.take(id, item, amount - returned);
        }
        self.gate.uncharge(item, returned);
        self.show(item);
    }

    pub fn object_ended(&self, ended: Ended) {
        let mut counted = 0;
        for mut ended in ended.along.into_iter().chain([Ended { along: Vec::new(), ..ended }]) {
            counted += u64::from(ended.counted);
            self.settle(&mut ended.holding);
            self.log.object_ended(ended.id);
            self.resident_owner_ended(ended.id);
        }
        self.settle_log();
        self.return_handles(counted);
        self.show_handles();
    }

    /// The guest has given the id to another object, although the vendor's library still has this one. Nobody can
    /// name it: so what it holds stays charged.
    pub fn object_lost(&self, ended: Ended) {
        for mut ended in ended.along.into_iter().chain([Ended { along: Vec::new(), ..ended }]) {
            self.hold(None, &mut ended.holding);
            self.log.object_ended(ended.id);
        }
    }

    pub fn show_handles(&self) {
        self.stats.handles.store(self.handles.len() as u64, Ordering::Relaxed);
    }

    /// The closure for a callback of the guest; true if it is new. `None`: there are too many.
    ///
    /// Only closures that live as long as the session are shared between calls: the others
    /// end with their own call, whatever other threads do with the same callback.
    pub fn closure(&self, id: u64, kind: u32, life: ClosureLifetime) -> Option<(ClosureKey, bool)> {
        let mut closures = self.closures();
        if let Some(key) = closures.lasting.get(&id).filter(|_| life == ClosureLifetime::Session) {
            return Some((*key, false));
        }
        if closures.all.len() >= MAX_CALLBACKS {
            self.note("the guest has too many callbacks");
            return None;
        }
        let thread = std::thread::current().id();
        let key = closures::insert(Closure { session: self.me.clone(), id, kind, life, thread, names: None });
        closures.all.insert(key);
        if life == ClosureLifetime::Session {
            closures.lasting.insert(id, key);
        }
        Some((key, true))
    }

    /// Answers what it kept, which ends with the answer.
    pub fn forget_closure(&self, key: ClosureKey) -> Option<KeptObject> {
        let closure = closures::remove(key)?;
        let mut closures = self.closures();
        closures.all.remove(&key);
        if closure.life == ClosureLifetime::Session {
            closures.lasting.remove(&closure.id);
        }
        drop(closures);
        let NamedObject { native, id, let_go, .. } = closure.names?;
        let object = HeldObject { native, id, let_go: let_go? };
        Some(KeptObject { session: self.me.upgrade()?, object })
    }

    /// Returns the reference of a callback that has run, and those of earlier ones that calls under way still used then.
    fn let_go(&self, object: HeldObject) {
        let mut objects = std::mem::take(&mut *self.still_held());
        objects.push(object);
        objects.retain(|object| !self.let_go_unused(*object));
        self.still_held().append(&mut objects);
    }

    /// Returns all references of callbacks that have run; false: calls still use some of the objects.
    pub fn let_go_all(&self) -> bool {
        let mut objects = std::mem::take(&mut *self.still_held());
        objects.retain(|object| !self.let_go_unused(*object));
        let mut still_held = self.still_held();
        still_held.append(&mut objects);
        still_held.is_empty()
    }

    /// For tests, on a lane: all lanes stop now, and the node is asked to move the session. It answers in any case.
    pub fn ask_to_move(&self) {
        let asked = self.orders.as_ref().is_some_and(|orders| moving::report(orders, &MoveReport::Wanted, &[]).is_ok());
        if !asked {
            self.pause.resume();
        }
    }

    /// False: a call of some lane uses the object.
    fn let_go_unused(&self, HeldObject { native, id, let_go }: HeldObject) -> bool {
        let Ok(_) = self.handles.ending(id, false, &LaneUses::default(), || false) else { return false };
        // SAFETY: `Call::callback_holds` has retained the object for this release, and nothing else releases for it.
        unsafe { let_go(native) };
        if let Some(ended) = self.handles.unpin(id) {
            self.object_ended(ended);
        }
        true
    }

    /// True: calls under way used objects when callbacks let them go.
    pub(crate) fn holds_objects_back(&self) -> bool {
        !self.still_held().is_empty()
    }

    /// The numbers of callbacks that the vendor library may still call, with how long each lives.
    pub(crate) fn registered_callbacks(&self) -> Vec<(u64, ClosureLifetime)> {
        let closures = self.closures();
        let all = closures.all.iter().filter_map(|key| Some((key.number(), closures::life(*key)?)));
        all.collect()
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

    fn still_held(&self) -> MutexGuard<'_, Vec<HeldObject>> {
        self.still_held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn closures(&self) -> MutexGuard<'_, Closures> {
        self.closures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<u64, Charges>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unbound(&self) -> MutexGuard<'_, Charges> {
        self.unbound.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An object that stays alive and valid, although the guest may have released it, until this is dropped. Not to be dropped
/// inside a callback of the vendor library: dropping calls the library.
pub struct KeptObject {
    session: Arc<Session>,
    object: HeldObject,
}

/// A reference that this process holds for a callback.
#[derive(Clone, Copy)]
struct HeldObject {
    native: u64,
    id: u64,
    let_go: ObjectFn,
}

impl Drop for KeptObject {
    fn drop(&mut self) {
        self.session.let_go(self.object);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let keys: Vec<_> = self.closures().all.drain().collect();
        keys.into_iter().for_each(|key| drop(closures::remove(key)));
    }
}
